"""The node's view of its models: looked at again when asked, told to paired computers, digests computed meanwhile.

A digest takes half a second a GB: it is computed once, in the background, model after model.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import BatonError, ModelFileError, ModelNotFound
from engine.gguf.digest import file_digests
from engine.gguf.reader import part_paths
from engine.node.models.catalogue import load_catalogue
from engine.node.models.model_folder import Folder, LocalModel, find_model, import_model, remove_model
from engine.node.models.unfinished import (
    Unfinished,
    clear_unfinished,
    find_old,
    find_unfinished,
    named_unfinished,
)
from engine.node.peering.offers import Method, Offers
from engine.node.peering.peer_link import PeerLink
from engine.node.progress import Progress

log = logging.getLogger(__name__)

# Models that a paired computer is told of.
MAX_TOLD = 1000

# How often at most it is told how far a file was read.
_CHECKS_TOLD = 50


class _Stopped(BatonError):
    """The node ends."""


class Shelf:
    """The node's view of its models; `on_change` is called when it has changed, `on_check` when `checks` have."""

    def __init__(
        self,
        folder: Folder,
        *,
        on_change: Callable[[], None],
        in_use: Callable[[], Mapping[str, str]],
        needed_bytes: Callable[[LocalModel], int] = lambda _: 0,
        on_check: Callable[[], None] = lambda: None,
        folder_note: Callable[[], str] = lambda: "",
    ) -> None:
        """`in_use` gives the ids of models that engines have loaded, or are loading, and what ends each engine.

        `needed_bytes` is the memory that a model takes. `checks` has the share that was read, by the ids of models that
        are being read through for their digests. `folder_note` says what is wrong with the folder, "" for nothing.
        """
        self.folder = folder
        self.models: tuple[LocalModel, ...] = ()
        self._unfinished: tuple[Unfinished, ...] = ()
        self.checks: dict[str, float] = {}
        self._on_change = on_change
        self._on_check = on_check
        self._folder_note = folder_note
        self._in_use = in_use
        self._needed_bytes = needed_bytes
        self._looking = asyncio.Lock()
        self._adding = asyncio.Lock()
        self._digesting: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._is_over = False

    async def start(self) -> None:
        """What nobody has gone on with for weeks is cleared."""
        await asyncio.to_thread(self._clear_old)
        await self.refresh()
        self._digesting = asyncio.create_task(self._compute_digests(), name="digests")

    async def close(self) -> None:
        self._is_over = True
        if self._digesting is not None:
            self._digesting.cancel()
            await asyncio.gather(self._digesting, return_exceptions=True)

    def offer_methods(self, offers: Offers) -> None:
        """Let paired computers see what is here."""
        offers.calls["models.list"] = Method(self._list, None)

    async def _list(self, link: PeerLink, params: Any) -> Any:
        await self.refresh()
        return [self._told(model) for model in self.models[:MAX_TOLD]]

    def snapshot(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder.path),
            "models": [self._told(model) for model in self.models],
            "unfinished": [each.told() for each in self._unfinished],
            "notes": [note for note in (self._folder_note(), *self.folder.notes) if note],
        }

    def _told(self, model: LocalModel) -> dict[str, Any]:
        told: dict[str, Any] = msgspec.to_builtins(model.told(needed_bytes=self._needed_bytes(model)))
        return told

    async def refresh(self) -> None:
        """Look at the folder again."""
        async with self._looking:
            models = await asyncio.to_thread(self.folder.models)
            unfinished = await asyncio.to_thread(find_unfinished, self.folder.path)
        if (models, unfinished) != (self.models, self._unfinished):
            self.models, self._unfinished = models, unfinished
            self._wanted.set()
            self._on_change()

    def find(self, text: str) -> LocalModel:
        """As `find_model`, among those last seen."""
        return find_model(self.models, text)

    def find_told(self, text: str) -> LocalModel:
        """As `find`, among those that paired computers are told of."""
        return find_model(self.models[:MAX_TOLD], text)

    async def digests(self, model: LocalModel) -> tuple[str, ...]:
        """Of each file, read now where they are not known yet. Raises ModelFileError."""
        loop, told = asyncio.get_running_loop(), 0

        def go_on(done: int, total: int) -> None:
            """On the thread that reads."""
            nonlocal told
            self._go_on(done, total)
            step = _CHECKS_TOLD * done // total if total else 0
            # what was known already is told of at once, and whole
            if told < step < _CHECKS_TOLD:
                told = step
                loop.call_soon_threadsafe(self._say_checked, model.model_id, step / _CHECKS_TOLD)

        try:
            digests = await asyncio.to_thread(
                file_digests, model.paths, cache_dir=self.folder.digests_dir, on_progress=go_on
            )
        finally:
            if self.checks.pop(model.model_id, None) is not None:
                self._on_check()
        await self.refresh()
        return digests

    def _say_checked(self, model_id: str, share: float) -> None:
        self.checks[model_id] = share
        self._on_check()

    async def add(self, source: Path, progress: Progress, *, copy: bool) -> LocalModel:
        """As `import_model`."""
        # a folder of its own: the copy of a large file keeps nobody from looking
        folder = Folder(self.folder.path, self.folder.digests_dir)
        async with self._adding:
            model = await asyncio.to_thread(import_model, folder, source, progress, copy=copy)
        await self.refresh()
        return model

    async def remove(self, text: str) -> None:
        """As `remove_model`; of a model that is not here, what is here of it unfinished."""
        await self.refresh()
        try:
            model = self.find(text)
        except ModelNotFound:
            if not (left := named_unfinished(self.folder.path, text)):
                raise
            for each in left:
                await asyncio.to_thread(clear_unfinished, self.folder.path, each)
        else:
            await asyncio.to_thread(remove_model, model, self._in_use())
        await self.refresh()

    async def discard(self, model: str) -> None:
        """Delete what is here unfinished of a model as `Downloads` names it. Raises UserError or HostError."""
        entry = load_catalogue().get(model)
        first = Path(entry.file) if entry is not None else Path(model.rsplit("/", 1)[-1])
        await self.discard_files([part.name for part in part_paths(first)])

    async def discard_files(self, names: Iterable[str]) -> None:
        """Delete what is here unfinished of the files that are to have these names. Raises UserError or HostError."""
        for name in names:
            for each in named_unfinished(self.folder.path, name):
                await asyncio.to_thread(clear_unfinished, self.folder.path, each)
        await self.refresh()

    def _clear_old(self) -> None:
        for each in find_old(self.folder.path):
            try:
                clear_unfinished(self.folder.path, each)
            except BatonError as error:
                log.info("%s", error)
            else:
                log.info("what was left of %s was cleared: %d MB", each.file, each.size_bytes // 1_000_000)

    async def _compute_digests(self) -> None:
        """One model after the other, those that can be run; what other programs keep comes last."""
        tried: set[tuple[Path, int]] = set()
        while True:
            todo = [m for m in self.models if not (m.digest or m.problem or (m.path, m.size_bytes) in tried)]
            if not todo:
                self._wanted.clear()
                await self._wanted.wait()
                continue
            model = min(todo, key=lambda model: bool(model.program))
            tried.add((model.path, model.size_bytes))
            with contextlib.suppress(ModelFileError):
                await self.digests(model)

    def _go_on(self, done: int, total: int) -> None:
        if self._is_over:
            raise _Stopped("the node ends")
