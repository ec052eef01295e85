"""The self-test of both computers, as the control API has it."""

from __future__ import annotations

import asyncio
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.node.control.asked import asked_of
from engine.node.control.lines import Items, lines
from engine.node.endpoint import Endpoint
from engine.node.selftest import SelfTest

# An endpoint that listens on all addresses is asked on one that can be called.
_CALLED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class _Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model to test, by default the one that was used last."""

    model: Annotated[str, msgspec.Meta(max_length=1024)] = ""


def routes() -> list[Route]:
    return [Route("/link/selftest", _selftest, methods=["POST"])]


async def _selftest(request: Request) -> Response:
    """Lines: `prompts`, how many there are; a `prompt` as each was compared; at last `passed` with its `verdict`."""
    asked = await asked_of(request, _Asked)
    node = request.app.state.node
    place = urlsplit(node.endpoint_url)
    host = place.hostname or ""
    endpoint = Endpoint(_CALLED_AT.get(host, host), place.port or 0, node.settings.api_key)
    return lines(_compared(SelfTest(endpoint, asked.model)))


async def _compared(test: SelfTest) -> Items:
    """A client that goes leaves the prompt that is being answered to its end, and no other."""
    prompts = await asyncio.to_thread(test.prompts)
    yield {"prompts": len(prompts)}
    for prompt in prompts:
        yield {"prompt": await asyncio.to_thread(test.compare, prompt)}
    yield {"passed": test.passed, "verdict": await asyncio.to_thread(test.verdict)}
