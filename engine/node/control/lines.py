"""Answers that take time: a line of JSON for each thing to tell, and signs of life between them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from starlette.responses import Response, StreamingResponse

from engine.errors import BatonError
from engine.server.errors import error_body
from engine.server.json import encode

# Between two signs of life to a client that watches.
_KEEPALIVE_S = 1.0


def lines_of(items: AsyncGenerator[dict[str, Any], None]) -> Response:
    """A line for each item; an empty one now and then while none comes, and an error as the last.

    Who goes away before the end closes `items`.
    """
    return StreamingResponse(_with_signs_of_life(items), media_type="application/x-ndjson")


async def _with_signs_of_life(items: AsyncGenerator[dict[str, Any], None]) -> AsyncIterator[bytes]:
    async with contextlib.aclosing(items):
        coming: asyncio.Task[dict[str, Any]] | None = None
        try:
            while True:
                coming = coming or asyncio.ensure_future(anext(items))
                if not (await asyncio.wait((coming,), timeout=_KEEPALIVE_S))[0]:
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
                await asyncio.gather(coming, return_exceptions=True)
