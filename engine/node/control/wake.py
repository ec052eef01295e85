"""Calling and waking a paired computer that is away, as the control API has it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.server.json import JSONResponse


def routes() -> list[Route]:
    return [
        Route("/peers/{peer:path}/call", _call, methods=["POST"]),
        Route("/peers/{peer:path}/wake", _wake, methods=["POST"]),
    ]


async def _call(request: Request) -> Response:
    """`peer` is a name or id: try its addresses now, and not when its turn comes. What comes of it is in the state."""
    node = request.app.state.node
    peer = node.peers.named(request.path_params["peer"])
    node.links.look_again(at_once=True)
    return JSONResponse({"calling": peer.name})


async def _wake(request: Request) -> Response:
    """`peer` is a name or id; the answer comes when that computer is there, or will not come: within a minute."""
    return JSONResponse(await request.app.state.node.wake_on_lan.wake(request.path_params["peer"]))
