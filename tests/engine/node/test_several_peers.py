"""Which of several paired computers prefills."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine.node.agreeing.roles import Roles
from engine.node.daemon import Node

HERE, SPARK, GARAGE = "a" * 32, "b" * 32, "c" * 32


def roles(prefill: str | None, *, is_wish: bool = False) -> Roles:
    return Roles(prefill=prefill, decode=HERE, reason="", ways=(), is_wish=is_wish)


@pytest.mark.parametrize(
    ("agreed", "chosen"),
    [
        ({SPARK: roles(SPARK), GARAGE: roles(GARAGE)}, SPARK),
        ({SPARK: roles(SPARK), GARAGE: roles(GARAGE, is_wish=True)}, GARAGE),
        ({SPARK: roles(HERE, is_wish=True), GARAGE: roles(GARAGE)}, GARAGE),
        ({SPARK: roles(None)}, None),
        ({}, None),
    ],
)
def test_of_several_that_may_prefill_it_is_the_one_that_was_wished_for(
    agreed: dict[str, Roles], chosen: str | None
) -> None:
    links = [SimpleNamespace(peer=SimpleNamespace(node_id=node_id)) for node_id in (SPARK, GARAGE)]
    node: Any = SimpleNamespace(
        identity=SimpleNamespace(node_id=HERE),
        links=SimpleNamespace(all=lambda: links),
        agreement=SimpleNamespace(with_peer=lambda node_id, model: agreed.get(node_id)),
    )
    engine: Any = SimpleNamespace(model=SimpleNamespace(model_id="m"))
    link = Node._prefiller_for(node, engine)
    assert (link.peer.node_id if link is not None else None) == chosen
