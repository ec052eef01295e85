"""A process that waits becomes the next engine, whichever that is; where none waits a new one is started."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from engine.node.reporting.logs import RotatingLog
from engine.node.standby import Standby
from engine.node.supervisor import EngineProcess, State
from tests.engine.node.glue import TIMEOUT_S, run

pytestmark = pytest.mark.usefixtures("child_script")

CHILD = """
import json, os, sys
words = sys.argv[1:]
if words == ["standby"]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    order = json.loads(line)
    words = order["words"]
    os.environ.update(order["environment"])
print(json.dumps({"ready": True, "pid": os.getpid(), "words": words, "key": os.environ.get("KEY", "")}), flush=True)
for line in sys.stdin:
    print(json.dumps({"heard": line.strip()}), flush=True)
"""


class Room:
    """A standby, and an engine that starts by it."""

    def __init__(self, folder: Path, **times: float) -> None:
        self.standby = Standby(os.environ, **{"prepare_after_s": 0.0, "dismiss_after_s": 0.0} | times)
        self.heard: list[str] = []
        self.engine = EngineProcess(
            "engine",
            ["serve", "--model", "m"],
            log=RotatingLog(folder / "engine.log"),
            on_change=lambda: None,
            on_event=lambda event: self.heard.append(event["heard"]),
            environment={**os.environ, "KEY": "secret"},
            start_process=self.standby.start,
            has_endpoint=False,
        )

    async def one_waits(self, *, other_than: int | None = None) -> int:
        async with asyncio.timeout(TIMEOUT_S):
            while (pid := self.standby.pid) is None or pid == other_than:
                await asyncio.sleep(0)
        return pid

    async def close(self) -> None:
        await self.engine.stop()
        await self.standby.close()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_who_waits_becomes_the_engine_and_hears_what_it_would_have_heard(tmp_path: Path) -> None:
    async def work() -> None:
        room = Room(tmp_path)
        room.standby.want(True)
        waiting = await room.one_waits()
        room.engine.tell("worker", "there")
        room.engine.start()
        assert await room.engine.until_settled(TIMEOUT_S)
        ready = room.engine.ready
        assert (ready["pid"], ready["key"]) == (waiting, "secret")
        assert ready["words"] == ["serve", "--model", "m", "--json", "--exit-with-stdin"]
        async with asyncio.timeout(TIMEOUT_S):
            while room.heard != ["there"]:
                await room.engine.until_changed()
        assert room.standby.pid is None
        room.standby.want(True)
        assert await room.one_waits() != waiting
        await room.close()

    run(work())


@pytest.mark.skipif(sys.platform == "win32", reason="knows no signals")
def test_an_engine_that_was_killed_comes_back_in_it(tmp_path: Path) -> None:
    async def work() -> None:
        room = Room(tmp_path)
        room.engine.start()
        assert await room.engine.until_settled(TIMEOUT_S)
        first = room.engine.ready["pid"]
        room.standby.want(True)
        waiting = await room.one_waits()
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(TIMEOUT_S):
            while room.engine.state is not State.READY or room.engine.ready["pid"] == first:
                await room.engine.until_changed()
        assert room.engine.ready["pid"] == waiting
        await room.close()

    run(work())


@pytest.mark.skipif(sys.platform == "win32", reason="knows no signals")
def test_one_that_died_while_it_waited_is_nobody(tmp_path: Path) -> None:
    async def work() -> None:
        room = Room(tmp_path)
        room.standby.want(True)
        os.kill(await room.one_waits(), signal.SIGKILL)
        async with asyncio.timeout(TIMEOUT_S):
            while room.standby.pid is not None:
                await asyncio.sleep(0)
        room.engine.start()
        assert await room.engine.until_settled(TIMEOUT_S)
        assert room.engine.last_outcome is None
        room.standby.want(True)
        await room.one_waits()
        await room.close()

    run(work())


def test_it_ends_when_nobody_wants_it_any_more_but_not_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        room = Room(tmp_path, dismiss_after_s=3600.0)
        room.standby.want(True)
        waiting = await room.one_waits()
        room.standby.want(False)
        await asyncio.sleep(0)
        assert room.standby.pid == waiting
        room.standby.want(True)
        assert room.standby.pid == waiting
        await room.close()
        assert not is_alive(waiting)

        room = Room(tmp_path)
        room.standby.want(True)
        waiting = await room.one_waits()
        room.standby.want(False)
        async with asyncio.timeout(TIMEOUT_S):
            while is_alive(waiting):
                await asyncio.sleep(0)
        assert room.standby.pid is None
        await room.close()

    run(work())


def test_closed_while_one_is_being_started_nothing_is_left(tmp_path: Path) -> None:
    async def work() -> None:
        room = Room(tmp_path)
        room.standby.want(True)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await room.close()
        assert room.standby.pid is None

    run(work())
