"""The worker's engine loop: takes requests from its courier, computes them by passes, pushes each layer as it is done.

A pool of prompts is prefilled at once: a pass packs the next chunk of each, prompts join and leave between two passes,
and a full pool answers that the worker is busy. What computes is behind `prefiller.Prefiller`; no torch here.
"""

from __future__ import annotations

import enum
import functools
import logging
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from engine.batching.chunks import equal_chunks
from engine.batching.packing import Chunk, Packer
from engine.batching.pulse import Pulse
from engine.config import PASS_TOKENS
from engine.errors import BatonError, InvalidRequest, OutOfMemory, ProcessFailed
from engine.handoff import channel as ch
from engine.handoff.checkpoints import Checkpoints
from engine.handoff.courier_process import CourierProcess
from engine.handoff.failure import FailureCode
from engine.handoff.prefiller import Part, Prefiller, Taken
from engine.handoff.shared import SharedMemory
from engine.wire.messages import Code

_UINT32 = "I" if array("I").itemsize == 4 else "L"

log = logging.getLogger(__name__)

# What is computed ahead goes in such small pieces that a prompt which comes meanwhile hardly waits.
_WARM_TOKENS = 128

Key = tuple[int, int]  # (link, request): numbers are the clients' own


class Stage(enum.Enum):
    """Where a request is; one that is over has left the pool."""

    ADMITTED = "waiting for a sequence that is being freed"
    RESTORING = "waiting for a kept prefix to be brought to its sequence"
    COMPUTING = "in the passes"
    SENDING = "computed, not all of it at the client's yet"


@dataclass(kw_only=True, eq=False)
class _Job:
    """One live request, computed up to `position`. `sequence` is its own from RESTORING on; `chunks` are those sent.

    Whoever has a reason to stop it notes that in `is_cancelled` or `fault`, and the loop acts on it after the pass.
    `checkpoint` is the latest chunk that was made one.
    """

    asked: ch.Asked
    stage: Stage = Stage.ADMITTED
    sequence: int | None = None
    position: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    is_cancelled: bool = False
    fault: Exception | None = None
    started_us: int = 0
    checkpoints: Checkpoints | None = None
    checkpoint: int | None = None
    n_committed: int = 0

    @property
    def key(self) -> Key:
        return self.asked.link, self.asked.request

    @property
    def is_stopped(self) -> bool:
        return self.is_cancelled or self.fault is not None


@dataclass(kw_only=True)
class _Warming:
    """Tokens that a next prompt will begin with, computed up to `position`; None while a prefix is on its way."""

    tokens: list[int]
    sequence: int
    position: int | None


class PrefillWorker:
    """`run` serves until `close`; `on_link(note)` is told when a client comes (an empty note) or goes (why).

    Up to `n_prefill` prompts are computed at once, in passes of about `pass_tokens`. `pulse` beats with each layer.
    """

    def __init__(
        self,
        prefiller: Prefiller,
        config: ch.CourierConfig,
        memory: SharedMemory,
        on_link: Callable[[str], None] = lambda note: None,
        *,
        n_prefill: int = 1,
        pass_tokens: int = PASS_TOKENS.default,
        pulse: Pulse | None = None,
    ) -> None:
        if not 1 <= n_prefill <= prefiller.n_sequences:
            raise ValueError(f"{n_prefill} prompts at once in {prefiller.n_sequences} sequences")
        self.pulse = pulse or Pulse()
        self._prefiller = prefiller
        self._courier = CourierProcess(
            config, memory, on_message=self._on_message, on_gone=self._on_courier_gone
        )
        self._on_link = on_link
        self._listens = config.listen is not None
        self._n_prefill = n_prefill
        self._packer: Packer[_Job] = Packer(pass_tokens=pass_tokens)
        self._changed = threading.Condition()
        self._jobs: dict[Key, _Job] = {}
        self._computing: list[_Job] = []  # the loop's own
        self._restoring: dict[int, _Job] = {}  # the loop's own, by sequence
        self._has_restored = False
        self._to_warm: deque[list[int]] = deque(maxlen=prefiller.n_sequences)
        self._warming: _Warming | None = None  # the loop's own
        self._free = set(range(prefiller.n_sequences))
        self._fenced: dict[int, int] = {}
        # Whose checkpoint is set aside, the sequence and the chunk, until the client has it: there is room for one.
        self._set_aside: tuple[int, int] | None = None
        self._drains = 0
        self._closing = False
        self._port: int | None = None
        self._failure = ""
        prefiller.on_wakeup(self._on_restored)

    def open(self, timeout_s: float = 10.0) -> int | None:
        """Start the courier; where it is to listen, wait until it does and return its port.

        Raises ProcessFailed when it does not start, or cannot have its address.
        """
        self._courier.start()
        if not self._listens:
            return None
        with self._changed:
            self._changed.wait_for(lambda: self._port is not None or bool(self._failure), timeout_s)
            if self._port is None:
                raise ProcessFailed(self._failure or "the courier did not start in time")
            return self._port

    def close(self) -> None:
        """End the courier and make `run` return after the chunk it is in."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._courier.close()

    @property
    def courier_pid(self) -> int | None:
        """Of the courier that runs now, or None."""
        return self._courier.pid

    def run(self) -> None:
        while self._wait_for_work():
            self._let_go()
            self._take_restored()
            self._make_way()
            for job in self._startable():
                self._begin(job)
            if planned := self._packer.next_pass():
                self._compute(planned)
            else:
                self._warm()

    def _wait_for_work(self) -> bool:
        """Whether there is any; False when it is time to end."""
        self.pulse.rest()
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._closing
                    or self._computing
                    or self._has_restored
                    or (self._admitted() and (self._free or self._is_warming))
                    or self._can_warm()
                )
            )
        self.pulse.work()
        return not self._closing

    def _admitted(self) -> list[_Job]:
        """Under the lock."""
        return [job for job in self._jobs.values() if job.stage is Stage.ADMITTED]

    def _startable(self) -> list[_Job]:
        """Those that sequences are there for, in the order in which they came."""
        with self._changed:
            jobs = self._admitted()[: len(self._free)]
            for job in jobs:
                job.stage = Stage.COMPUTING
            return jobs

    def _begin(self, job: _Job) -> None:
        """Give it a sequence, and there its place in the passes or what is kept of its prefix."""
        try:
            taken = self._take_sequence(_from_little_endian(job.asked.tokens), reuse=job.asked.reuse)
        except Exception as error:
            job.fault = error
            self._stop(job)
            return
        with self._changed:
            job.sequence = taken.sequence
            if taken.held is None:
                job.stage = Stage.RESTORING
        if taken.held is None:
            self._restoring[taken.sequence] = job
        else:
            self._place(job, taken.held)

    def _take_sequence(self, tokens: list[int], *, reuse: bool) -> Taken:
        with self._changed:
            free = sorted(self._free)
        taken = self._prefiller.begin(tokens, free, reuse=reuse)
        with self._changed:
            self._free.discard(taken.sequence)
        return taken

    def _take_restored(self) -> None:
        """Go on with those whose prefix is there."""
        with self._changed:
            self._has_restored = False
        for taken in self._prefiller.restored():
            job, held = self._restoring.pop(taken.sequence, None), taken.held or 0
            if job is not None:
                with self._changed:
                    job.stage = Stage.COMPUTING
                self._place(job, held)
            elif self._warming is not None and self._warming.sequence == taken.sequence:
                self._warming.position = held

    def _place(self, job: _Job, held: int) -> None:
        """Its sequence holds the first `held` tokens: send what the client lacks of those, and compute the rest."""
        asked = job.asked
        job.position = held
        job.started_us = now_us()
        job.chunks = equal_chunks(asked.first, asked.stop, asked.chunk_tokens)
        if asked.first_checkpoint is not None:
            job.checkpoints = Checkpoints(
                n_bytes=asked.checkpoint_bytes, first_chunk=asked.first_checkpoint, n_chunks=len(job.chunks)
            )
        self._computing.append(job)
        if job.is_stopped:
            return
        self._send(ch.Accept(link=asked.link, request=asked.request, reused_tokens=held))
        for chunk in job.chunks:
            if chunk[1] <= held and not job.is_stopped:
                self._send_held(job, chunk)
        # What the client has and this worker lacks is computed, and not sent.
        missing = equal_chunks(held, asked.first, asked.chunk_tokens)
        missing += [(max(first, held), end) for first, end in job.chunks if end > held]
        if missing:
            self._packer.join(job, missing)

    def _send_held(self, job: _Job, chunk: Chunk) -> None:
        if job.sequence is None:
            return
        begun_us = now_us()
        for layer in range(self._prefiller.n_layers):
            self._push(job, job.sequence, layer)
        self._computed(job, chunk, begun_us, now_us())

    def _can_warm(self) -> bool:
        """Whether there is time for it, and something to be done. Under the lock."""
        is_idle = all(job.stage is Stage.SENDING for job in self._jobs.values())
        return is_idle and (self._is_warming or bool(self._warming is None and self._to_warm and self._free))

    @property
    def _is_warming(self) -> bool:
        return self._warming is not None and self._warming.position is not None

    def _warm(self) -> None:
        """Compute a little of what a next prompt will begin with: who asks meanwhile waits for no more than that."""
        with self._changed:
            if not self._can_warm():
                return
        warming = self._warming
        try:
            if warming is None:
                with self._changed:
                    tokens = self._to_warm.pop()
                taken = self._take_sequence(tokens, reuse=True)
                self._warming = _Warming(tokens=tokens, sequence=taken.sequence, position=taken.held)
                return
            position = warming.position or 0
            end = min(position + _WARM_TOKENS, len(warming.tokens))
            if end > position:
                part = Part(sequence=warming.sequence, first=position, end=end, on_layer=self._send_nothing)
                self._prefiller.compute([part])
            warming.position = end
        except Exception as error:
            log.warning("what the next prompt will begin with could not be computed: %s", error)
            if warming is not None:
                warming.tokens = []
        if warming is not None and (warming.position or 0) >= len(warming.tokens):
            self._put_warming_off()

    def _make_way(self) -> None:
        """What is computed ahead gives its sequence to those that wait for one."""
        with self._changed:
            if self._admitted():
                self._put_warming_off()

    def _put_warming_off(self) -> None:
        """Free its sequence, with what is computed by now; the rest is for when nobody asks for anything."""
        warming = self._warming
        if warming is None or warming.position is None:
            return
        self._warming = None
        with self._changed:
            if warming.position < len(warming.tokens):
                self._to_warm.append(warming.tokens)
            self._free_sequence(warming.sequence)

    def _free_sequence(self, sequence: int) -> None:
        """Under the lock."""
        self._prefiller.release(sequence)
        self._free.add(sequence)
        if self._set_aside is not None and self._set_aside[0] == sequence:
            self._set_aside = None

    def _on_restored(self) -> None:
        with self._changed:
            self._has_restored = True
            self._changed.notify_all()

    def _compute(self, planned: list[tuple[_Job, Chunk]]) -> None:
        """One pass, with every layer of it pushed as it is done; its failure is that of the prompts in it."""
        parts = [self._part(job, job.sequence, chunk) for job, chunk in planned if job.sequence is not None]
        if not parts:
            return
        for job, chunk in planned:
            self._consider_checkpoint(job, chunk)
        begun_us = now_us()
        try:
            self._prefiller.compute(parts)
        except Exception as error:
            for job, _ in planned:
                job.fault = job.fault or error
            return
        ended_us = now_us()
        for job, chunk in planned:
            job.position = chunk[1]
            if not job.is_stopped:
                self._computed(job, chunk, begun_us, ended_us)
        packed = {job for job, _ in planned}
        for job in self._computing:
            if job not in packed and not job.is_stopped:
                self._say_computed(job)

    def _part(self, job: _Job, sequence: int, chunk: Chunk) -> Part:
        first, end = chunk
        on_layer: Callable[[int], None] = functools.partial(self._push, job, sequence)
        if end <= job.asked.first:
            on_layer = self._send_nothing
        return Part(sequence=sequence, first=first, end=end, on_layer=on_layer)

    def _consider_checkpoint(self, job: _Job, chunk: Chunk) -> None:
        """Make the chunk a checkpoint if that is due, and there is room to set it aside."""
        index = job.n_committed
        if job.checkpoints is None or job.sequence is None or chunk[1] <= job.asked.first:
            return
        with self._changed:
            if self._set_aside is None and job.checkpoints.is_due(index):
                self._set_aside = job.sequence, index
                job.checkpoints.begun(index)
                job.checkpoint = index

    def _send_nothing(self, layer: int) -> None:
        """For what the client has already."""
        self.pulse.beat()

    def _push(self, job: _Job, sequence: int, layer: int) -> None:
        """Send what the next chunk has for `layer`. What goes wrong with one prompt is no concern of the others."""
        self.pulse.beat()
        if job.is_stopped:
            return
        asked, index = job.asked, job.n_committed
        first, end = job.chunks[index]
        try:
            spans = self._prefiller.spans(
                sequence, layer, first, end, final=end == asked.stop, start=asked.first, stop=asked.stop
            )
            if spans and job.checkpoints is not None:
                n_bytes = sum(n_bytes for _, n_bytes in spans)
                with self._changed:
                    job.checkpoints.pushed(index, n_bytes, at_us=now_us())
            elif not spans and job.checkpoint == index:
                spans = self._prefiller.set_aside(sequence, layer, end)
            if spans:
                self._courier.send(
                    ch.Push(
                        link=asked.link, request=asked.request, chunk=index, layer=layer, spans=tuple(spans)
                    )
                )
        except Exception as error:
            job.fault = error

    def _computed(self, job: _Job, chunk: Chunk, begun_us: int, ended_us: int) -> None:
        """Tell the client of a chunk whose every layer has been pushed."""
        link, request, index = *job.key, job.n_committed
        try:
            if chunk[1] <= job.asked.first:
                self._say_computed(job)
                return
            job.n_committed += 1
            if job.checkpoints is not None:
                job.checkpoints.computed(took_us=ended_us - begun_us)
            if chunk[1] == job.asked.stop:
                # Before the client can know, as in `_stop`.
                with self._changed:
                    job.stage = Stage.SENDING
                self._courier.send(
                    ch.ComputeEnded(
                        link=link,
                        request=request,
                        started_us=job.started_us,
                        ended_us=ended_us,
                    )
                )
            self._courier.send(
                ch.CommitChunk(
                    link=link, request=request, chunk=index, started_us=begun_us, ended_us=ended_us
                )
            )
        except ProcessFailed as error:
            job.fault = error

    def _say_computed(self, job: _Job) -> None:
        """Where nothing is sent: a client that hears nothing for long takes its prompt for stuck."""
        link, request = job.key
        self._send(ch.Computed(link=link, request=request, computed_tokens=job.position))

    def _let_go(self) -> None:
        """See off those that are computed, and those that a reason to stop has come for since the last pass."""
        for job in self._computing:
            if job.is_stopped:
                self._stop(job)
        self._computing = [
            job for job in self._computing if not job.is_stopped and job.stage is Stage.COMPUTING
        ]

    def _stop(self, job: _Job) -> None:
        """Say why, and free its sequence once nothing of it can be read any more."""
        self._packer.leave(job)
        with self._changed:
            # Before the client can know: its next request finds the place free.
            if self._jobs.get(job.key) is job:
                del self._jobs[job.key]
        if job.fault is not None and not job.is_cancelled:
            self._abort(job.asked, job.fault)
        with self._changed:
            self._fence(job)

    def _abort(self, asked: ch.Asked, fault: Exception) -> None:
        code, message = Code.WORKER_FAILED, str(fault)
        if isinstance(fault, ProcessFailed):
            log.warning("the courier ended during a prefill")
            return
        if isinstance(fault, OutOfMemory):
            code = Code.OUT_OF_MEMORY
        elif isinstance(fault, InvalidRequest):
            code = Code.BAD_TOKENS
        elif not isinstance(fault, BatonError):
            log.error("a prefill failed", exc_info=fault)
            message = f"an internal error on the worker: {type(fault).__name__}"
        self._send(ch.AbortJob(link=asked.link, request=asked.request, code=code, message=message))

    def _fence(self, job: _Job) -> None:
        """Free the job's sequence when nothing that was pushed of it is still to be read. Under the lock."""
        if job.sequence is None:
            return
        self._drains += 1
        self._fenced[self._drains], job.sequence = job.sequence, None
        # Where no courier is there to hear it, the next one is asked again.
        self._send(ch.Drain(token=self._drains))

    def _send(self, message: ch.Message) -> None:
        """To a courier that may have ended: its clients hear of that from the broken link."""
        try:
            self._courier.send(message)
        except ProcessFailed:
            log.info("the courier has ended and cannot pass on %s", type(message).__name__)

    def _on_message(self, message: ch.FromCourier) -> None:
        with self._changed:
            self._take(message)
            self._changed.notify_all()
        match message:
            case ch.LinkUp():
                self._on_link("")
            case ch.LinkDown():
                self._on_link(message.message)

    def _take(self, message: ch.FromCourier) -> None:
        match message:
            case ch.Asked():
                self._admit(message)
            case ch.AskedCancelled():
                job = self._jobs.get((message.link, message.request))
                if job is not None:
                    self._cancel(job)
            case ch.JobAcknowledged():
                job = self._jobs.get((message.link, message.request))
                if job is not None and job.checkpoints is not None:
                    job.checkpoints.acknowledged(message.chunk, at_us=message.at_us)
                    if self._set_aside == (job.sequence, message.chunk):
                        self._set_aside = None
            case ch.JobFinished():
                job = self._jobs.pop((message.link, message.request), None)
                if job is not None and job.sequence is not None:
                    self._free_sequence(job.sequence)
                    job.sequence = None
            case ch.AskedToWarmUp():
                self._to_warm.append(_from_little_endian(message.tokens))
            case ch.Drained():
                self._release(token for token in list(self._fenced) if token <= message.token)
            case ch.LinkUp() if self._fenced:
                self._send(ch.Drain(token=self._drains))
            case ch.Listening():
                self._port = message.port
            case ch.LinkDown() if message.code == FailureCode.CANNOT_LISTEN:
                self._failure = message.message

    def _admit(self, asked: ch.Asked) -> None:
        """Take the request into the pool, or say that the worker is busy.

        One that was cancelled holds its sequence until its pass has ended, but nobody's place: who stops an answer and
        asks anew is not turned away.
        """
        n_computing = sum(job.stage is not Stage.SENDING for job in self._jobs.values())
        if n_computing < self._n_prefill and len(self._jobs) < self._prefiller.n_sequences:
            job = _Job(asked=asked)
            self._jobs[job.key] = job
            return
        full = f"prefills {n_computing} of at most {self._n_prefill} prompts at once"
        if n_computing < self._n_prefill:
            full = (
                f"still sends what it has computed, and has no room for more than {len(self._jobs)} prompts"
            )
        text = f"the worker {full}"
        self._send(ch.TurnAway(link=asked.link, request=asked.request, code=Code.BUSY, message=text))

    def _cancel(self, job: _Job) -> None:
        """The client wants no more of it, or has gone."""
        del self._jobs[job.key]
        match job.stage:
            case Stage.COMPUTING | Stage.RESTORING:
                job.is_cancelled = True
            case Stage.SENDING:
                self._fence(job)

    def _release(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self._free_sequence(self._fenced.pop(token))

    def _on_courier_gone(self, reason: str) -> None:
        """Its process has ended: nobody reads the cache any more, and all its clients are gone."""
        log.error("%s; it is started again", reason)
        with self._changed:
            for job in list(self._jobs.values()):
                self._cancel(job)
            self._release(list(self._fenced))
            self._changed.notify_all()
        self._on_link(reason)


def now_us() -> int:
    """The clock of all times that engines and couriers of one computer exchange."""
    return time.monotonic_ns() // 1000


def _from_little_endian(tokens: bytes) -> list[int]:
    unpacked = array(_UINT32, tokens)
    if sys.byteorder == "big":
        unpacked.byteswap()
    return unpacked.tolist()
