"""Models that are fetched for the user: which, how far each is, and what went wrong. They go on without a window.

Each is a process of its own (`baton models get`), which keeps what has come for the next try; to ask for the same again
resumes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import BatonError, HostError, InvalidRequest
from engine.node.own_words import said_by

log = logging.getLogger(__name__)

# Fetches that are kept in memory after their end, for whoever looks.
_KEPT = 16

# More at a time would only share the line to the internet.
MAX_RUNNING = 4

Said = Callable[..., AsyncGenerator[dict[str, Any], None]]


@dataclass(kw_only=True)
class Download:
    """One fetch, running or over. `state` is running, done, failed or cancelled; `problem` says why it failed.

    `model` is a name of the catalogue or OWNER/REPO/FILE of the hub; `total_bytes` is 0 until it is known. `model_id`
    is what it is called once it is here.
    """

    download_id: str
    model: str
    done_bytes: int = 0
    total_bytes: int = 0
    state: str = "running"
    problem: str = ""
    note: str = ""
    model_id: str = ""
    since_s: float = field(default_factory=time.time)
    error: BatonError | None = None
    task: asyncio.Task[None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def snapshot(self) -> dict[str, Any]:
        return {
            "id": self.download_id,
            "model": self.model,
            "model_id": self.model_id,
            "done_bytes": self.done_bytes,
            "total_bytes": self.total_bytes,
            "state": self.state,
            "problem": self.problem,
            "note": self.note,
            "since": self.since_s,
        }


class Downloads:
    """Into `folder`. `on_change` is called when the snapshot has changed, `on_model` when a model has come."""

    def __init__(
        self,
        folder: Path,
        *,
        on_change: Callable[[], None],
        on_model: Callable[[], Awaitable[None]],
        said: Said = said_by,
    ) -> None:
        self._folder = folder
        self._on_change = on_change
        self._on_model = on_model
        self._said = said
        self._downloads: dict[str, Download] = {}

    async def close(self) -> None:
        running = [each.task for each in self._downloads.values() if each.task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def snapshot(self) -> list[dict[str, Any]]:
        return [each.snapshot() for each in self._downloads.values()]

    def start(self, model: str) -> Download:
        """Fetch a model, or give the fetch of it that runs. Raises InvalidRequest where too many run."""
        running = [each for each in self._downloads.values() if each.state == "running"]
        for each in running:
            if each.model == model:
                return each
        if len(running) >= MAX_RUNNING:
            raise InvalidRequest(f"{MAX_RUNNING} models are being fetched already: wait for one of them")
        over = [each for each in self._downloads.values() if each.state != "running"]
        for old in [each for each in over if each.model == model] + over[: -_KEPT or None]:
            self._downloads.pop(old.download_id, None)
        download = Download(download_id=secrets.token_hex(8), model=model)
        self._downloads[download.download_id] = download
        download.task = asyncio.create_task(self._fetch(download), name=f"fetch {model}")
        download.task.add_done_callback(functools.partial(self._over, download))
        self._on_change()
        return download

    async def follow(self, download: Download) -> AsyncGenerator[Download, None]:
        """The fetch, again and again as it goes on, the last time when it is done. To close it ends nothing.

        Raises what the fetch failed with, or InvalidRequest where it was cancelled.
        """
        is_over = False
        while not is_over:
            is_over, changed = download.state != "running", download.changed
            yield download
            if not is_over:
                await changed.wait()
        if download.error is not None:
            raise download.error
        if download.state == "cancelled":
            raise InvalidRequest(
                f"fetching {download.model} was stopped; what has come is kept for the next try"
            ).worded("cancelled")

    def cancel(self, download_id: str) -> None:
        """End a fetch; what came of it is kept for another try. Raises InvalidRequest when there is none."""
        download = self._downloads.get(download_id)
        if download is None or download.task is None or download.state != "running":
            raise InvalidRequest(f"nothing is being fetched as {download_id[:32]!r}")
        download.task.cancel()

    async def forget(self, download_id: str) -> str:
        """End a fetch if it runs, and know of it no more; the model that it was of. What came of it is the shelf's."""
        download = self._downloads.get(download_id)
        if download is None or download.task is None:
            raise InvalidRequest(f"nothing is being fetched as {download_id[:32]!r}")
        download.task.cancel()
        await asyncio.gather(download.task, return_exceptions=True)
        self._downloads.pop(download_id, None)
        self._on_change()
        return download.model

    async def _fetch(self, download: Download) -> None:
        words = ("models", "get", download.model, "--lines", "--exit-with-stdin")
        # The settings may name another folder by now, which holds from the next start on.
        environment = {"BATON_MODELS": str(self._folder)}
        try:
            async with contextlib.aclosing(self._said(*words, environment=environment)) as lines:
                async for said in lines:
                    self._hear(download, said)
            await self._on_model()
        except BatonError as error:
            download.error = error

    def _over(self, download: Download, task: asyncio.Task[None]) -> None:
        """Also of one that was stopped before it had begun."""
        if task.cancelled():
            download.state = "cancelled"
        else:
            if (mistake := task.exception()) is not None:
                log.error("a mistake while fetching %s", download.model, exc_info=mistake)
                download.error = HostError("a mistake of Baton's own: its log has the details")
            download.state = "done" if download.error is None else "failed"
            download.problem = str(download.error or "")
        self._tell(download)

    def _hear(self, download: Download, said: dict[str, Any]) -> None:
        download.done_bytes = int(said.get("done_bytes", download.done_bytes))
        download.total_bytes = int(said.get("total_bytes", download.total_bytes))
        download.note = str(said.get("note", download.note))
        download.model_id = str(said.get("model_id", download.model_id))
        self._tell(download)

    def _tell(self, download: Download) -> None:
        waiting, download.changed = download.changed, asyncio.Event()
        waiting.set()
        self._on_change()
