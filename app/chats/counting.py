"""How many tokens a text is to a model, by the endpoint's `/tokenize`. Knows no Qt."""

from __future__ import annotations

import asyncio

from app.node.client import NodeClient
from app.node.faults import NodeRefused

# The endpoint takes this much at once; a cut between two pieces is off by a token or so.
PIECE_CHARS = 1 << 20

_MAX_RETRY_S = 2.0


async def count_tokens(client: NodeClient, model: str, text: str) -> int:
    """Waits for a model that is being loaded. Raises AppError."""
    pieces = [text[at : at + PIECE_CHARS] for at in range(0, len(text), PIECE_CHARS)]
    return sum([await _count(client, model, piece) for piece in pieces])


async def _count(client: NodeClient, model: str, piece: str) -> int:
    body = {"model": model, "content": piece, "parse_special": False}
    while True:
        try:
            return len((await client.endpoint_post("/tokenize", body))["tokens"])
        except NodeRefused as error:
            if error.code != "model_loading":
                raise
            await asyncio.sleep(min(error.retry_after_s or _MAX_RETRY_S, _MAX_RETRY_S))
