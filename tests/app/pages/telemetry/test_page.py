"""The page Telemetry, told by an engine's events, looked at and stepped through as a user does."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt, QTimer
from PySide6.QtGui import QWheelEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from app.context import Context
from app.look.look import current_look
from app.pages.telemetry.page import TelemetryPage
from app.pages.telemetry.requests import entry_of
from app.telemetry.export import as_csv, as_json
from app.telemetry.ledger import Ledger, Record
from app.telemetry.sides import Sides
from tests.app.telemetry.timelines import ASKED_S, Event, Handoff, local, slot, snapshot
from tests.app.two_computers import MODEL, pretend, two_computers
from tests.app.windows import button, click, texts, wait

LONG = Handoff()


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    with two_computers(tmp_path) as context:
        yield context


@pytest.fixture
def page(context: Context) -> Iterator[TelemetryPage]:
    context.feeds._clock = lambda: ASKED_S + 40
    page = TelemetryPage(context)
    page.resize(1100, 740)
    page.show()
    page.shown()
    yield page
    page.hide()
    page.deleteLater()


def tell(page: TelemetryPage, *events: Event) -> None:
    """As the engine's stream does."""
    feeds = page.context.feeds
    ledger = feeds.ledgers.setdefault(MODEL, Ledger(MODEL))
    for name, data in events:
        ledger.hear(name, data, ASKED_S + 40)
    feeds.changed.emit(MODEL, "")
    page._show()


def test_nothing_runs_while_nothing_happens(page: TelemetryPage) -> None:
    page.context.feeds._clock = lambda: ASKED_S + 41
    tell(page, snapshot(local("1-0", asked_s=ASKED_S)))
    wait(lambda: not any(timer.isActive() for timer in page.findChildren(QTimer)))
    tell(page, *LONG.events())
    wait(lambda: [timer.interval() for timer in page.findChildren(QTimer) if timer.isActive()] == [250])


def test_it_says_what_would_be_there(page: TelemetryPage) -> None:
    assert "Nothing was asked yet" in texts(page)
    pretend(page.context, engines=[])
    wait(lambda: "No model is loaded" in texts(page))
    click(button(page, "Open Chat"))
    assert page.context.shell.went == ["chat"]  # type: ignore[attr-defined]
    assert not page.header().isEnabled()  # type: ignore[union-attr]


def test_a_handoff_is_told_in_full(page: TelemetryPage) -> None:
    tell(page, snapshot(), *LONG.events())
    wait(lambda: "First token" in texts(page))
    said = texts(page)
    for words in (
        "28,800 tokens",
        "prefilled on spark",
        "Prefilled on spark: predicted 17.3 s, against 84 s on studio.",
        "3.0 ms",
        "the cable allows 0.2 ms",
        "arrived during prefill",
        "1.1 GB on the cable",
        "24.8 tok/s",
    ):
        assert words in said
    assert page._waterfall.has_tail


def test_it_grows_while_it_runs_and_then_stays(page: TelemetryPage) -> None:
    tell(page, snapshot(), *LONG.until_chunk(3))
    view = page._waterfall.view
    assert view is not None
    tell(page, *LONG.until_chunk(9))
    grown = page._waterfall.view
    assert grown is not None and grown.end_ms > 2 * view.end_ms
    page._waterfall.see_prefill()
    closer = page._waterfall.view
    assert closer is not None
    QTest.keyClick(page._waterfall, Qt.Key.Key_Plus)
    closer = page._waterfall.view
    tell(page, *LONG.until_chunk(12))
    assert page._waterfall.view == closer
    wait(lambda: "so far" in texts(page))
    assert not button(page, "See the tail").isEnabled()


def test_time_goes_on_before_the_first_chunk(page: TelemetryPage) -> None:
    """In the lanes that it will have, so that nothing jumps when it comes."""
    tell(page, snapshot(), *LONG.until_chunk(0))
    waiting, lanes = page._waterfall.view, [lane.kind for lane in page._waterfall._lanes]
    assert waiting is not None and "worker" in lanes and "local" not in lanes
    page.context.feeds._clock = lambda: ASKED_S + 45
    wait(lambda: page._waterfall.view is not None and page._waterfall.view.end_ms > 5_000)
    tell(page, *LONG.until_chunk(1))
    assert [lane.kind for lane in page._waterfall._lanes] == lanes


def test_an_answer_is_counted_while_it_is_written(page: TelemetryPage) -> None:
    told = LONG.timeline("decode", n_chunks=57, prefilled_ms=17_200.0, first_token_ms=17_240.0, n_decoded=1)
    tell(page, snapshot(), *LONG.until_chunk(57), ("request", told))
    wait(lambda: "1 token\n" in texts(page))
    tell(page, ("slots", {"slots": [slot(0, "decode", id_task="chat-7", n_decoded=40)]}))
    wait(lambda: "40 tokens" in texts(page))


def test_a_request_keeps_its_computers_when_the_roles_change(page: TelemetryPage) -> None:
    tell(page, snapshot(), *LONG.events())
    worker = {"model": MODEL, "for": "spark", "state": "ready", "link": {"connected": True}, "last_exits": []}
    pretend(page.context, workers=[worker])
    page._show()
    assert "prefilled on spark" in texts(page)
    assert [lane.name for lane in page._waterfall._lanes][-1] == "studio decodes"
    # and what comes over the cable from now on is sent by this one
    wait(lambda: page._plot._curve.opts["pen"].color() == current_look().colour("local"))


def test_violet_is_the_other_computer_in_the_list_too() -> None:
    sides = Sides(worker="spark", decoder="studio")
    decoding = Record(request_id="chat-7", told=LONG.timeline("decode", prefilled_ms=17_200.0), sides=sides)
    entry = entry_of(MODEL, "", decoding)
    assert (entry.where, entry.hue, entry.doing_hue) == ("on spark", "peer", "local")
    fallback = {"reason": "peer_lost", "detail": "", "at_ms": 9_000.0}
    given_up = Record(request_id="chat-7", told={**LONG.ended(), "fallback": fallback}, sides=sides)
    entry = entry_of(MODEL, "", given_up)
    assert (entry.where, entry.hue) == ("on studio", "local")


def test_keys_step_through_the_chunks(page: TelemetryPage) -> None:
    tell(page, snapshot(), *LONG.events())
    view = page._waterfall
    for key, words in (
        (Qt.Key.Key_Right, "Chunk 1 of 57 · tokens 1 to 506 · computed in 300 ms"),
        (Qt.Key.Key_Right, "Chunk 2 of 57"),
        (Qt.Key.Key_Left, "Chunk 1 of 57"),
        (Qt.Key.Key_End, "Chunk 57 of 57"),
    ):
        QTest.keyClick(view, key)
        assert words in texts(page) and words in view.accessibleDescription()
    page._waterfall.see_tail()
    QTest.keyClick(view, Qt.Key.Key_Home)
    assert view.view is not None and view.view.begin_ms < 304.0


def test_the_wheel_looks_closer_and_two_clicks_see_all(page: TelemetryPage) -> None:
    tell(page, snapshot(), *LONG.events())
    view = page._waterfall
    whole = view.view
    assert whole is not None
    turn(view, QPointF(view.width() / 2, 60), 120)
    closer = view.view
    assert closer is not None and closer.end_ms - closer.begin_ms < 0.9 * (whole.end_ms - whole.begin_ms)
    QTest.mouseDClick(view, Qt.MouseButton.LeftButton, pos=QPoint(view.width() // 2, 60))
    assert view.view == whole


def test_pointing_at_a_strip_tells_its_layer(page: TelemetryPage) -> None:
    tell(page, snapshot(), *LONG.events())
    view = page._waterfall
    assert view.picture is not None
    layer = view.picture.remote[30].layers[10]
    view._view = view._whole.zoomed(200, layer.first_ms, view._whole)  # type: ignore[union-attr, arg-type]
    wire = next(lane for lane in view._lanes if lane.kind == "wire")
    x = 128 + view._view.x((layer.first_ms + layer.last_ms) / 2)  # type: ignore[union-attr]
    QTest.mouseMove(view, QPoint(round(x), round(wire.top + wire.height * 10.5 / 64)))
    view._point_at(QPointF(x, wire.top + wire.height * 10.5 / 64))
    assert "Layer 11 of chunk 31 · 260 KB" in texts(page) and "9.7 Gb/s" in texts(page)


def test_another_request_is_chosen_and_stays_chosen(page: TelemetryPage) -> None:
    tell(page, snapshot(local("chat-1", ASKED_S - 60)), *LONG.events())
    QTest.keyClick(page._requests, Qt.Key.Key_Down)
    assert "prefilled on studio" in texts(page) and "140 ms, against 190 ms" in texts(page)
    tell(page, *Handoff(request_id="chat-9", asked_s=ASKED_S + 60).until_chunk(2))
    assert "prefilled on studio" in texts(page)
    QTest.keyClick(page._requests, Qt.Key.Key_Home)
    assert "prefilling on spark" in texts(page)


def test_slots_have_state_progress_and_speed(page: TelemetryPage) -> None:
    busy = slot(
        0, "prefill_remote", n_prompt_tokens=28_800, n_prompt_tokens_processed=12_300, n_cached_tokens=12_300
    )
    tell(page, snapshot(slots=[busy, slot(1)]), *LONG.until_chunk(1))
    wait(lambda: "idle" in texts(page))
    said = texts(page)
    assert "prefill: spark" in said and "12,300 of 28,800" in said and "idle" in said
    tell(page, snapshot(slots=[slot(0)]))
    assert (
        "prefill: spark" not in texts(page) and len([w for w in texts(page).splitlines() if w == "idle"]) == 1
    )


def test_layers_of_what_ran_before_are_asked_for(
    page: TelemetryPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def endpoint_get(path: str, **query: str) -> Any:
        asked.append((path, query))
        return {"chunks": [LONG.chunk(index) for index in range(57)]}

    monkeypatch.setattr(page.context.client, "endpoint_get", endpoint_get)
    tell(page, snapshot(LONG.ended()))
    wait(lambda: page._waterfall.picture is not None and page._waterfall.picture.n_layers == 64)
    tell(page, snapshot(LONG.ended()))
    assert asked == [("/requests/chat-7", {"model": MODEL})]


def test_all_of_it_can_be_exported(page: TelemetryPage, tmp_path: Path) -> None:
    tell(page, snapshot(local("chat-1", ASKED_S - 60)), *LONG.events())
    page.export_to(tmp_path / "all.json", as_json)
    page.export_to(tmp_path / "all.csv", as_csv)
    assert [told["id"] for told in json.loads((tmp_path / "all.json").read_text())] == ["chat-7", "chat-1"]
    with (tmp_path / "all.csv").open(newline="") as file:
        assert [line["id"] for line in csv.DictReader(file)] == ["chat-7", "chat-1"]
    page.export_to(tmp_path / "nowhere" / "all.csv", as_csv)
    said = page.context.shell.said  # type: ignore[attr-defined]
    assert said[0] == "2 requests are in all.json." and "Choose another folder" in said[2]


def test_an_engine_that_ends_takes_its_slots_along(page: TelemetryPage) -> None:
    tell(page, snapshot(), *LONG.until_chunk(3))
    pretend(page.context, engines=[])
    wait(lambda: "Its engine ended." in texts(page))
    wait(lambda: "no model is loaded" in texts(page))


def turn(widget: Any, at: QPointF, delta: int) -> None:
    """The wheel, over a place."""
    QApplication.sendEvent(
        widget,
        QWheelEvent(
            at,
            QPointF(widget.mapToGlobal(at.toPoint())),
            QPoint(),
            QPoint(0, delta),
            Qt.MouseButton.NoButton,
            Qt.KeyboardModifier.NoModifier,
            Qt.ScrollPhase.NoScrollPhase,
            False,
        ),
    )
