"""Who was found on the network, and addresses that a person types in."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from engine.node.control.asked import asked_of
from engine.node.finding.discovery import Discovery
from engine.server.json import JSONResponse


class _Add(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`address` is HOST[:PORT]."""

    address: Annotated[str, Meta(max_length=320)]


def routes() -> list[BaseRoute]:
    return [
        Route("/discovery", _show),
        Route("/discovery/manual", _add, methods=["POST"]),
        Route("/discovery/manual/{address:path}", _remove, methods=["DELETE"]),
    ]


async def _show(request: Request) -> Response:
    return JSONResponse(_discovery(request).snapshot())


async def _add(request: Request) -> Response:
    """Look there, too."""
    asked = await asked_of(request, _Add)
    return JSONResponse({"address": _discovery(request).add_manual(asked.address)})


async def _remove(request: Request) -> Response:
    _discovery(request).remove_manual(request.path_params["address"])
    return JSONResponse({})


def _discovery(request: Request) -> Discovery:
    discovery: Discovery = request.app.state.node.discovery
    return discovery
