"""Models that are fetched for the user by a process each, from a small hub on this computer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import pytest

from engine.errors import InvalidRequest, ProcessFailed
from engine.node.models.downloads import MAX_RUNNING, Download, Downloads


class Fetching:
    """Stands in for `baton models get`: it says what it is told to, and waits."""

    def __init__(self) -> None:
        self.words: list[tuple[str, ...]] = []
        self.said: asyncio.Queue[dict[str, Any] | Exception | None] = asyncio.Queue()

    async def __call__(self, *words: str) -> AsyncGenerator[dict[str, Any], None]:
        self.words.append(words)
        while (said := await self.said.get()) is not None:
            if isinstance(said, Exception):
                raise said
            yield said


def run(work: Callable[[Downloads, Fetching], Coroutine[Any, Any, None]]) -> None:
    async def inside() -> None:
        fetching = Fetching()

        async def look_again() -> None:
            pass

        downloads = Downloads(on_change=lambda: None, on_model=look_again, said=fetching)
        try:
            async with asyncio.timeout(30):
                await work(downloads, fetching)
        finally:
            await downloads.close()

    asyncio.run(inside())


async def until(downloads: Downloads, download: Download, state: str) -> dict[str, Any]:
    while download.state != state:
        await download.changed.wait()
    (told,) = downloads.snapshot()
    return told


def test_a_fetch_is_told_as_it_goes_on() -> None:
    async def work(downloads: Downloads, fetching: Fetching) -> None:
        download = downloads.start("a/b/c.gguf")
        for said in ({"done_bytes": 5, "total_bytes": 9}, {"model_id": "c"}, None):
            fetching.said.put_nowait(said)
        told = await until(downloads, download, "done")
        assert (told["done_bytes"], told["total_bytes"], told["model_id"]) == (5, 9, "c")
        assert fetching.words == [("models", "get", "a/b/c.gguf", "--lines", "--exit-with-stdin")]

    run(work)


def test_who_asks_for_the_same_follows_it() -> None:
    async def work(downloads: Downloads, fetching: Fetching) -> None:
        assert downloads.start("a/b/c.gguf") is downloads.start("a/b/c.gguf")
        for number in range(MAX_RUNNING - 1):
            downloads.start(f"a/b/{number}.gguf")
        with pytest.raises(InvalidRequest, match="already"):
            downloads.start("a/b/more.gguf")

    run(work)


def test_why_it_failed_is_told_and_it_can_be_tried_again() -> None:
    async def work(downloads: Downloads, fetching: Fetching) -> None:
        download = downloads.start("a/b/c.gguf")
        fetching.said.put_nowait(ProcessFailed("the disk is full"))
        assert (await until(downloads, download, "failed"))["problem"] == "the disk is full"
        again = downloads.start("a/b/c.gguf")
        assert again is not download and len(downloads.snapshot()) == 1

    run(work)


def test_one_that_is_stopped_stays_one_that_is_forgotten_does_not() -> None:
    async def work(downloads: Downloads, fetching: Fetching) -> None:
        download = downloads.start("a/b/c.gguf")
        await asyncio.sleep(0)
        downloads.cancel(download.download_id)
        await until(downloads, download, "cancelled")
        with pytest.raises(InvalidRequest):
            downloads.cancel(download.download_id)
        assert await downloads.forget(download.download_id) == "a/b/c.gguf"
        assert downloads.snapshot() == []
        running = downloads.start("a/b/c.gguf")
        assert await downloads.forget(running.download_id) == "a/b/c.gguf"
        assert running.state == "cancelled" and downloads.snapshot() == []

    run(work)
