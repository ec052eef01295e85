"""The way off the GUI thread: what is heard, in what order, and what is not."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, Iterator

import pytest

from app.bridge import Bridge
from app.node.faults import AppError
from tests.app.windows import wait


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    made = Bridge()
    yield made
    made.close(asyncio.sleep(0))


async def counted(up_to: int) -> AsyncGenerator[int, None]:
    for number in range(up_to):
        await asyncio.sleep(0)
        yield number


def test_items_come_in_order_on_the_gui_thread(bridge: Bridge) -> None:
    heard: list[tuple[object, int]] = []

    def hear(item: object) -> None:
        heard.append((item, threading.get_ident()))

    bridge.stream(counted(500), hear, lambda _: hear("end"))
    wait(lambda: heard and heard[-1][0] == "end")
    assert [item for item, _ in heard] == [*range(500), "end"]
    assert {thread for _, thread in heard} == {threading.get_ident()}


def test_nothing_is_heard_of_what_was_cancelled_and_its_coroutine_ends(bridge: Bridge) -> None:
    ended: list[str] = []
    heard: list[object] = []

    async def endless() -> AsyncGenerator[int, None]:
        try:
            while True:
                yield 0
                await asyncio.sleep(0)
        finally:
            ended.append("ended")

    job = bridge.stream(endless(), heard.append)
    wait(lambda: heard)
    job.cancel()
    n_heard = len(heard)
    wait(lambda: ended)
    assert len(heard) == n_heard


def test_errors_for_the_user_arrive_as_they_are_and_mistakes_as_one(
    bridge: Bridge, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[AppError] = []

    async def fail(error: Exception) -> None:
        raise error

    bridge.run(fail(AppError("the cable is out")), on_error=errors.append)
    bridge.run(fail(ValueError("odd")), on_error=errors.append)
    wait(lambda: len(errors) == 2)
    assert str(errors[0]) == "the cable is out"
    assert "odd" in str(errors[1]) and "log" in str(errors[1])
    assert "Traceback" in caplog.text


def test_one_that_is_cancelled_before_it_began_never_begins(bridge: Bridge) -> None:
    begun: list[int] = []

    async def begin() -> None:
        begun.append(1)

    for _ in range(50):
        bridge.run(begin()).cancel()
    done: list[object] = []
    bridge.run(asyncio.sleep(0), done.append)
    wait(lambda: done)
    assert len(begun) < 50


def test_what_is_cancelled_before_its_first_step_is_put_away(bridge: Bridge) -> None:
    free = threading.Event()

    async def hold() -> None:
        free.wait()

    async def never() -> None:
        raise AssertionError("it was begun")

    bridge.run(hold())
    coroutine = never()
    job = bridge.run(coroutine)
    bridge._loop.call_soon_threadsafe(job._cancel_task)
    free.set()
    wait(lambda: inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED)
