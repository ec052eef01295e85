"""The control API's routes for a paired computer that is away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from engine.errors import InvalidRequest
from engine.node.control.app import build_control_app
from engine.node.control.wake import routes

TOKEN = "the node's token"


class Node:
    """Is paired with spark, and remembers what was asked of it."""

    def __init__(self) -> None:
        self.did: list[Any] = []
        self.peers = self.links = self.wake_on_lan = self

    def named(self, name: str) -> Any:
        if name != "spark":
            raise InvalidRequest(f"no paired computer is called {name}")
        return SimpleNamespace(name="spark")

    def look_again(self, *, at_once: bool) -> None:
        self.did.append(("call", at_once))

    async def wake(self, name: str) -> dict[str, Any]:
        self.did.append(("wake", name))
        return {"awake": True}


@pytest.mark.parametrize(
    ("path", "status", "did"),
    [
        ("/peers/spark/call", 200, [("call", True)]),
        ("/peers/nobody/call", 400, []),
        ("/peers/spark/wake", 200, [("wake", "spark")]),
    ],
)
def test_a_peer_that_is_away_is_called_or_woken(path: str, status: int, did: list[Any]) -> None:
    node = Node()
    app = build_control_app(node, TOKEN, routes())
    with TestClient(app, base_url="http://127.0.0.1", headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        assert client.post(path).status_code == status
    assert node.did == did
