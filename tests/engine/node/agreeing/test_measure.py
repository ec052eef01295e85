"""Measurements: made by a process of its own, once for each model, device and version."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ProcessFailed
from engine.node.agreeing import measure
from engine.node.agreeing.measure import Measurement, Measurements

FOUND = Measurement(prefill_tokens_per_s=100.0, decode_tokens_per_s=10.0, load_s=1.5, device="cpu")


class Counting(Measurements):
    """Runs nothing."""

    n_runs = 0

    async def _run(self, model: Path) -> Measurement:
        self.n_runs += 1
        return FOUND


def counting(folder: Path, **given: Any) -> Counting:
    return Counting(folder, **{"device": "auto", "version": "1", **given})


def test_a_model_is_measured_once(tmp_path: Path) -> None:
    async def both() -> None:
        first = counting(tmp_path)
        assert first.known("a" * 64) is None
        await asyncio.gather(*(first.measure(tmp_path / "model.gguf", "a" * 64) for _ in range(2)))
        assert first.n_runs == 1
        again = counting(tmp_path)
        assert await again.measure(tmp_path / "model.gguf", "a" * 64) == FOUND == again.known("a" * 64)
        assert again.n_runs == 0

    asyncio.run(both())


@pytest.mark.parametrize("other", [{"device": "cpu"}, {"version": "2"}])
def test_another_device_or_version_is_measured_anew(tmp_path: Path, other: dict[str, str]) -> None:
    asyncio.run(counting(tmp_path).measure(tmp_path / "model.gguf", "a" * 64))
    assert counting(tmp_path, **other).known("a" * 64) is None
    assert counting(tmp_path).known("b" * 64) is None


def test_a_damaged_result_is_measured_again(tmp_path: Path) -> None:
    asyncio.run(counting(tmp_path).measure(tmp_path / "model.gguf", "a" * 64))
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes().replace(b"100.0", b"-1.00"))
    again = counting(tmp_path)
    assert asyncio.run(again.measure(tmp_path / "model.gguf", "a" * 64)) == FOUND
    assert again.n_runs == 1


def test_the_model_at_hand_is_measured_in_seconds(tmp_path: Path, smollm2_path: Path) -> None:
    found = asyncio.run(Measurements(tmp_path, device="cpu", version="1").measure(smollm2_path, "a" * 64))
    assert found.device == "cpu" and found.device_name
    # a prompt's tokens are computed together, an answer's one by one
    assert found.prefill_tokens_per_s > 2 * found.decode_tokens_per_s > 2


def test_why_a_model_cannot_be_measured_is_said(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"no model")
    with pytest.raises(ProcessFailed, match=r"broken\.gguf could not be measured: .*GGUF"):
        asyncio.run(
            Measurements(tmp_path, device="cpu", version="1").measure(tmp_path / "broken.gguf", "a" * 64)
        )


def test_who_is_cancelled_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command here only waits for its standard input to end."""
    monkeypatch.setattr(measure, "own_command", lambda: ["/bin/sh", "-c", "echo up >&2; read line"])

    async def cancel() -> None:
        started = asyncio.Event()
        processes = []
        real = measure._hear

        async def hear(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
            processes.append(process)
            started.set()
            return await real(process)

        monkeypatch.setattr(measure, "_hear", hear)
        task = asyncio.create_task(
            Measurements(tmp_path, device="cpu", version="1").measure(tmp_path / "model.gguf", "a" * 64)
        )
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert processes[0].returncode is not None

    asyncio.run(cancel())
