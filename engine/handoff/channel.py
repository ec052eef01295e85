"""What an engine and its courier tell each other: one msgspec struct a message, framed by its length.

The two trust each other: they are one program in two processes. Nothing here goes over a network. Request numbers are
the client's; on a worker they are told apart by `link`, since several clients may be connected.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from typing import TypeVar

import msgspec

from engine.cache.spec import Landing
from engine.errors import ProcessFailed
from engine.handoff.client_events import LinkSetup
from engine.handoff.codec_choice import CodecPolicy
from engine.wire.messages import Code, ModelIdentity, Role

_LENGTH = struct.Struct("<I")

# Both say Alive in this time; who says nothing for the second has stopped moving, though it has not ended.
ALIVE_EVERY_S = 1.0
SILENCE_S = 5.0

# Until its first word a courier is still being loaded, from a cold disk or beside programs that want every core.
START_S = 60.0

_SILENCE_SLICE_S = 0.5

# Windows has no such flag; there everything goes by way of the writer's thread.
_DONT_WAIT: int | None = getattr(socket, "MSG_DONTWAIT", None)

_WRITE_BYTES = 1 << 18


class CourierConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a courier is started with, as one line of JSON on its standard input.

    Exactly one of `dial` and `listen` is set, each a HOST:PORT. Descriptors are inherited. `start_through`
    are words before the courier's own command, which start it in another place, such as another network namespace.
    Without `data_streams` measuring chooses.
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
    data_streams: int | None = None
    codec: CodecPolicy = CodecPolicy.AUTO
    max_prompt_tokens: int = 0
    start_through: tuple[str, ...] = ()


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all channel messages."""


# Engine of either role to courier, and back.


class Alive(Message, frozen=True):
    """The courier says it once in ALIVE_EVERY_S; the engine answers with the same."""


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
    setup: LinkSetup


class LinkDown(Message, frozen=True):
    """`code` is a FailureCode's or a wire Code's; after it nothing of this link will touch memory."""

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
    reuse: bool = True


class WarmUp(Message, frozen=True):
    """The next prompt will begin with `tokens` (as in Ask): the worker may prefill them ahead."""

    tokens: bytes


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
    """`payload_bytes` are of all chunks of the request that are committed by now; `layers` as `pack_layers` has them,
    `place` as in ChunkCommitted.

    The worker's compute of this chunk ended at `computed_s` of the clock that engine and courier share.
    """

    request: int
    first: int
    stop: int
    final: bool
    payload_bytes: int
    compute_ms: float
    computed_s: float | None
    layers: bytes
    place: int | None = None


class AskFinished(Message, frozen=True):
    """`payload_bytes` of rows and states came as `wire_bytes`, by the codec named, for the reason given."""

    request: int
    payload_bytes: int
    wire_bytes: int
    codec: str
    codec_reason: str
    overlap: float
    tail_us: int
    first_byte_us: int
    last_byte_us: int
    compute_us: int


class AskFailed(Message, frozen=True):
    """`code` is a FailureCode's or a wire Code's."""

    request: int
    code: str
    message: str
    committed: int


class AskReleased(Message, frozen=True):
    """The courier will not write for this request any more."""

    request: int


# Courier to worker engine.


class Asked(Message, frozen=True):
    """Chunks from `first_checkpoint` on may be checkpoints, each of `checkpoint_bytes` more; None where none may."""

    link: int
    request: int
    tokens: bytes
    first: int
    stop: int
    chunk_tokens: int
    reuse: bool
    checkpoint_bytes: int
    first_checkpoint: int | None


class AskedToWarmUp(Message, frozen=True):
    tokens: bytes


class JobAcknowledged(Message, frozen=True):
    """The client has all of that chunk, since `at_us`. Told of requests that may hold checkpoints."""

    link: int
    request: int
    chunk: int
    at_us: int


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
    """All of the chunk has been pushed; it was computed in this time."""

    link: int
    request: int
    chunk: int
    started_us: int
    ended_us: int


class Computed(Message, frozen=True):
    """So many positions are computed by now, none of them to be sent."""

    link: int
    request: int
    computed_tokens: int


class ComputeEnded(Message, frozen=True):
    link: int
    request: int
    started_us: int
    ended_us: int


class AbortJob(Message, frozen=True):
    link: int
    request: int
    code: Code
    message: str


FromEngine = (
    Alive
    | Drain
    | Ask
    | WarmUp
    | CancelAsk
    | Accept
    | TurnAway
    | Push
    | CommitChunk
    | Computed
    | ComputeEnded
    | AbortJob
)
FromCourier = (
    Alive
    | Drained
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
    | AskedToWarmUp
    | AskedCancelled
    | JobAcknowledged
    | JobFinished
)
FROM_ENGINE = msgspec.msgpack.Decoder(FromEngine)
FROM_COURIER = msgspec.msgpack.Decoder(FromCourier)

_Received = TypeVar("_Received")


class Channel:
    """One end of a stream socket between the two. `send` from any thread; `receive` from one.

    `send` never waits: what the other side does not take at once is kept, and sent by a thread of the channel's own.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray()
        self._changed = threading.Condition()
        self._backlog = bytearray()
        self._broken = False
        self._writer: threading.Thread | None = None
        self._silent_s = 0.0
        self._readable = selectors.DefaultSelector()
        self._readable.register(end, selectors.EVENT_READ)

    def send(self, message: Message) -> None:
        """Raises ProcessFailed when the other process has gone."""
        with self._changed:
            body = self._encoder.encode(message)
            frame = _LENGTH.pack(len(body)) + body
            if self._broken:
                raise ProcessFailed("the other half of the engine has ended")
            if not self._backlog:
                frame = frame[self._send_now(frame) :]
            if frame:
                self._backlog += frame
                self._changed.notify_all()
                self._start_writer()

    def receive(
        self, decoder: msgspec.msgpack.Decoder[_Received], *, silence_s: float | None = None
    ) -> _Received | None:
        """The next message, waiting for it; None when the other process has gone.

        Raises ProcessFailed when nothing came for `silence_s` of this process's own running time.
        """
        head = self._take(_LENGTH.size, silence_s)
        if head is None:
            return None
        body = self._take(_LENGTH.unpack(head)[0], silence_s)
        return None if body is None else decoder.decode(body)

    def interrupt(self) -> None:
        """Have a `receive` that waits return None, from any thread; nothing can be sent any more."""
        with self._changed:
            self._broken = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Once nobody waits in `receive`."""
        self.interrupt()
        self._readable.close()
        self._socket.close()

    def _send_now(self, frame: bytes) -> int:
        """How many bytes went out without waiting."""
        if _DONT_WAIT is None:
            return 0
        try:
            return self._socket.send(frame, _DONT_WAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._broken = True
            raise ProcessFailed("the other half of the engine has ended") from error

    def _start_writer(self) -> None:
        if self._writer is None:
            self._writer = threading.Thread(target=self._write, name="channel-writer", daemon=True)
            self._writer.start()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._backlog or self._broken)
                if self._broken:
                    return
                data = bytes(self._backlog[:_WRITE_BYTES])
            try:
                sent = self._socket.send(data)
            except OSError:
                # The reader sees the end of the other process, too, and acts on it.
                with self._changed:
                    self._broken = True
                return
            with self._changed:
                del self._backlog[:sent]

    def _take(self, n_bytes: int, silence_s: float | None) -> bytes | None:
        while len(self._buffer) < n_bytes:
            try:
                if silence_s is not None and not self._wait_readable(silence_s):
                    continue
                data = self._socket.recv(1 << 18)
            except (OSError, ValueError):
                return None
            if not data:
                return None
            self._silent_s = 0.0
            self._buffer += data
        taken = bytes(memoryview(self._buffer)[:n_bytes])
        del self._buffer[:n_bytes]
        return taken

    def _wait_readable(self, silence_s: float) -> bool:
        # In slices: a process that was stopped itself loses one slice, and does not blame the other.
        if self._readable.select(_SILENCE_SLICE_S):
            return True
        self._silent_s += _SILENCE_SLICE_S
        if self._silent_s >= silence_s:
            raise ProcessFailed(f"the other half of the engine has not moved for {self._silent_s:g} s")
        return False
