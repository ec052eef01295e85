"""How many tokens a text has, by the endpoint."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.chats import counting
from app.chats.counting import count_tokens
from app.node.faults import NodeRefused

LOADING = NodeRefused("m is being loaded", status=503, code="model_loading", retry_after_s=0.001)


class Endpoint:
    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def endpoint_post(self, path: str, body: dict[str, Any]) -> Any:
        self.asked.append(body["content"])
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"tokens": [0] * answer}


def test_a_model_that_loads_is_waited_for() -> None:
    endpoint = Endpoint(LOADING, LOADING, 7)
    assert asyncio.run(count_tokens(endpoint, "m", "text")) == 7  # type: ignore[arg-type]


def test_long_texts_are_counted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "PIECE_CHARS", 4)
    endpoint = Endpoint(2, 3, 1)
    assert asyncio.run(count_tokens(endpoint, "m", "abcdefghi")) == 6  # type: ignore[arg-type]
    assert endpoint.asked == ["abcd", "efgh", "i"]


def test_another_refusal_is_told() -> None:
    with pytest.raises(NodeRefused):
        asyncio.run(count_tokens(Endpoint(NodeRefused("no", status=404)), "m", "text"))  # type: ignore[arg-type]
