"""One live connection with a paired node: either end calls the other, and both say each second that they are alive.

It is given a TLS connection whose other end has been checked, and knows nothing of how that came about, of who may be
trusted, or of what the methods do.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar, overload

import msgspec

from engine.errors import BatonError, InvalidRequest, PeerLost, PeerRefused, ProtocolError
from engine.log_lines import one_line
from engine.node.peering.offers import Handler, Offers, StreamHandler
from engine.node.peering.peer_messages import (
    MAX_MESSAGE_BYTES,
    MAX_NESTED_BYTES,
    MAX_OPEN_BYTES,
    MAX_OPEN_CALLS,
    MAX_UNREAD_BYTES,
    MAX_WAITING_BYTES,
    NODE_MESSAGES,
    PART_BYTES,
    Answer,
    Beat,
    Call,
    Cancel,
    Failed,
    Goodbye,
    NodeHello,
    NodeMessage,
    NodeMessages,
    Part,
    Tell,
)
from engine.node.trust.peers import Peer
from engine.wire.codec import FRAME_HEADER, MAGIC, FrameKind, FrameReader, decode_message
from engine.wire.limits import MAX_HELLO_BYTES, MAX_TEXT_CHARS

log = logging.getLogger(__name__)

BEAT_EVERY_S = 1.0

# Computers on a desk pause for seconds at times; who says nothing for so long is gone, or his cable is.
SILENCE_S = 5.0

_READ_BYTES = 1 << 16

# A call that a person waits for.
_CALL_TIMEOUT_S = 10.0

# What the other end still has to read, before it is clear that it reads nothing.
_GOODBYE_S = 0.5

# Both ends have heard of a newer link by then, and call the other one over that.
_KNOWN_WITHIN_S = 1.0

_Given = TypeVar("_Given")

_encoder = msgspec.msgpack.Encoder()

# How bytes and text of any length begin in MessagePack.
_TEXT = frozenset((*range(0xA0, 0xC0), 0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDB))


class _Waiting:
    """What came for one call of ours; the last item is how it ended."""

    def __init__(self) -> None:
        self.items: asyncio.Queue[Part | Answer | BatonError] = asyncio.Queue()
        self.n_bytes = 0


class PeerLink:
    """`run` it, and `call` until it ends. All on one event loop."""

    def __init__(
        self,
        peer: Peer,
        hello: NodeHello,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        frames: FrameReader,
        offers: Offers,
        *,
        is_dialled: bool,
    ) -> None:
        """`hello` is the other end's, `frames` what had been read behind it; `is_dialled`: this end made the call."""
        self.peer = peer
        self.hello = hello
        self.is_dialled = is_dialled
        self.local_host = host_text(writer.get_extra_info("sockname"))
        self.remote_host = host_text(writer.get_extra_info("peername"))
        self._reader = reader
        self._writer = writer
        self._frames = frames
        self._offers = offers
        self._waiting: dict[int, _Waiting] = {}
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._n_asked_bytes = 0  # of the calls that are being answered
        self._sending = asyncio.Lock()
        self._last_number = 0
        self._heard_at_s = time.monotonic()
        self._end: BatonError | None = None
        self._call_over = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return self._end is None

    @property
    def is_heard(self) -> bool:
        """Whether the other end said something lately, and does not only count as there until its time is up."""
        return self.is_open and time.monotonic() - self._heard_at_s < 2 * BEAT_EVERY_S

    @overload
    async def call(self, method: str, params: Any = None, *, timeout_s: float = _CALL_TIMEOUT_S) -> Any: ...

    @overload
    async def call(
        self, method: str, params: Any = None, *, gives: type[_Given], timeout_s: float = _CALL_TIMEOUT_S
    ) -> _Given: ...

    async def call(
        self, method: str, params: Any = None, *, gives: Any = Any, timeout_s: float = _CALL_TIMEOUT_S
    ) -> Any:
        """What the other end answers, as `gives` or else as plain data.

        Raises PeerRefused with its sentence, PeerLost, or ProtocolError where it is nothing of the kind.
        """
        try:
            async with asyncio.timeout(timeout_s):
                async with contextlib.aclosing(self._exchange(method, params)) as items:
                    item = await anext(items)
        except TimeoutError as error:
            raise PeerLost(f"{self.peer.name} did not answer within {timeout_s:g} s") from error
        if not isinstance(item, Answer):
            raise ProtocolError(f"{self.peer.name} sent parts of an answer that was to come in one")
        return self._given(method, item.value, gives)

    async def stream(self, method: str, params: Any = None, *, gives: Any = Any) -> AsyncGenerator[Any, None]:
        """The parts of an answer as they come; closing it tells the other end to stop. Raises as `call` does."""
        async with contextlib.aclosing(self._exchange(method, params)) as items:
            async for item in items:
                if isinstance(item, Part):
                    yield self._given(method, item.value, gives)

    def tell(self, method: str, params: Any = None) -> None:
        """Say something without waiting for anything; lost where the link is."""
        if self.is_open:
            self._write(Tell(method=method, params=msgspec.Raw(_encoder.encode(params))))

    async def run(self) -> None:
        """Serve the other end until the link ends, and raise why: PeerLost, PeerRefused or ProtocolError."""
        beats = asyncio.create_task(self._beat())
        try:
            while True:
                await self._take_what_is_there()
                async with asyncio.timeout(SILENCE_S):
                    data = await self._reader.read(_READ_BYTES)
                if not data:
                    raise PeerLost(f"{self.peer.name} closed the connection")
                self._heard_at_s = time.monotonic()
                if self.is_open:
                    self._frames.feed(data)
        except TimeoutError as error:
            self._finish(PeerLost(f"nothing was heard of {self.peer.name} for {SILENCE_S:g} s"))
            raise self.reason from error
        except OSError as error:
            self._finish(PeerLost(f"the connection with {self.peer.name} broke: {error.strerror or error}"))
            raise self.reason from error
        except BatonError as error:
            self._finish(error)
            raise self.reason from error
        except Exception as error:
            log.exception("a mistake on the link with %s", self.peer.name)
            self._finish(
                PeerLost(f"Baton made a mistake on the link with {self.peer.name}: its log has the details")
            )
            raise self.reason from error
        finally:
            self._finish(PeerLost(f"the link with {self.peer.name} was ended here"))
            beats.cancel()
            for task in self._answering.values():
                task.cancel()
            self._writer.transport.abort()

    @property
    def reason(self) -> BatonError:
        """Why it ended."""
        return self._end or PeerLost(f"the link with {self.peer.name} was ended")

    async def close(self, why: str) -> None:
        """End the link; the other end is told `why`, in words for its users, if it still listens."""
        if not self.is_open:
            return
        self._write(Goodbye(message=why[:MAX_TEXT_CHARS]))
        # At once: who has just been unpaired is answered nothing more while he is told so.
        self._finish(PeerLost(f"the link with {self.peer.name} was ended here"))
        for task in self._answering.values():
            task.cancel()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                await self._writer.drain()
        self._writer.close()

    async def retire(self, why: str) -> None:
        """As `close`, once what either end has asked over it is answered: there is another link for what comes next."""
        await asyncio.sleep(_KNOWN_WITHIN_S)
        while self.is_open and (self._waiting or self._answering):
            self._call_over.clear()
            await self._call_over.wait()
        await self.close(why)

    # calls of ours

    def _given(self, method: str, raw: msgspec.Raw, kind: Any) -> Any:
        """What came for a call, as `kind`. Raises ProtocolError."""
        try:
            if memoryview(raw).nbytes > MAX_NESTED_BYTES and not _is_text(raw):
                raise ProtocolError(f"{self.peer.name} answers {method} with more than an answer may hold")
            return msgspec.msgpack.decode(raw, type=kind)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ProtocolError(
                f"what {self.peer.name} answers to {method} is not valid ({error}): both need the same version of Baton"
            ) from error

    async def _exchange(self, method: str, params: Any) -> AsyncGenerator[Part | Answer, None]:
        if self._end is not None:
            raise self._end
        self._last_number += 1
        number, waiting = self._last_number, _Waiting()
        self._waiting[number] = waiting
        is_over = False
        try:
            await self._send(Call(number=number, method=method, params=msgspec.Raw(_encoder.encode(params))))
            while not is_over:
                item = await waiting.items.get()
                is_over = not isinstance(item, Part)
                if isinstance(item, BatonError):
                    raise item
                if isinstance(item, Part):
                    waiting.n_bytes -= _size(item)
                yield item
        finally:
            self._waiting.pop(number, None)
            self._call_over.set()
            if not is_over and self.is_open:
                self._write(Cancel(number=number))

    def _hand_over(self, number: int, item: Part | Answer | BatonError) -> None:
        """To the call that waits for it; one that was cancelled may still be answered."""
        waiting = self._waiting.get(number)
        if waiting is None:
            return
        if isinstance(item, Part):
            waiting.n_bytes += _size(item)
            if waiting.n_bytes > MAX_WAITING_BYTES:
                item = ProtocolError(f"{self.peer.name} sends faster than its answer is read")
                del self._waiting[number]
                self._write(Cancel(number=number))
        waiting.items.put_nowait(item)

    # the other end's

    async def _take_what_is_there(self) -> None:
        while self.is_open and (body := self._frames.next_body()) is not None:
            await self._take(decode_message(body, NODE_MESSAGES))

    async def _take(self, message: NodeMessages) -> None:
        match message:
            case Beat():
                pass
            case Call():
                await self._take_call(message)
            case Cancel():
                if (task := self._answering.get(message.number)) is not None:
                    task.cancel()
            case Part() | Answer():
                self._hand_over(message.number, message)
            case Failed():
                self._hand_over(message.number, PeerRefused(one_line(message.message)))
            case Tell():
                self._hear(message)
            case Goodbye():
                raise PeerLost(one_line(message.message))
            case NodeHello():
                raise ProtocolError(f"{self.peer.name} greeted twice")

    def _hear(self, told: Tell) -> None:
        listener = self._offers.news.get(told.method)
        if listener is not None:
            try:
                params = listener.params(told.params)
            except InvalidRequest as error:
                log.info("%s told %s, and was not heard: %s", self.peer.name, told.method, error)
                return
            listener.handler(self, params)

    async def _take_call(self, call: Call) -> None:
        number = call.number
        if number in self._answering or len(self._answering) >= MAX_OPEN_CALLS:
            raise ProtocolError(f"{self.peer.name} has too many calls open")
        n_bytes = memoryview(call.params).nbytes
        if self._n_asked_bytes + n_bytes > MAX_OPEN_BYTES:
            raise ProtocolError(f"{self.peer.name} asks for too much at once")
        handler, streamer = self._offers.calls.get(call.method), self._offers.streams.get(call.method)
        work: Callable[[], Awaitable[None]]
        try:
            if handler is not None:
                params = handler.params(call.params)
                work = functools.partial(self._answer, number, handler.handler, params)
            elif streamer is not None:
                params = streamer.params(call.params)
                work = functools.partial(self._answer_in_parts, number, streamer.handler, params)
            else:
                raise InvalidRequest(f"this version of Baton does not know {call.method}: update it")
        except InvalidRequest as error:
            self._write(Failed(number=number, message=str(error)[:MAX_TEXT_CHARS]))
            return

        def answered(_: asyncio.Task[None]) -> None:
            del self._answering[number]
            self._call_over.set()
            self._n_asked_bytes -= n_bytes

        task = asyncio.create_task(self._guarded(number, work), name=f"peer {call.method}")
        self._answering[number] = task
        self._n_asked_bytes += n_bytes
        task.add_done_callback(answered)

    async def _guarded(self, number: int, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except BatonError as error:
            self._write(Failed(number=number, message=str(error)[:MAX_TEXT_CHARS]))
        except Exception:
            log.exception("a mistake while answering %s", self.peer.name)
            self._write(Failed(number=number, message="Baton made a mistake there: its log has the details"))

    async def _answer(self, number: int, handler: Handler, params: Any) -> None:
        value = await handler(self, params)
        await self._send(Answer(number=number, value=msgspec.Raw(_encoder.encode(value))))

    async def _answer_in_parts(self, number: int, streamer: StreamHandler, params: Any) -> None:
        async with contextlib.aclosing(streamer(self, params)) as values:
            async for value in values:
                await self._send(Part(number=number, value=msgspec.Raw(_encoder.encode(value))))
        await self._send(Answer(number=number, value=msgspec.Raw(_encoder.encode(None))))

    # the connection

    async def _beat(self) -> None:
        while self.is_open:
            self._write(Beat())
            await asyncio.sleep(BEAT_EVERY_S)

    def _write(self, message: NodeMessage) -> None:
        if not self.is_open:
            return
        if self._writer.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self._finish(PeerLost(f"{self.peer.name} reads nothing of what it is sent"))
            self._writer.transport.abort()
            return
        self._writer.write(encode_frame(message))

    async def _send(self, message: NodeMessage) -> None:
        """One after the other, each when the one before has left, so that no more than one waits in memory."""
        frame = encode_frame(message)
        async with self._sending:
            try:
                await self._writer.drain()
            except OSError as error:
                raise PeerLost(f"the connection with {self.peer.name} broke") from error
            if self._end is not None:
                raise self._end
            self._writer.write(frame)

    def _finish(self, why: BatonError) -> None:
        if self._end is not None:
            return
        self._end = why
        self._call_over.set()
        for waiting in self._waiting.values():
            waiting.items.put_nowait(why)


def encode_frame(message: NodeMessage) -> bytes:
    """One message as a frame; ProtocolError for one that no peer would take."""
    body = _encoder.encode(message)
    if len(body) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"{len(body)} bytes are more than a message between nodes may have")
    return FRAME_HEADER.pack(MAGIC, FrameKind.CONTROL, 0, len(body)) + body


async def exchange_hellos(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: NodeHello
) -> tuple[NodeHello, FrameReader]:
    """Say hello, and hear the other's: nothing larger than a hello is read before. The caller sets the time limit.

    Raises ProtocolError or PeerLost. What came behind it is left in the reader of frames.
    """
    frames = FrameReader(max_body_bytes=MAX_HELLO_BYTES)
    writer.write(encode_frame(hello))
    while (body := frames.next_body()) is None:
        try:
            data = await reader.read(_READ_BYTES)
        except OSError as error:
            raise PeerLost(f"the other computer broke the connection: {error.strerror or error}") from error
        if not data:
            raise PeerLost("the other computer hung up: it may have unpaired this one")
        frames.feed(data)
    message = decode_message(body, NODE_MESSAGES)
    if not isinstance(message, NodeHello):
        raise ProtocolError("the other computer did not say hello first")
    frames.max_body_bytes = MAX_MESSAGE_BYTES
    return message, frames


def _size(part: Part) -> int:
    return memoryview(part.value).nbytes + PART_BYTES


def _is_text(raw: msgspec.Raw) -> bool:
    return memoryview(raw)[0] in _TEXT


def host_text(place: tuple[Any, ...] | None) -> str:
    """An address as text, with the zone that an address of one link needs."""
    if not place:
        return ""
    host: str = place[0]
    if host.startswith("::ffff:") and "." in host:
        return host.removeprefix("::ffff:")
    if host.startswith("fe80:") and "%" not in host and len(place) == 4 and place[3]:
        with contextlib.suppress(OSError):
            return f"{host}%{socket.if_indextoname(place[3])}"
    return host
