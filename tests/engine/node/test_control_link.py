"""The control API's routes of the link doctor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from engine.errors import HostError
from engine.link.privileged import Order
from engine.link.tune import Plan, Sysctls
from engine.link.tuning import Preview
from engine.node import link_doctor
from engine.node.control.app import build_control_app
from engine.node.control.link import routes
from engine.node.link_doctor import LinkDoctor

TOKEN = "the node's token"
CHANGE = Sysctls(values={"net.core.rmem_max": (33554432,)})


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    doctor = LinkDoctor(folder=tmp_path, node_id="a" * 32, links=list, on_change=lambda: None)
    app = build_control_app(SimpleNamespace(link_doctor=doctor), TOKEN, routes())
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with TestClient(app, base_url="http://127.0.0.1", headers=headers) as client:
        yield client


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What plans were asked for; each has one change."""
    asked: list[dict[str, Any]] = []

    def preview(node_id: str, **rest: Any) -> Preview:
        asked.append({"node_id": node_id, **rest})
        plan = Plan(interface="eth1", changes=(CHANGE,))
        return Preview(plan=plan, steps=("write it",), blocked=False)

    monkeypatch.setattr(link_doctor, "preview", preview)
    return asked


def test_a_probe_says_each_part_and_then_its_report(client: TestClient) -> None:
    assert client.get("/link").json() == {"probing": None, "report": None, "ceilings": {}}
    lines = [json.loads(line) for line in client.post("/link/probe", json={}).text.splitlines() if line]
    assert lines[0] == {"part": "interfaces of both computers"}
    report = lines[-1]["report"]
    assert "baton pair" in report["missing"] and report["here"]["network"]["interfaces"]
    assert client.get("/link").json()["report"] == report


def test_a_probe_that_fails_ends_with_its_error(client: TestClient) -> None:
    lines = client.post("/link/probe", json={"peer": "b" * 32}).text.splitlines()
    assert "baton status" in json.loads(lines[-1])["error"]["message"]


def test_the_plan_is_shown(client: TestClient, planned: list[dict[str, Any]]) -> None:
    shown = client.get("/link/tune?interface=eth1&mtu=8000").json()
    assert shown["steps"] == ["write it"]
    assert shown["plan"]["changes"] == [{"type": "sysctls", "values": {"net.core.rmem_max": [33554432]}}]
    assert (planned[0]["interface"], planned[0]["mtu"], planned[0]["peer"]) == ("eth1", 8000, None)


def test_tuning_is_done_by_the_helper(
    client: TestClient, planned: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[Order] = []

    def run_helper(order: Order, say: Any) -> None:
        orders.append(order)
        say({"done": "write it"})

    monkeypatch.setattr(link_doctor, "run_helper", run_helper)
    assert client.post("/link/tune", json={"action": "apply"}).json() == {"steps": ["write it"]}
    assert client.post("/link/tune", json={"action": "undo"}).json() == {"steps": ["write it"]}
    assert orders == [Order(action="apply", changes=(CHANGE,)), Order(action="undo")]


def test_a_helper_that_was_not_allowed_is_told(
    client: TestClient, planned: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_helper(order: Order, say: Any) -> None:
        raise HostError("nothing was changed")

    monkeypatch.setattr(link_doctor, "run_helper", run_helper)
    refused = client.post("/link/tune", json={"action": "apply"})
    assert refused.status_code == 500 and refused.json()["error"]["message"] == "nothing was changed"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/link/probe", {"peer": 7}),
        ("POST", "/link/probe", {"other": ""}),
        ("POST", "/link/tune", {}),
        ("POST", "/link/tune", {"action": "reboot"}),
        ("POST", "/link/tune", {"action": "apply", "mtu": 90000}),
        ("GET", "/link/tune?mtu=9", None),
        ("GET", "/link/tune?mtu=many", None),
    ],
)
def test_what_cannot_be_asked_is_refused(
    client: TestClient, planned: list[dict[str, Any]], method: str, path: str, body: object
) -> None:
    refused = client.request(method, path, json=body)
    assert refused.status_code == 400 and refused.json()["error"]["message"]
    assert planned == []


@pytest.mark.parametrize("path", ["/link", "/link/tune"])
def test_without_the_token_nothing_is_told(client: TestClient, path: str) -> None:
    assert client.get(path, headers={"Authorization": "Bearer another"}).status_code == 401
