"""What both ends of a control connection share: framing, hello first, heartbeat, and the way it ends. Sans-IO.

Bytes go in by `receive`, events come out of it, bytes to send are taken with `take_output`. The clock comes
in as an argument (microseconds, monotonic). The two ends are `engine.wire.client` and `engine.wire.worker`.
Nothing here knows sockets, threads or memory.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from engine.errors import PeerError, PeerLost, ProtocolError
from engine.wire.codec import CONTROL_MESSAGES, FrameReader, decode_message, encode_message
from engine.wire.limits import (
    CLOCK_SAMPLES,
    HEARTBEAT_INTERVAL_S,
    HEARTBEAT_MISSES,
    MAX_CONTROL_BYTES,
    MAX_HELLO_BYTES,
    MAX_TEXT_CHARS,
)
from engine.wire.messages import AnyMessage, Code, Error, Message, Ping, Pong

Clock = Callable[[], int]

HEARTBEAT_INTERVAL_US = int(HEARTBEAT_INTERVAL_S * 1_000_000)
SILENCE_LIMIT_US = HEARTBEAT_INTERVAL_US * HEARTBEAT_MISSES


class ConnectionState(enum.Enum):
    HELLO = "waiting for the hello, or for its answer"
    OPEN = "open"
    CLOSED = "closed"


class Event:
    """Base of what a connection reports."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockSample:
    """One ping's answer: how far the peer's clock is ahead of ours, right to within half the round trip."""

    offset_us: int
    round_trip_us: int


class Connection:
    """The shared half of both ends. A breach raises PeerError; the caller then sends `farewell` and closes."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._reader = FrameReader(max_body_bytes=MAX_HELLO_BYTES)
        self._output = bytearray()
        self.state = ConnectionState.HELLO
        self._clock_samples: deque[ClockSample] = deque(maxlen=CLOCK_SAMPLES)
        now_us = clock()
        self._last_heard_us = now_us
        self._last_tick_us = now_us
        self._next_ping_us = now_us

    def receive(self, data: bytes | bytearray | memoryview) -> list[Event]:
        """Take bytes of the control connection; returns what they led to. Raises PeerError on any breach."""
        if self.state is ConnectionState.CLOSED:
            raise ProtocolError("bytes on a connection that has ended")
        self.heard()
        self._reader.feed(data)
        events: list[Event] = []
        try:
            while (body := self._reader.next_body()) is not None:
                self._handle_body(body, events)
        except PeerError:
            self.state = ConnectionState.CLOSED
            raise
        return events

    def take_output(self) -> bytes:
        """All bytes that are ready to go out on the control connection, which forgets them."""
        output = bytes(self._output)
        self._output.clear()
        return output

    @property
    def has_output(self) -> bool:
        return bool(self._output)

    @property
    def best_clock_sample(self) -> ClockSample | None:
        """Of the last answers to pings the one with the shortest round trip, the newest of equal ones."""
        return min(reversed(self._clock_samples), key=lambda sample: sample.round_trip_us, default=None)

    def heard(self) -> None:
        """Something came from the peer, on whatever socket."""
        self._last_heard_us = self._clock()

    def tick(self) -> None:
        """Ping when it is time; raise PeerLost after too long a silence. Call after reading, every heartbeat."""
        now_us = self._clock()
        if now_us - self._last_tick_us > 2 * HEARTBEAT_INTERVAL_US:
            # This process itself stood still: the peer's pings may be waiting unread.
            self._last_heard_us = now_us
        self._last_tick_us = now_us
        if now_us - self._last_heard_us > SILENCE_LIMIT_US:
            self.state = ConnectionState.CLOSED
            raise PeerLost(f"nothing was heard from the other computer for {SILENCE_LIMIT_US // 1_000_000} s")
        if self.state is ConnectionState.OPEN and now_us >= self._next_ping_us:
            self._next_ping_us = now_us + HEARTBEAT_INTERVAL_US
            self._send(Ping(sent_us=now_us))

    def last_words(self, error: PeerError | None, *, going: str = "") -> bytes:
        """The last bytes to send before closing; the connection is over.

        `error` is what the peer did, or None where it is we who go, and `going` says why.
        """
        self.state = ConnectionState.CLOSED
        output = self.take_output()
        if error is None:
            text = going or "it has an internal error, see its log"
            return output + encode_message(Error(code=Code.GOING, message=text[:MAX_TEXT_CHARS]))
        if isinstance(error, ProtocolError):
            text = f"it found a breach of the protocol: {error}"
            return output + encode_message(Error(code=Code.PROTOCOL, message=text[:MAX_TEXT_CHARS]))
        return output

    def _send(self, message: Message) -> None:
        self._output += encode_message(message)

    def _open(self) -> None:
        self.state = ConnectionState.OPEN
        self._reader.max_body_bytes = MAX_CONTROL_BYTES

    def _handle_body(self, body: bytes, events: list[Event]) -> None:
        if self.state is ConnectionState.HELLO:
            self._handle_hello(body, events)
            return
        message = decode_message(body, CONTROL_MESSAGES)
        match message:
            case Ping():
                self._send(Pong(ping_sent_us=message.sent_us, received_us=self._clock()))
            case Pong():
                self._sample_clock(message)
            case Error():
                raise PeerLost(f"the other computer ended the connection: {message.message}")
            case _:
                self._handle_message(message, events)

    def _sample_clock(self, pong: Pong) -> None:
        now_us = self._clock()
        round_trip_us = now_us - pong.ping_sent_us
        if round_trip_us < 0:
            raise ProtocolError("an answer to a ping that was never sent")
        sample = ClockSample(
            offset_us=pong.received_us - (pong.ping_sent_us + now_us) // 2, round_trip_us=round_trip_us
        )
        self._clock_samples.append(sample)

    def _handle_hello(self, body: bytes, events: list[Event]) -> None:
        raise NotImplementedError

    def _handle_message(self, message: AnyMessage, events: list[Event]) -> None:
        raise NotImplementedError


def unexpected(message: AnyMessage, where: str) -> ProtocolError:
    """The error for a message that the tables do not allow."""
    return ProtocolError(f"the other computer sent {type(message).__name__} {where}")
