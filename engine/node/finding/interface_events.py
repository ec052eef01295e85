"""Tells when this computer's network interfaces or addresses changed, as the system itself says so.

Linux has a netlink socket for it and macOS a routing socket: nothing is looked at while nothing changes. Elsewhere the
caller is told to look once in a while. What changed is not said: whoever is told looks for himself.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from collections.abc import Callable

# One cable that is plugged in makes a dozen events: they are told as one, when it has been quiet for so long ...
_QUIET_S = 0.15

# ... or when they have gone on for so long.
_LONGEST_S = 1.0

# How often to look where the system has no events that are known here.
_LOOK_EVERY_S = 30.0

_READ_BYTES = 1 << 16

# linux/rtnetlink.h: changes of links, of IPv4 and of IPv6 addresses.
_RTMGRP_LINK, _RTMGRP_IPV4_IFADDR, _RTMGRP_IPV6_IFADDR = 0x1, 0x10, 0x100

# net/route.h of macOS: addresses that come and go, and interfaces that change. All else on that socket is routes.
_RTM_NEWADDR, _RTM_DELADDR, _RTM_IFINFO = 0xC, 0xD, 0xE
_RTM_HEADER = struct.Struct("=HBB")  # length, version, type


class InterfaceEvents:
    """Calls `on_change` on the running loop after each burst of changes, from `start` to `close`."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._socket: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._burst_began_s: float | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._socket = _event_socket()
        if self._socket is None:
            self._timer = loop.call_later(_LOOK_EVERY_S, self._look)
        else:
            loop.add_reader(self._socket, self._read)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _read(self) -> None:
        assert self._socket is not None
        changed = False
        try:
            while True:
                changed |= is_change(self._socket.recv(_READ_BYTES))
        except BlockingIOError:
            pass
        except OSError:
            changed = True  # more events than the system keeps: some are lost, so there were some
        if changed:
            self._wait_for_quiet()

    def _wait_for_quiet(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._burst_began_s is None:
            self._burst_began_s = now
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(min(now + _QUIET_S, self._burst_began_s + _LONGEST_S), self._tell)

    def _tell(self) -> None:
        self._burst_began_s = None
        self._on_change()

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look)
        self._on_change()


def is_change(message: bytes, platform: str = sys.platform) -> bool:
    """Whether a message of the system's is about interfaces or addresses; netlink was asked for nothing else."""
    if platform != "darwin":
        return True
    if len(message) < _RTM_HEADER.size:
        return False
    return _RTM_HEADER.unpack_from(message)[2] in (_RTM_NEWADDR, _RTM_DELADDR, _RTM_IFINFO)


def _event_socket() -> socket.socket | None:
    """A socket that becomes readable at each change; None where the system has none, or gives none."""
    with contextlib.suppress(OSError):
        if sys.platform == "darwin":
            events = socket.socket(socket.AF_ROUTE, socket.SOCK_RAW, 0)
            events.setblocking(False)
            return events
        if sys.platform == "linux":
            events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
            events.bind((0, _RTMGRP_LINK | _RTMGRP_IPV4_IFADDR | _RTMGRP_IPV6_IFADDR))
            events.setblocking(False)
            return events
    return None
