"""What the waterfall of one request shows, in milliseconds and pixels: lanes, marks, the tail and its limit.

Knows nothing of Qt. Time runs right and begins when the request was asked. What would be narrower than a pixel is
joined with its neighbours, and what is outside of the view is left out: a picture is never more than its pixels.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

from app.telemetry.ledger import Chunk, Layer, Record
from app.words import translate

# Between two ticks of the axis there is room for a label.
_TICK_PX = 88

# Closer than this nothing is to be seen: moments are told in microseconds.
_SHORTEST_MS = 0.05

# Strips that stand closer than this are one.
_JOIN_PX = 1.0

# How near to a strip counts as on it.
_NEAR_PX = 3.0


@dataclass(frozen=True, kw_only=True)
class View:
    """The part of the time that is seen, over so many pixels."""

    begin_ms: float
    end_ms: float
    width_px: float

    @property
    def px_per_ms(self) -> float:
        return self.width_px / (self.end_ms - self.begin_ms)

    def x(self, ms: float) -> float:
        return (ms - self.begin_ms) * self.px_per_ms

    def ms(self, x: float) -> float:
        return self.begin_ms + x / self.px_per_ms

    def zoomed(self, factor: float, at_ms: float, whole: View) -> View:
        """Closer by `factor` around a moment, which stays where it is; never wider than `whole`."""
        length = max(_SHORTEST_MS, min((self.end_ms - self.begin_ms) / factor, whole.end_ms - whole.begin_ms))
        left = (at_ms - self.begin_ms) / (self.end_ms - self.begin_ms)
        return self._placed(at_ms - left * length, length, whole)

    def moved(self, by_ms: float, whole: View) -> View:
        return self._placed(self.begin_ms + by_ms, self.end_ms - self.begin_ms, whole)

    def showing(self, begin_ms: float, end_ms: float, whole: View) -> View:
        """Moved no further than is needed to see a span; one that is too long is seen from its begin."""
        if begin_ms >= self.begin_ms and end_ms <= self.end_ms:
            return self
        length = self.end_ms - self.begin_ms
        margin = 0.1 * length
        is_left = begin_ms < self.begin_ms or end_ms - begin_ms > length
        return self._placed(begin_ms - margin if is_left else end_ms + margin - length, length, whole)

    def _placed(self, begin_ms: float, length: float, whole: View) -> View:
        begin_ms = min(max(begin_ms, whole.begin_ms), whole.end_ms - length)
        return replace(self, begin_ms=begin_ms, end_ms=begin_ms + length)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A block of a lane from x to x, of chunks `first` up to but not `stop` in their order."""

    left: float
    right: float
    first: int
    stop: int


class Strip(NamedTuple):
    """One layer of a chunk on the cable, or several; `top` and `bottom` are shares of the lane's height.

    There are thousands in a picture, which a dataclass would take three times as long to make.
    """

    left: float
    right: float
    top: float
    bottom: float


@dataclass(frozen=True, kw_only=True)
class Hit:
    """What is under the pointer."""

    chunk: int
    layer: Layer | None = None


class Waterfall:
    """Of one request as far as it has come. `ceiling` is what the cable carries in bytes a second, None if unknown.

    `age_ms` is how long ago a request that runs was asked: time goes on in its picture, though nothing may come.
    """

    def __init__(self, record: Record, *, ceiling: float | None = None, age_ms: float = 0.0) -> None:
        told = record.told
        self.chunks: Sequence[Chunk] = record.in_order
        self.remote = [chunk for chunk in self.chunks if chunk.remote]
        self.local = [chunk for chunk in self.chunks if not chunk.remote]
        self.n_layers = max((layer.layer + 1 for chunk in self.remote for layer in chunk.layers), default=0)
        self.started_ms: float | None = told["started_ms"]
        self.ready_ms: float | None = told["prefilled_ms"]
        self.first_token_ms: float | None = told["first_token_ms"]
        self.last_token_ms = record.last_token_ms
        self.n_decoded = record.n_decoded
        fallback = told["fallback"]
        self.fallback_ms: float | None = fallback["at_ms"] if fallback else None
        handoff = told["handoff"] or {}
        self.tail_ms: float | None = handoff.get("tail_ms")
        self.limit_ms = limit_of_tail(self.remote, ceiling or handoff.get("best_goodput_bytes_per_second"))
        self.end_ms = max(record.span_ms, age_ms, 1.0)
        self._awaits_chunks = record.is_remote and not record.is_over and fallback is None
        self._arrivals = [_span(chunk) for chunk in self.remote]

    @property
    def is_remote(self) -> bool:
        """Whether the worker has a part in it, or is about to."""
        return bool(self.remote) or self._awaits_chunks

    @property
    def compute_end_ms(self) -> float | None:
        """When the worker had computed the last chunk that came."""
        return self.remote[-1].computed_ms if self.remote else None

    @property
    def tail(self) -> tuple[float, float] | None:
        """From the end of the worker's computing to where decoding may start."""
        if self.compute_end_ms is None or self.tail_ms is None:
            return None
        return self.compute_end_ms, self.compute_end_ms + self.tail_ms

    def whole(self, width_px: float) -> View:
        """Everything, with a little room at the right."""
        return View(begin_ms=0.0, end_ms=self.end_ms * 1.03, width_px=max(1.0, width_px))

    def around_tail(self, width_px: float) -> View | None:
        """The last chunk's end, the tail, and the first token's begin."""
        if (tail := self.tail) is None:
            return None
        span_ms = max(4 * (tail[1] - tail[0]), 4.0)
        begin_ms = max(0.0, tail[0] - span_ms / 2)
        return View(begin_ms=begin_ms, end_ms=begin_ms + 2 * span_ms, width_px=max(1.0, width_px))

    def computed(self, view: View, *, remote: bool) -> list[Bar]:
        """The chunks' computing on one of the computers."""
        chunks = self.remote if remote else self.local
        spans = [
            (index, chunk.began_ms, chunk.computed_ms)
            for index, chunk in enumerate(chunks)
            if chunk.began_ms is not None and chunk.computed_ms is not None
        ]
        bars: list[Bar] = []
        for index, begin_ms, end_ms in spans:
            left, right = view.x(begin_ms), view.x(end_ms)
            if right < 0 or left > view.width_px:
                continue
            last = bars[-1] if bars else None
            if last is not None and right - left < 2 * _JOIN_PX and left - last.right < _JOIN_PX:
                bars[-1] = replace(last, right=max(last.right, right), stop=index + 1)
            else:
                bars.append(Bar(left=left, right=max(right, left + _JOIN_PX), first=index, stop=index + 1))
        return bars

    def strips(self, view: View, height_px: float) -> list[Strip]:
        """What was on the cable, layer below layer: as many strips as can be told apart."""
        joined: list[Strip] = []
        for index in self._visible(view):
            begin_ms, end_ms = self._arrivals[index]
            left, right = view.x(begin_ms), view.x(end_ms)
            if right - left > _JOIN_PX:
                joined.extend(self._strips_of(self.remote[index], view, height_px))
            elif (
                joined and joined[-1].bottom == 1.0 and joined[-1].top == 0.0 and left - joined[-1].right < 1
            ):
                joined[-1] = joined[-1]._replace(right=max(joined[-1].right, right))
            else:
                joined.append(Strip(left=left, right=max(right, left + _JOIN_PX), top=0.0, bottom=1.0))
        return joined

    def commits(self, view: View) -> list[float]:
        """Where chunks were in the cache whole, a pixel apart at least."""
        places: list[float] = []
        for chunk in self.remote:
            x = view.x(chunk.at_ms)
            if 0 <= x <= view.width_px and (not places or x - places[-1] >= _JOIN_PX):
                places.append(x)
        return places

    def hit_computed(self, view: View, x: float, *, remote: bool) -> Hit | None:
        """The chunk that was computed at x."""
        ms, near_ms = view.ms(x), _NEAR_PX / view.px_per_ms
        chunks = self.remote if remote else self.local
        for index, chunk in enumerate(chunks):
            begin_ms, end_ms = chunk.began_ms, chunk.computed_ms
            if begin_ms is not None and end_ms is not None and begin_ms - near_ms <= ms <= end_ms + near_ms:
                return Hit(chunk=index)
        return None

    def hit_wire(self, view: View, x: float, share: float) -> Hit | None:
        """The layer that was on the cable at x, so far down its lane; the nearest, where several are."""
        ms, near_ms = view.ms(x), _NEAR_PX / view.px_per_ms
        best: tuple[float, Hit] | None = None
        for index in self._visible(view):
            begin_ms, end_ms = self._arrivals[index]
            if not begin_ms - near_ms <= ms <= end_ms + near_ms:
                continue
            for layer in self.remote[index].layers:
                off_ms = max(layer.first_ms - ms, ms - layer.last_ms, 0.0)
                off_rows = abs(layer.layer + 0.5 - share * self.n_layers)
                if off_ms <= near_ms and (best is None or off_rows + off_ms < best[0]):
                    best = off_rows + off_ms, Hit(chunk=index, layer=layer)
        return best[1] if best is not None else None

    def _visible(self, view: View) -> Iterator[int]:
        """Of the worker's chunks, those of which a byte came within the view. They come in their order."""
        begin = bisect_left(self._arrivals, view.begin_ms, key=lambda span: span[1])
        for index in range(begin, len(self._arrivals)):
            if self._arrivals[index][0] > view.end_ms:
                return
            yield index

    def _strips_of(self, chunk: Chunk, view: View, height_px: float) -> Iterator[Strip]:
        """A strip for each layer, or for as many as make a pixel."""
        at_once = max(1, math.ceil(self.n_layers / max(1.0, height_px)))
        layers = sorted(chunk.layers, key=attrgetter("layer"))
        begin_ms, px_per_ms, width_px, n_layers = view.begin_ms, view.px_per_ms, view.width_px, self.n_layers
        for begin in range(0, len(layers), at_once):
            group = layers[begin : begin + at_once]
            first_ms, last_ms = group[0].first_ms, group[0].last_ms
            for layer in group[1:]:
                first_ms, last_ms = min(first_ms, layer.first_ms), max(last_ms, layer.last_ms)
            left, right = (first_ms - begin_ms) * px_per_ms, (last_ms - begin_ms) * px_per_ms
            if right >= 0 and left <= width_px:
                top, bottom = group[0].layer / n_layers, (group[-1].layer + 1) / n_layers
                yield Strip(left, max(right, left + _JOIN_PX), top, bottom)


def limit_of_tail(chunks: Sequence[Chunk], bytes_per_s: float | None) -> float | None:
    """No handoff's tail can be shorter, in ms: what is left to send once each layer of the last chunk is computed.

    None where the cable's ceiling or the worker's clock is not known.
    """
    if not chunks or not bytes_per_s or chunks[-1].computed_ms is None:
        return None
    computed_ms = chunks[-1].computed_ms
    limit_ms, n_bytes = 0.0, 0
    for layer in sorted(chunks[-1].layers, key=lambda layer: layer.layer, reverse=True):
        if layer.queued_ms is None:
            return None
        n_bytes += layer.n_bytes
        limit_ms = max(limit_ms, n_bytes * 1000 / bytes_per_s - (computed_ms - layer.queued_ms))
    return limit_ms if n_bytes else None


def ticks(view: View) -> list[tuple[float, float]]:
    """Round moments in the view, each with its x."""
    rough_ms = _TICK_PX / view.px_per_ms
    power = 10.0 ** math.floor(math.log10(rough_ms))
    step_ms = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough_ms)
    first = math.ceil(view.begin_ms / step_ms)
    last = math.floor(view.end_ms / step_ms)
    return [(number * step_ms, view.x(number * step_ms)) for number in range(first, last + 1)]


def tick_text(ms: float, step_ms: float) -> str:
    """Seconds from a second a step on, else milliseconds; no digit more than tells two ticks apart."""
    if ms == 0:
        return "0"
    if step_ms >= 100:
        return translate("Figures", "{} s").format(f"{ms / 1000:.{0 if step_ms >= 1000 else 1}f}")
    digits = max(0, -math.floor(math.log10(step_ms) + 1e-9))
    return translate("Figures", "{} ms").format(f"{ms:,.{digits}f}")


def _span(chunk: Chunk) -> tuple[float, float]:
    """When a chunk was on the cable: its first byte and its last; when it was whole, where nothing else is known."""
    if not chunk.layers:
        return chunk.at_ms, chunk.at_ms
    return min(layer.first_ms for layer in chunk.layers), max(layer.last_ms for layer in chunk.layers)
