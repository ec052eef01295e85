"""JSON in and out."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from engine.errors import InvalidRequest

_encoder = msgspec.json.Encoder()


class JSONResponse(Response):
    """A JSON body; plain data only."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encode(content)


def encode(content: Any) -> bytes:
    return _encoder.encode(content)


def decode_object(body: bytes | bytearray) -> dict[str, Any]:
    """The JSON object of a request's body. Raises InvalidRequest."""
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise InvalidRequest("the body's JSON is nested too deeply") from None
    if not isinstance(content, dict):
        raise InvalidRequest("the body must be a JSON object")
    return content
