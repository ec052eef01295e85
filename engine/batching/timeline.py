"""One request's life as moments and figures, and the book of the last ones. Plain data: no torch, no I/O, no clocks.

Only the engine's thread writes, a few times a request and a chunk, and with each token two fields that are there
already. Other threads read what is recent.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from engine.batching.request import Handoff
from engine.handoff.telemetry import PACKED_LAYER_BYTES

# Requests that are remembered after their end: what a person scrolls back through, in a few megabytes at most.
KEPT_REQUESTS = 64

# Chunks of one request that are kept one by one, which is 128 Ki tokens at the usual size; of more the first ones and
# the last, where the tail is.
MAX_KEPT_CHUNKS = 256

# Bytes of packed layers that are kept of one request: 32 Ki tokens of a model with 30 layers; then as with chunks.
MAX_LAYER_BYTES = 2048 * PACKED_LAYER_BYTES


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Positions [first, stop) of a prompt are in the cache since `at`, in seconds of the engine's clock.

    The step or the worker's pass that computed it took `compute_ms` and ended at `computed_at`, None where the worker's
    clock was not known yet. `n_bytes` of K and V came from the worker, and `layers` is how, as
    `handoff.telemetry.pack_layers` has them; nothing for a chunk computed here.
    """

    first: int
    stop: int
    remote: bool
    at: float
    compute_ms: float
    computed_at: float | None
    n_bytes: int = 0
    layers: bytes = b""


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

    `bytes` of K and V came as `wire_bytes`, by the codec named, for the reason given in words. `best_goodput` is the
    highest of the link so far, this one's included; None where no handoff has told any.
    """

    bytes: int
    overlap: float
    tail_ms: float
    compute_ms: float
    receive_ms: float
    wire_bytes: int = 0
    codec: str = ""
    codec_reason: str = ""
    best_goodput: float | None = None

    @property
    def hidden_ms(self) -> float:
        """How much of the receiving took no time of its own, because the worker was still computing."""
        return max(0.0, self.receive_ms - self.tail_ms)

    @property
    def hidden_share(self) -> float | None:
        """Of the receiving; None where all came at once."""
        return self.hidden_ms / self.receive_ms if self.receive_ms > 0 else None

    @property
    def goodput(self) -> float | None:
        """Bytes a second over the link while they came in; None where they came at once."""
        return self.wire_bytes * 1000.0 / self.receive_ms if self.receive_ms > 0 else None


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

    def add_chunk(self, chunk: Chunk) -> None:
        self.n_chunks += 1
        self.n_processed = chunk.stop
        if sum(len(kept.layers) for kept in self.chunks) + len(chunk.layers) > MAX_LAYER_BYTES:
            self.chunks[-1:] = [replace(kept, layers=b"") for kept in self.chunks[-1:]]
        self.chunks[MAX_KEPT_CHUNKS - 1 :] = [chunk]

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

    def find(self, request_id: str) -> Timeline | None:
        """One that waits, runs, or ended lately. From any thread."""
        return next((timeline for timeline in self.recent() if timeline.request_id == request_id), None)

    def end(self, timeline: Timeline) -> None:
        self._live.pop(timeline.request_id, None)
        self._ended.append(timeline)

    def recent(self) -> Iterator[Timeline]:
        """The ended ones, the oldest first, then the live ones. From any thread."""
        yield from self._ended.copy()
        yield from self._live.copy().values()
