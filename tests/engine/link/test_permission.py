"""macOS's Local Network permission, by injected errors: what is told from what, and that it is looked at again."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engine.link.permission import (
    SETTINGS_URL,
    LocalNetworkPermission,
    Observed,
    State,
    decide,
    is_direct_route,
    is_known_neighbour,
    neighbour_words,
    observe,
    ping_words,
    route_words,
    run_tool,
)

HOST = "10.0.0.2"

# macOS's numbers, which are not this system's.
NET_UNREACHABLE, HOST_UNREACHABLE, REFUSED, HOST_DOWN = 51, 65, 61, 64

# A denied process, long after macOS has asked.
DENIED = Observed(
    host=HOST,
    connect_errno=HOST_UNREACHABLE,
    is_direct=True,
    tool_reached=True,
    is_neighbour=True,
    multicast_errno=HOST_UNREACHABLE,
    asked_for_s=31.0,
)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, State.DENIED),
        ({"connect_errno": NET_UNREACHABLE}, State.DENIED),
        ({"tool_reached": False}, State.DENIED),  # what does not answer pings has a hardware address
        ({"tool_reached": None}, State.DENIED),
        ({"is_neighbour": False}, State.DENIED),
        ({"is_direct": None}, State.DENIED),
        ({"tool_reached": False, "is_neighbour": False}, State.ROUTING),
        ({"tool_reached": None, "is_neighbour": None}, State.UNDETERMINED),
        ({"is_direct": False}, State.ROUTING),
        ({"is_exempt": True}, State.ROUTING),
        ({"connect_errno": 0}, State.ALLOWED),
        ({"connect_errno": REFUSED}, State.ALLOWED),
        ({"connect_errno": None}, State.ROUTING),
        ({"connect_errno": HOST_DOWN}, State.ROUTING),
        ({"asked_for_s": 29.0}, State.UNDETERMINED),
        ({"asked_for_s": 29.0, "worked_before": True}, State.DENIED),
        ({"host": None}, State.DENIED),
        ({"host": None, "asked_for_s": 1.0}, State.UNDETERMINED),
        ({"host": None, "multicast_errno": 0}, State.ALLOWED),
        ({"host": None, "multicast_errno": None}, State.UNDETERMINED),
        ({"host": None, "multicast_errno": 49}, State.UNDETERMINED),
        ({"host": None, "is_exempt": True}, State.UNDETERMINED),
        ({"is_macos": False}, State.NOT_APPLICABLE),
    ],
)
def test_each_case_is_told_from_the_others(changes: dict[str, object], state: State) -> None:
    verdict = decide(replace(DENIED, **changes))  # type: ignore[arg-type]
    assert verdict.state is state
    assert verdict.sentence
    assert bool(verdict.settings_url) == bool(verdict.steps)


def test_a_denial_says_what_to_click_and_what_still_works() -> None:
    verdict = decide(DENIED)
    assert verdict.settings_url == SETTINGS_URL
    assert HOST in verdict.sentence and "can still call this one" in verdict.sentence
    assert any("switch it off and on" in step for step in verdict.steps)
    assert "was allowed before" not in verdict.sentence
    assert "was allowed before" in decide(replace(DENIED, worked_before=True)).sentence


def test_the_open_question_is_looked_at_sooner_than_a_no() -> None:
    asking, denied = decide(replace(DENIED, asked_for_s=0.0)), decide(DENIED)
    assert asking.check_again_s and denied.check_again_s and asking.check_again_s < denied.check_again_s
    assert decide(replace(DENIED, connect_errno=0)).check_again_s is None


ON_LINK = """\
   route to: 10.0.0.2
destination: 10.0.0.0
       mask: 255.255.255.0
  interface: en7
      flags: <UP,DONE,CLONING,STATIC,PRCLONING>
 recvpipe  sendpipe  ssthresh  rtt,msec    rttvar  hopcount      mtu     expire
       0         0         0         0         0         0      9000         0
"""
BY_ROUTER = """\
   route to: 10.0.0.2
destination: default
       mask: default
    gateway: 192.168.1.1
  interface: en0
      flags: <UP,GATEWAY,DONE,STATIC,PRCLONING,GLOBAL>
"""


@pytest.mark.parametrize(
    ("output", "direct"),
    [
        (ON_LINK, True),
        (BY_ROUTER, False),
        ("route: writing to routing socket: not in table\n", False),
        ("", None),
        ("nonsense: yes", None),
    ],
)
def test_the_way_to_an_address_is_read(output: str, direct: bool | None) -> None:
    assert is_direct_route(output) is direct


@pytest.mark.parametrize(
    ("output", "known"),
    [
        ("? (10.0.0.2) at a4:83:e7:0:1b:2c on en7 ifscope [ethernet]\n", True),
        ("? (10.0.0.2) at (incomplete) on en7 ifscope [ethernet]\n", False),
        ("10.0.0.2 (10.0.0.2) -- no entry\n", False),
        ("fe80::1%en7   a4:83:e7:0:1b:2c   en7 23h59m58s S\n", True),
        ("", False),
    ],
)
def test_a_neighbours_hardware_address_is_seen(output: str, known: bool) -> None:
    assert is_known_neighbour(output) is known


def test_tools_get_an_address_and_nothing_else() -> None:
    assert ping_words(HOST) == ("/sbin/ping", "-c", "1", "-t", "2", HOST)
    assert ping_words("fe80::1%en7") == ("/sbin/ping6", "-c", "1", "fe80::1%en7")
    assert route_words(HOST) == ("/sbin/route", "-n", "get", HOST)
    assert route_words("fe80::1%en7") == ("/sbin/route", "-n", "get", "-inet6", "fe80::1%en7")
    assert neighbour_words(HOST) == ("/usr/sbin/arp", "-n", HOST)

    async def job() -> None:
        assert (await observe(("-c1000.example", 7119), None, run=fail, is_macos=True)).host is None

    asyncio.run(job())


async def fail(words: Sequence[str]) -> tuple[int, str] | None:
    raise AssertionError(f"{words} was run")


def test_a_refused_connection_asks_no_tools() -> None:
    async def job() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            seen = await observe(("127.0.0.1", port), None, run=fail, is_macos=True)
            assert (seen.host, seen.connect_errno) == ("127.0.0.1", 0)
        seen = await observe(("127.0.0.1", port), "127.0.0.1", run=fail, is_macos=True)
        assert (seen.connect_errno, seen.multicast_errno) == (errno.ECONNREFUSED, 0)
        assert await observe(("127.0.0.1", port), None, run=fail, is_macos=False) == Observed(is_macos=False)

    asyncio.run(job())


def test_no_route_has_the_tools_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unreachable(host: str, port: int) -> int:
        return HOST_UNREACHABLE

    async def run(words: Sequence[str]) -> tuple[int, str] | None:
        return {
            ping_words(HOST): (0, ""),
            route_words(HOST): (0, ON_LINK),
            neighbour_words(HOST): (0, "? (10.0.0.2) at a4:83:e7:0:1b:2c on en7\n"),
        }[tuple(words)]

    monkeypatch.setattr("engine.link.permission._connect", unreachable)

    async def job() -> None:
        seen = await observe((HOST, 7119), None, run=run, is_macos=True)
        assert (seen.is_direct, seen.tool_reached, seen.is_neighbour) == (True, True, True)
        assert seen.connect_errno == HOST_UNREACHABLE

    asyncio.run(job())


def test_tools_that_are_missing_or_hang_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.link.permission._TOOL_TIMEOUT_S", 0.05)

    async def job() -> None:
        assert await run_tool(["/no/such/tool"]) is None
        assert await run_tool(["sleep", "60"]) is None
        assert await run_tool(["sh", "-c", "echo out; exit 3"]) in ((3, "out\n"), None)

    asyncio.run(job())


def test_it_is_looked_at_until_it_works_and_remembered(tmp_path: Path) -> None:
    """First macOS asks; the answer is no, for long; then the switch is turned on, and later off again."""
    answers = [DENIED, DENIED, DENIED, replace(DENIED, connect_errno=0), DENIED]
    times = iter([0.0, 10.0, 40.0, 50.0, 60.0])

    async def next_answer(peer: object, own_host: object) -> Observed:
        assert (peer, own_host) == ((HOST, 7119), "10.0.0.1")
        return answers.pop(0)

    async def job() -> None:
        changes: list[str] = []
        permission = LocalNetworkPermission(
            peer=lambda: (HOST, 7119),
            own_host=lambda: "10.0.0.1",
            memory=tmp_path / "data" / "worked",
            on_change=lambda: changes.append(permission.snapshot()["state"]),
            observe=next_answer,
            clock=lambda: next(times),
        )
        for _ in range(5):
            await permission.check()
        assert changes == ["undetermined", "denied", "allowed", "denied"]
        assert "was allowed before" in permission.snapshot()["sentence"]
        assert (tmp_path / "data" / "worked").exists()

    asyncio.run(job())


def test_the_part_looks_again_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.link.permission._ASKING_AGAIN_S", 0.001)
    answers = [replace(DENIED, host=None), replace(DENIED, host=None), Observed(host=HOST, connect_errno=0)]

    async def next_answer(peer: object, own_host: object) -> Observed:
        return answers.pop(0)

    async def job() -> None:
        allowed = asyncio.Event()
        permission = LocalNetworkPermission(
            peer=lambda: None,
            own_host=lambda: None,
            memory=tmp_path / "worked",
            on_change=lambda: allowed.set() if permission.snapshot()["state"] == "allowed" else None,
            observe=next_answer,
            clock=lambda: 0.0,
        )
        await permission.start()
        await asyncio.wait_for(allowed.wait(), 10)
        await permission.close()
        assert answers == []

    asyncio.run(job())
