"""The recent requests as they are shown, of two computers of which either may have answered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtGui import QFontMetrics

from app.look.look import current_look
from app.pages.server.requests_view import RequestsView
from tests.app.pages.server.test_requests import told
from tests.app.two_computers import pretend, two_computers


@pytest.fixture
def view(tmp_path: Path) -> Iterator[RequestsView]:
    with two_computers(tmp_path) as context:
        pretend(context)
        yield RequestsView(context)


def test_where_a_prompt_was_prefilled_is_told_from_this_computer(view: RequestsView) -> None:
    ways = [("remote", ""), ("local", ""), ("remote", "spark"), ("local", "spark")]
    requests = [
        told(number=-number, prefill=prefill, computer=computer)
        for number, (prefill, computer) in enumerate(ways)
    ]
    view.hear(("all", {"requests": requests}))
    assert [cells[6] for cells in view.cells()] == ["on spark", "on studio", "on studio", "on spark"]
    items = [view._table.item(line, 6) for line in range(4)]
    hues = [item.foreground().color() for item in items if item is not None]
    assert hues == [current_look().colour(name) for name in ("peer", "local", "local", "peer")]


def test_what_became_of_a_request_is_seen_whole(view: RequestsView) -> None:
    ends = [
        ("failed", 503),
        ("failed", 401),
        ("failed", 400),
        ("left", None),
        ("running", None),
        ("done", 200),
    ]
    view.resize(900, 400)
    requests = [told(number=n, stage=stage, status=status) for n, (stage, status) in enumerate(ends)]
    view.hear(("all", {"requests": requests}))
    said = [line[7] for line in reversed(view.cells())]
    assert said == ["not ready yet", "wrong key", "failed, 400", "broken off", "answering", "done"]
    metrics = QFontMetrics(current_look().font())
    for line in view.cells():
        for place in (0, 3, 4, 5, 6, 7):
            # beside its text a cell has 8 px of padding and 3 px of Qt's own, on each side
            assert view._table.columnWidth(place) >= metrics.horizontalAdvance(line[place]) + 22
