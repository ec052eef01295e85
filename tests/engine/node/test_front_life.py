"""The node's endpoint: nobody's request goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from engine.node.engines import Engines, LoadedEngine
from engine.node.front import Ask, Front
from engine.node.recent import RecentRequests, Stage
from engine.server.settings import ServerSettings

TIMEOUT_S = 20.0

SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/v1/completions",
    "raw_path": b"/v1/completions",
    "query_string": b"",
    "root_path": "",
    "scheme": "http",
    "http_version": "1.1",
    "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    "client": ("127.0.0.1", 1),
    "server": ("127.0.0.1", 1),
}


class Asked:
    """The endpoint in front of engines that never answer; `events` are how their requests went."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[str] = asyncio.Queue()
        self.is_gone = asyncio.Event()
        self.sent: list[Any] = []

        async def refresh() -> None:
            pass

        self.front = Front(
            cast(Engines, SimpleNamespace(use=self._use)),
            settings=ServerSettings(),
            engine_key="",
            decoder_of=lambda model: None,
            models=lambda: [{"id": "model"}],
            refresh=refresh,
            problem_of=lambda name: "",
        )
        self.app = self.front.build_app()
        self._body = [json.dumps({"model": "model", "prompt": "Hello"}).encode()]

    async def _use(self, model_id: str) -> LoadedEngine:
        self.events.put_nowait("asked")
        try:
            await asyncio.Event().wait()
        finally:
            self.events.put_nowait("ended")
        raise AssertionError

    async def answer(self) -> None:
        await self.app(SCOPE, self._receive, self._send)

    async def _receive(self) -> Any:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self.is_gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


@pytest.mark.parametrize("is_client", [True, False], ids=["client", "server"])
def test_a_request_ends_with_its_client_and_with_the_server_before_anything_was_answered(
    is_client: bool,
) -> None:
    """A whole answer has its head at the end only, and may be minutes away."""

    async def work() -> None:
        asked = Asked()
        async with asyncio.timeout(TIMEOUT_S):
            answering = asyncio.create_task(asked.answer())
            assert await asked.events.get() == "asked"
            if is_client:
                asked.is_gone.set()
            else:
                asked.app.state.exchanges.close_all()
            assert await asked.events.get() == "ended"
            await answering
            await asked.front.close()
        told = [message.get("status") for message in asked.sent if "status" in message]
        assert told == ([] if is_client else [httpx.codes.INTERNAL_SERVER_ERROR])

    asyncio.run(work())


def test_who_only_looks_at_an_engine_does_not_count_as_an_answer_of_it() -> None:
    """A window that listens to its events would keep a model from being loaded anew for ever."""

    async def work() -> None:
        asked = Asked()
        counted: list[str] = []

        @contextlib.contextmanager
        def in_use() -> Iterator[None]:
            counted.append("in use")
            yield

        engine = cast(LoadedEngine, SimpleNamespace(url="http://127.0.0.1:1", in_use=in_use))
        for method in ("GET", "POST"):
            ask = Ask(method=method, path="/", body=b"", model=None)
            with pytest.raises(httpx.HTTPError):
                await asked.front._ask_engine(engine, ask)
            assert len(counted) == (method == "POST")
        await asked.front.close()

    asyncio.run(work())


@pytest.mark.parametrize(
    ("path", "key", "status"), [("/v1/chat/completions", "other", 401), ("/v1/embeddings", "key", 404)]
)
def test_who_is_turned_away_is_listed_too(path: str, key: str, status: int) -> None:
    recent = RecentRequests()

    async def work() -> int:
        front = without_models(None, ServerSettings(api_key="key"), recent)
        transport = httpx.ASGITransport(front.build_app())
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers=headers
        ) as client:
            response = await client.post(path, json={"model": "m"})
            await client.get("/v1/nothing")
        await front.close()
        return response.status_code

    assert asyncio.run(work()) == status
    # who only looks is no request
    (listed,) = recent.all()
    assert (listed.path, listed.status, listed.stage) == (path, status, Stage.FAILED)


def test_what_an_engine_was_asked_is_listed_once() -> None:
    recent = RecentRequests()

    async def work() -> None:
        engines = SimpleNamespace(all=list, latest=lambda: None)
        front = without_models(engines, ServerSettings(), recent)
        transport = httpx.ASGITransport(front.build_app())
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await client.post("/v1/completions", json={"model": "nobody"})
        await front.close()

    asyncio.run(work())
    assert [(each.model, each.status) for each in recent.all()] == [("nobody", 404)]


def without_models(engines: object, settings: ServerSettings, recent: RecentRequests) -> Front:
    return Front(
        cast(Engines, engines),
        settings=settings,
        engine_key="",
        decoder_of=lambda model: None,
        models=list,
        refresh=_nothing,
        problem_of=lambda name: "",
        recent=recent,
    )


async def _nothing() -> None:
    pass
