"""What every HTTP endpoint of Baton does alike: bodies read with a limit, and errors turned into answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from engine.errors import BatonError
from engine.server.errors import Refused, error_response, unexpected
from engine.server.json import decode_object

# Of a body that is too long, so much more is read for the answer's sake.
_MAX_DISCARDED_BYTES = 256 << 20


async def body_of(request: Request, limit: int) -> bytes:
    """The body, of which no more than `limit` bytes are kept. Raises Refused.

    One that is too long is read on for a while: a client that is still sending would find the connection broken, and
    never read why.
    """
    announced = request.headers.get("content-length", "")
    n_bytes = int(announced) if announced.isdecimal() else 0
    body = bytearray()
    n_read = 0
    if n_bytes <= limit + _MAX_DISCARDED_BYTES:
        async for part in request.stream():
            n_read += len(part)
            if n_read <= limit:
                body += part
            elif n_read > limit + _MAX_DISCARDED_BYTES:
                break
    if max(n_bytes, n_read) > limit:
        raise Refused(
            f"the body is larger than the {limit} bytes allowed", status=413, kind="invalid_request_error"
        )
    return bytes(body)


async def content_of(request: Request, limit: int) -> dict[str, Any]:
    """The body as a JSON object, read no further than `limit` bytes. Raises Refused or InvalidRequest."""
    return decode_object(await body_of(request, limit))


async def _on_error(request: Request, error: Exception) -> Response:
    return error_response(error if isinstance(error, BatonError) else unexpected())


async def _on_http_error(request: Request, error: Exception) -> Response:
    code = error.status_code if isinstance(error, HTTPException) else 500
    message = {404: f"there is no {request.url.path} here", 405: f"{request.method} is not allowed here"}
    return error_response(
        Refused(message.get(code, "the request was refused"), status=code, kind="invalid_request_error")
    )


async def _on_client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


async def _on_mistake(request: Request, error: Exception) -> Response:
    return error_response(unexpected())


EXCEPTION_HANDLERS: dict[Any, Callable[..., Any]] = {
    BatonError: _on_error,
    HTTPException: _on_http_error,
    ClientDisconnect: _on_client_gone,
    Exception: _on_mistake,
}
