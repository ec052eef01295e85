"""The control API: what the app, the command line and tests ask of the node, on loopback, with its token.

Each part of the node has a file beside this one with its routes; a handler finds the node as `request.app.state.node`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.node.control.lines import KEEPALIVE_S
from engine.node.news import News
from engine.server import sse
from engine.server.errors import Refused
from engine.server.exchange import Exchanges
from engine.server.guard import Guard
from engine.server.handlers import EXCEPTION_HANDLERS
from engine.server.json import JSONResponse
from engine.server.settings import ServerSettings

# Windows and commands of one computer.
MAX_LISTENERS = 64

# A part that changes all the time is told this often.
_AT_MOST_EVERY_S = 0.1


def build_control_app(node: Any, token: str, routes: Sequence[BaseRoute]) -> Starlette:
    """`node` is what the handlers of `routes` ask; nothing is answered without the token."""
    app = Starlette(
        routes=[
            Route("/state", _state),
            Route("/events", _events),
            Route("/stop", _stop, methods=["POST"]),
            *routes,
        ],
        middleware=[Middleware(Guard, settings=ServerSettings(api_key=token), open_paths=frozenset())],
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.state.node = node
    app.state.exchanges = Exchanges()
    return app


async def _state(request: Request) -> Response:
    return JSONResponse(request.app.state.node.news.state())


async def _stop(request: Request) -> Response:
    """End the node, once this has been answered."""
    asyncio.get_running_loop().call_soon(request.app.state.node.stop)
    return JSONResponse({"stopping": True})


async def _events(request: Request) -> ASGIApp:
    news: News = request.app.state.node.news
    if news.n_listeners >= MAX_LISTENERS:
        raise Refused(
            f"{MAX_LISTENERS} listeners are connected already", status=503, kind="unavailable_error"
        )
    return _EventStream(news, request.app.state.exchanges)


class _EventStream:
    """The whole state, then each part that has changed; an ASGI response."""

    def __init__(self, news: News, exchanges: Exchanges) -> None:
        self._news = news
        self._exchanges = exchanges
        self._listener = news.listen()
        self._is_over = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._exchanges.add(self)
        client = asyncio.create_task(self._until_gone(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": sse.HEADERS})
            await _send_part(send, sse.event("state", self._news.state()))
            while not self._is_over:
                await _send_part(send, await self._next())
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            client.cancel()
            self._news.forget(self._listener)
            self._exchanges.discard(self)
            await asyncio.gather(client, return_exceptions=True)

    def notify_closing(self) -> None:
        self._is_over = True
        self._listener.woken.set()

    async def _next(self) -> bytes:
        try:
            await asyncio.wait_for(self._listener.woken.wait(), KEEPALIVE_S)
        except TimeoutError:
            return sse.KEEPALIVE
        await asyncio.sleep(_AT_MOST_EVERY_S)
        return sse.event("changed", self._listener.take())

    async def _until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.notify_closing()


async def _send_part(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
