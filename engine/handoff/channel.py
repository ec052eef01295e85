"""What an engine and its courier tell each other: one msgspec struct a message, framed by its length.

The two trust each other: they are one program in two processes. Nothing here goes over a network. Request numbers are
the client's; on a worker they are told apart by `link`, since several clients may be connected.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import TypeVar

import msgspec

from engine.cache.spec import Landing
from engine.errors import ProcessFailed
from engine.wire.messages import Code, ModelIdentity, Role

_LENGTH = struct.Struct("<I")


class CourierConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a courier is started with, as one line of JSON on its standard input.

    Exactly one of `dial` and `listen` is set, each a HOST:PORT. Descriptors are inherited.
    """

    role: Role
    identity_dir: str
    trust_dir: str
    fingerprint: str
    dial: str | None
    listen: str | None
    channel_descriptor: int
    memory_descriptor: int
    memory_bytes: int
    identity: ModelIdentity
    data_streams: int = 1
    max_prompt_tokens: int = 0


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all channel messages."""


# Engine of either role to courier, and back.


class Drain(Message, frozen=True):
    """Answer `Drained` once all that was queued before has left this computer's cache memory, or never will."""

    token: int


class Drained(Message, frozen=True):
    token: int


class Listening(Message, frozen=True):
    port: int


class LinkUp(Message, frozen=True):
    link: int
    peer: str


class LinkDown(Message, frozen=True):
    """`code` says why in a word; after it nothing of this link will touch memory."""

    link: int
    code: str
    message: str


# Decode engine to courier.


class Ask(Message, frozen=True):
    """Prefill positions [first, stop) of `tokens` (little-endian uint32, all of [0, stop)) into `landings`."""

    request: int
    tokens: bytes
    first: int
    stop: int
    chunk_tokens: int
    landings: tuple[Landing, ...]


class CancelAsk(Message, frozen=True):
    request: int


# Courier to decode engine.


class AskAccepted(Message, frozen=True):
    request: int
    reused_tokens: int


class AskProgressed(Message, frozen=True):
    request: int
    computed_tokens: int


class AskCommitted(Message, frozen=True):
    request: int
    first: int
    stop: int
    final: bool


class AskFinished(Message, frozen=True):
    request: int
    payload_bytes: int
    overlap: float
    tail_us: int
    first_byte_us: int
    last_byte_us: int
    compute_us: int
    chunk_compute_us: tuple[int, ...]


class AskFailed(Message, frozen=True):
    request: int
    code: str
    message: str
    committed: int


class AskReleased(Message, frozen=True):
    """The courier will not write for this request any more."""

    request: int


# Courier to worker engine.


class Asked(Message, frozen=True):
    link: int
    request: int
    tokens: bytes
    first: int
    stop: int
    chunk_tokens: int


class AskedCancelled(Message, frozen=True):
    """The client wants no more of it, or is gone."""

    link: int
    request: int


class JobFinished(Message, frozen=True):
    link: int
    request: int
    payload_bytes: int
    tail_us: int


# Worker engine to courier. Messages for a request that is over are dropped.


class Accept(Message, frozen=True):
    link: int
    request: int
    reused_tokens: int


class TurnAway(Message, frozen=True):
    link: int
    request: int
    code: Code
    message: str


class Push(Message, frozen=True):
    """Send these (offset, bytes) of the shared memory as one layer of one chunk."""

    link: int
    request: int
    chunk: int
    layer: int
    spans: tuple[tuple[int, int], ...]


class CommitChunk(Message, frozen=True):
    """All of the chunk has been pushed; `computed_tokens` positions are computed by now."""

    link: int
    request: int
    chunk: int
    computed_tokens: int


class ComputeEnded(Message, frozen=True):
    link: int
    request: int
    started_us: int
    ended_us: int
    chunk_compute_us: tuple[int, ...]


class AbortJob(Message, frozen=True):
    link: int
    request: int
    code: Code
    message: str


FromEngine = Drain | Ask | CancelAsk | Accept | TurnAway | Push | CommitChunk | ComputeEnded | AbortJob
FromCourier = (
    Drained
    | Listening
    | LinkUp
    | LinkDown
    | AskAccepted
    | AskProgressed
    | AskCommitted
    | AskFinished
    | AskFailed
    | AskReleased
    | Asked
    | AskedCancelled
    | JobFinished
)
FROM_ENGINE = msgspec.msgpack.Decoder(FromEngine)
FROM_COURIER = msgspec.msgpack.Decoder(FromCourier)

_Received = TypeVar("_Received")


class Channel:
    """One end of a stream socket between the two. `send` from any thread; `receive` from one."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._encoder = msgspec.msgpack.Encoder()
        self._lock = threading.Lock()
        self._buffer = bytearray()

    def send(self, message: Message) -> None:
        """Raises ProcessFailed when the other process has gone."""
        with self._lock:
            body = self._encoder.encode(message)
            try:
                self._socket.sendall(_LENGTH.pack(len(body)) + body)
            except OSError as error:
                raise ProcessFailed("the other half of the engine has ended") from error

    def receive(self, decoder: msgspec.msgpack.Decoder[_Received]) -> _Received | None:
        """The next message, waiting for it; None when the other process has gone."""
        head = self._take(_LENGTH.size)
        if head is None:
            return None
        body = self._take(_LENGTH.unpack(head)[0])
        return None if body is None else decoder.decode(body)

    def close(self) -> None:
        """Wakes a `receive` that waits."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _take(self, n_bytes: int) -> bytes | None:
        while len(self._buffer) < n_bytes:
            try:
                data = self._socket.recv(1 << 18)
            except OSError:
                return None
            if not data:
                return None
            self._buffer += data
        taken = bytes(memoryview(self._buffer)[:n_bytes])
        del self._buffer[:n_bytes]
        return taken
