"""The control API's routes that put Baton on another computer."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from engine.node.control import setup as setup_routes
from engine.node.control.app import build_control_app

TOKEN = "the node's token"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


def app() -> Any:
    return build_control_app(SimpleNamespace(), TOKEN, setup_routes.routes())


@pytest.fixture
def client() -> TestClient:
    return TestClient(app(), base_url="http://127.0.0.1", headers=HEADERS)


def test_the_line_works_once_and_who_took_it_is_told() -> None:
    async def work() -> None:
        async with asyncio.timeout(60):
            lines = setup_routes.said_by(*setup_routes.CHILD, "--print-command", "--address", "127.0.0.1")
            first = await anext(lines)
            assert first["works_for_s"] > 60
            url = re.search(r"http://127\.0\.0\.1:\d+/[\w-]+", first["line"])
            assert url is not None
            archive = await asyncio.to_thread(lambda: urllib.request.urlopen(url[0]).read())
            assert len(archive) > 100_000
            assert await anext(lines) == {"taken_by": "127.0.0.1"}
            await lines.aclose()

    asyncio.run(work())


def test_an_address_that_is_not_this_computers(client: TestClient) -> None:
    lines = client.post("/setup/line", json={"address": "198.51.100.7"}).text.split()
    error = json.loads(" ".join(lines))["error"]
    assert "198.51.100.7" in error["message"]


def test_without_a_network_it_is_said(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.node.setup import setup_peer

    monkeypatch.setattr(setup_peer, "segments", list)
    refused = client.post("/setup/line", json={})
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "no_address"


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh")
def test_ssh_that_does_not_get_there_asks_nobody(client: TestClient) -> None:
    answer = client.post("/setup/ssh", json={"target": "nobody@127.0.0.1.invalid"})
    said = [json.loads(line) for line in answer.text.splitlines() if line.strip()]
    assert "ssh could not reach" in said[-1]["error"]["message"]


@pytest.mark.parametrize("target", ["", "-oProxyCommand=x", "a b", "x" * 300])
def test_what_ssh_could_take_for_more_than_a_name_is_refused(client: TestClient, target: str) -> None:
    assert client.post("/setup/ssh", json={"target": target}).status_code == 400


def test_without_the_token_nothing_is_done() -> None:
    stranger = TestClient(app(), base_url="http://127.0.0.1")
    assert stranger.post("/setup/line", json={}).status_code == 401
