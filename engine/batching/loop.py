"""The engine's own thread: takes requests, plans, computes, and sends each request its events.

Other threads only put things into its inbox; it never waits for them, nor for the network. A failure ends at most the
requests of the step it happened in.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from engine.batching.generation import Generation
from engine.batching.journal import Journal
from engine.batching.pulse import Pulse
from engine.batching.remote import PrefillClient, RemotePrefill, RouteConfig
from engine.batching.request import (
    Event,
    Failed,
    Finished,
    FinishReason,
    Handoff,
    Request,
    Timings,
    Token,
    Usage,
)
from engine.batching.runner import Runner
from engine.batching.sampler import Sampled, Sampler
from engine.batching.scheduler import (
    DEFAULT_CHUNK_TOKENS,
    Assignment,
    ChunkPlan,
    Scheduler,
    StepPlan,
    Waiting,
)
from engine.batching.slot import SlotState
from engine.batching.snapshot import LoopSnapshot, SlotSnapshot
from engine.batching.textstream import Decoder, TextStream
from engine.batching.timeline import Timeline
from engine.errors import BatonError, HostError, InvalidRequest, PromptTooLong
from engine.handoff import client_events as handoff
from engine.handoff.failure import FailureCode
from engine.handoff.rates import PrefillRates
from engine.handoff.route import Decision, RouteReason
from engine.wire.messages import Code

if TYPE_CHECKING:
    from engine.cache.prefix import PrefixCache
    from engine.cache.sequence import SequencePool
    from engine.models.base import Model

log = logging.getLogger(__name__)

# Failures after which the worker may soon be there again, and how often one prompt goes back to it.
_PASSING_FAILURES = frozenset(
    {
        FailureCode.PEER_LOST,
        FailureCode.PEER_UNREACHABLE,
        FailureCode.LINK_CLOSED,
        FailureCode.COURIER_ENDED,
        Code.BUSY,
    }
)
_MAX_RETURNS = 3


@dataclass(frozen=True, kw_only=True)
class _Submitted:
    request: Request
    at: float


@dataclass(frozen=True, kw_only=True)
class _Queued:
    submitted: _Submitted
    timeline: Timeline


@dataclass(frozen=True, kw_only=True)
class _Cancelled:
    request_id: str


class EngineLoop:
    """Answers requests with one model on one thread.

    `start` it, `submit` and `cancel` from any thread, `close` it. `new_decoder` makes a request's stream decoder,
    `end_ids` are the tokens that end an answer. `client` reaches the worker; without one all prefill is local.
    `prefixes` keeps what slots of `pool` held. What happens is written down in `journal`, and `pulse` beats while
    there is something to do.
    """

    def __init__(
        self,
        *,
        model: Model,
        pool: SequencePool,
        new_decoder: Callable[[], Decoder],
        end_ids: frozenset[int],
        client: PrefillClient | None = None,
        chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
        route: RouteConfig | None = None,
        prefixes: PrefixCache | None = None,
        pulse: Pulse | None = None,
        # The couriers', so that what they have seen can stand in one timeline with what the loop has.
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.n_ctx = pool.spec.n_ctx
        self.n_slots = pool.spec.n_slots
        self.n_vocab = model.spec.n_vocab
        self.pulse = pulse or Pulse(clock)
        self._runner = Runner(model, pool, self.pulse)
        self._new_decoder = new_decoder
        self._end_ids = end_ids
        self._clock = clock
        self._scheduler = Scheduler(n_slots=self.n_slots, chunk_tokens=chunk_tokens)
        self.journal = Journal(n_slots=self.n_slots)
        self._remote = RemotePrefill(
            client,
            chunk_tokens=chunk_tokens,
            route=route or RouteConfig(rates=PrefillRates()),
            on_link=self.journal.link,
            clock=clock,
        )
        self._prefixes = prefixes
        self._generations: list[Generation | None] = [None] * self.n_slots
        self._queued: dict[str, _Queued] = {}
        self._reasons: Counter[str] = Counter()
        self._inbox: deque[_Submitted | _Cancelled] = deque()
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="engine-loop", daemon=True)
        self._remote.on_wakeup(self._wake.set)
        if prefixes is not None:
            prefixes.on_done = self._wake.set

    # Called from other threads.

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._closing

    def submit(self, request: Request) -> None:
        """Queue a request; its sink gets everything from here on, the last event being Finished or Failed.

        Raises PromptTooLong, InvalidRequest, or HostError when the engine is stopping.
        """
        self._check(request)
        with self._lock:
            if self._closing:
                raise HostError("the engine is stopping and takes no more requests")
            self._inbox.append(_Submitted(request=request, at=self._clock()))
        self._wake.set()

    def cancel(self, request_id: str) -> None:
        """End a request before its next step; its sink gets Finished with the reason `cancelled`. Unknown ids pass."""
        self._inbox.append(_Cancelled(request_id=request_id))
        self._wake.set()

    def close(self, timeout_s: float = 10.0) -> None:
        """Cancel everything and end the thread after the step it is in; raises HostError when that takes too long."""
        with self._lock:
            self._closing = True
        self._wake.set()
        if self._thread.ident is None:
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise HostError(f"the engine did not end its step within {timeout_s:g} s")

    def snapshot(self) -> LoopSnapshot:
        """What every slot is doing; each number is recent, though not all of the same instant."""
        return LoopSnapshot(
            slots=tuple(self._slot_snapshot(slot) for slot in range(self.n_slots)),
            n_queued=self._scheduler.n_queued + len(self._inbox),
            reasons=dict(self._reasons),
            worker=self._remote.worker(),
            route=self._remote.route_snapshot(),
            prefixes=self._prefixes.status() if self._prefixes is not None else None,
        )

    def _slot_snapshot(self, slot: int) -> SlotSnapshot:
        generation = self._generations[slot]
        handoff = generation.handoff if generation else None
        return SlotSnapshot(
            slot=slot,
            state=self._scheduler.slots[slot].state.value,
            request_id=generation.request_id if generation else None,
            n_ctx=self.n_ctx,
            n_cached=self._runner.held(slot),
            n_prompt=generation.n_prompt if generation else 0,
            n_processed=generation.n_processed if generation else 0,
            n_generated=generation.n_generated if generation else 0,
            prefill=handoff.prefill if handoff else None,
        )

    def _check(self, request: Request) -> None:
        n_tokens = len(request.tokens)
        if n_tokens >= self.n_ctx:
            raise PromptTooLong(n_prompt_tokens=n_tokens, n_ctx=self.n_ctx)
        if n_tokens and not 0 <= min(request.tokens) <= max(request.tokens) < self.n_vocab:
            raise InvalidRequest(
                f"the prompt holds a token id outside the vocabulary of {self.n_vocab} tokens", param="prompt"
            )
        if any(token >= self.n_vocab for token in request.sampling.logit_bias):
            raise InvalidRequest(
                f"logit_bias names a token id outside the vocabulary of {self.n_vocab} tokens",
                param="logit_bias",
            )
        if request.slot is not None and not 0 <= request.slot < self.n_slots:
            raise InvalidRequest(
                f"slot {request.slot} does not exist: there are {self.n_slots}", param="id_slot"
            )

    # The engine's thread.

    def _run(self) -> None:
        with torch.inference_mode():
            while not self._closing:
                try:
                    self._turn()
                except Exception:
                    log.exception("the engine loop met a mistake of its own; requests in slots are given up")
                    self._fail_all(HostError("the engine met a mistake of its own: the log has the details"))
            self._end_all()

    def _turn(self) -> None:
        self.pulse.work()
        # Cleared before the inboxes are read: what comes after sets it again.
        self._wake.clear()
        self._take_inbox()
        self._take_handoffs()
        self._take_restored()
        while (assignment := self._scheduler.assign(self._runner)) is not None:
            self._begin(assignment)
        plan = self._scheduler.plan()
        if plan is None:
            self.pulse.rest()
            # `close` may have set it before it was cleared, and sets it once.
            if not self._closing:
                self._wake.wait()
        else:
            self._step(plan)

    def _take_inbox(self) -> None:
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, _Cancelled):
                self._cancel(item.request_id)
            elif not item.request.tokens:
                self._end_unanswered(item.request, self._enter(item), FinishReason.STOP)  # as llama-server
            else:
                request = item.request
                self._queued[request.request_id] = _Queued(submitted=item, timeline=self._enter(item))
                self._scheduler.enqueue(
                    Waiting(
                        request_id=request.request_id,
                        prompt=list(request.tokens),
                        slot=request.slot,
                        reuse=request.sampling.cache_prompt,
                    )
                )

    def _enter(self, submitted: _Submitted) -> Timeline:
        request = submitted.request
        return self.journal.queued(
            request.request_id, len(request.tokens), asked_at=submitted.at, now=self._clock()
        )

    def _begin(self, assignment: Assignment) -> None:
        """Put a request into its slot, and bring what is kept elsewhere of its prompt."""
        queued = self._queued.pop(assignment.waiting.request_id)
        slot, held = assignment.slot, assignment.cached
        generation = self._generation(queued, slot, held)
        self._generations[slot] = generation
        if self._restore(generation, held):
            return
        self._runner.sequence(slot).truncate(held)
        self._prefill(generation)

    def _restore(self, generation: Generation, held: int) -> bool:
        """Have a kept prefix brought that is longer than the `held` tokens; False where nothing is to be waited for."""
        wanted = (
            generation.tokens[: generation.n_prompt - 1] if generation.request.sampling.cache_prompt else []
        )
        if self._prefixes is None or not self._prefixes.bring(generation.slot, wanted, held):
            return False
        self._scheduler.restore(generation.slot, generation.request_id)
        return True

    def _take_restored(self) -> None:
        """Go on with the prompts whose prefix is in their slot now."""
        for restored in self._prefixes.poll() if self._prefixes is not None else ():
            generation = self._generations[restored.slot]
            sequence = self._runner.sequence(restored.slot)
            self._scheduler.released(restored.slot)
            if generation is None:
                sequence.reset()
                continue
            sequence.adopt(generation.tokens[: restored.length])
            generation.cached_tokens = generation.n_processed = restored.length
            self._prefill(generation)

    def _prefill(self, generation: Generation) -> None:
        """Decide where what its slot does not hold of the prompt is prefilled, and begin."""
        request, slot = generation.request, generation.slot
        start, stop = generation.cached_tokens, generation.n_prompt - 1
        refused = False
        decision = self._remote.decide(
            request, start=start, stop=stop, local_backlog=self._scheduler.n_prefilling_tokens
        )
        if decision.remote:
            decision = self._ask_worker(generation, start, stop, decision)
            if refused := not decision.remote:
                start = self._keep_usable(generation)
        self._scheduler.begin(slot, request.request_id, remote=decision.remote, start=start, stop=stop)
        generation.handoff = Handoff(
            prefill="remote" if decision.remote else "local",
            reason=decision.reason,
            detail=decision.sentence,
            predicted=decision.prediction,
        )
        generation.hand_over(start)
        if decision.remote or (decision.reason is RouteReason.WORKER_NOT_READY and not refused):
            generation.returns_left = _MAX_RETURNS
        self._reasons[decision.reason] += 1
        self.journal.began(
            generation.timeline,
            slot,
            generation.handoff,
            n_cached=generation.cached_tokens,
            state=self._scheduler.slots[slot].state.value,
            now=self._clock(),
        )
        self._send(request, generation.started())

    def _ask_worker(self, generation: Generation, start: int, stop: int, decision: Decision) -> Decision:
        return self._remote.start(
            generation.request,
            generation.slot,
            generation.tokens,
            self._runner.sequence(generation.slot),
            start,
            stop,
            decision,
        )

    def _generation(self, queued: _Queued, slot: int, cached: int) -> Generation:
        request = queued.submitted.request
        sampling = request.sampling
        banned = self._end_ids if sampling.ignore_eos else frozenset()
        return Generation(
            request,
            sampler=Sampler(sampling, banned=banned),
            text=TextStream(self._new_decoder(), sampling.stop),
            end_ids=self._end_ids,
            n_ctx=self.n_ctx,
            slot=slot,
            timeline=queued.timeline,
            cached_tokens=cached,
            queued_at=queued.submitted.at,
            started_at=self._clock(),
        )

    def _step(self, plan: StepPlan) -> None:
        begun = self._clock()
        try:
            outcomes = self._runner.step(plan, self._generations)
        except HostError as error:
            log.exception("a step failed")
            self._fail_step(plan, error)
            return
        now = self._clock()
        if plan.prefill is not None:
            self._scheduler.chunk_done(plan.prefill.slot)
            self._note_computed(plan.prefill, begun, now)
            self._learn(plan.prefill, now - begun)
            self._return_to_worker(plan.prefill.slot)
            self._progress(plan.prefill.slot, plan.prefill.stop, now)
        for generation, outcome in outcomes:
            self._accept(generation, outcome, now)

    def _return_to_worker(self, slot: int) -> None:
        """Let the worker do the rest of a prompt that is prefilled here only because it was away."""
        generation, rest = self._generations[slot], self._scheduler.rest_of_prefill(slot)
        if (
            generation is None
            or rest is None
            or generation.returns_left <= 0
            or not self._remote.may_have_room
        ):
            return
        start, stop = rest
        decision = self._remote.decide(generation.request, start=start, stop=stop, local_backlog=0)
        if not decision.remote:
            return
        generation.returns_left -= 1
        decision = self._ask_worker(generation, start, stop, decision)
        if decision.remote:
            log.info("the worker is asked for the rest of %s", generation.request_id)
            generation.hand_over(start)
            self._scheduler.hand_over(slot)
            self.journal.returned(generation.timeline)
            self._note_state(generation, self._clock())
        else:
            generation.returns_left = 0
            self._scheduler.resume_here(slot, start=self._keep_usable(generation), stop=stop)

    def _learn(self, chunk: ChunkPlan, seconds: float) -> None:
        """Add up what a prompt took to prefill here; with its last chunk the route learns of it."""
        generation = self._generations[chunk.slot]
        if generation is None:
            return
        generation.prefilled_here += chunk.stop - chunk.first
        generation.prefill_seconds += seconds
        if chunk.stop == generation.n_prompt - 1:
            self._remote.prefilled_here(generation.prefilled_here, generation.prefill_seconds)

    def _accept(self, generation: Generation, outcome: Sampled | HostError, now: float) -> None:
        if isinstance(outcome, HostError):
            self._fail(generation, outcome)
            return
        try:
            events = generation.accept(outcome.token_id, outcome.logprobs, now)
        except BatonError as error:
            self._fail(generation, error)
            return
        if isinstance(events[0], Token):
            self.journal.token(generation.timeline, now)
        *before, last = events
        if isinstance(last, Finished):
            self._end(generation, last, before=before)
        else:
            self._send(generation.request, last)

    def _note_computed(self, chunk: ChunkPlan, began: float, now: float) -> None:
        generation = self._generations[chunk.slot]
        if generation is not None:
            compute_ms = (now - began) * 1000.0
            self.journal.computed(generation.timeline, chunk.first, chunk.stop, compute_ms, now)
            self._note_state(generation, now)

    def _note_state(self, generation: Generation, now: float) -> None:
        state = self._scheduler.slots[generation.slot].state.value
        self.journal.moved(generation.timeline, state, now)

    def _take_handoffs(self) -> None:
        """Take in what the worker has sent and what has become of it."""
        for slot, event in self._remote.poll():
            generation = self._generations[slot]
            match event:
                case handoff.Accepted() if generation is not None:
                    self.journal.accepted(generation.timeline, event.reused_tokens, self._clock())
                case handoff.Committed() if generation is not None:
                    self._commit(generation, event)
                case handoff.Finished():
                    if generation is not None:
                        self._note_finished(generation, event)
                    # The answer may have come to its end first; until now no other request could have the slot.
                    timeline = self.journal.timelines.of_slot(slot)
                    if timeline is not None:
                        self.journal.handed_over(timeline, event)
                    self._release(slot)
                case handoff.Failed() if generation is not None:
                    self._note_failed(generation, event)
                case handoff.Released():
                    self._release(slot)
                    if self._scheduler.slots[slot].state is SlotState.RELEASING and generation is not None:
                        self._resume_here(generation)

    def _release(self, slot: int) -> None:
        """The courier has let go of the slot's memory."""
        self._scheduler.released(slot)
        if self._scheduler.slots[slot].state is SlotState.IDLE:
            self._keep_prefix(slot)

    def _commit(self, generation: Generation, event: handoff.Committed) -> None:
        """A chunk is in memory whole. With the last one the answer begins; its figures come later."""
        slot = generation.slot
        if self._scheduler.slots[slot].state is not SlotState.PREFILL_REMOTE:
            return
        self._runner.sequence(slot).land(generation.tokens, event.stop, final=event.final, place=event.place)
        generation.note_came(n_bytes=event.payload_bytes)
        now = self._clock()
        self.journal.committed(generation.timeline, event, now)
        self._progress(slot, event.stop, now)
        if event.final:
            generation.note_came(stop=event.stop)
            self.journal.usable(generation.timeline, event.stop, generation.handoff)
            self._scheduler.remote_done(slot)
            self._note_state(generation, now)

    def _note_finished(self, generation: Generation, event: handoff.Finished) -> None:
        generation.note_came(n_bytes=event.payload_bytes)
        generation.note_remote(overlap=event.overlap, tail_ms=event.tail_ms)

    def _note_failed(self, generation: Generation, event: handoff.Failed) -> None:
        """The worker gave up; what is missing is prefilled here as soon as the memory is ours again."""
        if self._scheduler.slots[generation.slot].state is not SlotState.PREFILL_REMOTE:
            return
        level = logging.INFO if event.code == Code.BUSY else logging.WARNING
        log.log(level, "no remote prefill of %s (%s): %s", generation.request_id, event.code, event.message)
        self._reasons[event.code] += 1
        generation.note_remote(prefill="local", reason=event.code, detail=event.message)
        if event.code not in _PASSING_FAILURES:
            generation.returns_left = 0
        elif event.code == Code.BUSY:
            # It did nothing for this prompt yet, and will have room when another one is done.
            generation.returns_left = _MAX_RETURNS
        self._scheduler.remote_failed(generation.slot)
        now = self._clock()
        self.journal.fell_back(generation.timeline, event, now)
        self._note_state(generation, now)

    def _resume_here(self, generation: Generation) -> None:
        """Prefill what the worker left undone, from the last commit that the cache can go on from."""
        start = self._keep_usable(generation)
        generation.note_came(stop=start)
        self.journal.usable(generation.timeline, start, generation.handoff)
        self._scheduler.resume_here(generation.slot, start=start, stop=generation.n_prompt - 1)
        self._note_state(generation, self._clock())

    def _keep_usable(self, generation: Generation) -> int:
        """How many tokens of the prompt the slot still holds: making room for a handoff may have cost a window."""
        sequence = self._runner.sequence(generation.slot)
        kept = sequence.reusable(generation.tokens[: generation.n_prompt - 1])
        sequence.truncate(kept)
        generation.cached_tokens = min(generation.cached_tokens, kept)
        return kept

    # The ends of a request.

    def _cancel(self, request_id: str) -> None:
        queued = self._queued.pop(request_id, None)
        if queued is not None:
            self._scheduler.withdraw(request_id)
            self._end_unanswered(queued.submitted.request, queued.timeline, FinishReason.CANCELLED)
            return
        generation = next((g for g in self._generations if g and g.request_id == request_id), None)
        if generation is not None:
            self._end(generation, generation.finished(FinishReason.CANCELLED, self._clock()))

    def _end_unanswered(self, request: Request, timeline: Timeline, reason: FinishReason) -> None:
        """The end of a request that never had a slot."""
        finished = _unanswered(request, reason)
        self.journal.ended(timeline, finished, self._clock())
        self._send(request, finished)

    def _fail_step(self, plan: StepPlan, error: HostError) -> None:
        """End the requests of a step that failed. Their caches may hold anything, so they are emptied."""
        slots = [*plan.decode, *([plan.prefill.slot] if plan.prefill else [])]
        for slot in slots:
            generation = self._generations[slot]
            self._runner.sequence(slot).reset()
            if generation is not None:
                self._fail(generation, error)

    def _fail(self, generation: Generation, error: BatonError) -> None:
        self._end(generation, Failed(request_id=generation.request_id, error=error))

    def _end(self, generation: Generation, last: Finished | Failed, before: Sequence[Event] = ()) -> None:
        """Send the last events, the slot being left: who gets the last one finds it free."""
        try:
            self._leave(generation, last)
        finally:
            for event in (*before, last):
                self._send(generation.request, event)

    def _leave(self, generation: Generation, event: Finished | Failed) -> None:
        """The slot keeps its cache for the next prompt that begins alike, and is free for it."""
        slot = generation.slot
        self._generations[slot] = None
        # Of a handoff that has come whole only its figures are still under way, which a cancel would lose.
        if self._scheduler.slots[slot].lent and self._scheduler.slots[slot].state is not SlotState.DECODE:
            self._remote.cancel(slot)
        self._scheduler.finish(slot)
        self.journal.ended(generation.timeline, event, self._clock())
        if self._scheduler.slots[slot].state is SlotState.IDLE:
            self._keep_prefix(slot, generation.n_prompt - 1)
        if generation.n_generated:
            self._remote.warm(generation.request, self._runner.sequence(slot).tokens)

    def _keep_prefix(self, slot: int, *lengths: int) -> None:
        """Keep what an idle slot holds, and what it held at those lengths, for when another prompt takes the slot."""
        held = self._runner.held(slot)
        if self._prefixes is not None and held:
            self._prefixes.save(slot, *(length for length in lengths if 0 < length < held), held)

    def _fail_all(self, error: HostError) -> None:
        for generation in list(self._generations):
            if generation is not None:
                self._fail(generation, error)

    def _end_all(self) -> None:
        """The engine stops: everyone who waits is told."""
        for generation in list(self._generations):
            if generation is not None:
                self._cancel(generation.request_id)
        self._take_inbox()
        for request_id in list(self._queued):
            self._cancel(request_id)

    def _progress(self, slot: int, n_tokens: int, now: float) -> None:
        generation = self._generations[slot]
        if generation is not None:
            self._send(generation.request, generation.processed(n_tokens, now))

    def _send(self, request: Request, event: Event) -> None:
        try:
            request.sink(event)
        except Exception:
            log.exception("the receiver of %s failed; the request is cancelled", request.request_id)
            self.cancel(request.request_id)


def _unanswered(request: Request, reason: FinishReason) -> Finished:
    return Finished(
        request_id=request.request_id,
        reason=reason,
        text="",
        stop=None,
        truncated=False,
        usage=Usage(prompt_tokens=len(request.tokens), cached_tokens=0, completion_tokens=0),
        timings=Timings(
            cache_n=0, prompt_n=0, prompt_ms=0.0, predicted_n=0, predicted_ms=0.0, queue_ms=0.0, handoff=None
        ),
    )
