"""The control API's routes of discovery and of the local network's permission."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient

from engine.link.permission import LocalNetworkPermission, Observed
from engine.node.control import discovery as discovery_routes
from engine.node.control import permission as permission_routes
from engine.node.control.app import build_control_app
from engine.node.finding.discovery import Discovery

TOKEN = "the node's token"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    async def observe(peer: object, own_host: object) -> Observed:
        return Observed(host="10.0.0.2", connect_errno=0)

    node = SimpleNamespace(
        discovery=Discovery(node_id="a" * 32, name="Alpha", version="1", on_change=lambda: None, look=list),
        permission=LocalNetworkPermission(
            peer=lambda: None,
            own_host=lambda: None,
            memory=tmp_path / "worked",
            on_change=lambda: None,
            observe=observe,
        ),
    )
    app = build_control_app(node, TOKEN, [*discovery_routes.routes(), *permission_routes.routes()])
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with TestClient(app, base_url="http://127.0.0.1", headers=headers) as client:
        yield client


def test_an_address_is_added_shown_and_removed(client: TestClient) -> None:
    added = client.post("/discovery/manual", json={"address": "fe80::1%eth0"})
    assert (added.status_code, added.json()) == (200, {"address": "[fe80::1%eth0]:7119"})
    shown = client.get("/discovery").json()
    assert shown["manual"] == ["[fe80::1%eth0]:7119"] == shown["found"][0]["addresses"]
    path = "/discovery/manual/%5Bfe80::1%25eth0%5D:7119"
    assert client.delete(path).status_code == 200
    assert client.get("/discovery").json()["found"] == []
    assert client.delete(path).status_code == 400


@pytest.mark.parametrize("body", [{}, {"address": ""}, {"address": "http://x"}, {"address": 7}, []])
def test_what_is_no_address_is_refused_with_a_sentence(client: TestClient, body: object) -> None:
    refused = client.post("/discovery/manual", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"]


def test_the_permission_is_shown_and_looked_at_again(client: TestClient) -> None:
    assert client.get("/permission").json()["state"] != "allowed"
    assert client.post("/permission/check").json()["state"] == "allowed"
    assert client.get("/permission").json()["state"] == "allowed"


@pytest.mark.parametrize("path", ["/discovery", "/permission"])
def test_without_the_token_nothing_is_told(client: TestClient, path: str) -> None:
    assert client.get(path, headers={"Authorization": "Bearer guess"}).status_code == 401
