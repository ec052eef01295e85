"""The prefill side's end of a link: takes requests, numbers what is pushed, finishes when all is acknowledged.

Sans-IO. The control connection feeds `WorkerConnection.receive`; what the engine computed is announced by
`push`, which returns the header that goes before the bytes on a data stream. Breaches by the client raise
ProtocolError; calls that contradict the plan are our own fault and raise ValueError. Nothing here knows
sockets, threads or memory.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.cache.spec import LayerKind
from engine.errors import ProtocolError
from engine.wire.blocks import RowSpan
from engine.wire.codec import (
    CONTROL_MESSAGES,
    DataHeader,
    PayloadCodec,
    decode_message,
    encode_message,
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
from engine.wire.connection import Clock, Connection, Event, unexpected
from engine.wire.geometry import HandoffPlan
from engine.wire.limits import MAX_REQUESTS, MAX_TEXT_CHARS
from engine.wire.messages import (
    Aborted,
    Accepted,
    AnyMessage,
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientOpened(Event):
    """The hellos fit; data streams of `hello.session` may be attached."""

    hello: Hello


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillAsked(Event):
    """A request to answer with accept, busy or refuse.

    Chunks from `first_checkpoint` on may be checkpoints, each of `checkpoint_bytes` more; None where none may.
    """

    request: int
    tokens: bytes
    first: int
    stop: int
    chunk_tokens: int
    reuse: bool
    checkpoint_bytes: int
    first_checkpoint: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmAsked(Event):
    """The next prompt will begin with these tokens."""

    tokens: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkAcknowledged(Event):
    """The client has all of that chunk, since `at_us`. Told of requests that may hold checkpoints."""

    request: int
    chunk: int
    at_us: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillCancelled(Event):
    """The client wants no more of it; the request is forgotten, drop what is queued for it."""

    request: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FenceAsked(Event):
    """Queue `fence_reply(fence)` behind everything on every data stream."""

    fence: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillFinished(Event):
    """The client has everything; the request is forgotten."""

    request: int
    payload_bytes: int
    tail_us: int


class JobState(enum.Enum):
    WAITING = "waiting for an answer"
    RUNNING = "accepted, being computed"
    COMPUTED = "computed, data still going out"
    GONE = "over"


class Step(enum.Enum):
    """What the engine does with a request."""

    ACCEPT = "accept"
    TURN_AWAY = "answer busy or refuse"
    PROGRESS = "report progress of"
    PUSH = "push data of"
    COMMIT = "commit a chunk of"
    COMPUTED = "end the compute of"
    ABORT = "abort"


_NEXT_STATE: Mapping[tuple[JobState, Step], JobState] = {
    (JobState.WAITING, Step.ACCEPT): JobState.RUNNING,
    (JobState.WAITING, Step.TURN_AWAY): JobState.GONE,
    (JobState.RUNNING, Step.PROGRESS): JobState.RUNNING,
    (JobState.RUNNING, Step.PUSH): JobState.RUNNING,
    (JobState.RUNNING, Step.COMMIT): JobState.RUNNING,
    (JobState.RUNNING, Step.COMPUTED): JobState.COMPUTED,
    (JobState.RUNNING, Step.ABORT): JobState.GONE,
    (JobState.COMPUTED, Step.PUSH): JobState.COMPUTED,
    (JobState.COMPUTED, Step.COMMIT): JobState.COMPUTED,
    (JobState.COMPUTED, Step.ABORT): JobState.GONE,
}


@dataclass(kw_only=True, slots=True)
class _Job:
    """One live request: its plan, what was pushed, committed and acknowledged."""

    request: int
    plan: HandoffPlan
    codec: PayloadCodec
    takes_checkpoints: bool
    state: JobState = JobState.WAITING
    checkpoint: int | None = None
    last_pushed_layer: int = -1
    queued_us: list[int] = field(default_factory=list)
    committed_chunks: int = 0
    acknowledged_chunks: int = 0
    payload_bytes: int = 0
    compute_ended_us: int | None = None
    final_ack_us: int = 0


class WorkerConnection(Connection):
    """The prefill side's state of one link."""

    def __init__(self, *, reply: HelloReply, clock: Clock) -> None:
        """`reply` says what this worker is and can do; codecs and streams are narrowed to what the client has."""
        super().__init__(clock=clock)
        self.reply = reply
        self.hello: Hello | None = None
        self._jobs: dict[int, _Job] = {}
        self._last_request = 0

    # What the engine does.

    def is_live(self, request: int) -> bool:
        return request in self._jobs

    def is_state(self, layer: int) -> bool:
        """Whether what that layer sends is a window or a state, and not a chunk's own rows."""
        return self.reply.identity.layers[layer].kind is not LayerKind.ATTENTION

    def accept(self, request: int, *, reused_tokens: int) -> None:
        self._step(request, Step.ACCEPT)
        self._send(Accepted(request=request, reused_tokens=reused_tokens))

    def busy(self, request: int, message: str) -> None:
        self._step(request, Step.TURN_AWAY)
        self._send(Busy(request=request, message=message[:MAX_TEXT_CHARS]))

    def refuse(self, request: int, code: Code, message: str) -> None:
        self._step(request, Step.TURN_AWAY)
        self._send(Refused(request=request, code=code, message=message[:MAX_TEXT_CHARS]))

    def abort(self, request: int, code: Code, message: str) -> None:
        """End a request, accepted or not yet; what was pushed may still go out."""
        job = self._jobs.get(request)
        if job is not None and job.state is JobState.WAITING:
            self.refuse(request, code, message)
            return
        self._step(request, Step.ABORT)
        self._send(Aborted(request=request, code=code, message=message[:MAX_TEXT_CHARS]))

    def progress(self, request: int, *, computed_tokens: int) -> None:
        self._step(request, Step.PROGRESS)
        self._send(Progress(request=request, computed_tokens=computed_tokens))

    def push(self, request: int, *, chunk: int, layer: int, payload_bytes: int) -> DataHeader:
        """The header of the next data frame. Layers go in order, chunk after chunk, each exactly as planned.

        A window or state pushed before the final chunk makes its chunk a checkpoint, which needs all of them.
        """
        job = self._step(request, Step.PUSH)
        plan = job.plan
        if chunk != job.committed_chunks or chunk >= len(plan.chunks) or layer <= job.last_pushed_layer:
            raise ValueError(f"layer {layer} of chunk {chunk} is out of order")
        may_be_checkpoint = job.takes_checkpoints and plan.can_hold_state(chunk)
        part = plan.part(chunk, layer, checkpoint=may_be_checkpoint)
        if part is None or part.payload_bytes != payload_bytes:
            planned = 0 if part is None else part.payload_bytes
            raise ValueError(f"{payload_bytes} bytes for layer {layer} of chunk {chunk}, not {planned}")
        if self.is_state(layer) and not plan.is_final(chunk):
            job.checkpoint = chunk
        job.last_pushed_layer = layer
        job.queued_us.append(self._clock())
        job.payload_bytes += payload_bytes
        return DataHeader(
            request=request,
            chunk=chunk,
            layer=layer,
            codec=PayloadCodec.RAW if part.state_bytes else job.codec,
            first_row=part.first_row,
            rows=part.rows,
            payload_bytes=payload_bytes,
        )

    def row_spans(
        self, request: int, *, chunk: int, layer: int, spans: tuple[tuple[int, int], ...]
    ) -> tuple[RowSpan, RowSpan]:
        """What is pushed of a live request from these (offset, bytes) of memory, K and V; ValueError for others."""
        job = self._jobs[request]
        plan = job.plan
        part = plan.part(chunk, layer, checkpoint=chunk == job.checkpoint)
        if part is None or [n_bytes for _, n_bytes in spans] != [part.k_bytes, part.v_bytes]:
            raise ValueError(f"layer {layer} of chunk {chunk} in {spans}")
        (k_offset, _), (v_offset, _) = spans
        return plan.row_spans(part, k_offset, v_offset)

    def commit(self, request: int, *, chunk: int, started_us: int, ended_us: int) -> None:
        """All of that chunk has been pushed; it was computed between these times of this connection's clock."""
        job = self._step(request, Step.COMMIT)
        plan, checkpoint = job.plan, chunk == job.checkpoint
        n_pushed = len(job.queued_us)
        if chunk != job.committed_chunks or n_pushed != plan.n_parts(chunk, checkpoint=checkpoint):
            raise ValueError(f"commit of chunk {chunk} with {n_pushed} layers pushed")
        first, stop = plan.chunks[chunk]
        job.committed_chunks += 1
        queued_us, job.queued_us = job.queued_us, []
        job.last_pushed_layer = -1
        self._send(
            Commit(
                request=request,
                chunk=chunk,
                first=first,
                stop=stop,
                layers=plan.n_parts(chunk, checkpoint=checkpoint),
                payload_bytes=sum(part.payload_bytes for part in plan.parts(chunk, checkpoint=checkpoint)),
                checkpoint=checkpoint,
                started_us=started_us,
                ended_us=ended_us,
                queued_us=tuple(queued_us),
            )
        )

    def compute_done(self, request: int, *, started_us: int, ended_us: int) -> list[Event]:
        """The last compute ended at `ended_us` of this connection's clock; what follows is the tail."""
        job = self._step(request, Step.COMPUTED)
        job.compute_ended_us = ended_us
        self._send(ComputeDone(request=request, started_us=started_us, ended_us=ended_us))
        events: list[Event] = []
        self._finish_when_complete(job, events)
        return events

    def fence_reply(self, fence: int) -> bytes:
        """The frame that answers a fence on a data stream."""
        return encode_message(FenceReply(fence=fence))

    # What comes from the client.

    def _handle_hello(self, body: bytes, events: list[Event]) -> None:
        try:
            named = hello_version(body)
            if named is not None and named[0] == "hello":
                check_versions(client=ProtocolVersion(major=named[1], minor=named[2]), worker=OWN_VERSION)
            hello = decode_message(body, CONTROL_MESSAGES)
            if not isinstance(hello, Hello):
                raise unexpected(hello, "instead of its hello")
            if hello.role is not Role.DECODE:
                raise Incompatible(Code.ROLE, "both computers are set to prefill: one must decode")
            check_identities(client=hello.identity, worker=self.reply.identity)
            codecs = common_codecs(client=hello.codecs, worker=self.reply.codecs)
        except Incompatible as mismatch:
            self._send(HelloRefused(code=mismatch.code, message=str(mismatch)[:MAX_TEXT_CHARS]))
            raise
        self.hello = hello
        self.reply = HelloReply(
            protocol_major=OWN_VERSION.major,
            protocol_minor=OWN_VERSION.minor,
            role=Role.PREFILL,
            identity=self.reply.identity,
            codecs=codecs,
            data_streams=min(hello.data_streams, self.reply.data_streams),
            max_prompt_tokens=self.reply.max_prompt_tokens,
        )
        self._send(self.reply)
        self._open()
        events.append(ClientOpened(hello=hello))

    def _handle_message(self, message: AnyMessage, events: list[Event]) -> None:
        match message:
            case Prefill():
                self._asked(message, events)
            case Warm():
                if not message.tokens or len(message.tokens) % 4:
                    raise ProtocolError(f"{len(message.tokens)} bytes of tokens to be warmed up with")
                if len(message.tokens) <= 4 * self.reply.max_prompt_tokens:
                    events.append(WarmAsked(tokens=message.tokens))
            case Cancel():
                if self._known(message.request) is not None:
                    del self._jobs[message.request]
                    events.append(PrefillCancelled(request=message.request))
            case CommitAck():
                job = self._known(message.request)
                if job is not None:
                    self._acknowledged(job, message.chunk, events)
            case Fence():
                self._send(FenceReply(fence=message.fence))
                events.append(FenceAsked(fence=message.fence))
            case _:
                raise unexpected(message, "to a prefill side")

    def _asked(self, prefill: Prefill, events: list[Event]) -> None:
        if prefill.request <= self._last_request:
            raise ProtocolError(f"request {prefill.request} after request {self._last_request}")
        self._last_request = prefill.request
        if not prefill.first < prefill.stop or len(prefill.tokens) != 4 * prefill.stop:
            raise ProtocolError(
                f"a request for positions [{prefill.first}, {prefill.stop}) with "
                f"{len(prefill.tokens)} bytes of tokens"
            )
        if prefill.codec not in self.reply.codecs:
            message = f"the codec {prefill.codec} was not agreed on"
            self._send(Refused(request=prefill.request, code=Code.CODEC, message=message))
        elif prefill.stop > self.reply.max_prompt_tokens:
            message = f"{prefill.stop} tokens, and the worker's context holds {self.reply.max_prompt_tokens}"
            self._send(Refused(request=prefill.request, code=Code.TOO_LONG, message=message))
        elif len(self._jobs) >= MAX_REQUESTS:
            self._send(Busy(request=prefill.request, message=f"{MAX_REQUESTS} requests on one link"))
        else:
            plan = HandoffPlan.cut(
                layers=self.reply.identity.layers,
                kv_type=self.reply.identity.kv_type,
                first=prefill.first,
                stop=prefill.stop,
                chunk_tokens=prefill.chunk_tokens,
            )
            self._jobs[prefill.request] = _Job(
                request=prefill.request,
                plan=plan,
                codec=PayloadCodec.labelled(prefill.codec),
                takes_checkpoints=prefill.checkpoints,
            )
            events.append(
                PrefillAsked(
                    request=prefill.request,
                    tokens=prefill.tokens,
                    first=prefill.first,
                    stop=prefill.stop,
                    chunk_tokens=prefill.chunk_tokens,
                    reuse=prefill.reuse,
                    checkpoint_bytes=plan.checkpoint_bytes,
                    first_checkpoint=plan.first_checkpoint if prefill.checkpoints else None,
                )
            )

    def _known(self, request: int) -> _Job | None:
        """The live request of that number; None for one that is over: its end may have crossed the message."""
        if request > self._last_request:
            raise ProtocolError(f"a message for request {request}, which was never made")
        return self._jobs.get(request)

    def _acknowledged(self, job: _Job, chunk: int, events: list[Event]) -> None:
        if chunk != job.acknowledged_chunks or chunk >= job.committed_chunks:
            raise ProtocolError(f"chunk {chunk} acknowledged where chunk {job.acknowledged_chunks} was due")
        job.acknowledged_chunks += 1
        job.final_ack_us = self._clock()
        if job.takes_checkpoints:
            events.append(ChunkAcknowledged(request=job.request, chunk=chunk, at_us=job.final_ack_us))
        self._finish_when_complete(job, events)

    def _finish_when_complete(self, job: _Job, events: list[Event]) -> None:
        if job.compute_ended_us is None or job.acknowledged_chunks < len(job.plan.chunks):
            return
        tail_us = max(0, job.final_ack_us - job.compute_ended_us)
        del self._jobs[job.request]
        self._send(Finished(request=job.request, payload_bytes=job.payload_bytes, tail_us=tail_us))
        events.append(PrefillFinished(request=job.request, payload_bytes=job.payload_bytes, tail_us=tail_us))

    def _step(self, request: int, step: Step) -> _Job:
        job = self._jobs.get(request)
        if job is None:
            raise ValueError(f"cannot {step.value} request {request}, which is over")
        state = _NEXT_STATE.get((job.state, step))
        if state is None:
            raise ValueError(f"cannot {step.value} request {request}, which is {job.state.value}")
        job.state = state
        if state is JobState.GONE:
            del self._jobs[request]
        return job
