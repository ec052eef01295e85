"""What is forked in the place of a start: a process as any other."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from engine.paths import own_command
from tests.warm import WarmStarts


@pytest.fixture
def starts(warm_starts: WarmStarts | None) -> WarmStarts:
    if warm_starts is None:
        pytest.skip("processes are forked on Linux alone")
    return warm_starts


@pytest.mark.parametrize(
    "words", [["--version"], ["nonsense"], ["models", "inspect", "here.gguf"]], ids=" ".join
)
def test_it_says_and_ends_as_one_that_was_started(
    starts: WarmStarts, tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "here.gguf").write_bytes(b"no model")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}

    def outcome() -> tuple[int, str, str]:
        done = subprocess.run(
            [*own_command(), *words],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout, done.stderr

    forked = outcome()
    starts.remove()
    try:
        assert outcome() == forked
    finally:
        starts.install()


def test_it_is_a_child_of_the_one_that_asked(starts: WarmStarts) -> None:
    words = [*own_command(), "standby"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True) as process:
        found = psutil.Process(process.pid)
        assert (found.ppid(), os.getsid(process.pid)) == (os.getpid(), process.pid)
        assert "warm.py" in " ".join(found.cmdline())
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL


def test_what_cannot_be_started_is_said_as_ever(starts: WarmStarts, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        subprocess.Popen([*own_command(), "--version"], cwd=tmp_path / "nowhere")


def test_it_ends_with_its_standard_input(starts: WarmStarts) -> None:
    with subprocess.Popen([*own_command(), "standby"], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def test_what_libraries_read_once_is_read_by_a_start(starts: WarmStarts) -> None:
    other = {**os.environ, "OPENSSL_CONF": "x"}
    assert starts.line_to(["status"], os.environ) is not None
    assert starts.line_to(["status"], other) is None
