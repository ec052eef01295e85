"""What one engine does, folded from its `/events`: slots, requests with their chunks and layers, and the cable's rate.

Plain data and no clock of its own: `now_s` is Unix time and comes in with each event. What an event says holds, however
often it is heard. Knows nothing of Qt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from app.telemetry.sides import UNKNOWN, Sides

# Requests that are kept of one engine while the window lives: days of chats, in some megabytes.
MAX_RECORDS = 500

# Requests whose layers are kept: 57 chunks with 64 layers take a megabyte, of others they are asked for again.
MAX_WITH_LAYERS = 32

# The cable's rate is kept for so long, in steps of this.
SERIES_S = 60
STEP_S = 0.25

# Over so long a slot's speed is taken, or over a chunk where that takes longer: the engine tells of tokens twice a
# second, and of a prompt's when a chunk is done.
_SPEED_S = 2.5

_ANSWERED = ("first_token_ms", "last_token_ms", "ended_ms")


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """How one layer of a chunk came: moments in ms since its request was asked."""

    layer: int
    queued_ms: float | None
    first_ms: float
    last_ms: float
    n_bytes: int

    @property
    def bytes_per_s(self) -> float | None:
        took_ms = self.last_ms - self.first_ms
        return self.n_bytes * 1000 / took_ms if took_ms > 0 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Positions [first, stop) of a prompt; as docs/endpoint.md has it."""

    first: int
    stop: int
    remote: bool
    at_ms: float
    compute_ms: float
    computed_ms: float | None
    n_bytes: int = 0
    layers: tuple[Layer, ...] = ()

    @property
    def n_tokens(self) -> int:
        return self.stop - self.first

    @property
    def began_ms(self) -> float | None:
        return None if self.computed_ms is None else self.computed_ms - self.compute_ms


@dataclass(kw_only=True, slots=True)
class Record:
    """One request. `told` is its timeline without chunks, as it was told last; `chunks` by their first position.

    `sides` are those that it began with. Of a request that runs, `n_decoded` and `last_token_ms` are newer than what
    was told: slots say how many tokens there are, and when that was heard is when the last one came.
    """

    request_id: str
    told: dict[str, Any]
    chunks: dict[int, Chunk] = field(default_factory=dict)
    sides: Sides = UNKNOWN
    n_decoded: int = field(init=False)
    last_token_ms: float | None = field(init=False)
    _aged: tuple[float, float] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.n_decoded, self.last_token_ms = self.told["n_decoded"], self.told["last_token_ms"]

    @property
    def asked_s(self) -> float:
        """Unix time."""
        return float(self.told["asked"])

    @property
    def state(self) -> str:
        return str(self.told["state"])

    @property
    def is_over(self) -> bool:
        return self.state == "ended"

    @property
    def is_remote(self) -> bool:
        """Whether the worker was asked for any of it."""
        return self.told["handoff"] is not None

    @property
    def in_order(self) -> list[Chunk]:
        return [self.chunks[first] for first in sorted(self.chunks)]

    @property
    def has_layers(self) -> bool:
        return any(chunk.layers for chunk in self.chunks.values())

    @property
    def lacks_layers(self) -> bool:
        """Whether the engine may still know more of it than has been heard."""
        return any(chunk.remote and not chunk.layers for chunk in self.chunks.values())

    @property
    def span_ms(self) -> float:
        """From its asking to the last moment that is known."""
        moments = [self.told.get(name) for name in ("queued_ms", "started_ms", "prefilled_ms", *_ANSWERED)]
        moments += [chunk.at_ms for chunk in self.chunks.values()]
        moments += [self.last_token_ms, (self.told["fallback"] or {}).get("at_ms")]
        return max((float(moment) for moment in moments if moment is not None), default=0.0)

    def age_ms(self, now_s: float) -> float:
        """How long ago it was asked, or how long it took.

        Counted from what was heard of it last, since another computer's clock may be another.
        """
        if self.is_over or self._aged is None:
            return self.span_ms
        at_s, aged_ms = self._aged
        return max(self.span_ms, aged_ms + (now_s - at_s) * 1000)

    def heard(self, now_s: float) -> None:
        """Something of it has just come."""
        self._aged = now_s, self.age_ms(now_s)

    def decoded(self, n_decoded: int, now_s: float) -> None:
        """So many tokens of its answer are there."""
        if n_decoded > self.n_decoded and self.told["first_token_ms"] is not None:
            self.n_decoded, self.last_token_ms = n_decoded, self.age_ms(now_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """One slot, with the tokens a second of what it does now; None where that is not known yet."""

    number: int
    state: str
    n_ctx: int
    n_cached: int
    n_prompt: int
    n_processed: int
    n_decoded: int
    prefill: str | None
    request_id: str | None
    tokens_per_s: float | None = None

    @property
    def progress(self) -> float:
        """Of the prompt, 0 to 1."""
        return min(1.0, self.n_processed / self.n_prompt) if self.n_prompt else 0.0


class Goodput:
    """Bytes that came over the cable in the last minute, in steps of a quarter of a second."""

    def __init__(self) -> None:
        self._steps: dict[int, float] = {}

    def add(self, begin_s: float, end_s: float, n_bytes: int) -> None:
        """`n_bytes` came evenly between two moments."""
        first, last = int(begin_s // STEP_S), int(end_s // STEP_S)
        took_s = end_s - begin_s
        for step in range(first, last + 1):
            inside_s = min(end_s, (step + 1) * STEP_S) - max(begin_s, step * STEP_S)
            part = inside_s / took_s if took_s > 0 else 1.0
            self._steps[step] = self._steps.get(step, 0.0) + part * n_bytes

    def series(self, now_s: float) -> list[tuple[float, float]]:
        """Seconds before now (from -60 to 0) and bytes a second, a point for each step."""
        self._forget(now_s)
        last = int(now_s // STEP_S)
        first = last - round(SERIES_S / STEP_S)
        return [
            (step * STEP_S - now_s, self._steps.get(step, 0.0) / STEP_S) for step in range(first + 1, last)
        ]

    def now(self, now_s: float, over_s: float = 1.0) -> float:
        """Bytes a second, lately. What is on its way is told with its chunk, so that it comes late by one."""
        last = int(now_s // STEP_S)
        n_steps = round(over_s / STEP_S)
        return sum(self._steps.get(step, 0.0) for step in range(last - n_steps, last)) / over_s

    def is_empty(self, now_s: float) -> bool:
        self._forget(now_s)
        return not self._steps

    def _forget(self, now_s: float) -> None:
        oldest = int((now_s - SERIES_S) // STEP_S)
        for step in [step for step in self._steps if step < oldest]:
            del self._steps[step]


class Ledger:
    """Of one model's engine. `hear` its events in their order; `sides` is who prefills and decodes now."""

    def __init__(self, model: str, sides: Sides = UNKNOWN) -> None:
        self.model = model
        self.sides = sides
        self.slots: list[Slot] = []
        self.worker: dict[str, Any] = {}
        self.goodput = Goodput()
        self.records: dict[str, Record] = {}
        self._live: dict[str, str] = {}
        self._paces: dict[int, _Pace] = {}

    def hear(self, name: str, data: dict[str, Any], now_s: float) -> str:
        """Take an event in; the key of the record that it changed, or ""."""
        match name:
            case "snapshot":
                self._begin(data, now_s)
            case "request":
                return self._told(data, now_s)
            case "chunk":
                return self._chunk(data, now_s)
            case "slots":
                self._slots(data["slots"], now_s)
            case "link":
                self.worker = data
        return ""

    def leave(self, why: str) -> None:
        """The engine is not there any more: nothing more comes of what it was doing."""
        self.slots, self.worker = [], {}
        self._paces.clear()
        for key in self._live.values():
            record = self.records.get(key)
            if record is not None and not record.is_over:
                record.told = {**record.told, "state": "ended", "outcome": "failed", "error": why}
        self._live.clear()

    @property
    def is_handing_over(self) -> bool:
        """Whether KV is on its way just now. Requests say so at once, slots twice a second."""
        live = [self.records[key].state for key in self._live.values() if key in self.records]
        return "prefill_remote" in live or any(slot.state == "prefill_remote" for slot in self.slots)

    def add_detail(self, key: str, timeline: dict[str, Any]) -> None:
        """What `/requests/ID` says: all chunks with their layers."""
        record = self.records.get(key)
        if record is not None:
            self._add_chunks(record, timeline["chunks"])
            self._spare_layers(key)

    # what each event means

    def _begin(self, snapshot: dict[str, Any], now_s: float) -> None:
        self.worker = snapshot["worker"]
        there = {timeline["id"] for timeline in snapshot["requests"]}
        if not there >= self._live.keys():
            self._live = {number: key for number, key in self._live.items() if number in there}
        for timeline in snapshot["requests"]:
            self._told(timeline, now_s)
        self._slots(snapshot["slots"], now_s)

    def _told(self, timeline: dict[str, Any], now_s: float) -> str:
        told = {name: value for name, value in timeline.items() if name != "chunks"}
        key = f"{told['asked']:.3f} {told['id']}"
        record = self.records.get(key)
        if record is None:
            record = self.records[key] = Record(request_id=told["id"], told=told, sides=self.sides)
            self._forget_oldest()
        record.told = told
        if record.is_over or told["n_decoded"] > record.n_decoded:
            record.n_decoded, record.last_token_ms = told["n_decoded"], told["last_token_ms"]
        self._live[told["id"]] = key
        self._add_chunks(record, timeline.get("chunks", ()))
        record.heard(now_s)
        return key

    def _chunk(self, data: dict[str, Any], now_s: float) -> str:
        key = self._live.get(data["id"], "")
        record = self.records.get(key)
        if record is None:
            return ""
        is_known = data["first"] in record.chunks and record.chunks[data["first"]].layers
        self._add_chunks(record, [data])
        told = record.told
        told["n_prompt_tokens_processed"] = max(told["n_prompt_tokens_processed"], data["stop"])
        record.heard(now_s)
        if not is_known:
            for layer in record.chunks[data["first"]].layers:
                begin_s, end_s = (
                    record.asked_s + moment / 1000 for moment in (layer.first_ms, layer.last_ms)
                )
                # The engine's clock and its computer's wall clock may part while a request runs.
                self.goodput.add(min(begin_s, now_s), min(end_s, now_s), layer.n_bytes)
            self._spare_layers(key)
        return key

    def _add_chunks(self, record: Record, told: Iterable[dict[str, Any]]) -> None:
        for each in told:
            chunk = _chunk_of(each)
            known = record.chunks.get(chunk.first)
            if known is not None and not chunk.layers and known.stop == chunk.stop:
                chunk = replace(chunk, layers=known.layers)
            record.chunks[chunk.first] = chunk

    def _spare_layers(self, kept: str) -> None:
        """Of all but the newest, and the one that is looked at."""
        held = [key for key, record in self.records.items() if record.has_layers and key != kept]
        for key in held[: max(0, len(held) - MAX_WITH_LAYERS + 1)]:
            record = self.records[key]
            record.chunks = {first: replace(chunk, layers=()) for first, chunk in record.chunks.items()}

    def _forget_oldest(self) -> None:
        while len(self.records) > MAX_RECORDS:
            del self.records[min(self.records, key=lambda key: self.records[key].asked_s)]

    def _slots(self, told: list[dict[str, Any]], now_s: float) -> None:
        self.slots = [self._slot(each, now_s) for each in told]

    def _slot(self, told: dict[str, Any], now_s: float) -> Slot:
        number, state = told["id"], told["state"]
        is_decoding = state == "decode"
        is_busy = is_decoding or state.startswith("prefill")
        pace = self._paces.get(number)
        if pace is None or pace.state != state:
            pace = self._paces[number] = _Pace(state)
        pace.hear(told["n_decoded"] if is_decoding else told["n_prompt_tokens_processed"], now_s)
        record = self.records.get(self._live.get(told["id_task"] or "", ""))
        if is_decoding and record is not None and not record.is_over:
            record.decoded(told["n_decoded"], now_s)
        return Slot(
            number=number,
            state=state,
            n_ctx=told["n_ctx"],
            n_cached=told["n_cached_tokens"],
            n_prompt=told["n_prompt_tokens"],
            n_processed=told["n_prompt_tokens_processed"],
            n_decoded=told["n_decoded"],
            prefill=told["prefill"],
            request_id=told["id_task"],
            tokens_per_s=pace.per_s(now_s) if is_busy else None,
        )


class _Pace:
    """How fast a slot's tokens grow while it is in one state: over those moments when there were more."""

    def __init__(self, state: str) -> None:
        self.state = state
        self._grown: deque[tuple[float, int]] = deque()

    def hear(self, count: int, now_s: float) -> None:
        if self._grown and count < self._grown[-1][1]:
            self._grown.clear()
        if not self._grown or count > self._grown[-1][1]:
            self._grown.append((now_s, count))
        while len(self._grown) > 2 and self._grown[1][0] <= self._grown[-1][0] - _SPEED_S:
            self._grown.popleft()

    def per_s(self, now_s: float) -> float | None:
        """None until there were more; less and less while there are no more though there should be."""
        if len(self._grown) < 2:
            return None
        (begin_s, begin), (end_s, end) = self._grown[0], self._grown[-1]
        longest_s = max(after - before for (before, _), (after, _) in pairwise(self._grown))
        if now_s - end_s > max(_SPEED_S, 2 * longest_s):
            end_s = now_s
        return (end - begin) / (end_s - begin_s) if end_s > begin_s else None


def _chunk_of(told: dict[str, Any]) -> Chunk:
    return Chunk(
        first=told["first"],
        stop=told["stop"],
        remote=told["prefill"] == "remote",
        at_ms=told["at_ms"],
        compute_ms=told["compute_ms"],
        computed_ms=told["computed_ms"],
        n_bytes=told["bytes"],
        layers=tuple(
            Layer(
                layer=layer["layer"],
                queued_ms=layer["queued_ms"],
                first_ms=layer["first_byte_ms"],
                last_ms=layer["last_byte_ms"],
                n_bytes=layer["bytes"],
            )
            for layer in told.get("layers", ())
        ),
    )
