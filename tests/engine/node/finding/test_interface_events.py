"""Changes of the network interfaces: a burst of them is one, those without an end are told too, and routes are none."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from engine.node.finding import interface_events
from engine.node.finding.interface_events import InterfaceEvents, is_change

TIMEOUT_S = 10.0


def run(
    job: Callable[[socket.socket, list[float], asyncio.Event], Coroutine[Any, Any, None]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    has_socket: bool = True,
) -> None:
    """`job` gets the system's end of the socket, when it was told of changes, and an event that each of these sets."""

    async def started() -> None:
        ours, systems = socket.socketpair(type=socket.SOCK_DGRAM)
        ours.setblocking(False)
        monkeypatch.setattr(interface_events, "_event_socket", lambda: ours if has_socket else None)
        told: list[float] = []
        tells = asyncio.Event()

        def tell() -> None:
            told.append(asyncio.get_running_loop().time())
            tells.set()

        events = InterfaceEvents(tell)
        events.start()
        try:
            await asyncio.wait_for(job(systems, told, tells), TIMEOUT_S)
        finally:
            events.close()
            ours.close()
            systems.close()

    asyncio.run(started())


def test_a_burst_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def job(system: socket.socket, told: list[float], tells: asyncio.Event) -> None:
        for times in (1, 2):
            for _ in range(20):
                system.send(b"change")
            tells.clear()
            await tells.wait()
            assert len(told) == times

    run(job, monkeypatch)


def test_changes_without_an_end_are_told_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface_events, "_QUIET_S", 60.0)
    monkeypatch.setattr(interface_events, "_LONGEST_S", 0.05)

    async def job(system: socket.socket, told: list[float], tells: asyncio.Event) -> None:
        while not told:
            system.send(b"change")
            await asyncio.sleep(0)

    run(job, monkeypatch)


def test_where_there_are_no_events_it_is_looked_at_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface_events, "_LOOK_EVERY_S", 0.01)

    async def job(system: socket.socket, told: list[float], tells: asyncio.Event) -> None:
        while len(told) < 3:
            tells.clear()
            await tells.wait()

    run(job, monkeypatch, has_socket=False)


@pytest.mark.parametrize(
    ("kind", "changed"), [(0xC, True), (0xD, True), (0xE, True), (0x1, False), (0x2, False), (0x4, False)]
)
def test_macos_tells_of_routes_as_well_which_are_none(kind: int, changed: bool) -> None:
    message = struct.pack("=HBB", 100, 5, kind) + bytes(96)
    assert is_change(message, "darwin") is changed
    assert is_change(message, "linux")


def test_a_message_cut_short_is_none() -> None:
    assert not is_change(b"\x01", "darwin")
