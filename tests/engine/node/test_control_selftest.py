"""The control API's route of the self-test, at an endpoint that answers both ways as a test wants."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from starlette.testclient import TestClient

from engine.errors import HostError
from engine.node.control import selftest
from engine.node.control.app import build_control_app

TOKEN = "the node's token"


class FakeEndpoint:
    """Gives every prompt the same sixteen tokens; `worker` is the one that there is."""

    worker: ClassVar[dict[str, Any]] = {"configured": True, "connected": True, "peer": "10.0.0.2:7118"}
    asked: ClassVar[list[tuple[str, Any]]] = []

    def __init__(self, host: str, port: int, key: str | None) -> None:
        assert (host, port, key) == ("127.0.0.1", 7117, "the key")

    def get(self, path: str) -> Any:
        if path.startswith("/worker"):
            return self.worker
        return [{"id": 0, "state": "idle", "n_ctx": 60, "n_cached_tokens": 0, "timeline": None}]

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((path, body.get("model")))
        if path == "/tokenize":
            return {"tokens": list(range(90))}
        handoff = {"prefill": body["prefill"], "reason": "", "detail": "", "bytes": 7, "tail_ms": 1.0}
        return {"tokens": [1] * 16, "choices": [{}], "timings": {"prompt_ms": 12.0, "handoff": handoff}}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr(selftest, "Endpoint", FakeEndpoint)
    monkeypatch.setattr(FakeEndpoint, "asked", [])
    node = SimpleNamespace(endpoint_url="http://0.0.0.0:7117", settings=SimpleNamespace(api_key="the key"))
    app = build_control_app(node, TOKEN, selftest.routes())
    with TestClient(app, base_url="http://127.0.0.1", headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        yield client


def lines(client: TestClient, **body: Any) -> list[Any]:
    text = client.post("/link/selftest", json=body).text
    return [json.loads(line) for line in text.splitlines() if line]


def test_each_prompt_is_told_as_it_was_compared(client: TestClient) -> None:
    first, *rows, last = lines(client, model="m")
    assert first == {"prompts": 2} and len(rows) == 2
    assert [(row["prompt"]["prompt_tokens"], row["prompt"]["same"]) for row in rows] == [
        (2, True),
        (33, True),
    ]
    assert last == {"passed": True, "verdict": "2 prompts gave the same answer either way"}
    assert FakeEndpoint.asked == [("/tokenize", "m"), *[("/v1/completions", "m")] * 4]


def test_a_worker_that_is_away_is_said(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        FakeEndpoint, "worker", {"configured": True, "connected": False, "note": "the cable is out"}
    )
    (told,) = lines(client)
    assert "the cable is out" in told["error"]["message"]


def test_an_endpoint_that_breaks_off_ends_it(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(self: FakeEndpoint, path: str, body: dict[str, Any]) -> dict[str, Any]:
        raise HostError("the answer broke off")

    monkeypatch.setattr(FakeEndpoint, "ask", ask)
    (told,) = lines(client)
    assert told["error"]["message"] == "the answer broke off"
