"""Parts that flow: no two over each other, none beyond the edge, and as many lines as they need."""

from __future__ import annotations

import pytest

from app.widgets.basics import Button
from app.widgets.flow import Flow


@pytest.mark.parametrize("width", [60, 200, 321, 2000])
def test_all_parts_are_seen_whole(look: object, width: int) -> None:
    flow = Flow()
    parts = [Button("word" * n) for n in (1, 3, 2, 1, 4)]
    flow.show_parts(parts)
    flow.resize(width, flow.heightForWidth(width))
    flow.show()
    places = [part.geometry() for part in parts]
    assert all(flow.rect().contains(place) for place in places)
    assert not any(one.intersects(other) for one in places for other in places if one is not other)
    assert (len({place.top() for place in places}) == 1) == (flow.sizeHint().width() <= width + 8)
    flow.hide()
    flow.deleteLater()


def test_parts_of_before_are_gone(look: object) -> None:
    flow = Flow()
    before, now = Button("before"), Button("now")
    flow.show_parts([before])
    flow.show_parts([now])
    assert before.isHidden() and not now.isHidden()
    flow.show_parts([])
    assert flow.heightForWidth(200) == 0
    flow.deleteLater()
