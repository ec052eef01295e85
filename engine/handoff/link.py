"""One link: a control connection, its data connections, and the protocol's end that speaks over them.

`ClientLink` is the decode side's, `WorkerLink` the prefill side's. They translate between the channel to the engine and
the sans-IO connection, under one lock that is never held while the network is waited for. How connections come about is
the courier's business.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import ssl
import threading
from collections.abc import Callable, Iterator

from engine.cache.spec import KVType, Landing
from engine.errors import HostError, PeerError, PeerLost, ProtocolError
from engine.handoff import channel as ch
from engine.handoff.codec_choice import CodecChoice, CodecChooser
from engine.handoff.failure import FailureCode, Going, failure_code
from engine.handoff.shared import SharedMemory, landing_spans
from engine.handoff.streams import Load, StreamCount
from engine.handoff.telemetry import pack_layers
from engine.handoff.transport import ControlSocket, DataReceiver, DataSender, Outgoing, link_setup, start
from engine.wire.blocks import BlockCodec, block_codec, packed_blocks
from engine.wire.client import (
    ChunkCommitted,
    ClientConnection,
    Opened,
    RequestAccepted,
    RequestFailed,
    RequestFinished,
    RequestProgressed,
    RequestReleased,
)
from engine.wire.codec import DataHeader, PayloadCodec, encode_data_header
from engine.wire.connection import Connection, Event
from engine.wire.geometry import state_stream
from engine.wire.messages import Attach, Code
from engine.wire.worker import (
    ChunkAcknowledged,
    ClientOpened,
    FenceAsked,
    PrefillAsked,
    PrefillCancelled,
    PrefillFinished,
    WarmAsked,
    WorkerConnection,
)

log = logging.getLogger(__name__)

# The control thread says its last words without waiting for anybody; this is for a busy computer.
_LAST_WORDS_S = 1.0

# Pages are made ready in pieces of this size, layer by layer, since every layer's first rows come first.
_PREFAULT_BYTES = 2 << 20

Emit = Callable[[ch.Message], None]


class Link:
    """What both sides share. `emit` sends to the engine; `on_over(link)` is called once everything has ended.

    `opened` is set when the hellos fit, `over` when nothing of the link touches memory any more.
    """

    def __init__(
        self,
        number: int,
        connection: Connection,
        control: ssl.SSLSocket,
        *,
        peer: str,
        emit: Emit,
        on_over: Callable[[Link], None],
    ) -> None:
        self.number = number
        self.peer = peer
        self.opened = threading.Event()
        self.over = threading.Event()
        self.failure: BaseException | None = None
        self._connection = connection
        self._emit = emit
        self._on_over = on_over
        self._lock = threading.Lock()
        self._ending = False
        self._told_to_end = threading.Event()
        # Not the thread that hears of the end: it may be one of those that have to end first.
        self._finisher = threading.Thread(target=self._finish, name="link-end", daemon=True)
        self._control = ControlSocket(
            control,
            on_bytes=self._receive,
            output=self._take_output,
            on_tick=self._tick,
            last_words=self._last_words,
            on_end=self.end,
        )

    @property
    def session(self) -> bytes | None:
        """What its data connections are attached by, once known."""
        raise NotImplementedError

    @property
    def n_streams(self) -> int:
        """Data connections agreed on, once open."""
        raise NotImplementedError

    def attach(self, stream: ssl.SSLSocket, attach: Attach) -> None:
        """Take a data connection; raises ProtocolError when it does not belong."""
        raise NotImplementedError

    def start(self) -> None:
        """Raises HostError where there is no room for its threads; then it never was."""
        self._control.start()
        try:
            start(self._finisher)
        except HostError as error:
            self._control.stop(error)
            raise

    def end(self, error: BaseException) -> None:
        """Take everything down, from any thread and more than once; `over` follows."""
        with self._lock:
            if self._ending:
                return
            self._ending = True
            self.failure = error
        self._control.stop(error)
        self._told_to_end.set()

    def _end_of_stream(self, error: BaseException) -> None:
        """A data connection has ended, for which the control connection may be about to say why."""
        if isinstance(error, PeerLost):
            self._told_to_end.wait(_LAST_WORDS_S)
        self.end(error)

    def _finish(self) -> None:
        self._told_to_end.wait()
        # Last words first: the other end would take the end of a stream for a fault.
        self._control.join(_LAST_WORDS_S)
        self._stop_streams()
        with self._lock:
            code, message = describe(self.failure or PeerLost("the link has ended"))
            self._abandon(ch.LinkDown(link=self.number, code=code, message=message))
        self.over.set()
        self.opened.set()
        self._on_over(self)

    def _receive(self, data: bytes) -> None:
        with self._lock:
            self._handle(self._connection.receive(data))

    def _take_output(self) -> bytes:
        with self._lock:
            return self._connection.take_output()

    def _tick(self) -> None:
        with self._lock:
            self._connection.tick()
            self._check()

    def _last_words(self, error: BaseException) -> bytes:
        with self._lock:
            if isinstance(error, PeerError) and not isinstance(error, Going):
                return self._connection.last_words(error)
            return self._connection.last_words(None, going=str(error) if isinstance(error, Going) else "")

    def _say_up(self, stream: ssl.SSLSocket) -> None:
        """All data connections are there; `stream` is one of them."""
        setup = link_setup(stream, data_streams=self.n_streams)
        log.info(
            "linked with %s: data streams: %d, buffers of %.1f MiB to receive and %.1f MiB to send",
            self.peer,
            setup.data_streams,
            setup.receive_granted_bytes / (1 << 20),
            setup.send_granted_bytes / (1 << 20),
        )
        self._emit(ch.LinkUp(link=self.number, peer=self.peer, setup=setup))

    def _handle(self, events: list[Event]) -> None:
        """With the lock held."""
        raise NotImplementedError

    def _check(self) -> None:
        """Once a heartbeat, with the lock held."""

    def _abandon(self, down: ch.LinkDown) -> None:
        """Tell the engine that the link is `down` and what becomes of live requests. With the lock held.

        Nothing of the link touches memory any more.
        """
        raise NotImplementedError

    def _stop_streams(self) -> None:
        """Break the data connections and wait for their threads."""
        raise NotImplementedError


def describe(error: BaseException) -> tuple[str, str]:
    """Why a link ended: a code, and a sentence."""
    if isinstance(error, OSError):
        reason = error.strerror or type(error).__name__
        return FailureCode.HOST_FAILED.value, f"this computer cannot open a connection: {reason}"
    code = failure_code(error)
    if code is not FailureCode.INTERNAL:
        return code.value, str(error)
    log.error("a link ended by a fault of ours", exc_info=error)
    return code.value, f"an internal error ended the connection: {type(error).__name__}"


class ClientLink(Link):
    """The decode side: asks the worker, lands what comes in `memory`."""

    _connection: ClientConnection

    def __init__(
        self,
        number: int,
        connection: ClientConnection,
        control: ssl.SSLSocket,
        *,
        peer: str,
        emit: Emit,
        on_over: Callable[[Link], None],
        memory: SharedMemory,
        chooser: CodecChooser,
        streams: StreamCount,
    ) -> None:
        super().__init__(number, connection, control, peer=peer, emit=emit, on_over=on_over)
        self._memory = memory
        self._chooser = chooser
        self._choices: dict[int, CodecChoice] = {}
        self._streams = streams
        self._receivers: list[DataReceiver] = []
        self._failed: set[int] = set()

    @property
    def session(self) -> bytes | None:
        return self._connection.hello.session

    @property
    def n_streams(self) -> int:
        reply = self._connection.reply
        return reply.data_streams if reply is not None else 0

    def attach(self, stream: ssl.SSLSocket, attach: Attach) -> None:
        with self._lock:
            if self._ending:
                raise PeerLost("the link has ended")
            reader = self._connection.stream(attach, self._memory.buffer)
            receiver = DataReceiver(
                stream,
                reader,
                lock=self._lock,
                on_events=self._from_stream,
                on_load=self._learn_load,
                on_end=self._end_of_stream,
            )
            receiver.start()
            self._receivers.append(receiver)
            if len(self._receivers) == self.n_streams:
                self._say_up(stream)

    def ask(self, ask: ch.Ask) -> None:
        with self._lock:
            if self._ending or len(self._receivers) < max(1, self.n_streams):
                self._give_up(
                    ask.request, FailureCode.PEER_LOST, "the link to the worker has just ended", ask.first
                )
                return
            reply = self._connection.reply
            choice = self._chooser.choose(reply.codecs if reply is not None else ())
            try:
                self._connection.request(
                    request=ask.request,
                    tokens=ask.tokens,
                    first=ask.first,
                    stop=ask.stop,
                    chunk_tokens=ask.chunk_tokens,
                    landings=ask.landings,
                    reuse=ask.reuse,
                    codec=choice.codec,
                )
                self._choices[ask.request] = choice
            except ValueError as error:
                self._give_up(ask.request, FailureCode.INTERNAL, str(error), ask.first)
                return
        self._control.wake()
        prefault = threading.Thread(target=self._prefault, args=(ask.landings,), name="prefault", daemon=True)
        # Without it the pages get ready one by one, as they are written to.
        with contextlib.suppress(HostError):
            start(prefault)

    def warm(self, message: ch.WarmUp) -> None:
        with self._lock:
            if self._ending:
                return
            self._connection.warm(message.tokens)
        self._control.wake()

    def cancel(self, request: int) -> None:
        with self._lock:
            self._connection.cancel(request)
        self._control.wake()

    def _prefault(self, landings: tuple[Landing, ...]) -> None:
        """Get the pages of the landing ready while the worker computes the first layers, in the order of their use."""
        spans = landing_spans(landings)
        for at in range(0, max((n_bytes for _, n_bytes in spans), default=0), _PREFAULT_BYTES):
            for offset, n_bytes in spans:
                if at < n_bytes:
                    self._memory.prefault(offset + at, min(_PREFAULT_BYTES, n_bytes - at))

    def _give_up(self, request: int, code: FailureCode, message: str, committed: int) -> None:
        self._emit(ch.AskFailed(request=request, code=code, message=message, committed=committed))
        self._emit(ch.AskReleased(request=request))

    def _learn_load(self, load: Load) -> None:
        self._streams.observe(load, used=self.n_streams)

    def _from_stream(self, events: list[Event]) -> None:
        # An acknowledgement is waited for on the other computer; the engine here hears a moment later.
        self._control.wake()
        self._handle(events)

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Opened():
                    self.opened.set()
                case RequestAccepted():
                    self._emit(ch.AskAccepted(request=event.request, reused_tokens=event.reused_tokens))
                case RequestProgressed():
                    self._emit(ch.AskProgressed(request=event.request, computed_tokens=event.computed_tokens))
                case ChunkCommitted():
                    self._emit(
                        ch.AskCommitted(
                            request=event.request,
                            first=event.first,
                            stop=event.stop,
                            final=event.final,
                            payload_bytes=event.payload_bytes,
                            place=event.place,
                            compute_ms=event.compute_us / 1e3,
                            computed_s=None if event.computed_us is None else event.computed_us / 1e6,
                            layers=pack_layers(event.layers),
                        )
                    )
                case RequestFinished():
                    choice = self._choices.pop(event.request)
                    self._chooser.observe(
                        choice.codec, timed_bytes=event.timed_bytes, timed_us=event.timed_us
                    )
                    self._emit(_finished(event, choice))
                case RequestFailed():
                    self._failed.add(event.request)
                    self._emit(
                        ch.AskFailed(
                            request=event.request,
                            code=event.code.value,
                            message=event.message,
                            committed=event.committed,
                        )
                    )
                case RequestReleased():
                    self._failed.discard(event.request)
                    self._choices.pop(event.request, None)
                    self._emit(ch.AskReleased(request=event.request))

    def _check(self) -> None:
        for request in self._connection.stalled_requests():
            committed = self._connection.committed(request) or 0
            self._failed.add(request)
            message = "the worker answers, but its prefill has stopped moving"
            self._emit(
                ch.AskFailed(request=request, code=FailureCode.STALLED, message=message, committed=committed)
            )
            self._connection.cancel(request)
        wanted = self._streams.wanted
        if wanted > self._connection.hello.data_streams and not self._connection.live_requests():
            raise Going(f"it comes back with {wanted} data streams")

    def _abandon(self, down: ch.LinkDown) -> None:
        # First, so that whoever hears of a failure does not ask the same link again.
        self._emit(down)
        for request, committed, over in self._connection.live_requests():
            if not over and request not in self._failed:
                self._emit(
                    ch.AskFailed(request=request, code=down.code, message=down.message, committed=committed)
                )
            self._emit(ch.AskReleased(request=request))

    def _stop_streams(self) -> None:
        for receiver in self._receivers:
            receiver.stop()
        for receiver in self._receivers:
            receiver.join()


def _finished(event: RequestFinished, choice: CodecChoice) -> ch.AskFinished:
    payload = event.payload_bytes
    compute = event.compute
    return ch.AskFinished(
        request=event.request,
        payload_bytes=payload,
        wire_bytes=event.wire_bytes,
        codec=choice.codec.label,
        codec_reason=choice.reason,
        overlap=event.received_before_compute_end_bytes / payload if payload else 1.0,
        tail_us=event.tail_us,
        first_byte_us=event.first_byte_us,
        last_byte_us=event.last_byte_us,
        compute_us=compute.ended_us - compute.started_us,
    )


class _Packers(threading.local):
    """Each sending thread's own, which keep the memory that they pack in."""

    def __init__(self) -> None:
        self._made: dict[PayloadCodec, BlockCodec] = {}

    def get(self, codec: PayloadCodec, kv_type: KVType) -> BlockCodec:
        if codec not in self._made:
            self._made[codec] = block_codec(codec, kv_type)
        return self._made[codec]


class WorkerLink(Link):
    """The prefill side: passes requests to the engine, sends what it pushes straight from `memory`."""

    _connection: WorkerConnection

    def __init__(
        self,
        number: int,
        connection: WorkerConnection,
        control: ssl.SSLSocket,
        *,
        peer: str,
        emit: Emit,
        on_over: Callable[[Link], None],
        memory: SharedMemory,
    ) -> None:
        super().__init__(number, connection, control, peer=peer, emit=emit, on_over=on_over)
        self._memory = memory
        self._senders: list[DataSender] = []
        self._packers = _Packers()
        self._asked: set[int] = set()

    @property
    def session(self) -> bytes | None:
        hello = self._connection.hello
        return hello.session if hello is not None else None

    @property
    def n_streams(self) -> int:
        return self._connection.reply.data_streams

    def attach(self, stream: ssl.SSLSocket, attach: Attach) -> None:
        with self._lock:
            if self._ending or attach.session != self.session:
                raise ProtocolError("a data connection of another session")
            if attach.stream >= len(self._senders) or self._senders[attach.stream].is_attached:
                raise ProtocolError(f"data stream {attach.stream} was not agreed on, or is there already")
            self._senders[attach.stream].attach(stream)
            if all(sender.is_attached for sender in self._senders):
                self._say_up(stream)

    def accept(self, message: ch.Accept) -> None:
        self._if_live(
            message.request,
            lambda: self._connection.accept(message.request, reused_tokens=message.reused_tokens),
        )

    def turn_away(self, message: ch.TurnAway) -> None:
        def answer() -> None:
            self._asked.discard(message.request)
            if message.code is Code.BUSY:
                self._connection.busy(message.request, message.message)
            else:
                self._connection.refuse(message.request, message.code, message.message)

        self._if_live(message.request, answer)

    def push(self, message: ch.Push) -> None:
        request = message.request

        def queue_frame() -> None:
            header = self._connection.push(
                request,
                chunk=message.chunk,
                layer=message.layer,
                payload_bytes=sum(n_bytes for _, n_bytes in message.spans),
            )
            frame = Outgoing(
                parts=itertools.chain((encode_data_header(header),), self._payload(header, message)),
                wanted=lambda: self._connection.is_live(request),
            )
            if self._connection.is_state(message.layer):
                sender = self._senders[state_stream(message.layer, len(self._senders))]
            else:
                sender = min(self._senders, key=DataSender.backlog)
            sender.put(frame)

        self._if_live(request, queue_frame, wake=False)

    def _payload(self, header: DataHeader, message: ch.Push) -> Iterator[bytes | memoryview]:
        """What follows the header: the memory as it is, or its rows packed one block at a time, when they are sent."""
        memory = self._memory.buffer
        if header.codec is PayloadCodec.RAW:
            return (memory[offset : offset + n_bytes] for offset, n_bytes in message.spans)
        spans = self._connection.row_spans(
            message.request, chunk=message.chunk, layer=message.layer, spans=message.spans
        )
        kv_type = self._connection.reply.identity.kv_type
        return packed_blocks(functools.partial(self._packers.get, header.codec, kv_type), spans, memory)

    def commit(self, message: ch.CommitChunk) -> None:
        self._if_live(
            message.request,
            lambda: self._connection.commit(
                message.request,
                chunk=message.chunk,
                started_us=message.started_us,
                ended_us=message.ended_us,
            ),
        )

    def computed(self, message: ch.Computed) -> None:
        self._if_live(
            message.request,
            lambda: self._connection.progress(message.request, computed_tokens=message.computed_tokens),
        )

    def compute_ended(self, message: ch.ComputeEnded) -> None:
        # The commit of the last chunk comes next: one record and one waking for both.
        self._if_live(
            message.request,
            lambda: self._handle(
                self._connection.compute_done(
                    message.request,
                    started_us=message.started_us,
                    ended_us=message.ended_us,
                )
            ),
            wake=False,
        )

    def abort_job(self, message: ch.AbortJob) -> None:
        def say() -> None:
            self._asked.discard(message.request)
            self._connection.abort(message.request, message.code, message.message)

        self._if_live(message.request, say)

    def drain(self, done: Callable[[], None]) -> int:
        """Have `done` called by every stream once it has dealt with all that is queued; returns how many streams."""
        with self._lock:
            senders = list(self._senders)
        for sender in senders:
            sender.put(Outgoing(parts=(), wanted=lambda: False, sent=done))
        return len(senders)

    def _if_live(self, request: int, step: Callable[[], None], *, wake: bool = True) -> None:
        """A step of the engine's for a request; nothing when that is over, which the engine may not know yet."""
        with self._lock:
            if self._ending or not self._connection.is_live(request):
                return
            try:
                step()
            except ValueError:
                log.exception("the engine pushed what was not planned")
                self._asked.discard(request)
                self._connection.abort(
                    request, Code.WORKER_FAILED, "an internal error on the worker: see its log"
                )
                self._emit(ch.AskedCancelled(link=self.number, request=request))
        if wake:
            self._control.wake()

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case ClientOpened():
                    self._senders = [DataSender(self._end_of_stream) for _ in range(self.n_streams)]
                    self.opened.set()
                case PrefillAsked():
                    self._asked.add(event.request)
                    self._emit(
                        ch.Asked(
                            link=self.number,
                            request=event.request,
                            tokens=event.tokens,
                            first=event.first,
                            stop=event.stop,
                            chunk_tokens=event.chunk_tokens,
                            reuse=event.reuse,
                            checkpoint_bytes=event.checkpoint_bytes,
                            first_checkpoint=event.first_checkpoint,
                        )
                    )
                case ChunkAcknowledged():
                    self._emit(
                        ch.JobAcknowledged(
                            link=self.number, request=event.request, chunk=event.chunk, at_us=event.at_us
                        )
                    )
                case WarmAsked():
                    self._emit(ch.AskedToWarmUp(tokens=event.tokens))
                case PrefillCancelled():
                    self._asked.discard(event.request)
                    self._emit(ch.AskedCancelled(link=self.number, request=event.request))
                case FenceAsked():
                    reply = self._connection.fence_reply(event.fence)
                    for sender in self._senders:
                        sender.put(Outgoing(parts=(reply,), wanted=lambda: True))
                case PrefillFinished():
                    self._asked.discard(event.request)
                    self._emit(
                        ch.JobFinished(
                            link=self.number,
                            request=event.request,
                            payload_bytes=event.payload_bytes,
                            tail_us=event.tail_us,
                        )
                    )

    def _abandon(self, down: ch.LinkDown) -> None:
        for request in self._asked:
            self._emit(ch.AskedCancelled(link=self.number, request=request))
        self._emit(down)

    def _stop_streams(self) -> None:
        for sender in self._senders:
            sender.stop()
        for sender in self._senders:
            sender.join()
