"""Bringing a paired computer's Baton up to this one's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from engine.errors import BatonError, PeerLost
from engine.server.errors import error_body
from engine.server.fields import Fields
from engine.server.handlers import content_of
from engine.server.json import encode

_MAX_BODY_BYTES = 4096

# Between two signs of life to the client that waits.
_KEEPALIVE_S = 1.0


def routes() -> list[BaseRoute]:
    return [Route("/setup/update", _update, methods=["POST"])]


async def _update(request: Request) -> Response:
    """{"peer": NAME}: send it what runs here. Empty lines, then one with its new version or with an error."""
    node = request.app.state.node
    fields = Fields(await content_of(request, _MAX_BODY_BYTES))
    peer = node.peers.named(fields.text("peer", ""))
    link = node.links.get(peer.node_id)
    if link is None:
        raise PeerLost(f"{peer.name} is not connected: start Baton there")
    return StreamingResponse(
        _lines(asyncio.ensure_future(node.updates.send(link))), media_type="application/x-ndjson"
    )


async def _lines(sending: asyncio.Future[str]) -> AsyncIterator[bytes]:
    try:
        while not (await asyncio.wait([sending], timeout=_KEEPALIVE_S))[0]:
            yield b"\n"
        try:
            yield encode({"version": sending.result()}) + b"\n"
        except BatonError as error:
            yield encode(error_body(error)) + b"\n"
    finally:
        sending.cancel()
