"""Server-sent events as bytes on their way to a client. Knows nothing of what they say."""

from __future__ import annotations

from typing import Any

from engine.server import json

# A comment: clients drop it, and know that the connection lives.
KEEPALIVE = b":\n\n"

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def data(content: Any) -> bytes:
    """An event without a name."""
    return b"data: " + json.encode(content) + b"\n\n"


def event(name: str, content: Any, *, number: str | None = None) -> bytes:
    """A named event; `number` is what a client that comes back says it has seen."""
    head = b"" if number is None else b"id: " + number.encode() + b"\n"
    return head + b"event: " + name.encode() + b"\n" + data(content)
