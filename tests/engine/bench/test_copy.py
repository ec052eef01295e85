"""The figures of a copy: what a real one took, beside what iperf3 is said to have carried."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.bench import copy
from engine.bench.couriers import LOOPBACK, opened

N_BYTES = (5 << 20) + 1


def test_a_copy_is_set_beside_iperf3_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy, "iperf3_gbps", lambda *_, **__: 4.0)
    # what the two used before the first bytes is taken off
    monkeypatch.setattr(copy, "cpu_seconds", lambda pid: 1000.0)
    with opened(LOOPBACK) as link:
        report = copy.measure(link, tmp_path, n_bytes=N_BYTES, rounds=1)
    assert (report.bytes, report.rounds, report.iperf3_gbps) == (N_BYTES, 1, 4.0)
    assert report.of_iperf3 == report.best_of_iperf3 == report.goodput_gbps / 4.0 > 0
    assert report.cpu_s_per_gb < 0
    assert not (tmp_path / "landing" / "model.gguf").exists()
