"""Whether macOS lets this computer use the local network, and another look at that."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from engine.link.permission import LocalNetworkPermission
from engine.server.json import JSONResponse


def routes() -> list[BaseRoute]:
    return [Route("/permission", _show), Route("/permission/check", _check, methods=["POST"])]


async def _show(request: Request) -> Response:
    return JSONResponse(_permission(request).snapshot())


async def _check(request: Request) -> Response:
    """Look now: after a switch was clicked, or when the window comes to the front."""
    await _permission(request).check()
    return JSONResponse(_permission(request).snapshot())


def _permission(request: Request) -> LocalNetworkPermission:
    permission: LocalNetworkPermission = request.app.state.node.permission
    return permission
