"""Answers that take time: signs of life meanwhile, and an end with their client."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from engine.errors import InvalidRequest
from engine.node.control import lines as module
from engine.node.control.lines import Items
from tests.engine.node.glue import run


def test_signs_of_life_come_until_there_is_something_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEPALIVE_S", 0.001)
    seen = asyncio.Event()

    async def items() -> Items:
        await seen.wait()
        yield {"part": 1}
        raise InvalidRequest("it is not there")

    async def work() -> None:
        said = module._with_signs_of_life(items())
        assert await anext(said) == await anext(said) == b"\n"
        seen.set()
        told = [json.loads(line) async for line in said if line != b"\n"]
        assert told[0] == {"part": 1}
        assert told[1]["error"]["message"] == "it is not there" and len(told) == 2

    run(work())


def test_a_client_that_goes_ends_what_it_waited_for() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def items() -> Items:
        try:
            began.set()
            await asyncio.Event().wait()
            yield {}
        finally:
            ended.set()

    async def work() -> None:
        said = module._with_signs_of_life(items())
        waiting = asyncio.ensure_future(anext(said))
        await began.wait()
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        assert ended.is_set()

    run(work())


def test_what_a_client_that_goes_had_begun_is_put_away_to_the_end() -> None:
    """A server cancels again and again, until all has ended."""
    began, may_end = asyncio.Event(), asyncio.Event()
    put_away: list[int] = []

    async def items() -> Items:
        try:
            began.set()
            await asyncio.Event().wait()
            yield {}
        finally:
            for number in range(3):
                await may_end.wait()
                put_away.append(number)

    async def work() -> None:
        waiting = asyncio.ensure_future(anext(module._with_signs_of_life(items())))
        await began.wait()
        for _ in range(5):
            waiting.cancel()
            await asyncio.sleep(0)
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert put_away == [0, 1, 2]

    run(work())
