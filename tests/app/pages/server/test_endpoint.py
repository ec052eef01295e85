"""Whether others may use the endpoint, as a node tells of it: when it is started again for that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.context import Context
from app.pages.server.endpoint import OthersCard
from app.state import NodePresence
from tests.app.two_computers import engine, pretend, two_computers
from tests.app.windows import button, click, texts, wait

OPEN = {"node": {"name": "studio", "endpoint": "http://0.0.0.0:7117"}, "settings": {"settings": []}}


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    with two_computers(tmp_path) as context:
        yield context


@pytest.fixture
def asked(context: Context, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is asked of the node, which takes it."""
    asked: list[Any] = []

    async def patch(path: str, body: dict[str, Any]) -> Any:
        asked.append(body)
        return {}

    async def post(path: str, body: dict[str, Any] | None = None) -> Any:
        asked.append(path)
        return {}

    monkeypatch.setattr(context.client, "patch", patch)
    monkeypatch.setattr(context.client, "post", post)
    return asked


def card_of(context: Context, qtbot: Any) -> OthersCard:
    """Open to others, and to be closed."""
    settings = {
        "settings": [{"name": "host", "value": "0.0.0.0"}, {"name": "api_key", "is_set": True}],
    }
    pretend(context, node=OPEN["node"], settings=settings)
    card = OthersCard(context, lambda key: None)
    qtbot.addWidget(card)
    card.show()
    assert card.exposure.is_open and context.state.presence is NodePresence.THERE
    return card


def test_others_are_kept_out_at_once_where_nothing_is_answered(
    context: Context, asked: list[Any], qtbot: Any
) -> None:
    card = card_of(context, qtbot)
    click(card._switch)
    wait(lambda: asked == [{"host": None}, "/restart"])


def test_an_answer_that_is_being_written_is_not_ended_without_a_word(
    context: Context, asked: list[Any], qtbot: Any
) -> None:
    card = card_of(context, qtbot)
    context.state._hear(("changed", {"engines": [engine(active=1)]}))
    click(card._switch)
    wait(lambda: asked == [{"host": None}] and card._can_change)
    context.state._hear(("changed", OPEN))
    wait(lambda: "Other computers reach it until" in texts(card))
    assert asked == [{"host": None}]
    click(button(card, "Restart Baton's node"))
    wait(lambda: asked[1:] == ["/restart"])
