"""What the waterfall shows of a request, in milliseconds and pixels."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from app.telemetry.ledger import Ledger, Record
from app.telemetry.waterfall import Hit, View, Waterfall, limit_of_tail, tick_text, ticks
from tests.app.telemetry.timelines import ASKED_S, Event, Handoff, local, newest_first, snapshot

LONG = Handoff()
WIDTH = 800.0


def record_of(*events: Event) -> Record:
    ledger = Ledger("m")
    for name, data in (snapshot(), *events):
        ledger.hear(name, data, ASKED_S + 40)
    ((_, record),) = newest_first(ledger)
    return record


@pytest.fixture(scope="module")
def long() -> Waterfall:
    return Waterfall(record_of(*LONG.events()), ceiling=LONG.cable_bytes_per_s)


def test_the_tail_begins_where_prefill_was_computed(long: Waterfall) -> None:
    assert long.compute_end_ms == pytest.approx(4.2 + 57 * 300)
    assert long.tail is not None and long.tail_ms is not None
    assert long.tail_ms == pytest.approx(3.0, abs=0.1)
    assert long.tail[1] - long.tail[0] == pytest.approx(long.tail_ms)
    assert long.ready_ms == pytest.approx(long.tail[1], abs=0.2)


def test_no_tail_is_shorter_than_its_limit() -> None:
    """Bytes of layer l and those after it over the ceiling, less what was computed after l: the worst of all l."""
    small = Handoff(n_prompt=9, n_chunks=1, n_layers=3, chunk_ms=30.0, rows_bytes=3_000_000, state_bytes=0)
    (chunk,) = record_of(*small.events()).in_order
    assert limit_of_tail([chunk], 1e9) == pytest.approx(1.0)  # the last layer's megabyte alone
    assert limit_of_tail([chunk], 50e6) == pytest.approx(
        60.0 - 20.0
    )  # all three, queued while two were computed
    assert limit_of_tail([chunk], None) is None
    assert limit_of_tail([replace(chunk, computed_ms=None)], 1e9) is None


def test_a_long_request_is_no_more_than_its_pixels(long: Waterfall) -> None:
    view = long.whole(WIDTH)
    strips = long.strips(view, 112.0)
    assert len(strips) <= 57 * 64 and len(long.computed(view, remote=True)) == 57
    tiny = long.whole(40.0)
    assert len(long.strips(tiny, 112.0)) <= 40
    assert len(long.computed(tiny, remote=True)) <= 40 and len(long.commits(tiny)) <= 40
    assert len(long.strips(view, 16.0)) <= 57 * 16


def test_what_is_outside_of_the_view_is_left_out(long: Waterfall) -> None:
    view = View(begin_ms=1000.0, end_ms=1300.0, width_px=WIDTH)
    assert 64 <= len(long.strips(view, 112.0)) <= 3 * 64
    assert 1 <= len(long.computed(view, remote=True)) <= 3
    assert all(strip.right >= 0 and strip.left <= WIDTH for strip in long.strips(view, 112.0))


def test_layers_stand_below_each_other_in_their_time(long: Waterfall) -> None:
    chunk = long.remote[3]
    assert chunk.began_ms is not None and chunk.computed_ms is not None
    view = View(begin_ms=chunk.began_ms + 1.5, end_ms=chunk.computed_ms, width_px=WIDTH)
    strips = long.strips(view, 640.0)
    assert len(strips) == 63
    assert [strip.top for strip in strips] == sorted(strip.top for strip in strips)
    assert strips[0].bottom - strips[0].top == pytest.approx(1 / 64)
    assert all(strip.right - strip.left >= 1 for strip in strips)


def test_the_pointer_finds_chunk_and_layer(long: Waterfall) -> None:
    chunk, layer = long.remote[20], long.remote[20].layers[40]
    view = View(begin_ms=layer.first_ms - 5, end_ms=layer.last_ms + 5, width_px=WIDTH)
    x = view.x((layer.first_ms + layer.last_ms) / 2)
    assert long.hit_wire(view, x, 40.5 / 64) == Hit(chunk=20, layer=layer)
    assert chunk.began_ms is not None
    assert long.hit_computed(view, view.x(chunk.began_ms + 150), remote=True) == Hit(chunk=20)
    assert long.hit_computed(view, view.x(40_000.0), remote=True) is None
    assert long.hit_wire(view, view.x(40_000.0), 0.5) is None


def test_a_closer_look_keeps_its_place(long: Waterfall) -> None:
    whole = long.whole(WIDTH)
    view = whole.zoomed(10, 5000.0, whole)
    assert view.x(5000.0) == pytest.approx(whole.x(5000.0))
    assert (view.end_ms - view.begin_ms) * 10 == pytest.approx(whole.end_ms)
    assert view.zoomed(1 / 100, 5000.0, whole) == whole
    assert view.moved(-1e9, whole).begin_ms == 0.0 and view.moved(1e9, whole).end_ms == whole.end_ms
    there = view.showing(20_000.0, 20_300.0, whole)
    assert there.begin_ms < 20_000.0 and there.end_ms > 20_300.0
    assert there.showing(20_000.0, 20_300.0, whole) == there


def test_the_tail_can_be_looked_at(long: Waterfall) -> None:
    view = long.around_tail(WIDTH)
    assert view is not None and long.tail is not None
    assert 0 < view.x(long.tail[0]) < view.x(long.tail[1]) < WIDTH
    assert view.x(long.tail[1]) - view.x(long.tail[0]) > 60


def test_a_request_that_stayed_here_has_no_cable() -> None:
    shown = Waterfall(record_of(("request", local("chat-1", ASKED_S))))
    view = shown.whole(WIDTH)
    assert not shown.is_remote and shown.tail is None and shown.around_tail(WIDTH) is None
    assert shown.strips(view, 112.0) == [] and len(shown.computed(view, remote=False)) == 1


def test_one_that_has_just_been_asked_is_drawn_too() -> None:
    shown = Waterfall(record_of(*list(LONG.until_chunk(0))[:1]))
    assert shown.end_ms >= 1.0 and ticks(shown.whole(WIDTH))


@pytest.mark.parametrize(
    ("length_ms", "texts"),
    [
        (30_000, ["0", "5 s", "10 s"]),
        (4_000, ["0", "0.5 s", "1.0 s"]),
        (300, ["0", "50 ms", "100 ms"]),
        (2, ["0", "0.5 ms", "1.0 ms"]),
    ],
)
def test_ticks_are_round(length_ms: float, texts: list[str]) -> None:
    places = ticks(View(begin_ms=0, end_ms=length_ms, width_px=WIDTH))
    step_ms = places[1][0] - places[0][0]
    assert [tick_text(ms, step_ms) for ms, _ in places[:3]] == texts
    assert all(b[1] - a[1] >= 88 for a, b in pairwise(places))
