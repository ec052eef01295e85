"""`baton serve` and `baton worker` told to end: soon, quietly, and with the same status as every other command."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.paths import own_command
from tests.engine.models.tiny import write_tiny

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends signals")

# What a person waits for without wondering.
SOON_S = 3.0

SMALL = ["--threads", "1", "--slots", "1", "--ctx", "256", "--json"]
SERVE = ["serve", "--port", "0", *SMALL]
WORKER = ["worker", "--listen", "127.0.0.1:0", "--trust", "0" * 64, *SMALL]


@pytest.fixture(autouse=True)
def python_s_own_handler() -> Iterator[None]:
    """A shell that runs the tests in the background has Ctrl-C ignored, and children inherit that."""
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, inherited)


@contextlib.contextmanager
def running(words: list[str], model: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*own_command(), *words, "--model", str(model)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["ready"]


def check_that_it_ends(process: subprocess.Popen[str], number: signal.Signals) -> None:
    told_s = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - told_s < SOON_S
    assert process.returncode == 128 + number
    for word in ("Traceback", "terminate called", "ignored"):
        assert word not in errors


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda value: value.name
)
@pytest.mark.parametrize("words", [SERVE, WORKER], ids=["serve", "worker"])
def test_every_signal_to_end_gives_its_own_status(
    tmp_path: Path, words: list[str], number: signal.Signals
) -> None:
    with running(words, write_tiny("qwen2", tmp_path / "tiny.gguf")) as process:
        wait_until_ready(process)
        check_that_it_ends(process, number)


@pytest.mark.parametrize("delay_s", [0.1, 0.3])
def test_ctrl_c_while_the_form_for_prompts_is_made_is_quiet(smollm2_path: Path, delay_s: float) -> None:
    with running(SERVE, smollm2_path) as process:
        wait_until_ready(process)
        time.sleep(delay_s)  # the moment is what is tried, nothing is waited for
        check_that_it_ends(process, signal.SIGINT)


@pytest.mark.soak
@pytest.mark.usefixtures("cold_starts")
@pytest.mark.parametrize("words", [SERVE, WORKER], ids=["serve", "worker"])
def test_ctrl_c_at_any_moment_of_the_start_is_quiet(smollm2_path: Path, words: list[str]) -> None:
    # Python's own start, before anything of ours, takes some 50 ms on a slow computer, and complains.
    for tenths in range(2, 40):
        with running(words, smollm2_path) as process:
            time.sleep(tenths / 10)  # the moment is what is tried, nothing is waited for
            check_that_it_ends(process, signal.SIGINT)
