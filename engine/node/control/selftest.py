"""The self-test of both computers, as the control API has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from engine.errors import BatonError
from engine.node.control.asked import asked_of
from engine.node.endpoint import Endpoint
from engine.node.selftest import SelfTest
from engine.server.errors import error_body
from engine.server.json import encode

# Between two signs of life to a client that watches.
_KEEPALIVE_S = 1.0

# An endpoint that listens on all addresses is asked on one that can be called.
_CALLED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class _Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model to test, by default the one that was used last."""

    model: Annotated[str, msgspec.Meta(max_length=1024)] = ""


def routes() -> list[Route]:
    return [Route("/link/selftest", _selftest, methods=["POST"])]


async def _selftest(request: Request) -> Response:
    """Lines of JSON: `prompts`, how many there are; a `prompt` as each was compared; `passed` with its `verdict`."""
    asked = await asked_of(request, _Asked)
    node = request.app.state.node
    place = urlsplit(node.endpoint_url)
    host = place.hostname or ""
    endpoint = Endpoint(_CALLED_AT.get(host, host), place.port or 0, node.options.api_key)
    return StreamingResponse(_lines(SelfTest(endpoint, asked.model)), media_type="application/x-ndjson")


async def _lines(test: SelfTest) -> AsyncIterator[bytes]:
    try:
        prompts = await asyncio.to_thread(test.prompts)
        yield _line(prompts=len(prompts))
        for prompt in prompts:
            # A client that goes leaves the prompt that is being answered to its end, and no other.
            comparing = asyncio.create_task(asyncio.to_thread(test.compare, prompt))
            while not (await asyncio.wait([comparing], timeout=_KEEPALIVE_S))[0]:
                yield b"\n"
            yield _line(prompt=comparing.result())
        yield _line(passed=test.passed, verdict=await asyncio.to_thread(test.verdict))
    except BatonError as error:
        yield encode(error_body(error)) + b"\n"


def _line(**fields: Any) -> bytes:
    return encode(fields) + b"\n"
