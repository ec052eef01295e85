"""Who was found on the network, and addresses that a person types in."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from engine.node.finding.discovery import Discovery
from engine.server.fields import Fields
from engine.server.handlers import content_of
from engine.server.json import JSONResponse

_MAX_BODY_BYTES = 4096


def routes() -> list[BaseRoute]:
    return [
        Route("/discovery", _show),
        Route("/discovery/manual", _add, methods=["POST"]),
        Route("/discovery/manual/{address:path}", _remove, methods=["DELETE"]),
    ]


async def _show(request: Request) -> Response:
    return JSONResponse(_discovery(request).snapshot())


async def _add(request: Request) -> Response:
    """{"address": "HOST[:PORT]"}: look there, too."""
    fields = Fields(await content_of(request, _MAX_BODY_BYTES))
    return JSONResponse({"address": _discovery(request).add_manual(fields.text("address", ""))})


async def _remove(request: Request) -> Response:
    _discovery(request).remove_manual(request.path_params["address"])
    return JSONResponse({})


def _discovery(request: Request) -> Discovery:
    discovery: Discovery = request.app.state.node.discovery
    return discovery
