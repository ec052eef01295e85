"""What a request to the control API asks, as the struct that says what may be asked."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.requests import Request

from engine.errors import InvalidRequest
from engine.server.handlers import content_of

_MAX_BODY_BYTES = 1 << 16

_Asked = TypeVar("_Asked", bound=msgspec.Struct)


async def asked_of(request: Request, kind: type[_Asked]) -> _Asked:
    """The body, checked. Raises InvalidRequest or Refused."""
    body = await content_of(request, _MAX_BODY_BYTES)
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"what was asked is not valid: {error}") from None
