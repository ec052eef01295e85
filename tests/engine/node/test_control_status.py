"""What a paired computer says of itself is shown, or left out where it is nothing of the kind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from engine.node.control import status
from engine.node.peering.offers import Method
from engine.node.peering.peer_link import PeerLink
from tests.engine.node.glue import TIMEOUT_S, two_ends

ENGINE = {"model": "m", "state": "ready", "last_exits": [{"reason": "it ended"}]}
TOLD = {
    "engines": [ENGINE],
    "workers": [{**ENGINE, "for": "left"}],
    "joins": [{"model": "m", "prefill": "left", "note": ""}],
    "memory": {"total_bytes": 8, "free_bytes": 5},
}


@pytest.mark.parametrize(
    ("said", "is_shown"),
    [
        (TOLD, True),
        ({**TOLD, "more": "than is shown"}, True),
        (None, False),
        ({**TOLD, "engines": [{}]}, False),
        ({**TOLD, "workers": [ENGINE]}, False),
        ({**TOLD, "joins": "none"}, False),
    ],
)
def test_what_a_peer_says_of_itself(tmp_path: Path, said: Any, is_shown: bool) -> None:
    async def describe(link: PeerLink, params: Any) -> Any:
        return said

    async def work() -> None:
        async with asyncio.timeout(TIMEOUT_S), two_ends(tmp_path) as (left, right):
            right.offers.calls[status.DESCRIBE] = Method(describe)
            assert left.link is not None
            assert (await status.ask(left.link))[1] == (TOLD if is_shown else None)

    asyncio.run(work())
