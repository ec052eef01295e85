"""The control API's routes that fetch models by name."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from engine.node.control import models as models_routes
from engine.node.control.app import build_control_app
from engine.node.models.downloads import Downloads

TOKEN = "the node's token"


async def said(*words: str, environment: object) -> AsyncGenerator[dict[str, Any], None]:
    yield {"done_bytes": 1, "total_bytes": 2}
    yield {"model_id": words[2].rpartition("/")[2]}


async def on_model() -> None:
    pass


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    downloads = Downloads(tmp_path, on_change=lambda: None, on_model=on_model, said=said)
    shelf = SimpleNamespace(folder=SimpleNamespace(path=tmp_path))
    app = build_control_app(SimpleNamespace(downloads=downloads, shelf=shelf), TOKEN, models_routes.routes())
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with TestClient(app, base_url="http://127.0.0.1", headers=headers) as client:
        yield client


@pytest.mark.parametrize("name", ["smollm2-135m", "someone/tiny-GGUF/tiny.gguf"])
def test_a_fetch_is_followed_line_by_line(client: TestClient, name: str) -> None:
    answer = client.post("/models/get", json={"model": name})
    lines = [json.loads(line) for line in answer.text.splitlines() if line]
    assert (lines[0]["model"], lines[-1]["state"]) == (name, "done")
    assert lines[-1]["model_id"] == name.rpartition("/")[2] and lines[-1]["total_bytes"] == 2
    assert client.get("/downloads").json() == lines[-1:]
    assert client.delete(f"/downloads/{lines[0]['id']}").status_code == 400


@pytest.mark.parametrize("name", ["unheard-of", "a/b", "a/b/../c.gguf", "", 7])
def test_what_is_nowhere_is_refused(client: TestClient, name: object) -> None:
    refused = client.post("/models/get", json={"model": name})
    assert refused.status_code == 400 and refused.json()["error"]["message"]
    assert client.get("/downloads").json() == []


def test_the_catalogue_says_what_is_here(client: TestClient, tmp_path: Path) -> None:
    starter = client.get("/models/catalogue").json()[0]
    assert (starter["name"], starter["licence"], starter["here"]) == ("smollm2-135m", "Apache-2.0", False)
    (tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"")
    (tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf.sha256").write_text(f"{'0' * 64} 0\n")
    assert client.get("/models/catalogue").json()[0]["here"]
