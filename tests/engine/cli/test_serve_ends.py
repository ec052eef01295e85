"""`baton serve` ended by Ctrl-C just when it is ready, while the form for prompts is still being made."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from engine.paths import own_command


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.3])
def test_ctrl_c_right_after_ready_is_quiet(smollm2_path: Path, delay_s: float) -> None:
    words = ["serve", "--json", "--port", "0", "--threads", "1", "--slots", "1", "--ctx", "256"]
    process = subprocess.Popen(
        [*own_command(), *words, "--model", str(smollm2_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        # A shell that runs the tests in the background has Ctrl-C ignored, and children inherit that.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    with process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["ready"]
            time.sleep(delay_s)  # the moment is what is tried, nothing is waited for
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "Traceback" not in errors and "terminate called" not in errors
