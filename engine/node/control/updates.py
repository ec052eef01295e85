"""Bringing a paired computer's Baton up to this one's."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from engine.errors import PeerLost
from engine.node.control.asked import asked_of
from engine.node.control.lines import Items, lines
from engine.node.peering.peer_link import PeerLink


class _Update(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`peer` is a paired computer's name or id."""

    peer: Annotated[str, Meta(min_length=1, max_length=256)]


def routes() -> list[BaseRoute]:
    return [Route("/setup/update", _update, methods=["POST"])]


async def _update(request: Request) -> Response:
    """Send a paired computer what runs here. Lines: signs of life, then its new version."""
    asked = await asked_of(request, _Update)
    node = request.app.state.node
    peer = node.peers.named(asked.peer)
    link = node.links.get(peer.node_id)
    if link is None:
        raise PeerLost(f"{peer.name} is not connected: start Baton there")
    return lines(_sent(node, link))


async def _sent(node: Any, link: PeerLink) -> Items:
    yield {"version": await node.updates.send(link)}
