"""The front and the computer that decodes: what a paired one may answer, and what it may ask for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from engine.errors import InvalidRequest
from engine.node.engines import Engines
from engine.node.front import PASSED_ON, Ask, Front, _check
from engine.node.peering.offers import Method
from engine.node.peering.peer_link import PeerLink
from engine.node.peering.peer_messages import MAX_MESSAGE_BYTES
from engine.server.settings import ServerSettings
from tests.engine.node.glue import TIMEOUT_S, two_ends

BODY = b'{"model": "m", "prompt": "p"}'


def ask_through(folder: Path, *said: Any, path: str = "/v1/completions") -> tuple[httpx.Response, list[Any]]:
    """What a client gets whose node's peer answers `said`, and what that peer was asked."""
    asked = []

    async def answer(link: PeerLink, params: Any) -> AsyncIterator[Any]:
        asked.append(params)
        for part in said:
            yield part

    async def nothing() -> None:
        pass

    async def work() -> httpx.Response:
        async with asyncio.timeout(TIMEOUT_S), two_ends(folder) as (left, right):
            right.offers.streams[PASSED_ON] = Method(answer, max_bytes=MAX_MESSAGE_BYTES)
            front = Front(
                cast(Engines, None),
                settings=ServerSettings(),
                engine_key="",
                decoder_of=lambda model: left.link,
                models=list,
                refresh=nothing,
                problem_of=lambda name: "",
            )
            transport = httpx.ASGITransport(front.build_app(), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                response = await client.post(path, content=BODY)
            await front.close()
            return response

    return asyncio.run(work()), asked


def test_a_peer_says_only_what_an_answer_may_say_of_itself(tmp_path: Path) -> None:
    headers = {
        "content-type": "text/plain",
        "retry-after": "1\r\nset-cookie: a=b",
        "set-cookie": "a=b",
        "access-control-allow-origin": "*",
        "content-length": "1",
        "transfer-encoding": "chunked",
    }
    response, _ = ask_through(tmp_path, {"status": 200, "headers": headers}, b"one ", b"two")
    assert (response.status_code, response.text) == (200, "one two")
    assert dict(response.headers) == {"content-type": "text/plain"}


@pytest.mark.parametrize(
    "said",
    [
        [],
        ["a word"],
        [{"status": 7, "headers": {}}],
        [{"status": 200}],
        [{"status": 200, "headers": {"content-type": 5}}],
    ],
)
def test_what_is_no_answer_is_said_to_be_none(tmp_path: Path, said: list[Any]) -> None:
    response, _ = ask_through(tmp_path, *said)
    assert response.status_code >= 500
    assert "right" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("other", "why"), [(7, "is not valid"), ({"status": 200, "headers": {}}, "no part of an answer")]
)
def test_a_stream_that_goes_on_with_something_else_says_so(tmp_path: Path, other: Any, why: str) -> None:
    head = {"status": 200, "headers": {"content-type": "text/event-stream"}}
    response, _ = ask_through(tmp_path, head, b"data: {}\n\n", other)
    assert response.text.startswith("data: {}\n\ndata: ") and why in response.text


def test_a_path_is_passed_on_as_it_came(tmp_path: Path) -> None:
    head = {"status": 200, "headers": {}}
    _, (asked,) = ask_through(tmp_path, head, path="/v1/completions?a=%0d%0ab")
    assert asked["path"] == "/v1/completions?a=%0d%0ab"


@pytest.mark.parametrize(
    "path",
    ["//h/slots", "http://h/slots", "@h/slots", "/slots\r\n", "/slotsx", "/slots#", "/stop", "", "/requests"],
)
def test_a_peer_asks_for_nothing_but_what_clients_may(path: str) -> None:
    with pytest.raises(InvalidRequest, match="there is no"):
        _check(Ask(method="GET", path=path, body=b"", model=None))


def test_a_header_that_a_peer_gives_is_one_line() -> None:
    ask = Ask(method="GET", path="/requests/7?a=b", body=b"", model=None, last_event_id="5\r\nX: y")
    _check(ask)
    assert ask.headers == {"Content-Type": "application/json"}
    assert replace(ask, last_event_id="5").headers["Last-Event-ID"] == "5"
