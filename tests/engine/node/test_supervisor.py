"""Processes that are kept running: every end is explained, and another start follows where it may help."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.node import supervisor
from engine.node.reporting.logs import RotatingLog
from engine.node.supervisor import EngineProcess, State, explain, to_its_end
from tests.engine.node.glue import TIMEOUT_S, run

pytestmark = pytest.mark.usefixtures("child_script")

CHILD = """
import json, os, signal, sys, time
words = sys.argv[1:]
print("I am here", file=sys.stderr, flush=True)
if "refuse" in words:
    print("baton: the model file is cut short: fetch it again", file=sys.stderr)
    sys.exit(2)
if "break" in words:
    sys.exit(1)
print("no json at all", flush=True)
print("x" * 200000, flush=True)
if "hang" in words:
    time.sleep(600)
for line in sys.stdin:
    if line.strip() == "hello":
        break
took = {"model_s": 0.25, "warm_up_s": 0.125}
print(json.dumps({"ready": True, "port": 1, "pid": os.getpid(), "took": took}), flush=True)
if "crash" in words:
    sys.exit(1)
for line in sys.stdin:
    print(json.dumps({"heard": line.strip()}), flush=True)
    if line.strip() == "live":
        for _ in range(40):
            print(json.dumps({"alive": True}), flush=True)
            time.sleep(0.05)
"""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """With children that say nothing for long."""
    monkeypatch.setattr(supervisor, "_SILENT_LOOKS", 1000)


class Kept:
    """A process of ours, and what is heard of it."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.events: list[dict[str, Any]] = []
        self.states: list[State] = []
        self.log = RotatingLog(folder / "engine.log")
        self.process = EngineProcess(
            "engine",
            words,
            log=self.log,
            on_change=lambda: self.states.append(self.process.state),
            on_event=self.events.append,
            has_endpoint=False,
        )

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not is_so():
                await self.process.until_changed()

    async def begin(self) -> None:
        """Start it, and greet it, so that it is ready."""
        self.process.tell("greeting", "hello")
        self.process.start()
        await self.until(lambda: self.process.state is State.READY)


def note_waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Nothing is waited for from now on; how long it would have been."""
    waits: list[float] = []
    real_sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        waits.append(seconds)
        await real_sleep(0)

    monkeypatch.setattr(supervisor.asyncio, "sleep", note)
    return waits


def test_it_is_started_heard_and_ended(tmp_path: Path) -> None:
    async def work() -> None:
        kept = Kept(tmp_path)
        kept.process.tell("greeting", "hello")
        kept.process.start()
        assert await kept.process.until_settled(TIMEOUT_S)
        assert (kept.process.state, kept.process.port) == (State.READY, 1)
        kept.process.tell("word", "go on")
        await kept.until(lambda: kept.events == [{"heard": "go on"}])
        await kept.process.stop()
        assert kept.states == [State.STARTING, State.READY, State.STOPPED]
        assert kept.log.tail(1) == ["I am here"]
        assert kept.process.pid is None

    run(work())


@pytest.mark.skipif(sys.platform == "win32", reason="knows no signals")
def test_one_that_is_killed_comes_back_and_is_told_the_same_again(tmp_path: Path) -> None:
    async def work() -> None:
        kept = Kept(tmp_path)
        kept.process.tell("greeting", "hello")
        kept.process.tell("target", "old")
        kept.process.start()
        await kept.until(lambda: kept.process.state is State.READY)
        kept.process.tell("target", "new")
        first = kept.process.ready["pid"]
        os.kill(first, signal.SIGKILL)
        await kept.until(lambda: kept.process.state is State.READY and kept.process.ready["pid"] != first)
        await kept.until(lambda: kept.events[-1:] == [{"heard": "new"}])
        (outcome,) = kept.process.outcomes
        assert "killed (SIGKILL)" in outcome.reason and outcome.status == -signal.SIGKILL
        assert outcome.log_lines[-1] == "I am here"
        await kept.process.stop()

    run(work())


@pytest.mark.parametrize("n_turns", range(12))
def test_one_that_is_stopped_while_it_is_being_started_ends(tmp_path: Path, n_turns: int) -> None:
    """Nothing is known of a process before it is there; it is ended all the same, and `stop` comes back."""

    async def work() -> None:
        kept = Kept(tmp_path)
        kept.process.start()
        for _ in range(n_turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(TIMEOUT_S):
            await kept.process.stop()
        assert (kept.process.state, kept.process.pid) == (State.STOPPED, None)

    run(work())


@pytest.mark.skipif(sys.platform == "win32", reason="knows no signals")
def test_one_that_hangs_is_killed_though_whoever_stops_it_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_GRACE_S", 0.1)

    async def work() -> None:
        kept = Kept(tmp_path)
        await kept.begin()
        os.kill(kept.process.ready["pid"], signal.SIGSTOP)
        stopping = asyncio.create_task(kept.process.stop())
        await asyncio.sleep(0)
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        assert stopping.cancelled()
        assert (kept.process.state, kept.process.pid) == (State.STOPPED, None)

    run(work())


def test_one_that_was_asked_for_what_cannot_be_says_why_and_stays_down(tmp_path: Path) -> None:
    async def work() -> None:
        kept = Kept(tmp_path, "refuse")
        kept.process.start()
        assert await kept.process.until_settled(TIMEOUT_S)
        assert (kept.process.state, kept.process.n_starts) == (State.FAILED, 1)
        assert str(kept.process.failure()) == "engine: the model file is cut short: fetch it again"
        await kept.process.stop()

    run(work())


def test_one_that_breaks_again_and_again_is_started_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        kept = Kept(tmp_path, "break")
        waits = note_waits(monkeypatch)
        kept.process.start()
        await kept.until(lambda: len(waits) >= 4)
        await kept.process.stop()
        assert waits[:4] == [0.2, 0.4, 0.8, 1.6]
        assert kept.process.state is State.STOPPED

    run(work())


def test_one_that_was_ready_is_started_again_at_once_for_the_first_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        kept = Kept(tmp_path, "crash")
        kept.process.tell("greeting", "hello")
        waits = note_waits(monkeypatch)
        kept.process.start()
        await kept.until(lambda: len(waits) >= 3)
        await kept.process.stop()
        assert waits[:3] == [0.0, 0.2, 0.4]

    run(work())


def test_it_says_what_a_start_took_and_how_long_nothing_was_there(tmp_path: Path) -> None:
    async def work() -> None:
        kept = Kept(tmp_path)
        assert kept.process.snapshot()["last_start"] is None
        await kept.begin()
        first = kept.process.snapshot()["last_start"]
        assert first["away_s"] is None and first["took_s"] > 0
        assert (first["model_s"], first["warm_up_s"]) == (0.25, 0.125)
        await kept.process.start_anew()
        await kept.until(lambda: kept.process.state is State.READY)
        again = kept.process.snapshot()["last_start"]
        assert again["away_s"] >= again["took_s"]
        await kept.process.stop()

    run(work())


def test_stopping_ends_a_wait_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        kept = Kept(tmp_path, "break")
        kept.process.start()
        await kept.until(lambda: kept.process.n_starts >= 3)
        await kept.until(lambda: kept.process.state is State.WAITING)
        await kept.process.stop()
        n_starts = kept.process.n_starts
        assert kept.process.state is State.STOPPED
        assert kept.process.n_starts == n_starts

    run(work())


def test_one_that_hangs_is_ended_and_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its port is one where nothing answers."""
    monkeypatch.setattr(supervisor, "_HEALTH_EVERY_S", 0.01)

    async def work() -> None:
        kept = Kept(tmp_path)
        kept.process._has_endpoint = True
        kept.process.tell("greeting", "hello")
        kept.process.start()
        await kept.until(lambda: bool(kept.process.outcomes))
        assert "stopped answering" in kept.process.outcomes[0].reason
        await kept.process.stop()

    run(work())


def test_one_without_an_endpoint_hangs_when_it_does_not_say_that_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signs of life are no news, and keep it."""
    monkeypatch.setattr(supervisor, "_HEALTH_EVERY_S", 0.2)
    monkeypatch.setattr(supervisor, "_SILENT_LOOKS", 4)

    async def work() -> None:
        kept = Kept(tmp_path)
        kept.process.tell("greeting", "hello")
        kept.process.tell("word", "live")
        kept.process.start()
        await kept.until(lambda: bool(kept.process.outcomes))
        (outcome,) = kept.process.outcomes
        assert "stopped answering" in outcome.reason and outcome.ran_s > 2.0
        assert kept.events == [{"heard": "live"}]
        await kept.until(lambda: kept.process.n_starts == 2)
        await kept.process.stop()

    run(work())


def test_one_that_hangs_while_it_loads_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_HEALTH_EVERY_S", 0.02)
    monkeypatch.setattr(supervisor, "_LOAD_WITHIN_S", 0.1)

    async def work() -> None:
        kept = Kept(tmp_path, "hang")
        kept.process.start()
        await kept.until(lambda: kept.process.n_starts == 2)
        assert "stopped answering" in kept.process.outcomes[0].reason
        assert State.READY not in kept.states
        await kept.process.stop()

    run(work())


@pytest.mark.parametrize(
    ("status", "lines", "reason"),
    [
        (0, [], "it ended by itself"),
        (1, ["baton: the disk is full"], "the disk is full"),
        (1, ["Traceback"], "it failed with status 1; its log has the details"),
        (143, [], "it was told to end (SIGTERM)"),
        (-11, [], "it crashed (SIGSEGV)"),
        (-9, [], "it was killed (SIGKILL); the system does that when memory runs out"),
        (-70, [], "it was ended by signal 70"),
    ],
)
def test_every_end_is_explained(status: int, lines: list[str], reason: str) -> None:
    assert explain(status, lines) == reason


def test_who_is_cancelled_again_and_again_waits_for_the_end() -> None:
    async def work() -> None:
        may_end, done = asyncio.Event(), []

        async def slow() -> None:
            await may_end.wait()
            done.append(True)

        waiting = asyncio.create_task(to_its_end(slow()))
        for _ in range(3):
            await asyncio.sleep(0)
            waiting.cancel()
        await asyncio.sleep(0)
        assert not waiting.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert done == [True]

    run(work())
