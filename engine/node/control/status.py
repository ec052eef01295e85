"""This computer and each paired one, as they are just now."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import psutil
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.errors import PeerError
from engine.node.peering.peer_link import PeerLink
from engine.server.json import JSONResponse

# What a node tells of itself to paired ones.
DESCRIBE = "node.describe"


class _Exit(msgspec.Struct):
    reason: str


class _Engine(msgspec.Struct):
    model: str
    state: str
    last_exits: list[_Exit]


class _Worker(_Engine, rename={"for_": "for"}):
    for_: str


class _Join(msgspec.Struct):
    model: str
    prefill: str
    note: str


class ToldMemory(msgspec.Struct):
    total_bytes: int
    free_bytes: int


class Told(msgspec.Struct):
    """What a node tells of itself to paired ones: nothing that is its user's alone."""

    engines: list[_Engine]
    workers: list[_Worker]
    joins: list[_Join]
    memory: ToldMemory | None = None


# A peer that takes longer is shown without what it would have said.
_TIMEOUT_S = 2.0


def memory_told() -> dict[str, int]:
    """Of this computer, just now."""
    memory = psutil.virtual_memory()
    return {"total_bytes": memory.total, "free_bytes": memory.available}


def routes() -> list[Route]:
    return [Route("/status", _status)]


async def _status(request: Request) -> Response:
    node = request.app.state.node
    links: list[PeerLink] = node.links.all()
    told = dict(await asyncio.gather(*map(ask, links)))
    peers = [
        {
            **peer,
            "node": told.get(peer["node_id"]),
            "ceiling": msgspec.to_builtins(node.link_doctor.ceiling_for(peer["node_id"])),
        }
        for peer in node.links.snapshot()
    ]
    return JSONResponse({"node": node.describe(), "peers": peers})


async def ask(link: PeerLink) -> tuple[str, Any]:
    """The computer's id, and what it tells of itself, None where it does not."""
    try:
        told = await link.call(DESCRIBE, gives=Told, timeout_s=_TIMEOUT_S)
    except PeerError:
        return link.peer.node_id, None
    return link.peer.node_id, msgspec.to_builtins(told)
