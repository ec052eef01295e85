"""What the Hugging Face hub has, for whoever wants to get it."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.errors import InvalidRequest
from engine.node.models.hub_search import HubSearch, named_by
from engine.server.json import JSONResponse

_MAX_WORDS = 300


def routes() -> list[Route]:
    return [Route("/hub/search", _search), Route("/hub/files", _files)]


async def _search(request: Request) -> Response:
    """Repositories for words; of an address or OWNER/REPO, that one with the `file` it names."""
    words = request.query_params.get("q", "").strip()
    if not words or len(words) > _MAX_WORDS:
        raise InvalidRequest(f"q has to be 1 to {_MAX_WORDS} characters", param="q")
    hub: HubSearch = request.app.state.node.hub
    found: dict[str, Any] = {"named": "", "file": "", "results": []}
    if (named := named_by(words)) is not None:
        found["named"], found["file"] = named
    else:
        found["results"] = await hub.search(words)
    return JSONResponse(found)


async def _files(request: Request) -> Response:
    hub: HubSearch = request.app.state.node.hub
    return JSONResponse(await hub.files(request.query_params.get("repository", "")))
