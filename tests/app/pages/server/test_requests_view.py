"""The recent requests as they are shown, of two computers of which either may have answered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

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


def test_a_request_without_the_key_says_what_it_lacked(view: RequestsView) -> None:
    view.hear(("all", {"requests": [told(number=1, stage="failed", status=401)]}))
    assert [cells[7] for cells in view.cells()] == ["no valid key"]
