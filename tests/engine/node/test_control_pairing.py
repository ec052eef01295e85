"""Joining by a code, as the control API has it, for who goes before it is over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from engine.errors import HostError
from engine.node.control import pairing


def test_a_code_is_tried_only_while_who_typed_it_waits() -> None:
    async def work() -> None:
        gone = asyncio.Event()
        body = [{"type": "http.request", "body": json.dumps({"code": "1234-5678"}).encode()}]

        async def receive() -> dict[str, Any]:
            if body:
                return body.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def join_found(code: str, role: object, *, is_wanted: Callable[[], bool]) -> None:
            assert code == "1234-5678" and is_wanted()
            gone.set()
            while is_wanted():
                await asyncio.sleep(0)
            raise HostError("gone")

        app = SimpleNamespace(
            state=SimpleNamespace(node=SimpleNamespace(pairing=SimpleNamespace(join_found=join_found)))
        )
        scope = {
            "type": "http",
            "method": "POST",
            "headers": [(b"content-type", b"application/json")],
            "app": app,
        }
        with pytest.raises(HostError, match="gone"):
            await pairing._join(Request(scope, receive))

    asyncio.run(asyncio.wait_for(work(), 30))
