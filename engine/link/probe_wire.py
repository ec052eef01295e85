"""What the two ends of a probe say to each other over UDP and plain TCP, and how either end moves bytes.

A datagram is a head and filling; its answer is a head, or as much as was asked for. A connection begins with one head
that says what it is for. Each head carries the token that was agreed over the nodes' own, encrypted connection.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import sys
import threading
import time
from enum import IntEnum
from typing import NamedTuple

TOKEN_BYTES = 16

# token, kind, number, size in bytes (of the datagram, or of a burst), time in ms
_HEAD = struct.Struct("!16sBIII")
HEAD_BYTES = _HEAD.size

# What was received at the end of a stream: bytes, and seconds that they took.
RESULT = struct.Struct("!Qd")

# An IP packet of this size is the largest that is looked for; jumbo frames end near 9,000, some at 16,000.
MAX_PACKET_BYTES = 16_000

# One burst, timed whole: some milliseconds of a fast link.
MAX_BURST_BYTES = 4 << 20

# A stream's start is slow, and is not counted.
OMIT_S = 0.25

MAX_STREAM_S = 3.0

# The whole of what one end sends or receives for one probe: 25 Gbit/s for all of its time.
MAX_TOTAL_BYTES = 64 << 30

_BLOCK_BYTES = 1 << 20

# Longer than any pause of a sound link.
IO_TIMEOUT_S = 3.0

# A stream or a burst that takes longer is given up: its other end may send a byte now and then for ever.
LONGEST_S = MAX_STREAM_S + IO_TIMEOUT_S

# The numbers that systems have for "do not fragment"; Python does not name them all.
_LINUX_MTU_DISCOVER = {socket.AF_INET: (0, 10), socket.AF_INET6: (41, 23)}
_LINUX_PROBE = 3  # sets the flag, and heeds no limit learnt before
_MACOS_DONT_FRAGMENT = {socket.AF_INET: (0, 28), socket.AF_INET6: (41, 62)}
_WINDOWS_DONT_FRAGMENT = {socket.AF_INET: (0, 14), socket.AF_INET6: (41, 14)}


class Kind(IntEnum):
    """What a head asks for or says."""

    ECHO = 1  # datagram: answer with a head that says how much came
    FILL = 2  # datagram: answer with one of `size` bytes
    TOO_LARGE = 3  # datagram, in answer to FILL: the system here lets none of that size go
    SINK = 4  # connection: receive until I end, then tell what came
    SOURCE = 5  # connection: send for `time_ms`, then end
    BURSTS_IN = 6  # connection: for each burst of `size` bytes that came, one byte back
    BURSTS_OUT = 7  # connection: for each byte, one burst of `size` bytes back


class Head(NamedTuple):
    token: bytes
    kind: int
    number: int = 0
    size: int = 0
    time_ms: int = 0

    def pack(self) -> bytes:
        return _HEAD.pack(*self)


def read_head(data: bytes) -> Head:
    """The head that `data` begins with; raises struct.error where it is shorter."""
    return Head(*_HEAD.unpack_from(data))


class Budget:
    """Bytes that may still be moved, for all threads of one end."""

    def __init__(self, n_bytes: int = MAX_TOTAL_BYTES) -> None:
        self._left = n_bytes
        self._lock = threading.Lock()

    def take(self, n_bytes: int) -> bool:
        """Whether so many may be moved yet."""
        with self._lock:
            self._left -= n_bytes
            return self._left >= 0


def resolve(host: str, port: int, kind: socket.SocketKind) -> tuple[socket.AddressFamily, tuple[object, ...]]:
    """Family and socket address of an address in digits, with its zone where it has one. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_NUMERICHOST)[0]
    return family, address


def forbid_fragments(probe: socket.socket) -> None:
    """Each datagram goes whole or not at all, whatever the system believes of the path. Raises OSError."""
    family = socket.AddressFamily(probe.family)
    if sys.platform == "linux":
        probe.setsockopt(*_LINUX_MTU_DISCOVER[family], _LINUX_PROBE)
    else:
        options = _MACOS_DONT_FRAGMENT if sys.platform == "darwin" else _WINDOWS_DONT_FRAGMENT
        probe.setsockopt(*options[family], 1)


def is_too_large(error: OSError) -> bool:
    """Whether a datagram was refused here because of its size."""
    return error.errno in (errno.EMSGSIZE, 10040)  # and Windows' own number for it


def read_exactly(connection: socket.socket, n_bytes: int) -> bytes:
    """Raises OSError, also where the other end closes before."""
    data = b""
    while len(data) < n_bytes:
        part = connection.recv(n_bytes - len(data))
        if not part:
            raise ConnectionError("the other end closed the connection")
        data += part
    return data


def send_for(connection: socket.socket, seconds: float, budget: Budget) -> None:
    """Send as fast as goes for that long, then end this direction. Raises OSError."""
    block = memoryview(bytes(_BLOCK_BYTES))
    end_s = time.monotonic() + min(seconds, MAX_STREAM_S)
    while time.monotonic() < end_s:
        if not budget.take(connection.send(block)):
            break
    connection.shutdown(socket.SHUT_WR)


def receive_all(
    connection: socket.socket, budget: Budget, *, longest_s: float = LONGEST_S
) -> tuple[int, float]:
    """Receive to the end: bytes and seconds after the start that is not counted. Raises OSError."""
    block = memoryview(bytearray(_BLOCK_BYTES))
    n_bytes, began_s, last_s = 0, None, 0.0
    omit_until_s = time.monotonic() + OMIT_S
    give_up_at_s = time.monotonic() + longest_s
    while n := connection.recv_into(block):
        if not budget.take(n):
            break
        last_s = time.monotonic()
        if began_s is not None:
            n_bytes += n
        elif last_s >= omit_until_s:
            began_s = last_s
        if last_s > give_up_at_s:
            break
    return (n_bytes, last_s - began_s) if began_s is not None else (0, 0.0)


def receive_burst(
    connection: socket.socket, n_bytes: int, budget: Budget, *, longest_s: float = LONGEST_S
) -> bool:
    """Receive so many bytes; False at the end of the connection, or of all patience. Raises OSError."""
    block = memoryview(bytearray(min(n_bytes, _BLOCK_BYTES)))
    left = n_bytes
    give_up_at_s = time.monotonic() + longest_s
    while left:
        if time.monotonic() > give_up_at_s:
            return False
        n = connection.recv_into(block[: min(left, len(block))])
        if not n or not budget.take(n):
            return False
        left -= n
    return True


def close_quietly(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.close()
