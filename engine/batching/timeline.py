"""One request's life as moments and figures, and the book of the last ones. Plain data: no torch, no I/O, no clocks.

Only the engine's thread writes, a few times a request and a chunk, and with each token two fields that are there
already. Other threads read what is recent.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.batching.request import Handoff

# Requests that are remembered after their end: what a person scrolls back through, in well under a megabyte.
KEPT_REQUESTS = 64

# Chunks of one request that are kept one by one, which is 128 Ki tokens at the usual size; the others are counted.
MAX_KEPT_CHUNKS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Positions [first, stop) of a prompt are in the cache since `at`, in seconds of the engine's clock.

    `compute_ms` is of the step that computed it here; on the worker it is known when the handoff is over. `bytes` of K
    and V came from the worker, 0 for a chunk computed here.
    """

    first: int
    stop: int
    remote: bool
    at: float
    compute_ms: float | None
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """Where the prompt was to be prefilled, and why: a code, a sentence, and what either way was expected to take."""

    prefill: str
    reason: str
    detail: str
    local_ms: float | None
    remote_ms: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Fallback:
    """Why the worker's prefill was gone on with here, a code and a sentence, and when that was known."""

    reason: str
    detail: str
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """A handoff that ran to its end; see `handoff.telemetry.HandoffRecord` for the clocks.

    `bytes` of K and V came as `wire_bytes`, by the codec named, for the reason given in words.
    """

    bytes: int
    overlap: float
    tail_ms: float
    compute_ms: float
    receive_ms: float
    wire_bytes: int = 0
    codec: str = ""
    codec_reason: str = ""

    @property
    def hidden_ms(self) -> float:
        """How much of the receiving took no time of its own, because the worker was still computing."""
        return max(0.0, self.receive_ms - self.tail_ms)

    @property
    def goodput(self) -> float | None:
        """Bytes a second while they came in; None where they came at once."""
        return self.bytes * 1000.0 / self.receive_ms if self.receive_ms > 0 else None


@dataclass(kw_only=True, slots=True)
class Timeline:
    """One request. Moments (`…_at`) are seconds of the engine's clock, None until they come; counts are in tokens.

    `asked_at` is when it was submitted, `queued_at` when the engine heard of it, `began_at` when it got its slot,
    `prefilled_at` when all of its prompt but the last token was in the cache. `state` is "queued", a slot's state, or
    "ended"; `outcome` then says how: a FinishReason, or "failed" with the `error`. The worker may be asked `n_handoffs`
    times: `bytes` are of all of them, `figures` of the last.
    """

    request_id: str
    n_prompt: int
    asked_unix_s: float
    asked_at: float
    queued_at: float
    state: str = "queued"
    slot: int | None = None
    began_at: float | None = None
    accepted_at: float | None = None
    prefilled_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    ended_at: float | None = None
    route: Route | None = None
    fallback: Fallback | None = None
    figures: Figures | None = None
    n_cached: int = 0
    n_processed: int = 0
    n_remote: int = 0
    n_reused_there: int = 0
    n_decoded: int = 0
    n_handoffs: int = 0
    bytes: int = 0
    bytes_before: int = 0
    chunks_before: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    n_chunks: int = 0
    outcome: str | None = None
    error: str | None = None

    def decide(self, handoff: Handoff) -> None:
        predicted = handoff.predicted
        self.route = Route(
            prefill=handoff.prefill,
            reason=handoff.reason,
            detail=handoff.detail,
            local_ms=predicted.local_s * 1000.0 if predicted else None,
            remote_ms=predicted.remote_s * 1000.0 if predicted else None,
        )
        if handoff.prefill == "remote":
            self.hand_over()

    def hand_over(self) -> None:
        """The worker is asked; what comes from here on is this handoff's."""
        self.n_handoffs += 1
        self.bytes_before = self.bytes
        self.chunks_before = self.n_chunks

    def add_chunk(self, chunk: Chunk) -> None:
        self.n_chunks += 1
        self.n_processed = chunk.stop
        if len(self.chunks) < MAX_KEPT_CHUNKS:
            self.chunks.append(chunk)

    def add_figures(self, figures: Figures, chunk_compute_ms: tuple[float, ...]) -> None:
        """What is known at a handoff's end, and each chunk's compute where the worker cut the prompt as we did."""
        self.figures = figures
        before, came = self.chunks[: self.chunks_before], self.chunks[self.chunks_before :]
        if len(self.chunks) != self.n_chunks or len(came) != len(chunk_compute_ms):
            return
        self.chunks = before + [
            Chunk(
                first=chunk.first,
                stop=chunk.stop,
                remote=True,
                at=chunk.at,
                compute_ms=compute_ms,
                bytes=chunk.bytes,
            )
            for chunk, compute_ms in zip(came, chunk_compute_ms, strict=True)
        ]

    def copy(self, *, with_chunks: bool) -> Timeline:
        """As it is now; it may go on."""
        copied = copy.copy(self)
        copied.chunks = list(self.chunks) if with_chunks else []
        return copied


class Timelines:
    """The requests that wait or run, the last ones that ended, and the last one of each slot."""

    def __init__(self, *, n_slots: int) -> None:
        self._live: dict[str, Timeline] = {}
        self._ended: deque[Timeline] = deque(maxlen=KEPT_REQUESTS)
        self._slots: list[Timeline | None] = [None] * n_slots

    def add(self, timeline: Timeline) -> None:
        self._live[timeline.request_id] = timeline

    def live(self, request_id: str) -> Timeline | None:
        return self._live.get(request_id)

    def take_slot(self, timeline: Timeline, slot: int) -> None:
        timeline.slot = slot
        self._slots[slot] = timeline

    def of_slot(self, slot: int) -> Timeline | None:
        """Its current request's, or its last one's. From any thread."""
        return self._slots[slot]

    def end(self, timeline: Timeline) -> None:
        self._live.pop(timeline.request_id, None)
        self._ended.append(timeline)

    def recent(self) -> Iterator[Timeline]:
        """The ended ones, the oldest first, then the live ones. From any thread."""
        yield from self._ended.copy()
        yield from self._live.copy().values()
