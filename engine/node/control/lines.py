"""Answers that take time: a line of JSON for each thing that becomes known, and signs of life while none does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from starlette.responses import Response, StreamingResponse

from engine.errors import BatonError
from engine.node.supervisor import to_its_end
from engine.server.errors import error_body
from engine.server.json import encode

# Between two signs of life; clients give up who says nothing for a minute.
KEEPALIVE_S = 1.0

# What an answer's lines are made of. It is closed when the client goes.
Items = AsyncGenerator[dict[str, Any], None]


def lines(items: Items) -> Response:
    """A line for each item; an empty one now and then while none comes, and an error as the last."""
    return StreamingResponse(_with_signs_of_life(items), media_type="application/x-ndjson")


async def _with_signs_of_life(items: Items) -> AsyncIterator[bytes]:
    async with contextlib.aclosing(items):
        coming: asyncio.Task[dict[str, Any]] | None = None
        try:
            while True:
                coming = coming or asyncio.ensure_future(anext(items))
                if not (await asyncio.wait((coming,), timeout=KEEPALIVE_S))[0]:
                    yield b"\n"
                    continue
                done, coming = coming, None
                yield encode(done.result()) + b"\n"
        except StopAsyncIteration:
            return
        except BatonError as error:
            yield encode(error_body(error)) + b"\n"
        finally:
            if coming is not None:
                coming.cancel()
                # The server cancels us again and again once the client has gone; what is being put away is not to hear.
                await to_its_end(_over(coming))


async def _over(task: asyncio.Task[Any]) -> None:
    await asyncio.gather(task, return_exceptions=True)
