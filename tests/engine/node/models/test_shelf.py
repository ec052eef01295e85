"""The node's view of its models: what comes and goes is seen, and digests are computed meanwhile."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from engine.errors import ModelNotFound, UserError
from engine.gguf import digest
from engine.node.models.library import partial_path
from engine.node.models.model_folder import Folder
from engine.node.models.shelf import Shelf
from tests.engine.node.models.models_at_hand import write_model
from tests.engine.node.models.silent import Silent


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "models").mkdir()
    return Folder(tmp_path / "models", tmp_path / "digests")


def run(folder: Folder, work: Callable[[Shelf, asyncio.Event], Awaitable[None]]) -> None:
    async def inside() -> None:
        changed = asyncio.Event()
        shelf = Shelf(folder, on_change=changed.set, in_use=lambda: {"used": "saying so"})
        await shelf.start()
        try:
            async with asyncio.timeout(30):
                await work(shelf, changed)
        finally:
            await shelf.close()

    asyncio.run(inside())


def test_digests_are_computed_in_the_background_and_kept(folder: Folder) -> None:
    path = write_model(folder.path / "a.gguf")
    write_model(folder.path / "bad.gguf", architecture="rwkv7")

    async def work(shelf: Shelf, changed: asyncio.Event) -> None:
        while shelf.find("a").digest is None:
            changed.clear()
            await changed.wait()
        assert shelf.find("a").digest == hashlib.sha256(path.read_bytes()).hexdigest()
        assert shelf.find("bad").digest is None

    run(folder, work)
    (model, _) = Folder(folder.path, folder.digests_dir).models()
    assert model.digest is not None


def test_what_comes_and_goes_is_seen(folder: Folder, tmp_path: Path) -> None:
    async def work(shelf: Shelf, changed: asyncio.Event) -> None:
        changed.clear()
        await shelf.refresh()
        assert not changed.is_set()
        await shelf.add(write_model(tmp_path / "a.gguf"), Silent(), copy=False)
        assert changed.is_set()
        assert [model["id"] for model in shelf.snapshot()["models"]] == ["a"]
        await shelf.remove("a")
        assert shelf.models == ()
        write_model(folder.path / "used.gguf")
        with pytest.raises(UserError, match="loaded"):
            await shelf.remove("used")

    run(folder, work)


def test_what_is_left_of_a_model_is_shown_removed_and_cleared_when_it_is_old(folder: Folder) -> None:
    old, new = (partial_path(folder.path / f"{name}.gguf", "ab" * 32) for name in ("old", "new"))
    old.write_bytes(bytes(10))
    os.utime(old, (1e9, 1e9))
    new.write_bytes(bytes(20))

    async def work(shelf: Shelf, changed: asyncio.Event) -> None:
        assert not old.exists()
        (left,) = shelf.snapshot()["unfinished"]
        assert (left["id"], left["file"], left["size_bytes"]) == ("new", "new.gguf", 20)
        with pytest.raises(ModelNotFound):
            await shelf.remove("old")
        changed.clear()
        await shelf.remove("new")
        assert changed.is_set() and not new.exists()
        assert shelf.snapshot()["unfinished"] == []

    run(folder, work)


def test_how_far_a_file_is_read_through_is_told_until_it_is(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest, "_READ_BYTES", 16)
    path = write_model(folder.path / "a.gguf")
    told: list[float | None] = []

    async def work() -> None:
        shelf = Shelf(
            folder,
            on_change=lambda: None,
            in_use=dict,
            on_check=lambda: told.append(shelf.checks.get("a")),
        )
        await shelf.refresh()
        await shelf.digests(shelf.find("a"))
        assert shelf.checks == {}
        n_told = len(told)
        await shelf.digests(shelf.find("a"))
        assert len(told) == n_told

    asyncio.run(work())
    assert path.stat().st_size > 160
    *shares, last = told
    assert last is None and len(shares) > 3
    assert shares == sorted(shares) and all(0 < share < 1 for share in shares)
