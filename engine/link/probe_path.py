"""The half of a probe that asks: path MTU, round trips, goodput and bursts to open `ProbePorts`, both directions.

Blocking; the whole takes about ten seconds.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated

import msgspec

from engine.errors import PeerLost
from engine.link.probe_wire import (
    HEAD_BYTES,
    IO_TIMEOUT_S,
    MAX_PACKET_BYTES,
    RESULT,
    Budget,
    Head,
    Kind,
    forbid_fragments,
    is_too_large,
    read_exactly,
    read_head,
    receive_all,
    receive_burst,
    resolve,
    send_for,
)

# The sizes of IP packets that cables, tunnels and their neighbours stop at.
_USUAL_MTUS = (9216, 9000, 8000, 1500, 1492, 1400, 1280)
_SMALLEST_PACKET = 576

# Sizes that are tried at once between the largest that passed and the smallest that did not.
_N_BETWEEN = 20
_N_TRIES = 3
_QUIET_S = 0.15

_N_ROUND_TRIPS = 200
_ROUND_TRIP_TIMEOUT_S = 0.2
_MAX_ROUND_TRIPS_S = 0.8

_STREAM_S = 1.25
_STREAMS = 2

# A burst is a few milliseconds of what the link carries.
_BURST_S = 0.004
_MIN_BURST_BYTES = 64 << 10
_MAX_BURST_BYTES = 2 << 20
_N_BURSTS = 12
_N_BURST_CONNECTIONS = 3

# Five times the shortest time after which Linux takes a connection for idle: its window is halved for each.
_IDLE_S = 1.05

_IP_AND_UDP_BYTES = {socket.AF_INET: 28, socket.AF_INET6: 48}

_Real = Annotated[float, msgspec.Meta(ge=0)]

# Called as each part begins, with its name.
Say = Callable[[str], None]


class RoundTrips(msgspec.Struct, frozen=True, kw_only=True):
    """Small datagrams and their answers; `lost` of `sent` never came."""

    sent: int
    lost: int
    median_ms: _Real
    worst_ms: _Real


class Direction(msgspec.Struct, frozen=True, kw_only=True):
    """One way over the link. Goodput is TCP payload in Gbit/s; bursts are timed until all of one is there.

    `path_mtu` is None where no datagram came through at all.
    """

    path_mtu: int | None
    goodput_gbps: _Real
    goodput_two_streams_gbps: _Real
    burst_bytes: int
    burst_warm_ms: _Real
    burst_after_idle_ms: _Real


class PathMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured between the two computers."""

    round_trips: RoundTrips | None
    to_peer: Direction
    from_peer: Direction

    def seen_from_there(self) -> PathMeasures:
        """The same, as the other computer has it."""
        return msgspec.structs.replace(self, to_peer=self.from_peer, from_peer=self.to_peer)


@dataclass(frozen=True, kw_only=True)
class Target:
    """The other end's open ports, and the address here that packets leave from."""

    local_host: str
    peer_host: str
    udp_port: int
    tcp_port: int
    token: bytes


def measure(target: Target, *, local_mtu: int, peer_mtu: int, say: Say) -> PathMeasures:
    """Everything, one part after the other. Raises PeerLost where the other end does not answer."""
    try:
        say("the largest packets that pass")
        to_peer_mtu, from_peer_mtu = path_mtus(target, local_mtu=local_mtu, peer_mtu=peer_mtu)
        say("round trips")
        trips = _round_trips(target)
        say("speed to the other computer")
        out = [_goodput(target, Kind.SINK, n) for n in (1, _STREAMS)]
        say("speed from the other computer")
        back = [_goodput(target, Kind.SOURCE, n) for n in (1, _STREAMS)]
        say("bursts after a pause")
        sizes = (_burst_bytes(out[0]), _burst_bytes(back[0]))
        warm_out, idle_out, warm_back, idle_back = _bursts(target, sizes)
    except OSError as error:
        raise PeerLost(
            f"the other computer's ports for probing at {target.peer_host} do not answer "
            f"({error.strerror or error}): a firewall there may keep them shut; allow Baton in it, and probe again"
        ) from error
    return PathMeasures(
        round_trips=trips,
        to_peer=Direction(
            path_mtu=to_peer_mtu,
            goodput_gbps=out[0],
            goodput_two_streams_gbps=out[1],
            burst_bytes=sizes[0],
            burst_warm_ms=warm_out,
            burst_after_idle_ms=idle_out,
        ),
        from_peer=Direction(
            path_mtu=from_peer_mtu,
            goodput_gbps=back[0],
            goodput_two_streams_gbps=back[1],
            burst_bytes=sizes[1],
            burst_warm_ms=warm_back,
            burst_after_idle_ms=idle_back,
        ),
    )


def path_mtus(target: Target, *, local_mtu: int, peer_mtu: int) -> tuple[int | None, int | None]:
    """The largest packet that comes through to the other end, and from there; None where none does. Raises OSError.

    None larger than the sending end's own MTU is looked for.
    """
    with _datagrams(target) as (probe, overhead):
        return (
            find_mtu(lambda sizes: _passes_out(probe, target, overhead, sizes), highest=local_mtu),
            find_mtu(lambda sizes: _passes_in(probe, target, overhead, sizes), highest=peer_mtu),
        )


def find_mtu(passes: Callable[[Sequence[int]], set[int]], *, highest: int) -> int | None:
    """The largest packet that passes, up to `highest`; None where not even a small one does.

    `passes` tries sizes together and says which came through.
    """
    highest = min(highest, MAX_PACKET_BYTES)
    tried = sorted({_SMALLEST_PACKET, highest, *(size for size in _USUAL_MTUS if size < highest)})
    best, too_large = 0, highest + 1
    while tried:
        passed = passes(tried)
        best = max([best, *passed])
        if best == 0:
            return None
        too_large = min([too_large, *(size for size in tried if size > best and size not in passed)])
        step = max(1, (too_large - best) // (_N_BETWEEN + 1))
        tried = list(range(best + step, too_large, step))[:_N_BETWEEN]
    return best


@contextlib.contextmanager
def _datagrams(target: Target) -> Iterator[tuple[socket.socket, int]]:
    """A socket to the other end that sends whole packets or none, and what a packet has beside its payload."""
    family, here = resolve(target.local_host, 0, socket.SOCK_DGRAM)
    _, there = resolve(target.peer_host, target.udp_port, socket.SOCK_DGRAM)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        forbid_fragments(probe)
        probe.bind(here)
        probe.connect(there)
        yield probe, _IP_AND_UDP_BYTES[family]


def _passes_out(probe: socket.socket, target: Target, overhead: int, sizes: Sequence[int]) -> set[int]:
    """Of packets that we send."""

    def ask(size: int) -> bytes:
        return Head(target.token, Kind.ECHO, size).pack().ljust(size - overhead, b"\0")

    return _volleys(probe, target, sizes, ask, lambda head, n: head.size + overhead)


def _passes_in(probe: socket.socket, target: Target, overhead: int, sizes: Sequence[int]) -> set[int]:
    """Of packets that the other end sends."""

    def ask(size: int) -> bytes:
        return Head(target.token, Kind.FILL, size, size - overhead).pack()

    return _volleys(probe, target, sizes, ask, lambda head, n: n + overhead)


def _volleys(
    probe: socket.socket,
    target: Target,
    sizes: Iterable[int],
    ask: Callable[[int], bytes],
    proved: Callable[[Head, int], int],
) -> set[int]:
    """The sizes that came through in one of a few tries; what the system here refuses to send has not."""
    missing, passed = set(sizes), set()
    for _ in range(_N_TRIES):
        for size in sorted(missing):
            if not _send_whole(probe, ask(size)):
                missing.discard(size)
        for head, n_bytes in _heard(probe, target, lambda: bool(missing)):
            if head.kind == Kind.TOO_LARGE:
                missing.discard(head.number)
            elif proved(head, n_bytes) == head.number and head.number in missing:
                missing.discard(head.number)
                passed.add(head.number)
    return passed


def _send_whole(probe: socket.socket, data: bytes) -> bool:
    """Whether the system here lets a datagram of that size go. Raises OSError for any other reason."""
    for _ in range(2):  # the first complaint may be a router's, about an earlier one
        try:
            probe.send(data)
            return True
        except OSError as error:
            if not is_too_large(error):
                raise
    return False


def _heard(probe: socket.socket, target: Target, more: Callable[[], bool]) -> Iterator[tuple[Head, int]]:
    """Answers until it is quiet, or no more are wanted."""
    probe.settimeout(_QUIET_S)
    while more():
        try:
            data = probe.recv(MAX_PACKET_BYTES)
        except TimeoutError:
            return
        except OSError as error:
            if not is_too_large(error):  # a router's word, which silence says as well
                raise
            continue
        with contextlib.suppress(struct.error):
            head = read_head(data)
            if head.token == target.token:
                yield head, len(data)


def _round_trips(target: Target) -> RoundTrips | None:
    """Of small datagrams, one after the other; None where none is answered."""
    times_ms = []
    n_sent = 0
    end_s = time.monotonic() + _MAX_ROUND_TRIPS_S
    with _datagrams(target) as (probe, _):
        probe.settimeout(_ROUND_TRIP_TIMEOUT_S)
        while n_sent < _N_ROUND_TRIPS and time.monotonic() < end_s:
            n_sent += 1
            answer = Head(target.token, Kind.ECHO, n_sent, HEAD_BYTES).pack()
            sent_s = time.perf_counter()
            probe.send(Head(target.token, Kind.ECHO, n_sent).pack())
            with contextlib.suppress(TimeoutError):
                while probe.recv(MAX_PACKET_BYTES) != answer:  # one that was late, for an earlier one
                    pass
                times_ms.append((time.perf_counter() - sent_s) * 1000)
    if not times_ms:
        return None
    return RoundTrips(
        sent=n_sent,
        lost=n_sent - len(times_ms),
        median_ms=statistics.median(times_ms),
        worst_ms=max(times_ms),
    )


def _connect(target: Target, head: Head) -> socket.socket:
    family, here = resolve(target.local_host, 0, socket.SOCK_STREAM)
    _, there = resolve(target.peer_host, target.tcp_port, socket.SOCK_STREAM)
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(IO_TIMEOUT_S)
        connection.bind(here)
        connection.connect(there)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(head.pack())
    except BaseException:
        connection.close()
        raise
    return connection


def _goodput(target: Target, kind: Kind, n_streams: int) -> float:
    """Gbit/s that so many connections carry together."""
    budget = Budget()
    begin = threading.Barrier(n_streams)

    def one(_: int) -> float:
        with _connect(target, Head(target.token, kind, time_ms=round(_STREAM_S * 1000))) as connection:
            begin.wait(IO_TIMEOUT_S)
            if kind == Kind.SINK:
                send_for(connection, _STREAM_S, budget)
                n_bytes, took_s = RESULT.unpack(read_exactly(connection, RESULT.size))
            else:
                n_bytes, took_s = receive_all(connection, budget)
            return n_bytes * 8 / took_s / 1e9 if took_s else 0.0

    with ThreadPoolExecutor(n_streams) as threads:
        try:
            return sum(threads.map(one, range(n_streams)))
        except threading.BrokenBarrierError as error:
            raise ConnectionError("a second connection was refused") from error


def _burst_bytes(gbps: float) -> int:
    return min(max(round(gbps * 1e9 / 8 * _BURST_S), _MIN_BURST_BYTES), _MAX_BURST_BYTES)


def _bursts(target: Target, sizes: tuple[int, int]) -> tuple[float, float, float, float]:
    """How long a burst takes in ms: out on a warm connection and after a pause, then the same back.

    `sizes` are those of a burst out and of one back. All connections pause together.
    """
    with contextlib.ExitStack() as stack:
        ways = [
            [
                _Bursts(
                    stack.enter_context(_connect(target, Head(target.token, kind, size=size))), kind, size
                )
                for _ in range(_N_BURST_CONNECTIONS)
            ]
            for kind, size in zip((Kind.BURSTS_IN, Kind.BURSTS_OUT), sizes, strict=True)
        ]
        warm = [[each.take_ms() for each in way for _ in range(_N_BURSTS)] for way in ways]
        time.sleep(_IDLE_S)
        idle = [[each.take_ms() for each in way] for way in ways]
    out, back = ((statistics.median(warm[i]), statistics.median(idle[i])) for i in range(2))
    return (*out, *back)


@dataclass(frozen=True)
class _Bursts:
    """A connection for bursts of one kind and size."""

    connection: socket.socket
    kind: Kind
    size: int

    def take_ms(self) -> float:
        """How long one takes, there and the answer back, or asked for and back."""
        began_s = time.perf_counter()
        if self.kind is Kind.BURSTS_IN:
            self.connection.sendall(bytes(self.size))
            read_exactly(self.connection, 1)
        else:
            self.connection.sendall(b"\0")
            if not receive_burst(self.connection, self.size, Budget()):
                raise ConnectionError("the other end closed the connection")
        return (time.perf_counter() - began_s) * 1000
