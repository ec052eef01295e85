"""Server-sent events: lines in, events out. No input or output of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """`name` is "message" where the server gave none; `data` is its text, unparsed."""

    name: str
    data: str


async def events(lines: AsyncIterator[str]) -> AsyncIterator[Event]:
    """The events of a stream's lines; comments (signs of life) are passed over."""
    name, data = "", []  # type: str, list[str]
    async for line in lines:
        if not line:
            if data:
                yield Event(name=name or "message", data="\n".join(data))
            name, data = "", []
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif line.startswith("event:"):
            name = line[6:].strip()
