"""Listeners of the logs and of the recent requests: what there is first, then what comes, and nobody is waited for."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

from starlette.types import Message

from engine.node.control import feeds as module
from engine.node.control.app import build_control_app
from engine.node.recent import RecentRequests, Stage
from engine.node.reporting.log_feed import LogFeed
from engine.server.listeners import Listeners
from tests.engine.node.glue import run

TOKEN = "token"


class Listener:
    """A client that reads a stream of the control API; `events` as they come."""

    def __init__(self, node: Any, path: str) -> None:
        self.app = build_control_app(node, TOKEN, module.routes())
        path, _, query = path.partition("?")
        self._scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(b"authorization", f"Bearer {TOKEN}".encode())],
        }
        self.status = 0
        self.events: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self._gone = asyncio.Event()

    async def __aenter__(self) -> Listener:
        self._task = asyncio.create_task(self.app(self._scope, self._receive, self._send))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._gone.set()
        await self._task

    async def _receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.status = message.get("status", self.status)
        for event in message.get("body", b"").decode().split("\n\n"):
            name, _, data = event.partition("\n")
            if name.startswith("event: "):
                self.events.put_nowait(
                    (name.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
                )


def a_node() -> Any:
    log, recent = LogFeed(keep=4), RecentRequests()
    return SimpleNamespace(log=log, log_hub=Listeners(log), recent=recent, recent_hub=Listeners(recent.feed))


def texts(data: Any) -> list[str]:
    return [line["text"] for line in data["lines"]]


def test_lines_that_were_and_lines_that_come() -> None:
    async def work() -> None:
        node = a_node()
        for number in range(3):
            node.log.write("node", f"line {number}")
        async with Listener(node, "/logs?last=2") as listener:
            kind, data = await listener.events.get()
            assert (kind, texts(data)) == ("all", ["line 1", "line 2"])
            await asyncio.to_thread(node.log.write, "serve-small", "from another thread")
            kind, data = await listener.events.get()
            assert (kind, texts(data), data["lines"][0]["source"]) == (
                "more",
                ["from another thread"],
                "serve-small",
            )
            for number in range(9):  # more than is kept
                node.log.write("node", f"late {number}")
            kind, data = await listener.events.get()
            assert (kind, texts(data)) == ("all", ["late 7", "late 8"])
        assert node.log_hub.n_listeners == 0

    run(work())


def test_requests_as_they_go_on() -> None:
    async def work() -> None:
        node = a_node()
        node.recent.begin("POST", "/v1/completions", "small").end(Stage.DONE)
        async with Listener(node, "/requests") as listener:
            kind, data = await listener.events.get()
            assert (kind, [one["stage"] for one in data["requests"]]) == ("all", ["done"])
            node.recent.begin("POST", "/v1/chat/completions", "large")
            kind, data = await listener.events.get()
            (one,) = data["requests"]
            assert (kind, one["model"], one["stage"], one["status"]) == ("more", "large", "running", None)

    run(work())


def test_what_is_no_number_of_lines_is_refused() -> None:
    async def work() -> None:
        async with Listener(a_node(), "/logs?last=-1") as listener:
            await listener._task
            assert listener.status == 400

    run(work())


def test_there_is_an_end_to_listeners() -> None:
    async def work() -> None:
        node = a_node()
        for _ in range(module.MAX_LISTENERS):
            node.log_hub.add(asyncio.Event())
        async with Listener(node, "/logs") as listener:
            await listener._task
            assert listener.status == 503

    run(work())
