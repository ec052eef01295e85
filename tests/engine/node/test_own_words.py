"""What our own commands say as children of the node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.errors import ProcessFailed, UserError
from engine.node import own_words
from engine.node.own_words import said_by


async def heard(*words: str) -> list[dict[str, Any]]:
    async with asyncio.timeout(60):
        return [said async for said in said_by(*words)]


def child(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A child that is no Baton, and runs that script."""
    import sys

    monkeypatch.setattr(own_words, "own_command", lambda: [sys.executable, "-c", script])


def test_lines_are_given_and_other_words_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, 'print(\'{"a": 1}\'); print("hello"); print("[1]"); print(\'{"b": 2}\')')
    assert asyncio.run(heard("x")) == [{"a": 1}, {"b": 2}]


def test_its_last_words_are_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, 'import sys; print("baton: the disk is full", file=sys.stderr); sys.exit(1)')
    with pytest.raises(ProcessFailed, match="the disk is full"):
        asyncio.run(heard("x"))


def test_what_cannot_be_asked_is_the_askers_fault() -> None:
    with pytest.raises(UserError, match="no such model"):
        asyncio.run(heard("models", "get", "unheard-of", "--lines", "--exit-with-stdin"))


def test_who_stops_listening_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, "import sys; print('{\"a\": 1}', flush=True); sys.stdin.read(); sys.exit(3)")

    async def work() -> None:
        async with asyncio.timeout(60):
            said = said_by("x")
            assert await anext(said) == {"a": 1}
            # returns only once the child is gone
            await said.aclose()

    asyncio.run(work())
