"""Prefill speeds on disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.handoff.rates import PrefillRates
from engine.node.known_rates import KnownRates


def some_rates() -> PrefillRates:
    rates = PrefillRates(remote_at=5.0)
    rates.local.observe(100, 1.0)
    rates.remote.observe(2000, 1.0)
    return rates


def test_kept_by_what_they_depend_on(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "rates"
    known = KnownRates(folder, "model", "worker", 2)
    assert known.load() == PrefillRates()
    known.save(some_rates())
    assert KnownRates(folder, "model", "worker", 2).load() == some_rates()
    assert KnownRates(folder, "model", "worker", 3).load() == PrefillRates()
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("content", [b"", b"[" * 50_000, b"{}", b"\xff", b'{"local": 3}', b"null"])
def test_a_damaged_file_is_nothing_known(tmp_path: Path, content: bytes) -> None:
    known = KnownRates(tmp_path, "model")
    known.save(some_rates())
    next(tmp_path.iterdir()).write_bytes(content)
    assert known.load() == PrefillRates()
    known.save(some_rates())
    assert known.load() == some_rates()


def test_where_nothing_can_be_written_nothing_happens(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    known = KnownRates(blocked / "rates", "model")
    known.save(some_rates())
    assert known.load() == PrefillRates()


def test_old_files_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.node.known_rates._MAX_FILES", 3)
    for number in range(5):
        KnownRates(tmp_path, number).save(some_rates())
        for path in tmp_path.iterdir():
            os.utime(path, (path.stat().st_mtime - 10, path.stat().st_mtime - 10))
    assert len(list(tmp_path.iterdir())) == 3
    assert [KnownRates(tmp_path, number).load().local.is_known for number in (0, 4)] == [False, True]
