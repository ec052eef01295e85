"""What the engine loop writes down as it goes: each request's timeline, the totals, and the news that others follow.

The loop calls a method at each step of a request's life; nothing here waits, and a token allocates nothing that stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.batching.feed import Feed
from engine.batching.request import Failed, Finished, Handoff
from engine.batching.snapshot import SlotSnapshot
from engine.batching.timeline import Chunk, Fallback, Figures, Timeline, Timelines
from engine.batching.totals import Totals
from engine.handoff import client_events as handoff


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestNews:
    """A request has come to a new state; the chunks are with it at its end."""

    timeline: Timeline


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkNews:
    """Prefill has come further: a chunk of a request whose moments count from `asked_at`."""

    request_id: str
    slot: int | None
    n_prompt: int
    asked_at: float
    chunk: Chunk


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkNews:
    """The link to the worker came up, went down, or stays down for another reason; a `code` where it is down."""

    status: handoff.ClientStatus
    code: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotsNews:
    """All slots, where something has changed."""

    slots: tuple[SlotSnapshot, ...]


News = RequestNews | ChunkNews | LinkNews | SlotsNews


class Journal:
    """`timelines`, `totals` and `feed` may be read from any thread; the methods are the engine's alone.

    Times come in as seconds of the engine's clock, which is the couriers'; `wall` gives the time of day.
    """

    def __init__(self, *, n_slots: int, wall: Callable[[], float] = time.time) -> None:
        self.timelines = Timelines(n_slots=n_slots)
        self.totals = Totals()
        self.feed: Feed[News] = Feed()
        self._wall = wall
        self._linked = False

    def queued(self, request_id: str, n_prompt: int, *, asked_at: float, now: float) -> Timeline:
        timeline = Timeline(
            request_id=request_id,
            n_prompt=n_prompt,
            asked_unix_s=self._wall() - (now - asked_at),
            asked_at=asked_at,
            queued_at=now,
        )
        self.timelines.add(timeline)
        self._tell(timeline)
        return timeline

    def began(
        self, timeline: Timeline, slot: int, handoff: Handoff, *, n_cached: int, state: str, now: float
    ) -> None:
        """It has its slot, and where it is prefilled is decided."""
        timeline.began_at = now
        timeline.n_cached = timeline.n_processed = n_cached
        timeline.decide(handoff)
        self.timelines.take_slot(timeline, slot)
        self.totals.routes[handoff.prefill, handoff.reason] += 1
        self.totals.queue_s.add(now - timeline.asked_at)
        self.moved(timeline, state, now)

    def moved(self, timeline: Timeline, state: str, now: float) -> None:
        """Its slot's state may be another now; with the first row that decodes, the prompt is in the cache."""
        if state == timeline.state:
            return
        timeline.state = state
        if state == "decode":
            timeline.prefilled_at = now
        self._tell(timeline)

    def accepted(self, timeline: Timeline, n_reused: int, now: float) -> None:
        """The worker begins."""
        timeline.accepted_at = now
        timeline.n_reused_there = n_reused
        self._tell(timeline)

    def computed(self, timeline: Timeline, first: int, stop: int, compute_ms: float, now: float) -> None:
        """A chunk was computed here."""
        self._chunk(
            timeline,
            Chunk(first=first, stop=stop, remote=False, at=now, compute_ms=compute_ms, computed_at=now),
        )

    def committed(self, timeline: Timeline, event: handoff.Committed, now: float) -> None:
        """A chunk of the worker's is in memory whole."""
        n_bytes = self._add_bytes(timeline, event.payload_bytes)
        self._chunk(
            timeline,
            Chunk(
                first=event.first,
                stop=event.stop,
                remote=True,
                at=now,
                compute_ms=event.compute_ms,
                computed_at=event.computed_s,
                n_bytes=n_bytes,
                layers=event.layers,
            ),
        )

    def handed_over(self, timeline: Timeline, event: handoff.Finished) -> None:
        """A handoff's figures, which may come after the answer's end."""
        self._add_bytes(timeline, event.payload_bytes)
        figures = Figures(
            bytes=event.payload_bytes,
            overlap=event.overlap,
            tail_ms=event.tail_ms,
            compute_ms=event.compute_ms,
            receive_ms=event.receive_ms,
            wire_bytes=event.wire_bytes,
            codec=event.codec,
            codec_reason=event.codec_reason,
        )
        totals = self.totals
        totals.wire_bytes += figures.wire_bytes
        totals.overlap.add(figures.overlap)
        totals.tail_s.add(figures.tail_ms / 1000.0)
        totals.receive_s += figures.receive_ms / 1000.0
        totals.hidden_s += figures.hidden_ms / 1000.0
        goodput = figures.goodput
        if goodput is not None:
            totals.goodput = goodput
            totals.best_goodput = max(goodput, totals.best_goodput)
        timeline.figures = replace(figures, best_goodput=totals.best_goodput or None)
        self._tell(timeline, with_chunks=True)

    def fell_back(self, timeline: Timeline, event: handoff.Failed, now: float) -> None:
        """The worker gave up, and what is missing is prefilled here."""
        timeline.fallback = Fallback(reason=event.code, detail=event.message, at=now)
        self.totals.fallbacks[event.code] += 1

    def token(self, timeline: Timeline, now: float) -> None:
        """A token was chosen."""
        totals = self.totals
        last = timeline.last_token_at
        timeline.last_token_at = now
        timeline.n_decoded += 1
        totals.generated_tokens += 1
        if last is not None:
            totals.between_tokens_s.add(now - last)
            return
        timeline.first_token_at = now
        totals.first_token_s.add(now - timeline.asked_at)
        if timeline.began_at is not None:
            totals.prefill_s.add(now - timeline.began_at)
        self._tell(timeline)

    def returned(self, timeline: Timeline) -> None:
        """The worker is asked for the rest of a prompt that was being prefilled here."""
        timeline.hand_over()

    def usable(self, timeline: Timeline, stop: int, handoff: Handoff | None) -> None:
        """A handoff is over, and the prompt is in the cache up to `stop`."""
        timeline.n_processed = stop
        if handoff is not None:
            timeline.n_remote = handoff.remote_tokens

    def ended(self, timeline: Timeline, event: Finished | Failed, now: float) -> None:
        timeline.ended_at = now
        timeline.state = "ended"
        if isinstance(event, Finished):
            timeline.outcome = event.reason.value
            timeline.n_cached = event.usage.cached_tokens
        else:
            timeline.outcome, timeline.error = "failed", str(event.error)
        totals = self.totals
        totals.outcomes[timeline.outcome] += 1
        totals.request_s.add(now - timeline.asked_at)
        if timeline.prefilled_at is not None:
            totals.cached_tokens += timeline.n_cached
            totals.remote_tokens += timeline.n_remote
            totals.local_tokens += timeline.n_prompt - timeline.n_cached - timeline.n_remote
        self.timelines.end(timeline)
        self._tell(timeline, with_chunks=True)

    def link(self, event: handoff.LinkChanged) -> None:
        if self._linked and not event.status.ready:
            self.totals.link_downs[event.code] += 1
        self._linked = event.status.ready
        self.feed.say(LinkNews(status=event.status, code=event.code))

    def _chunk(self, timeline: Timeline, chunk: Chunk) -> None:
        timeline.add_chunk(chunk)
        self.feed.say(
            ChunkNews(
                request_id=timeline.request_id,
                slot=timeline.slot,
                n_prompt=timeline.n_prompt,
                asked_at=timeline.asked_at,
                chunk=chunk,
            )
        )

    def _add_bytes(self, timeline: Timeline, n_bytes: int) -> int:
        """Of the `n_bytes` that have come in this handoff by now, what had not been counted yet."""
        n_new = max(0, timeline.bytes_before + n_bytes - timeline.bytes)
        timeline.bytes += n_new
        self.totals.handoff_bytes += n_new
        return n_new

    def _tell(self, timeline: Timeline, *, with_chunks: bool = False) -> None:
        self.feed.say(RequestNews(timeline=timeline.copy(with_chunks=with_chunks)))
