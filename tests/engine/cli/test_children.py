"""Children: what they say is heard, why they failed is told, and they end when their parent does."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.cli.children import Child, ended_together
from engine.errors import ProcessFailed

# A child whose first word says what it does.
CHILD = """
import json, os, sys, time
from engine.cli.lifetime import watch_stdin
lines = watch_stdin()
what = sys.argv[1]
if what == "fails":
    print("the wheels came off", file=sys.stderr)
    sys.exit(3)
if what == "stubborn":
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("not json")
print(json.dumps({"ready": True, "port": 4711}), flush=True)
if what == "silent":
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
print(json.dumps({"heard": lines.get()}), flush=True)
time.sleep(60)
"""

PARENT = f"""
import sys
import time
from pathlib import Path
from engine.cli import children
children.own_command = lambda: [sys.executable, "-c", {CHILD!r}]
with children.Child("child", ["waits"], Path(sys.argv[1])) as child:
    child.wait_for("ready", timeout_s=30)
    print(child.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def fake_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.cli.children.own_command", lambda: [sys.executable, "-c", CHILD])


def test_a_child_says_when_it_is_ready_and_ends_when_told(tmp_path: Path) -> None:
    with Child("worker", ["waits"], tmp_path / "log") as child:
        assert child.wait_for("ready", timeout_s=30)["port"] == 4711
        child.check()
    with pytest.raises(ProcessFailed, match="ended with status"):
        child.check()


def test_a_child_can_be_told_something_later(tmp_path: Path) -> None:
    with Child("worker", ["waits"], tmp_path / "log") as child:
        child.tell("127.0.0.1:4711")
        assert child.wait_for("heard", timeout_s=30) == {"heard": "127.0.0.1:4711"}


def test_a_child_that_fails_is_quoted(tmp_path: Path) -> None:
    with Child("worker", ["fails"], tmp_path / "log") as child, pytest.raises(ProcessFailed) as failure:
        child.wait_for("ready", timeout_s=30)
    assert "the worker ended with status 3" in str(failure.value)
    assert "the wheels came off" in str(failure.value)


def test_a_child_that_takes_too_long_is_named(tmp_path: Path) -> None:
    with Child("worker", ["waits"], tmp_path / "log") as child:
        child.wait_for("ready", timeout_s=30)
        with pytest.raises(ProcessFailed, match=r"the worker was not ready within 0 s"):
            child.wait_for("worker", timeout_s=0.05)


def test_a_child_that_will_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.cli.children._GRACE_S", 0.2)
    with Child("worker", ["stubborn"], tmp_path / "log") as child:
        child.wait_for("ready", timeout_s=30)
    assert not alive(child.pid)


def test_children_that_are_told_together_end_in_the_time_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.cli.children._GRACE_S", 1.0)
    with (
        Child("worker", ["stubborn"], tmp_path / "worker") as worker,
        Child("decoder", ["stubborn"], tmp_path / "decoder") as decoder,
        ended_together(worker, decoder),
    ):
        for child in (worker, decoder):
            child.wait_for("ready", timeout_s=30)
        told_s = time.monotonic()
    assert time.monotonic() - told_s < 1.9
    assert not alive(worker.pid) and not alive(decoder.pid)


def test_a_child_that_falls_silent_and_lives_on_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.cli.children._GRACE_S", 0.1)
    with Child("worker", ["silent"], tmp_path / "log") as child:
        child.wait_for("ready", timeout_s=30)
        with pytest.raises(ProcessFailed, match="the worker has stopped talking"):
            child.wait_for("heard", timeout_s=30)


def test_closing_twice_does_no_harm(tmp_path: Path) -> None:
    with Child("worker", ["waits"], tmp_path / "log") as child:
        child.close()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system cannot watch another process")
def test_a_child_ends_with_a_killed_parent(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    try:
        assert select.select([child], [], [], 10)[0]
    finally:
        os.close(child)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
