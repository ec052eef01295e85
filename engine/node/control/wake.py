"""Waking a paired computer, as the control API has it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.server.json import JSONResponse


def routes() -> list[Route]:
    return [Route("/peers/{peer:path}/wake", _wake, methods=["POST"])]


async def _wake(request: Request) -> Response:
    """`peer` is a name or id; the answer comes when that computer is there, or will not come: within a minute."""
    return JSONResponse(await request.app.state.node.wake_on_lan.wake(request.path_params["peer"]))
