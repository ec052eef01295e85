"""macOS's Local Network permission: whether it is what keeps this process from the other computer, or a cable is.

The system has no way to ask. A denied process gets "no route to host" at once where the system's own tools, which need
no permission, get through: that is what is looked for. `decide` knows only what was observed; `observe` does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

SETTINGS_URL = "x-apple.systempreferences:com.apple.preference.security?Privacy_LocalNetwork"

# What connecting ends with on macOS: ENETUNREACH and EHOSTUNREACH, which a denial looks like; ECONNREFUSED.
_NO_ROUTE = frozenset({51, 65})
_REFUSED = 61

# A person reads the system's question for so long; until then it is no answer.
_GRACE_S = 30.0

# When to look again by itself: while the question is open, after a no, and while a cable may be plugged in.
_ASKING_AGAIN_S = 2.0
_DENIED_AGAIN_S = 10.0
_ROUTING_AGAIN_S = 30.0

_CONNECT_TIMEOUT_S = 2.0
_TOOL_TIMEOUT_S = 4.0
_MAX_OUTPUT_BYTES = 1 << 14

_MULTICAST_DNS = ("224.0.0.251", 5353)


class State(Enum):
    ALLOWED = "allowed"
    DENIED = "denied"
    UNDETERMINED = "undetermined"
    NOT_APPLICABLE = "not_applicable"
    ROUTING = "routing"


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What was tried, and what came of it; None where nothing was tried or nothing could be told.

    `connect_errno` is 0 for a connection, and None where none came about in time. `is_direct`: the address is on a
    network that this computer is itself on. `tool_reached`: the system's own ping did. `is_neighbour`: the hardware
    address of the host is known, so it has answered the system. `multicast_errno` is that of a packet to all
    neighbours, 0 where it was taken.
    """

    is_macos: bool = True
    is_exempt: bool = False
    host: str | None = None
    connect_errno: int | None = None
    is_direct: bool | None = None
    tool_reached: bool | None = None
    is_neighbour: bool | None = None
    multicast_errno: int | None = None
    worked_before: bool = False
    asked_for_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The state, a sentence that explains it, what to click in that order, and when to look again (None: if asked)."""

    state: State
    sentence: str
    steps: tuple[str, ...] = ()
    settings_url: str | None = None
    check_again_s: float | None = None


def decide(observed: Observed) -> Verdict:
    if not observed.is_macos:
        return Verdict(
            state=State.NOT_APPLICABLE,
            sentence="This system asks for no permission to use the local network.",
        )
    if observed.host is None:
        return _by_multicast(observed)
    if observed.connect_errno in (0, _REFUSED):
        return _allowed()
    if observed.connect_errno in _NO_ROUTE:
        return _no_route(observed, observed.host)
    if observed.connect_errno is None:
        return _routing(
            f"{observed.host} does not answer, and macOS does not hold Baton back: look at the cable, at whether the "
            "other computer is awake and runs Baton, and at its firewall."
        )
    reason = os.strerror(observed.connect_errno)
    return _routing(f"{observed.host} cannot be reached ({reason}): look at the cable and at both addresses.")


def _by_multicast(observed: Observed) -> Verdict:
    """Nobody's address is known yet: all there is to see is whether looking for somebody is let out."""
    if observed.multicast_errno == 0:
        return _allowed()
    if observed.multicast_errno in _NO_ROUTE and not observed.is_exempt:
        return _refused(observed, "macOS lets nothing of Baton's out to the local network.")
    return Verdict(
        state=State.UNDETERMINED,
        sentence="No other computer is known yet, so nothing shows whether macOS lets Baton reach one.",
        check_again_s=_ROUTING_AGAIN_S,
    )


def _no_route(observed: Observed, host: str) -> Verdict:
    if observed.is_direct is False:
        return _routing(
            f"This Mac has no address on the network of {host}: give the cable's interface one (`baton link tune`)."
        )
    if observed.is_exempt:
        return _routing(
            f"There is no way to {host}: look at the cable and at the addresses of both computers."
        )
    if observed.tool_reached or observed.is_neighbour:
        return _refused(
            observed, f"macOS keeps Baton from {host}, which the system itself reaches: it is not the cable."
        )
    if observed.tool_reached is None and observed.is_neighbour is None:
        return Verdict(
            state=State.UNDETERMINED,
            sentence=f"Baton does not reach {host}, and the system's own tools say nothing about why.",
            check_again_s=_ROUTING_AGAIN_S,
        )
    return _routing(
        f"Neither Baton nor the system itself reaches {host}: look at the cable, and at whether the other computer is "
        "awake."
    )


def _refused(observed: Observed, what: str) -> Verdict:
    if not observed.worked_before and observed.asked_for_s < _GRACE_S:
        return Verdict(
            state=State.UNDETERMINED,
            sentence="macOS asks whether Baton may find devices on your local network: click Allow.",
            steps=("Click Allow in the question that macOS shows",),
            settings_url=SETTINGS_URL,
            check_again_s=_ASKING_AGAIN_S,
        )
    again = (
        "It was allowed before; macOS is known to forget that after a restart or an update. "
        if observed.worked_before
        else ""
    )
    return Verdict(
        state=State.DENIED,
        sentence=f"{what} {again}The other computer can still call this one, so what is paired goes on working; only "
        "looking for others from here needs the permission.",
        steps=(
            "Open System Settings, Privacy & Security, Local Network",
            "Switch Baton on; if it is on, switch it off and on again",
            "If Baton is not in the list, open its window and check again there: only a window may bring it in",
            "If nothing helps, quit Baton and open it again",
        ),
        settings_url=SETTINGS_URL,
        check_again_s=_DENIED_AGAIN_S,
    )


def _allowed() -> Verdict:
    return Verdict(state=State.ALLOWED, sentence="macOS lets Baton use the local network.")


def _routing(sentence: str) -> Verdict:
    return Verdict(state=State.ROUTING, sentence=sentence, check_again_s=_ROUTING_AGAIN_S)


# The words of one of the system's tools; its exit status and what it wrote, or None where it could not be run in time.
RunTool = Callable[[Sequence[str]], Awaitable[tuple[int, str] | None]]


def ping_words(host: str) -> tuple[str, ...]:
    if ":" in host:
        return ("/sbin/ping6", "-c", "1", host)
    return ("/sbin/ping", "-c", "1", "-t", "2", host)


def route_words(host: str) -> tuple[str, ...]:
    return ("/sbin/route", "-n", "get", *(("-inet6",) if ":" in host else ()), host)


def neighbour_words(host: str) -> tuple[str, ...]:
    return ("/usr/sbin/ndp", "-n", host) if ":" in host else ("/usr/sbin/arp", "-n", host)


def is_direct_route(output: str) -> bool | None:
    """Whether what `route get` says leads straight to an interface; None where that cannot be read."""
    fields = dict(line.strip().split(": ", 1) for line in output.splitlines() if ": " in line)
    if "interface" not in fields:
        return False if "not in table" in output else None
    return "GATEWAY" not in fields.get("flags", "")


def is_known_neighbour(output: str) -> bool:
    """Whether `arp` or `ndp` has a hardware address for it."""
    return any(
        word.count(":") == 5 and "incomplete" not in line
        for line in output.splitlines()
        for word in line.split()
    )


async def run_tool(words: Sequence[str]) -> tuple[int, str] | None:
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=_MAX_OUTPUT_BYTES,
        )
    except OSError:
        return None
    try:
        output, _ = await asyncio.wait_for(process.communicate(), _TOOL_TIMEOUT_S)
        return process.returncode or 0, output.decode("utf-8", "replace")
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def observe(
    peer: tuple[str, int] | None,
    own_host: str | None,
    *,
    run: RunTool = run_tool,
    is_macos: bool | None = None,
) -> Observed:
    """Try to reach `peer`, an address and a port, and ask the system's tools about it where that fails.

    `own_host` is this computer's IPv4 address on the network in question. Takes some seconds at most.
    """
    is_macos = sys.platform == "darwin" if is_macos is None else is_macos
    if not is_macos:
        return Observed(is_macos=False)
    is_exempt = hasattr(os, "geteuid") and os.geteuid() == 0
    multicast_errno = _send_to_all(own_host) if own_host else None
    # Only an address: a name would be a word to the tools, and might be asked for on the network.
    if peer is None or not _is_address(peer[0]):
        return Observed(is_exempt=is_exempt, multicast_errno=multicast_errno)
    host = peer[0]
    connect_errno = await _connect(host, peer[1])
    if connect_errno not in _NO_ROUTE:
        return Observed(
            is_exempt=is_exempt, host=host, connect_errno=connect_errno, multicast_errno=multicast_errno
        )
    pinged, routed = await asyncio.gather(run(ping_words(host)), run(route_words(host)))
    neighbours = await run(neighbour_words(host))  # after the ping, which asks for the hardware address
    return Observed(
        is_exempt=is_exempt,
        host=host,
        connect_errno=connect_errno,
        is_direct=None if routed is None else is_direct_route(routed[1]),
        tool_reached=None if pinged is None else pinged[0] == 0,
        is_neighbour=None if neighbours is None else is_known_neighbour(neighbours[1]),
        multicast_errno=multicast_errno,
    )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def _connect(host: str, port: int) -> int | None:
    """0, the number of the error, or None where nothing came in time."""
    loop = asyncio.get_running_loop()
    try:
        places = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, place = places[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setblocking(False)
            await asyncio.wait_for(loop.sock_connect(probe, place), _CONNECT_TIMEOUT_S)
        return 0
    except TimeoutError:  # the system's own, too
        return None
    except OSError as error:
        return error.errno


def _send_to_all(own_host: str) -> int | None:
    """0 where a packet to all neighbours is taken, else the number of the error. An empty one is ignored by all."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(own_host))
            probe.sendto(b"", _MULTICAST_DNS)
    except OSError as error:
        return error.errno
    return 0


class LocalNetworkPermission:
    """A part of the node: looks when it is asked, and by itself for as long as there is something to wait for.

    `peer` and `own_host` give what `observe` takes. `memory` is a file that says that it worked once.
    """

    def __init__(
        self,
        *,
        peer: Callable[[], tuple[str, int] | None],
        own_host: Callable[[], str | None],
        memory: Path,
        on_change: Callable[[], None],
        observe: Callable[[tuple[str, int] | None, str | None], Awaitable[Observed]] = observe,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._peer = peer
        self._own_host = own_host
        self._memory = memory
        self._on_change = on_change
        self._observe = observe
        self._clock = clock
        self._refused_since_s: float | None = None
        self._verdict = decide(Observed(is_macos=sys.platform == "darwin"))
        self._checking = asyncio.Lock()
        self._checked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def snapshot(self) -> dict[str, Any]:
        return {**asdict(self._verdict), "state": self._verdict.state.value}

    async def check(self) -> Verdict:
        async with self._checking:
            observed = await self._observe(self._peer(), self._own_host())
            now_s = self._clock()
            if self._refused_since_s is None and _NO_ROUTE & {
                observed.connect_errno,
                observed.multicast_errno,
            }:
                self._refused_since_s = now_s
            asked_for_s = 0.0 if self._refused_since_s is None else now_s - self._refused_since_s
            verdict = decide(replace(observed, worked_before=self._memory.exists(), asked_for_s=asked_for_s))
            if verdict.state is State.ALLOWED:
                self._refused_since_s = None
                self._remember()
            if verdict != self._verdict:
                self._verdict = verdict
                self._on_change()
            self._checked.set()
            return verdict

    async def _run(self) -> None:
        await self.check()
        while True:
            self._checked.clear()
            try:
                await asyncio.wait_for(self._checked.wait(), self._verdict.check_again_s)
            except TimeoutError:
                await self.check()

    def _remember(self) -> None:
        with contextlib.suppress(OSError):
            self._memory.parent.mkdir(parents=True, exist_ok=True)
            self._memory.touch()
