"""Kernels on disk: what is kept, and that nothing goes wrong where it cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine import paths
from engine.kernels import object_cache


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "cache_dir", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "kernels"


def test_gives_back_what_was_saved(folder: Path) -> None:
    assert object_cache.load("key") is None
    object_cache.save("key", b"code")
    object_cache.save("other", b"")
    assert object_cache.load("key") == b"code"
    assert object_cache.load("other") == b""
    object_cache.save("key", b"newer")
    assert object_cache.load("key") == b"newer"
    assert len(list(folder.iterdir())) == 2


@pytest.mark.skipif(os.name != "posix", reason="folders have no modes here")
def test_nobody_else_may_write_there(folder: Path) -> None:
    object_cache.save("key", b"code")
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", ["cut", "changed", "emptied", "lengthened"])
def test_a_damaged_entry_is_a_miss(folder: Path, damage: str) -> None:
    object_cache.save("key", bytes(range(100)))
    (entry,) = folder.iterdir()
    data = bytearray(entry.read_bytes())
    if damage == "changed":
        data[60] ^= 1
    damaged = {"cut": data[:70], "changed": data, "emptied": b"", "lengthened": data + b"x"}[damage]
    entry.write_bytes(damaged)
    assert object_cache.load("key") is None
    object_cache.save("key", b"again")
    assert object_cache.load("key") == b"again"


def test_without_a_folder_nothing_is_kept(folder: Path) -> None:
    folder.parent.write_bytes(b"a file is in the way")
    object_cache.save("key", b"code")
    assert object_cache.load("key") is None


def test_an_unfinished_entry_is_not_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("os.replace", full)
    object_cache.save("key", b"code")
    assert list(folder.iterdir()) == []


def test_old_entries_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_cache, "MAX_ENTRIES", 4)
    for number in range(4):
        object_cache.save(str(number), b"code")
    for number, entry in enumerate(map(object_cache._path, "0123")):
        os.utime(entry, (number, number))
    object_cache.save("new", b"code")
    assert [object_cache.load(key) is not None for key in ("0", "1", "2", "3", "new")] == [
        False,
        False,
        True,
        True,
        True,
    ]
