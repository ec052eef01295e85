"""Fetches for the user: followed, stopped, resumed, and what is told of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import DownloadFailed, InvalidRequest
from engine.node.models.downloads import MAX_RUNNING, Download, Downloads


class Source:
    """What the fetching process says; it goes on when told to."""

    def __init__(self, *said: dict[str, Any], fails: bool = False) -> None:
        self.said, self.fails = said, fails
        self.go_on = asyncio.Event()
        self.asked: list[tuple[str, ...]] = []
        self.n_closed = 0
        self.n_models = 0
        self.n_changes = 0

    async def __call__(
        self, *words: str, environment: dict[str, str]
    ) -> AsyncGenerator[dict[str, Any], None]:
        self.asked.append(words)
        assert environment == {"BATON_MODELS": "/the/library"}
        try:
            for item in self.said:
                yield item
            await self.go_on.wait()
            if self.fails:
                raise DownloadFailed("the hub does not answer")
            yield {"model_id": "tiny"}
        finally:
            self.n_closed += 1

    async def on_model(self) -> None:
        self.n_models += 1

    def changed(self) -> None:
        self.n_changes += 1

    def downloads(self) -> Downloads:
        return Downloads(Path("/the/library"), on_change=self.changed, on_model=self.on_model, said=self)


HALF = {"done_bytes": 50, "total_bytes": 100}


async def until(download: Download, is_so: Any) -> None:
    async with asyncio.timeout(10):
        while not is_so(download):
            await download.changed.wait()


def test_a_fetch_is_followed_to_its_end() -> None:
    async def work() -> None:
        source = Source(HALF)
        downloads = source.downloads()
        download = downloads.start("tiny")
        await until(download, lambda each: each.done_bytes == 50)
        assert downloads.snapshot()[0]["total_bytes"] == 100
        source.go_on.set()
        states = [each.state async for each in downloads.follow(download)]
        assert states[-1] == "done" and download.model_id == "tiny"
        assert source.n_models == 1 and source.n_changes >= 3
        assert source.asked == [("models", "get", "tiny", "--lines", "--exit-with-stdin")]

    asyncio.run(work())


def test_who_goes_away_ends_nothing_and_who_asks_again_follows() -> None:
    async def work() -> None:
        source = Source(HALF)
        downloads = source.downloads()
        download = downloads.start("tiny")
        follower = downloads.follow(download)
        await anext(follower)
        await follower.aclose()
        await until(download, lambda each: each.done_bytes == 50)
        again = downloads.start("tiny")
        assert again.state == "running" and len(downloads.snapshot()) == 1 and source.n_closed == 0
        await downloads.close()
        assert source.n_closed == 1

    asyncio.run(work())


def test_a_stopped_one_says_so_and_can_be_resumed() -> None:
    async def work() -> None:
        source = Source(HALF)
        downloads = source.downloads()
        download = downloads.start("tiny")
        await until(download, lambda each: each.done_bytes == 50)
        downloads.cancel(download.download_id)
        with pytest.raises(InvalidRequest, match="kept for the next try") as refused:
            async for _ in downloads.follow(download):
                pass
        assert refused.value.word == "cancelled" and source.n_closed == 1
        with pytest.raises(InvalidRequest):
            downloads.cancel(download.download_id)
        resumed = downloads.start("tiny")
        assert [each["id"] for each in downloads.snapshot()] == [resumed.download_id]
        await downloads.close()

    asyncio.run(work())


def test_one_that_is_stopped_before_it_began_is_over() -> None:
    async def work() -> None:
        downloads = Source().downloads()
        download = downloads.start("tiny")
        downloads.cancel(download.download_id)
        await until(download, lambda each: each.state == "cancelled")

    asyncio.run(work())


def test_what_it_failed_with_is_told() -> None:
    async def work() -> None:
        source = Source(fails=True)
        downloads = source.downloads()
        download = downloads.start("tiny")
        source.go_on.set()
        with pytest.raises(DownloadFailed, match="does not answer"):
            async for _ in downloads.follow(download):
                pass
        assert (
            downloads.snapshot()[0] | {"state": "failed", "problem": "the hub does not answer"}
            == (downloads.snapshot()[0])
        )
        assert source.n_models == 0

    asyncio.run(work())


def test_only_so_many_at_a_time() -> None:
    async def work() -> None:
        downloads = Source().downloads()
        for number in range(MAX_RUNNING):
            downloads.start(f"model {number}")
        with pytest.raises(InvalidRequest, match="wait for one"):
            downloads.start("one more")
        await downloads.close()

    asyncio.run(work())


def test_one_that_is_forgotten_ends_and_is_told_of_no_more() -> None:
    async def work() -> None:
        source = Source(HALF)
        downloads = source.downloads()
        download = downloads.start("tiny")
        await until(download, lambda each: each.done_bytes == 50)
        assert await downloads.forget(download.download_id) == "tiny"
        assert (download.state, source.n_closed, downloads.snapshot()) == ("cancelled", 1, [])
        with pytest.raises(InvalidRequest):
            await downloads.forget(download.download_id)

    asyncio.run(work())
