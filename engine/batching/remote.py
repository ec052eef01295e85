"""Handoffs seen from the slots: which slot's prompt the worker is prefilling, under which number.

Asks the route and the client; moves nothing itself and never waits.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from engine.batching.request import Request
from engine.batching.snapshot import RouteSnapshot
from engine.cache.blocks import common_prefix
from engine.cache.spec import Landing
from engine.errors import PeerError
from engine.handoff.client_events import (
    Accepted,
    ClientEvent,
    ClientStatus,
    Committed,
    Failed,
    Finished,
    LinkChanged,
    Released,
)
from engine.handoff.rates import PrefillRates
from engine.handoff.route import MIN_REMOTE_TOKENS, Decision, RoutePolicy, RouteReason, choose, reason_to_stay
from engine.wire.messages import Code

if TYPE_CHECKING:
    from engine.cache.sequence import SequenceState


# How many prompts the worker is expected to hold: a guess at its memory, put right by each of its answers.
_REMEMBERED_PROMPTS = 16

# A worker that was full of other computers' prompts is asked again after this time.
_FULL_FOR_S = 1.0

# With a smaller share than this come while the worker computed, it was the link that took the time.
_LINK_LIMITS_BELOW = 0.5


class PrefillClient(Protocol):
    """The way to the worker. Nothing here blocks; `start` raises PeerError when the worker cannot be asked."""

    def status(self) -> ClientStatus | None: ...

    def start(
        self,
        request_id: int,
        tokens: Sequence[int],
        start: int,
        stop: int,
        landings: tuple[Landing, ...],
        chunk_tokens: int,
        *,
        reuse: bool = True,
    ) -> None: ...

    def warm(self, tokens: Sequence[int]) -> None: ...

    def poll(self) -> list[ClientEvent | LinkChanged]: ...

    def cancel(self, request_id: int) -> None: ...

    def on_wakeup(self, wakeup: Callable[[], None]) -> None: ...


@dataclass(frozen=True, kw_only=True)
class RouteConfig:
    """Where prompts go that do not say so themselves. `rates` are read and added to."""

    rates: PrefillRates
    policy: RoutePolicy = RoutePolicy.AUTO
    min_tokens: int = MIN_REMOTE_TOKENS


@dataclass(kw_only=True)
class _Asked:
    """A handoff under way of positions up to the end of `tokens`, of which the worker has to compute `n_tokens`.

    `alone` while no other has shared the worker with it.
    """

    slot: int
    tokens: list[int]
    first: int
    n_tokens: int
    at: float
    alone: bool


class RemotePrefill:
    """The engine loop's side of all handoffs. At most one a slot; its number is never used again.

    `on_link` is called by `poll` with what has become of the link.
    """

    def __init__(
        self,
        client: PrefillClient | None,
        *,
        chunk_tokens: int,
        route: RouteConfig,
        on_link: Callable[[LinkChanged], None],
        clock: Callable[[], float] = time.perf_counter,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._on_link = on_link
        self._chunk_tokens = chunk_tokens
        self._route = route
        self._clock = clock
        self._wall_clock = wall_clock
        self._numbers = itertools.count(1)
        self._slots: dict[int, _Asked] = {}
        # Prompts that the worker has computed, as far as is known here, the newest last.
        self._warm: deque[list[int]] = deque(maxlen=_REMEMBERED_PROMPTS)
        # When its pool was full; with each prompt of ours that leaves it there is room again.
        self._full_at: float | None = None
        # The first prompt either way also makes weights and kernels ready, and says nothing of the next.
        self._is_warm = {"local": False, "remote": False}

    def on_wakeup(self, wakeup: Callable[[], None]) -> None:
        """Call `wakeup`, from any thread, whenever `poll` may have something."""
        if self._client is not None:
            self._client.on_wakeup(wakeup)

    def worker(self) -> ClientStatus | None:
        """How the worker is; None where none is configured. From any thread."""
        return self._client.status() if self._client is not None else None

    def decide(self, request: Request, *, start: int, stop: int, local_backlog: int) -> Decision:
        """Where to prefill positions [start, stop) of the request, `local_backlog` other tokens waiting here."""
        status = self.worker()
        rates = self._route.rates
        n_tokens = stop - start
        return choose(
            asked=request.prefill,
            policy=self._route.policy,
            has_worker=status is not None,
            worker_ready=status is not None and status.ready,
            worker_note=status.note if status is not None else "",
            uncached_tokens=n_tokens,
            kind=request.kind,
            prediction=rates.predict(
                n_tokens,
                worker_tokens=stop - self._held_there(request, stop),
                local_backlog=local_backlog,
                remote_in_flight=len(self._slots),
            )
            if n_tokens > 0
            else None,
            stale=rates.remote_is_stale(self._wall_clock()),
            min_remote_tokens=self._route.min_tokens,
        )

    def _held_there(self, request: Request, stop: int) -> int:
        """How many of the request's first `stop` tokens the worker should hold, and may use."""
        tokens = list(request.tokens[:stop]) if request.sampling.cache_prompt else []
        return max((common_prefix(known, tokens) for known in self._warm), default=0)

    def warm(self, request: Request, tokens: list[int]) -> None:
        """After an answer: let the worker prefill it while it has nothing else to do, for the next turn of the chat."""
        status = self.worker()
        kept_here = request.prefill == "local" or (
            request.prefill == "auto" and self._route.policy is RoutePolicy.NEVER
        )
        if self._client is None or status is None or not status.ready or kept_here:
            return
        if reason_to_stay(request.kind) is None and len(tokens) >= self._route.min_tokens:
            self._client.warm(tokens)
            self._warm.append(list(tokens))

    @property
    def may_have_room(self) -> bool:
        """Whether the worker may take another prompt: it has not just said that it is full."""
        return self._full_at is None or self._clock() - self._full_at > _FULL_FOR_S

    def prefilled_here(self, n_tokens: int, seconds: float) -> None:
        """Learn from a prompt of which `n_tokens` were computed on this computer in `seconds`."""
        if n_tokens > 0 and seconds > 0 and self._counts("local"):
            self._route.rates.local.observe(n_tokens, seconds)

    def _counts(self, way: str) -> bool:
        """Whether a measurement says something: all but the first."""
        was_warm, self._is_warm[way] = self._is_warm[way], True
        return was_warm

    def start(
        self,
        request: Request,
        slot: int,
        tokens: list[int],
        sequence: SequenceState,
        start: int,
        stop: int,
        decision: Decision,
    ) -> Decision:
        """Ask the worker for positions [start, stop); returns `decision`, or a local one if it cannot be asked."""
        if self._client is None:
            return decision
        landings = sequence.prepare_landing(start, stop)
        number = next(self._numbers)
        asked = _Asked(
            slot=slot,
            tokens=tokens[:stop],
            first=start,
            n_tokens=stop - start,
            at=self._clock(),
            alone=not self._slots,
        )
        try:
            self._client.start(
                number,
                asked.tokens,
                start,
                stop,
                landings,
                self._chunk_tokens,
                reuse=request.sampling.cache_prompt,
            )
        except PeerError as error:
            return replace(decision, remote=False, reason=RouteReason.WORKER_NOT_READY, sentence=str(error))
        for other in self._slots.values():
            other.alone = False
        self._slots[number] = asked
        return decision

    def cancel(self, slot: int) -> None:
        """Stop the slot's handoff; its memory is free once `Released` or `Finished` has come."""
        for number, asked in self._slots.items():
            if asked.slot == slot and self._client is not None:
                self._client.cancel(number)

    def poll(self) -> list[tuple[int, ClientEvent]]:
        """What has happened since the last call, with the slot it concerns."""
        if self._client is None:
            return []
        news = []
        for event in self._client.poll():
            if isinstance(event, LinkChanged):
                # It may be another process now, which has computed nothing yet.
                self._warm.clear()
                self._on_link(event)
                continue
            asked = self._slots.get(event.request_id)
            if asked is None:
                continue
            match event:
                case Accepted():
                    asked.n_tokens = len(asked.tokens) - event.reused_tokens
                    self._forget_beyond(asked.tokens, event.reused_tokens)
                case Committed(final=True):
                    self._warm.append(asked.tokens)
                    if asked.alone and asked.n_tokens > 0 and self._counts("remote"):
                        self._route.rates.observe_remote(
                            asked.n_tokens, self._clock() - asked.at, now=self._wall_clock()
                        )
                case Failed():
                    # Nothing is learned of how fast it would have been; the next long prompt tries again.
                    asked.alone = False
                    if event.code == Code.BUSY:
                        self._full_at = self._clock()
                case Finished():
                    del self._slots[event.request_id]
                    self._full_at = None
                    if event.overlap < _LINK_LIMITS_BELOW and event.receive_ms > 0:
                        n_sent = len(asked.tokens) - asked.first
                        self._route.rates.observe_link(n_sent, event.receive_ms / 1000.0)
                case Released():
                    del self._slots[event.request_id]
            news.append((asked.slot, event))
        return news

    def _forget_beyond(self, tokens: list[int], n_held: int) -> None:
        """The worker has just said how many of `tokens` it holds."""
        for _ in range(len(self._warm)):
            known = self._warm.popleft()
            self._warm.append(known[:n_held] if common_prefix(known, tokens) > n_held else known)

    def route_snapshot(self) -> RouteSnapshot:
        """From any thread."""
        rates = self._route.rates
        return RouteSnapshot(
            policy=self._route.policy,
            crossover_tokens=rates.crossover(),
            local_tps=rates.local.tokens_per_second(),
            remote_tps=rates.remote.tokens_per_second(),
        )
