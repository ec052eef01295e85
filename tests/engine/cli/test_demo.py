"""The demo as a user runs it: real processes, a real model, and nothing left behind however it ends."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.node.scratch import private_folder
from engine.paths import own_command, scratch_dir

TIMEOUT_S = 60.0

# What the demo says before it starts anything, when each of the two is up, and when they are joined.
STARTING, WORKER_UP, DECODER_UP, JOINED = "Two engines", "the worker", "the decoder", "joined"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for leftovers in /proc")


class Demo:
    """A running demo. All its processes, and theirs, carry a mark in their environment."""

    def __init__(self, model: Path, *words: str) -> None:
        self._mark = f"BATON_TEST={uuid.uuid4().hex}"
        name, value = self._mark.split("=")
        self.process = subprocess.Popen(
            [*own_command(), "demo", "--json", "--model", str(model), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, name: value},
            # A shell that runs the tests in the background has Ctrl-C ignored, and children inherit that.
            preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )

    def wait_for(self, moment: str) -> None:
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if moment in line:
                return
        pytest.fail(f"the demo ended before {moment!r}:\n{''.join(lines)}")

    def wait_until_all_are_gone(self) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while pids := self.processes():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    descriptor = os.pidfd_open(pid)
                    try:
                        left_s = deadline - time.monotonic()
                        assert select.select([descriptor], [], [], max(0, left_s))[0], f"{pid} is left behind"
                    finally:
                        os.close(descriptor)

    def processes(self) -> list[int]:
        """Every process that carries the mark and has not ended."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self._mark.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

    def folders(self) -> list[Path]:
        return sorted(scratch_dir().glob(f"demo-{self.process.pid}-*"))

    def end(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate(timeout=TIMEOUT_S)


@contextlib.contextmanager
def demo(model: Path, *words: str) -> Iterator[Demo]:
    running = Demo(model, *words)
    try:
        yield running
    finally:
        running.end()


def test_the_demo_answers_with_a_remote_prefill_and_leaves_nothing_behind(smollm2_path: Path) -> None:
    with demo(smollm2_path) as running:
        out, err = running.process.communicate(timeout=2 * TIMEOUT_S)
        assert running.process.returncode == 0, err
        assert running.processes() == []
        assert running.folders() == []
    report = json.loads(out)
    assert list(report) == [
        "answer",
        "prefill",
        "prompt_tokens",
        "handoff_bytes",
        "overlap",
        "tail_ms",
        "ttft_ms",
        "decode_tps",
        "remote_tokens",
        "reason",
        "detail",
    ]
    assert report["prefill"] == "remote"
    assert report["prompt_tokens"] > 300
    # K and V in bf16: 30 layers, 3 heads of 64, for all tokens but the last
    assert report["handoff_bytes"] == (report["prompt_tokens"] - 1) * 30 * 3 * 64 * 2 * 2
    assert (report["reason"], report["remote_tokens"]) == ("asked_remote", report["prompt_tokens"] - 1)
    assert 0 <= report["overlap"] <= 1
    assert report["tail_ms"] >= 0
    assert report["ttft_ms"] > 0
    assert report["decode_tps"] > 0
    assert len(report["answer"]) > 20


def check_that_nothing_is_left(model: Path, number: signal.Signals, moment: str) -> None:
    with demo(model) as running:
        running.wait_for(moment)
        running.process.send_signal(number)
        running.process.wait(TIMEOUT_S)
        running.wait_until_all_are_gone()
        if number is signal.SIGKILL:
            assert running.folders()
            with private_folder("demo"):
                pass
        assert running.folders() == []
        assert (
            running.process.returncode
            == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
        )


@pytest.mark.parametrize(
    ("number", "moment"),
    [(signal.SIGKILL, STARTING), (signal.SIGINT, WORKER_UP)],
    ids=lambda value: str(value),
)
def test_a_demo_that_is_ended_leaves_nothing_behind(
    smollm2_path: Path, number: signal.Signals, moment: str
) -> None:
    check_that_nothing_is_left(smollm2_path, number, moment)


@pytest.mark.soak
@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda value: value.name
)
@pytest.mark.parametrize("moment", [STARTING, WORKER_UP, DECODER_UP, JOINED])
def test_a_demo_that_is_ended_at_any_moment_leaves_nothing_behind(
    smollm2_path: Path, number: signal.Signals, moment: str
) -> None:
    check_that_nothing_is_left(smollm2_path, number, moment)


def test_a_model_that_cannot_be_loaded_is_one_sentence_and_the_log(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with demo(broken) as running:
        out, err = running.process.communicate(timeout=TIMEOUT_S)
        assert running.process.returncode == 1
        assert running.processes() == []
    assert out == ""
    assert "baton: the worker ended with status 2" in err
    assert "broken.gguf" in err
    assert "Traceback" not in err
