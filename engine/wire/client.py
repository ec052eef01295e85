"""The decode side's end of a link: asks for prefills, checks what comes back, commits chunk by chunk.

Sans-IO. The control connection feeds `ClientConnection.receive`; each data connection is read through a
`DataStream`, which says where its next bytes belong: the adapter receives straight into that memory. A chunk
is committed only when every layer of it has arrived whole, in order, in exactly the rows and bytes planned.
Any breach raises ProtocolError, and the connection is over. Nothing here knows sockets or threads.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.cache.spec import Landing, LayerKind
from engine.errors import ProtocolError
from engine.wire.blocks import BLOCK_HEADER, BlockCodec, RowSpan, block_codec
from engine.wire.codec import (
    CONTROL_MESSAGES,
    DATA_HEADER,
    FRAME_HEADER,
    STREAM_MESSAGES,
    DataHeader,
    FrameKind,
    PayloadCodec,
    decode_data_header,
    decode_frame_header,
    decode_message,
    hello_version,
)
from engine.wire.compatibility import (
    OWN_VERSION,
    Incompatible,
    ProtocolVersion,
    check_identities,
    check_versions,
    common_codecs,
)
from engine.wire.connection import Clock, ClockSample, Connection, ConnectionState, Event, unexpected
from engine.wire.geometry import HandoffPlan, state_stream
from engine.wire.limits import MAX_FENCES, MAX_REQUESTS, MAX_STREAM_CONTROL_BYTES, STALL_TIMEOUT_S
from engine.wire.messages import (
    Aborted,
    Accepted,
    AnyMessage,
    Attach,
    Busy,
    Cancel,
    Code,
    Commit,
    CommitAck,
    ComputeDone,
    Fence,
    FenceReply,
    Finished,
    Hello,
    HelloRefused,
    HelloReply,
    Prefill,
    Progress,
    Refused,
    Role,
    Warm,
)

STALL_TIMEOUT_US = int(STALL_TIMEOUT_S * 1_000_000)

# What smaller frames take says more of the computer than of the link.
_LEAST_TIMED_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened(Event):
    """The hellos fit; `reply` is the worker's."""

    reply: HelloReply


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestAccepted(Event):
    request: int
    reused_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestProgressed(Event):
    request: int
    computed_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerArrival:
    """When the worker had queued one layer of a chunk, and its first and its last byte came, all by our clock.

    `queued_us` is None as long as the clocks have not been compared.
    """

    layer: int
    queued_us: int | None
    first_byte_us: int
    last_byte_us: int
    payload_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkCommitted(Event):
    """Positions [first, stop) of every layer are in memory; with `final`, windows and states too.

    `payload_bytes` are of all chunks committed by now. Of a request that takes checkpoints, `place` is where in their
    landings windows and states lie that came with this chunk: 0 the first, 1 the spare one, None if none came.
    `payload_bytes` are of all chunks committed by now. The worker's compute of this one took `compute_us` and ended at
    `computed_us` of our clock, None as long as the clocks have not been compared.
    """

    request: int
    first: int
    stop: int
    final: bool
    payload_bytes: int
    place: int | None = None
    compute_us: int
    computed_us: int | None
    layers: tuple[LayerArrival, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestFinished(Event):
    """All of it has come. `received_before_compute_end_bytes` is by the worker's clock, mapped to ours.

    `payload_bytes` are of rows and states, `wire_bytes` what came for them. Of the rows, the `timed_bytes` of large
    frames took `timed_us`, in which one or more of them were on their way.
    """

    request: int
    payload_bytes: int
    wire_bytes: int
    timed_bytes: int
    timed_us: int
    received_before_compute_end_bytes: int
    tail_us: int
    first_byte_us: int
    last_byte_us: int
    compute: ComputeDone


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestFailed(Event):
    """The worker will not serve, or not go on with, this request; RequestReleased follows."""

    request: int
    code: Code
    message: str
    committed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestReleased(Event):
    """After a failure or a cancel: nothing of this request can come any more, its memory is free."""

    request: int


class RequestState(enum.Enum):
    ASKED = "asked"
    RUNNING = "accepted, being computed"
    COMPUTED = "computed, data still coming"
    DRAINING = "cancelled or aborted, until its fence is answered"
    GONE = "over"


_NEXT_STATE: Mapping[tuple[RequestState, type], RequestState] = {
    (RequestState.ASKED, Accepted): RequestState.RUNNING,
    (RequestState.ASKED, Busy): RequestState.GONE,
    (RequestState.ASKED, Refused): RequestState.GONE,
    (RequestState.RUNNING, Progress): RequestState.RUNNING,
    (RequestState.RUNNING, Commit): RequestState.RUNNING,
    (RequestState.RUNNING, ComputeDone): RequestState.COMPUTED,
    (RequestState.RUNNING, Aborted): RequestState.DRAINING,
    (RequestState.COMPUTED, Commit): RequestState.COMPUTED,
    (RequestState.COMPUTED, Finished): RequestState.GONE,
    (RequestState.COMPUTED, Aborted): RequestState.DRAINING,
    # What was under way when the cancel crossed it.
    (RequestState.DRAINING, Accepted): RequestState.DRAINING,
    (RequestState.DRAINING, Busy): RequestState.DRAINING,
    (RequestState.DRAINING, Refused): RequestState.DRAINING,
    (RequestState.DRAINING, Progress): RequestState.DRAINING,
    (RequestState.DRAINING, Commit): RequestState.DRAINING,
    (RequestState.DRAINING, ComputeDone): RequestState.DRAINING,
    (RequestState.DRAINING, Finished): RequestState.DRAINING,
    (RequestState.DRAINING, Aborted): RequestState.DRAINING,
}

_REQUEST_MESSAGES = (Accepted, Busy, Refused, Progress, Commit, ComputeDone, Finished, Aborted)


@dataclass(kw_only=True, slots=True)
class _Handoff:
    """One live request: what is planned, what has arrived, what is committed."""

    request: int
    plan: HandoffPlan
    codec: PayloadCodec
    landings: dict[int, Landing]
    takes_checkpoints: bool
    state: RequestState = RequestState.ASKED
    committed_chunks: int = 0
    announced_chunks: int = 0
    # Windows and states come to one place while those in the other, if any, are whole. `coming` is the chunk whose are
    # the latest, `with_state` has all such chunks, and `checkpoints` those that were announced.
    whole_place: int | None = None
    coming: int | None = None
    coming_place: int = 0
    with_state: set[int] = field(default_factory=set)
    checkpoints: set[int] = field(default_factory=set)
    announced: dict[int, Commit] = field(default_factory=dict)
    arrived: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)
    last_on_stream: dict[int, tuple[int, int]] = field(default_factory=dict)
    arrivals: list[tuple[int, int]] = field(default_factory=list)
    received_bytes: int = 0
    wire_bytes: int = 0
    timed_bytes: int = 0
    timed_us: int = 0
    n_timed: int = 0
    timed_since_us: int = 0
    committed_bytes: int = 0
    first_byte_us: int = 0
    progressed_us: int = 0
    compute: ComputeDone | None = None

    @property
    def committed(self) -> int:
        """The position up to which everything is in memory."""
        if self.committed_chunks == 0:
            return self.plan.first
        return self.plan.chunks[self.committed_chunks - 1][1]


@dataclass(kw_only=True, slots=True)
class _PendingFence:
    """A fence's answers still due: the control connection's and one a stream; then these requests are free."""

    control: bool
    streams: set[int]
    requests: list[int]


class ClientConnection(Connection):
    """The decode side's state of one link."""

    def __init__(self, *, hello: Hello, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.hello = hello
        self.reply: HelloReply | None = None
        self._handoffs: dict[int, _Handoff] = {}
        self._last_request = 0
        self._fences: dict[int, _PendingFence] = {}
        self._last_fence = 0
        self._streams: dict[int, DataStream] = {}
        self._send(hello)

    # What the decode side asks for.

    def request(
        self,
        *,
        request: int,
        tokens: bytes,
        first: int,
        stop: int,
        chunk_tokens: int,
        landings: tuple[Landing, ...],
        reuse: bool = True,
        codec: PayloadCodec = PayloadCodec.RAW,
    ) -> None:
        """Ask for positions [first, stop) to be computed and sent to `landings`, by a `codec` that was agreed on.

        `tokens` is all of [0, stop) as little-endian uint32. Without `reuse` the worker computes all of them. Request
        numbers ascend. Raises ValueError for a request that contradicts itself or the layer map.
        """
        if self.state is not ConnectionState.OPEN:
            raise ValueError("the link is not open")
        if request <= self._last_request:
            raise ValueError(f"request {request} after {self._last_request}")
        if len(self._handoffs) >= MAX_REQUESTS:
            raise ValueError(f"more than {MAX_REQUESTS} requests on one link")
        if not 0 <= first < stop or len(tokens) != 4 * stop:
            raise ValueError(f"positions [{first}, {stop}) of {len(tokens) // 4} tokens")
        identity = self.hello.identity
        plan = HandoffPlan.cut(
            layers=identity.layers,
            kv_type=identity.kv_type,
            first=first,
            stop=stop,
            chunk_tokens=chunk_tokens,
        )
        by_layer = _checked_landings(plan, landings)
        takes_checkpoints = plan.first_checkpoint is not None and _has_spare_places(plan, by_layer)
        self._last_request = request
        self._handoffs[request] = _Handoff(
            request=request,
            plan=plan,
            codec=codec,
            landings=by_layer,
            takes_checkpoints=takes_checkpoints,
            progressed_us=self._clock(),
        )
        self._send(
            Prefill(
                request=request,
                tokens=tokens,
                first=first,
                stop=stop,
                chunk_tokens=chunk_tokens,
                codec=codec.label,
                reuse=reuse,
                checkpoints=takes_checkpoints,
            )
        )

    def warm(self, tokens: bytes) -> None:
        """Tell the worker what the next prompt will begin with: as many little-endian uint32 as it takes, no more."""
        if self.reply is not None and len(tokens) <= 4 * self.reply.max_prompt_tokens:
            self._send(Warm(tokens=tokens))

    def cancel(self, request: int) -> None:
        """Stop a request; RequestReleased follows once nothing of it can come any more. Unknown ones: nothing."""
        handoff = self._handoffs.get(request)
        if handoff is None or handoff.state is RequestState.DRAINING:
            return
        handoff.state = RequestState.DRAINING
        self._send(Cancel(request=request))
        self._fence_for(request)

    def live_requests(self) -> tuple[tuple[int, int, bool], ...]:
        """(request, position committed, already failed or cancelled) of all that are not over."""
        return tuple(
            (h.request, h.committed, h.state is RequestState.DRAINING) for h in self._handoffs.values()
        )

    def stalled_requests(self) -> tuple[int, ...]:
        """Running requests of which nothing has moved for STALL_TIMEOUT_S."""
        due_us = self._clock() - STALL_TIMEOUT_US
        return tuple(
            h.request
            for h in self._handoffs.values()
            if h.state in (RequestState.RUNNING, RequestState.COMPUTED) and h.progressed_us < due_us
        )

    def committed(self, request: int) -> int | None:
        """The position up to which a live request is in memory, or None for one that is over."""
        handoff = self._handoffs.get(request)
        return None if handoff is None else handoff.committed

    def stream(self, attach: Attach, memory: memoryview) -> DataStream:
        """The reader of one data connection, whose payloads land in `memory`; ProtocolError if not of this link."""
        if self.reply is None or attach.session != self.hello.session:
            raise ProtocolError("a data connection of another session")
        if attach.stream >= self.reply.data_streams or attach.stream in self._streams:
            raise ProtocolError(f"data stream {attach.stream} was not agreed on, or is there already")
        stream = DataStream(self, attach.stream, memory)
        self._streams[attach.stream] = stream
        return stream

    # What comes from the worker.

    def _handle_hello(self, body: bytes, events: list[Event]) -> None:
        named = hello_version(body)
        if named is not None and named[0] == "hello_reply":
            check_versions(client=OWN_VERSION, worker=ProtocolVersion(major=named[1], minor=named[2]))
        message = decode_message(body, CONTROL_MESSAGES)
        match message:
            case HelloReply():
                if message.role is not Role.PREFILL:
                    raise Incompatible(Code.ROLE, "both computers are set to decode: one must be the worker")
                check_identities(client=self.hello.identity, worker=message.identity)
                common_codecs(client=self.hello.codecs, worker=message.codecs)
                if message.data_streams > self.hello.data_streams:
                    raise ProtocolError(
                        f"{message.data_streams} data streams where {self.hello.data_streams} were asked"
                    )
                self.reply = message
                self._open()
                events.append(Opened(reply=message))
            case HelloRefused():
                raise Incompatible(message.code, message.message)
            case _:
                raise unexpected(message, "instead of its hello")

    def _handle_message(self, message: AnyMessage, events: list[Event]) -> None:
        if isinstance(message, FenceReply):
            self._fence_answered(message.fence, None, events)
            return
        if not isinstance(message, _REQUEST_MESSAGES):
            raise unexpected(message, "to a decode side")
        handoff = self._handoffs.get(message.request)
        if handoff is None:
            raise unexpected(message, "for a request that is over or was never made")
        state = _NEXT_STATE.get((handoff.state, type(message)))
        if state is None:
            raise unexpected(message, f"for a request that is {handoff.state.value}")
        draining = handoff.state is RequestState.DRAINING
        handoff.state = state
        handoff.progressed_us = self._clock()
        if not draining:
            self._step(handoff, message, events)

    def _step(self, handoff: _Handoff, message: AnyMessage, events: list[Event]) -> None:
        match message:
            case Accepted():
                if message.reused_tokens > handoff.plan.stop:
                    raise ProtocolError(f"{message.reused_tokens} tokens reused of {handoff.plan.stop}")
                events.append(RequestAccepted(request=handoff.request, reused_tokens=message.reused_tokens))
            case Progress():
                events.append(
                    RequestProgressed(request=handoff.request, computed_tokens=message.computed_tokens)
                )
            case Commit():
                self._announce(handoff, message)
                self._commit_ready(handoff, events)
            case ComputeDone():
                handoff.compute = message
            case Finished():
                self._finish(handoff, message, events)
            case Busy():
                self._turn_away(handoff, Code.BUSY, message.message, events)
            case Refused():
                self._turn_away(handoff, message.code, message.message, events)
            case Aborted():
                events.append(
                    RequestFailed(
                        request=handoff.request,
                        code=message.code,
                        message=message.message,
                        committed=handoff.committed,
                    )
                )
                self._fence_for(handoff.request)

    def _turn_away(self, handoff: _Handoff, code: Code, message: str, events: list[Event]) -> None:
        if handoff.arrived:
            raise ProtocolError("the worker refused a request after it had sent data for it")
        del self._handoffs[handoff.request]
        events.append(
            RequestFailed(request=handoff.request, code=code, message=message, committed=handoff.committed)
        )
        events.append(RequestReleased(request=handoff.request))

    def _announce(self, handoff: _Handoff, commit: Commit) -> None:
        plan, chunk = handoff.plan, handoff.announced_chunks
        if commit.chunk != chunk or chunk >= len(plan.chunks):
            raise ProtocolError(
                f"commit of chunk {commit.chunk} where chunk {chunk} of {len(plan.chunks)} was due"
            )
        holds_state = handoff.takes_checkpoints and plan.can_hold_state(chunk)
        if commit.checkpoint and (not holds_state or plan.is_final(chunk)):
            raise ProtocolError(f"chunk {chunk} was called a checkpoint, which it cannot be")
        if chunk in handoff.with_state and not commit.checkpoint and not plan.is_final(chunk):
            raise ProtocolError(f"chunk {chunk} brought windows or states and was not called a checkpoint")
        parts = plan.parts(chunk, checkpoint=commit.checkpoint)
        due = (*plan.chunks[chunk], len(parts), sum(part.payload_bytes for part in parts))
        said = (commit.first, commit.stop, commit.layers, commit.payload_bytes)
        if said != due:
            raise ProtocolError(f"commit of chunk {chunk} over {said} where {due} was planned")
        if len(commit.queued_us) != len(parts) or commit.ended_us < commit.started_us:
            raise ProtocolError(f"commit of chunk {chunk} with times that cannot be")
        handoff.announced[chunk] = commit
        handoff.announced_chunks += 1
        if commit.checkpoint:
            handoff.checkpoints.add(chunk)

    def _commit_ready(self, handoff: _Handoff, events: list[Event]) -> None:
        while handoff.committed_chunks < handoff.announced_chunks:
            chunk, plan = handoff.committed_chunks, handoff.plan
            checkpoint = chunk in handoff.checkpoints
            if len(handoff.arrived.get(chunk, ())) < plan.n_parts(chunk, checkpoint=checkpoint):
                return
            handoff.committed_chunks += 1
            self._send(CommitAck(request=handoff.request, chunk=chunk))
            events.append(self._committed(handoff, chunk, checkpoint=checkpoint))

    def _committed(self, handoff: _Handoff, chunk: int, *, checkpoint: bool) -> ChunkCommitted:
        """What is known of a chunk that is whole; its records are dropped."""
        parts, commit = handoff.plan.parts(chunk, checkpoint=checkpoint), handoff.announced.pop(chunk)
        arrived = handoff.arrived.pop(chunk, {})
        clocks = self.best_clock_sample
        handoff.committed_bytes += sum(part.payload_bytes for part in parts)
        place = None
        if handoff.takes_checkpoints and handoff.coming == chunk:
            handoff.whole_place = place = handoff.coming_place
        return ChunkCommitted(
            request=handoff.request,
            first=commit.first,
            stop=commit.stop,
            final=handoff.plan.is_final(chunk),
            payload_bytes=handoff.committed_bytes,
            place=place,
            compute_us=commit.ended_us - commit.started_us,
            computed_us=_our_time(clocks, commit.ended_us),
            layers=tuple(
                LayerArrival(
                    layer=part.layer,
                    queued_us=_our_time(clocks, queued_us),
                    first_byte_us=arrived[part.layer][0],
                    last_byte_us=arrived[part.layer][1],
                    payload_bytes=part.payload_bytes,
                )
                for part, queued_us in zip(parts, commit.queued_us, strict=True)
            ),
        )

    def _finish(self, handoff: _Handoff, finished: Finished, events: list[Event]) -> None:
        if handoff.committed_chunks < len(handoff.plan.chunks):
            raise ProtocolError(
                f"the worker called a request finished with {handoff.committed_chunks} of "
                f"{len(handoff.plan.chunks)} chunks committed"
            )
        if finished.payload_bytes != handoff.received_bytes or handoff.compute is None:
            raise ProtocolError(
                f"the worker counts {finished.payload_bytes} bytes sent, {handoff.received_bytes} came"
            )
        del self._handoffs[handoff.request]
        events.append(
            RequestFinished(
                request=handoff.request,
                payload_bytes=handoff.received_bytes,
                wire_bytes=handoff.wire_bytes,
                timed_bytes=handoff.timed_bytes,
                timed_us=handoff.timed_us,
                received_before_compute_end_bytes=self._received_before(handoff, handoff.compute.ended_us),
                tail_us=finished.tail_us,
                first_byte_us=handoff.first_byte_us,
                last_byte_us=handoff.arrivals[-1][0] if handoff.arrivals else 0,
                compute=handoff.compute,
            )
        )

    def _received_before(self, handoff: _Handoff, worker_us: int) -> int:
        """Bytes of frames that had arrived whole at that time of the worker's clock."""
        clocks = self.best_clock_sample
        due_us = worker_us - (clocks.offset_us if clocks else 0)
        received = 0
        for arrived_us, payload_bytes in handoff.arrivals:
            if arrived_us > due_us:
                break
            received += payload_bytes
        return received

    # Data frames.

    def begin_data(self, stream: int, header: DataHeader) -> tuple[RowSpan, ...]:
        """Check a data frame before its payload comes; returns where in memory that belongs. A state is one row."""
        handoff = self._handoffs.get(header.request)
        if handoff is None:
            raise ProtocolError(f"data for request {header.request}, which is over or was never made")
        plan = handoff.plan
        if header.chunk >= len(plan.chunks) or header.layer >= len(plan.layers):
            raise ProtocolError(f"data for chunk {header.chunk} and layer {header.layer}, which do not exist")
        is_state = plan.layers[header.layer].kind is not LayerKind.ATTENTION
        part = plan.part(
            header.chunk, header.layer, checkpoint=self._may_be_checkpoint(handoff, header.chunk)
        )
        if part is None:
            raise ProtocolError(f"data for layer {header.layer} in chunk {header.chunk}, where it has none")
        if (header.first_row, header.rows, header.payload_bytes) != (
            part.first_row,
            part.rows,
            part.payload_bytes,
        ):
            raise ProtocolError(
                f"layer {header.layer} of chunk {header.chunk} came as {header.payload_bytes} bytes for rows "
                f"{header.first_row} + {header.rows}, not {part.payload_bytes} for {part.first_row} + {part.rows}"
            )
        codec = PayloadCodec.RAW if part.state_bytes else handoff.codec
        if header.codec is not codec:
            raise ProtocolError(
                f"layer {header.layer} of chunk {header.chunk} came as {header.codec.label}, not {codec.label}"
            )
        if header.chunk < handoff.committed_chunks or header.layer in handoff.arrived.get(header.chunk, ()):
            raise ProtocolError(f"layer {header.layer} of chunk {header.chunk} came twice")
        if (header.chunk, header.layer) <= handoff.last_on_stream.get(stream, (-1, -1)):
            raise ProtocolError(f"layer {header.layer} of chunk {header.chunk} came out of order")
        handoff.last_on_stream[stream] = (header.chunk, header.layer)
        if _is_timed(header):
            if not handoff.n_timed:
                handoff.timed_since_us = self._clock()
            handoff.n_timed += 1
        landing = handoff.landings[header.layer]
        row, state_offset = part.first_row - landing.first, landing.state_offset
        if is_state and handoff.takes_checkpoints:
            if stream != state_stream(header.layer, len(self._streams)):
                raise ProtocolError(
                    f"layer {header.layer} came on data stream {stream}, which is not its own"
                )
            handoff.with_state.add(header.chunk)
            place = self._place_for(handoff, header.chunk)
            row = place * landing.spare_rows
            state_offset = (landing.state_offset, landing.spare_state_offset)[place]
        if landing.kind is LayerKind.RECURRENT:
            return (
                RowSpan(
                    offset=state_offset,
                    n_bytes=part.state_bytes,
                    row_bytes=part.state_bytes,
                    head_dim=part.state_bytes,
                ),
            )
        return plan.row_spans(
            part, landing.k_offset + row * landing.k_row_bytes, landing.v_offset + row * landing.v_row_bytes
        )

    def _may_be_checkpoint(self, handoff: _Handoff, chunk: int) -> bool:
        """Whether windows and states may come with that chunk; once it is announced that is known."""
        if chunk < handoff.announced_chunks:
            return chunk in handoff.checkpoints
        return handoff.takes_checkpoints and handoff.plan.can_hold_state(chunk)

    def _place_for(self, handoff: _Handoff, chunk: int) -> int:
        """Where the chunk's windows and states go: not where whole ones are.

        Others that are not committed yet lose their place to it: their chunk then counts without them. Frames of one
        layer come on one stream, so that the later are written later.
        """
        if handoff.coming is None or chunk > handoff.coming:
            handoff.coming = chunk
            handoff.coming_place = 0 if handoff.whole_place is None else 1 - handoff.whole_place
        return handoff.coming_place

    def block_codec(self, codec: PayloadCodec) -> BlockCodec:
        """What unpacks the blocks of a frame."""
        return block_codec(codec, self.hello.identity.kv_type)

    def now_us(self) -> int:
        return self._clock()

    def end_data(self, header: DataHeader, *, wire_bytes: int, begun_us: int) -> list[Event]:
        """A data frame's payload is in memory, whole; `wire_bytes` came for it since `begun_us`."""
        handoff = self._handoffs.get(header.request)
        if handoff is None:
            raise ProtocolError(f"data for request {header.request} after its fence was answered")
        events: list[Event] = []
        now_us = self._clock()
        handoff.first_byte_us = handoff.first_byte_us or now_us
        handoff.progressed_us = now_us
        handoff.arrived.setdefault(header.chunk, {})[header.layer] = (begun_us, now_us)
        handoff.arrivals.append((now_us, header.payload_bytes))
        handoff.received_bytes += header.payload_bytes
        handoff.wire_bytes += wire_bytes
        if _is_timed(header):
            handoff.timed_bytes += header.payload_bytes
            handoff.n_timed -= 1
            if not handoff.n_timed:
                handoff.timed_us += now_us - handoff.timed_since_us
        if handoff.state is not RequestState.DRAINING:
            self._commit_ready(handoff, events)
        return events

    def stream_message(self, stream: int, body: bytes | bytearray) -> list[Event]:
        """A control message that came on a data stream."""
        message = decode_message(body, STREAM_MESSAGES)
        if not isinstance(message, FenceReply):
            raise unexpected(message, "on a data stream")
        events: list[Event] = []
        self._fence_answered(message.fence, stream, events)
        return events

    # Fences.

    def _fence_for(self, request: int) -> None:
        if self.reply is None or len(self._fences) >= MAX_FENCES:
            raise ProtocolError(f"more than {MAX_FENCES} fences without an answer")
        self._last_fence += 1
        self._fences[self._last_fence] = _PendingFence(
            control=True, streams=set(range(self.reply.data_streams)), requests=[request]
        )
        self._send(Fence(fence=self._last_fence))

    def _fence_answered(self, fence: int, stream: int | None, events: list[Event]) -> None:
        pending = self._fences.get(fence)
        if pending is None:
            raise ProtocolError(f"an answer to fence {fence}, which is not open")
        if stream is None:
            if not pending.control:
                raise ProtocolError(f"fence {fence} was answered twice")
            pending.control = False
        elif stream not in pending.streams:
            raise ProtocolError(f"fence {fence} was answered twice on stream {stream}")
        else:
            pending.streams.discard(stream)
        if pending.control or pending.streams:
            return
        del self._fences[fence]
        for request in pending.requests:
            del self._handoffs[request]
            events.append(RequestReleased(request=request))


@dataclass(kw_only=True, slots=True)
class _Piece:
    """A part of a frame that is read at one go: `target` is its place in the cache."""

    target: memoryview
    head_dim: int


class DataStream:
    """Reads one data connection: `buffer` is where its next bytes belong, `advance` says how many came.

    Payloads are addressed straight into the cache memory; headers, messages and packed blocks into small buffers of its
    own.
    """

    def __init__(self, connection: ClientConnection, index: int, memory: memoryview) -> None:
        self.index = index
        self._connection = connection
        self._memory = memory
        self._small = memoryview(bytearray(MAX_STREAM_CONTROL_BYTES))
        self._packed = memoryview(b"")
        self._pieces: list[_Piece] = []
        self._data: DataHeader | None = None
        self._begun_us = 0
        self._wire_bytes = 0
        self._codecs: dict[PayloadCodec, BlockCodec] = {}
        self._codec: BlockCodec | None = None
        self._is_unpacked = False
        self._n_expected = 0
        self._view = self._small
        self._whole: Callable[[], list[Event]] = self._frame_header
        self._expect(FRAME_HEADER.size, self._frame_header)

    def buffer(self) -> memoryview:
        """Where the next bytes of this connection go; never empty."""
        return self._view

    def unpack(self) -> None:
        """Unpack the block that has filled `buffer`, where it is one. What `advance` would do, but needs no lock."""
        if self._whole == self._block and self._codec is not None and not self._is_unpacked:
            piece = self._pieces[-1]
            self._codec.unpack(self._packed[: self._n_expected], piece.target, piece.head_dim)
            self._is_unpacked = True

    def advance(self, n_bytes: int) -> list[Event]:
        """`n_bytes` came into `buffer()`. Raises ProtocolError on any breach; then the link is over."""
        self._connection.heard()
        self._view = self._view[n_bytes:]
        return [] if len(self._view) else self._whole()

    def _expect(self, n_bytes: int, whole: Callable[[], list[Event]]) -> None:
        self._view = self._small[:n_bytes]
        self._n_expected = n_bytes
        self._whole = whole

    def _frame_header(self) -> list[Event]:
        kind, body_bytes = decode_frame_header(self._small, max_body_bytes=MAX_STREAM_CONTROL_BYTES)
        if kind is FrameKind.DATA:
            self._expect(DATA_HEADER.size, self._data_header)
        else:
            self._expect(body_bytes, self._message)
        return []

    def _message(self) -> list[Event]:
        body = bytes(self._small[: self._n_expected])
        self._expect(FRAME_HEADER.size, self._frame_header)
        return self._connection.stream_message(self.index, body)

    def _data_header(self) -> list[Event]:
        data = decode_data_header(self._small)
        spans = self._connection.begin_data(self.index, data)
        self._data, self._wire_bytes = data, 0
        self._begun_us = self._connection.now_us()
        self._codec = self._block_codec(data.codec)
        self._pieces = [
            _Piece(target=self._memory[offset : offset + n_bytes], head_dim=span.head_dim)
            for span in spans
            for offset, n_bytes in ([(span.offset, span.n_bytes)] if self._codec is None else span.blocks())
            if n_bytes
        ]
        if sum(len(piece.target) for piece in self._pieces) != data.payload_bytes:
            raise ProtocolError("a landing outside the cache memory")
        self._pieces.reverse()
        return self._next_piece()

    def _block_codec(self, codec: PayloadCodec) -> BlockCodec | None:
        if codec is PayloadCodec.RAW:
            return None
        if codec not in self._codecs:
            self._codecs[codec] = self._connection.block_codec(codec)
        return self._codecs[codec]

    def _next_piece(self) -> list[Event]:
        if not self._pieces:
            return self._end_of_frame()
        if self._codec is None:
            self._land_as_it_is(self._pieces[-1])
        else:
            self._expect(BLOCK_HEADER.size, self._block_header)
        return []

    def _land_as_it_is(self, piece: _Piece) -> None:
        self._view = piece.target
        self._n_expected = len(piece.target)
        self._whole = self._piece_landed

    def _block_header(self) -> list[Event]:
        piece = self._pieces[-1]
        rows_bytes = len(piece.target)
        (body_bytes,) = BLOCK_HEADER.unpack_from(self._small)
        self._wire_bytes += BLOCK_HEADER.size
        if body_bytes == rows_bytes:
            self._land_as_it_is(piece)
            return []
        if self._codec is None or not self._codec.may_be(body_bytes, rows_bytes, piece.head_dim):
            raise ProtocolError(f"a block of {body_bytes} bytes for rows of {rows_bytes}")
        if len(self._packed) < rows_bytes:
            self._packed = memoryview(bytearray(rows_bytes))
        self._view = self._packed[:body_bytes]
        self._n_expected = body_bytes
        self._whole = self._block
        return []

    def _block(self) -> list[Event]:
        self.unpack()
        self._is_unpacked = False
        return self._piece_landed()

    def _piece_landed(self) -> list[Event]:
        self._pieces.pop()
        self._wire_bytes += self._n_expected
        return self._next_piece()

    def _end_of_frame(self) -> list[Event]:
        data, self._data = self._data, None
        self._expect(FRAME_HEADER.size, self._frame_header)
        if data is None:
            raise ProtocolError("a payload without its header")
        return self._connection.end_data(data, wire_bytes=self._wire_bytes, begun_us=self._begun_us)


def _has_spare_places(plan: HandoffPlan, landings: dict[int, Landing]) -> bool:
    """Whether every window and state has a second place to come to."""
    return all(
        landings[index].spare_rows if shape.kind is LayerKind.WINDOW else landings[index].spare_state_offset
        for index, shape in enumerate(plan.layers)
        if shape.kind is not LayerKind.ATTENTION
    )


def _is_timed(header: DataHeader) -> bool:
    """Whether how long the frame takes says something of the link."""
    return header.rows > 0 and header.payload_bytes >= _LEAST_TIMED_BYTES


def _our_time(clocks: ClockSample | None, worker_us: int) -> int | None:
    """A time of the worker's clock by ours, as far as pings can tell."""
    return None if clocks is None else worker_us - clocks.offset_us


def _checked_landings(plan: HandoffPlan, landings: tuple[Landing, ...]) -> dict[int, Landing]:
    """The landings by layer; ValueError unless they hold exactly what the plan will send."""
    by_layer = {landing.layer: landing for landing in landings}
    if len(by_layer) != len(landings):
        raise ValueError("two landings for one layer")
    for index, shape in enumerate(plan.layers):
        landing = by_layer.get(index)
        if landing is None:
            raise ValueError(f"no landing for layer {index}")
        element_bytes = plan.kv_type.element_bytes * shape.n_kv_heads
        if landing.kind is not shape.kind or (
            shape.kind is not LayerKind.RECURRENT
            and (landing.k_row_bytes, landing.v_row_bytes)
            != (element_bytes * shape.k_head_dim, element_bytes * shape.v_head_dim)
        ):
            raise ValueError(f"the landing of layer {index} has another layout than the layer map")
        if shape.kind is LayerKind.RECURRENT:
            fits = landing.state_bytes == shape.state_bytes
        elif shape.kind is LayerKind.WINDOW:
            rows = plan.window_rows(shape)
            fits = landing.first <= rows[0] and rows[1] <= landing.stop
        else:
            fits = landing.first <= plan.first and plan.stop <= landing.stop
        if not fits:
            raise ValueError(
                f"the landing of layer {index} does not hold positions [{plan.first}, {plan.stop})"
            )
    return by_layer
