"""`GET /logs` and `GET /requests`: what was said lately, then what is said from now on, as it comes.

A listener keeps a place in the feed and has no queue: one that falls behind what is kept begins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.errors import InvalidRequest
from engine.node.control.lines import KEEPALIVE_S
from engine.node.recent import RecentRequests
from engine.node.reporting.log_feed import KEPT_LOG_LINES, LogFeed
from engine.server import sse
from engine.server.errors import Refused
from engine.server.exchange import Exchanges
from engine.server.listeners import Listeners

# Windows of one computer.
MAX_LISTENERS = 16

# What is said at once goes out in one piece, this often at most.
_AT_MOST_EVERY_S = 0.1

_BATCH = 200

T = TypeVar("T", bound=msgspec.Struct)

# The number of the last item, and those that a listener begins with.
Beginning = Callable[[], tuple[int, list[T]]]


def routes() -> list[Route]:
    return [Route("/logs", _logs), Route("/requests", _requests)]


async def _logs(request: Request) -> ASGIApp:
    """`?last=` lines first, 500 unless told."""
    text = request.query_params.get("last", "500")
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise InvalidRequest("last is a number of lines", param="last")
    feed: LogFeed = request.app.state.node.log
    n = min(int(text), KEPT_LOG_LINES)
    return _stream(request, request.app.state.node.log_hub, "lines", lambda: feed.last_lines(n))


async def _requests(request: Request) -> ASGIApp:
    node = request.app.state.node
    recent: RecentRequests = node.recent
    return _stream(request, node.recent_hub, "requests", lambda: (recent.feed.last, recent.all()))


def _stream(request: Request, hub: Listeners[T], name: str, begin: Beginning[T]) -> ASGIApp:
    if hub.n_listeners >= MAX_LISTENERS:
        raise Refused(
            f"{MAX_LISTENERS} listeners are connected already", status=503, kind="unavailable_error"
        )
    return FeedStream(hub, request.app.state.exchanges, name, begin)


class FeedStream(Generic[T]):
    """One listener; an ASGI response. Events are `all` with what there is, then `more`, each a list under `name`."""

    def __init__(self, hub: Listeners[T], exchanges: Exchanges, name: str, begin: Beginning[T]) -> None:
        self._hub, self._exchanges = hub, exchanges
        self._name, self._begin = name, begin
        self._woken = asyncio.Event()
        self._is_over = False
        self._place = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._exchanges.add(self)
        self._hub.add(self._woken)
        client = asyncio.create_task(self._until_gone(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": sse.HEADERS})
            await _send_part(send, self._all())
            while not self._is_over:
                await _send_part(send, await self._next())
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            client.cancel()
            self._hub.discard(self._woken)
            self._exchanges.discard(self)
            await asyncio.gather(client, return_exceptions=True)

    def notify_closing(self) -> None:
        self._is_over = True
        self._woken.set()

    async def _next(self) -> bytes:
        # Cleared before reading: what comes after that wakes again.
        self._woken.clear()
        news = self._hub.feed.after(self._place, at_most=_BATCH)
        if news is None:
            return self._all()
        if news:
            self._place = news[-1].number
            return self._event("more", [numbered.item for numbered in news])
        try:
            await asyncio.wait_for(self._woken.wait(), KEEPALIVE_S)
        except TimeoutError:
            return sse.KEEPALIVE
        if not self._is_over:
            await asyncio.sleep(_AT_MOST_EVERY_S)
        return b""

    def _all(self) -> bytes:
        self._place, items = self._begin()
        return self._event("all", items)

    def _event(self, kind: str, items: list[T]) -> bytes:
        return sse.event(kind, {self._name: msgspec.to_builtins(items)})

    async def _until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.notify_closing()


async def _send_part(send: Send, body: bytes) -> None:
    if body:
        content: dict[str, Any] = {"type": "http.response.body", "body": body, "more_body": True}
        await send(content)
