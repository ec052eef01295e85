"""The table of recent requests, without a node."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtGui import QFontMetrics

from app.look.look import current_look
from app.pages.server.requests_view import RequestsView
from tests.app.pages.server.test_requests import told
from tests.app.two_computers import two_computers


def test_what_became_of_a_request_is_seen_whole(look: object, tmp_path: Path) -> None:
    ends = [
        ("failed", 503),
        ("failed", 401),
        ("failed", 400),
        ("left", None),
        ("running", None),
        ("done", 200),
    ]
    with two_computers(tmp_path) as context:
        view = RequestsView(context)
        view.resize(900, 400)
        requests = [told(number=n, stage=stage, status=status) for n, (stage, status) in enumerate(ends)]
        view.hear(("all", {"requests": requests}))
        assert [line[7] for line in reversed(view.cells())] == [
            "not ready yet",
            "wrong key",
            "failed, 400",
            "broken off",
            "being answered",
            "done",
        ]
        metrics = QFontMetrics(current_look().font())
        for line in view.cells():
            for place in (0, 3, 4, 5, 6, 7):
                # beside its text a cell has 8 px of padding and 3 px of Qt's own, on each side
                assert view._table.columnWidth(place) >= metrics.horizontalAdvance(line[place]) + 22, line[
                    place
                ]
        view.deleteLater()
