"""The node's settings, as the control API has them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.server.handlers import content_of
from engine.server.json import JSONResponse

_MAX_BODY_BYTES = 1 << 16


def routes() -> list[Route]:
    return [
        Route("/settings", _settings),
        Route("/settings", _change, methods=["PATCH"]),
        Route("/settings/reload", _reload, methods=["POST"]),
        Route("/restart", _restart, methods=["POST"]),
    ]


async def _settings(request: Request) -> Response:
    return JSONResponse(request.app.state.node.changes.snapshot())


async def _change(request: Request) -> Response:
    """An object of values by the settings' names, of which null takes a value back; all of them, or none."""
    asked = await content_of(request, _MAX_BODY_BYTES)
    changes = request.app.state.node.changes
    await changes.change(asked)
    return JSONResponse(changes.snapshot())


async def _reload(request: Request) -> Response:
    """Load what waits for it anew; returns at once, and /state says how far it is."""
    changes = request.app.state.node.changes
    changes.reload()
    return JSONResponse(changes.snapshot())


async def _restart(request: Request) -> Response:
    """Start the node anew, as it was started, once this has been answered."""
    request.app.state.node.start_anew_soon()
    return JSONResponse({"restarting": True})
