"""Workers that a paired computer asks for: one a model, and none for who is paired no more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from engine.errors import OutOfMemory, PeerLost, PeerRefused
from engine.node import workers as module
from engine.node.engines import ModelFile
from engine.node.supervisor import State
from engine.node.trust.identity import TrustStore
from engine.node.workers import Started, StartPrefill, Workers
from tests.engine.node.glue import TIMEOUT_S, End, two_ends

ASKED = StartPrefill(digest="0" * 64, model="as the other computer has it", n_ctx=512, n_slots=1)

# Room for one of the above, and not for two.
MEMORY_BYTES = 1000


class Process:
    """A worker that is ready as soon as it is started."""

    started: list[Process]

    def __init__(self, name: str, words: list[str], **_: Any) -> None:
        self.words, self.state, self.port = words, State.READY, 7118

    def start(self) -> None:
        self.started.append(self)

    async def until_tried(self, timeout_s: float) -> None:
        pass

    async def stop(self) -> None:
        self.started.remove(self)

    def snapshot(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    monkeypatch.setattr(Process, "started", [], raising=False)
    monkeypatch.setattr(module, "EngineProcess", Process)
    return Process.started


def run(folder: Path, work: Callable[[End, End, Workers, asyncio.Event], Awaitable[None]]) -> None:
    """`work` with two ends, the workers of the right one, and what is set once a model may be found there."""

    async def inside() -> None:
        async with asyncio.timeout(TIMEOUT_S), two_ends(folder) as (left, right):
            may_be_found = asyncio.Event()

            async def find(asked: StartPrefill) -> ModelFile:
                await may_be_found.wait()
                return ModelFile(model_id="m", path=folder / "m.gguf", needed_bytes=asked.n_ctx)

            async def make_room(model: ModelFile, *, beside_bytes: int) -> None:
                if model.needed_bytes + beside_bytes > MEMORY_BYTES:
                    raise OutOfMemory("take a smaller model")

            workers = Workers(
                find=find,
                make_room=make_room,
                name="right",
                links=lambda: right.links,
                trust=TrustStore(folder / "trust"),
                settings=dict,
                environment={},
                log_folder=folder / "logs",
                on_change=lambda: None,
            )
            await work(left, right, workers, may_be_found)
            await workers.close()

    asyncio.run(inside())


def test_two_calls_for_one_model_get_one_worker(tmp_path: Path, started: list[Process]) -> None:
    async def work(left: End, right: End, workers: Workers, may_be_found: asyncio.Event) -> None:
        assert right.link is not None
        both = [asyncio.create_task(workers._start(right.link, ASKED)) for _ in range(2)]
        await asyncio.sleep(0)
        may_be_found.set()
        assert await asyncio.gather(*both) == [Started(port=7118)] * 2
        assert len(started) == 1

    run(tmp_path, work)
    assert started == []


def test_who_is_unpaired_while_the_model_is_looked_for_gets_none(
    tmp_path: Path, started: list[Process]
) -> None:
    async def work(left: End, right: End, workers: Workers, may_be_found: asyncio.Event) -> None:
        assert right.link is not None
        link = right.link
        call = asyncio.create_task(workers._start(link, ASKED))
        await asyncio.sleep(0)
        right.book.remove(link.peer.node_id)
        right.links.look_again()
        while link.is_open:
            await asyncio.sleep(0)
        may_be_found.set()
        with pytest.raises(PeerLost):
            await call
        assert started == [] and not (tmp_path / "trust").exists()

    run(tmp_path, work)


def test_one_that_does_not_fit_is_refused_with_the_reason(tmp_path: Path, started: list[Process]) -> None:
    async def work(left: End, right: End, workers: Workers, may_be_found: asyncio.Event) -> None:
        may_be_found.set()
        assert right.link is not None
        with pytest.raises(PeerRefused, match="right has no room for it: take a smaller model"):
            await workers._start(right.link, replace(ASKED, n_ctx=MEMORY_BYTES + 1))
        assert started == [] and workers.snapshot() == []

    run(tmp_path, work)


def test_those_that_are_loading_take_memory_too(tmp_path: Path, started: list[Process]) -> None:
    async def work(left: End, right: End, workers: Workers, may_be_found: asyncio.Event) -> None:
        may_be_found.set()
        assert right.link is not None
        other = replace(ASKED, digest="1" * 64)
        await workers._start(right.link, ASKED)
        started[0].state = State.STARTING
        with pytest.raises(PeerRefused, match="no room"):
            await workers._start(right.link, other)
        started[0].state = State.READY
        await workers._start(right.link, other)

    run(tmp_path, work)


def test_a_model_is_known_by_its_name_here(tmp_path: Path, started: list[Process]) -> None:
    """That is what must not be deleted, whatever the other computer calls it."""

    async def work(left: End, right: End, workers: Workers, may_be_found: asyncio.Event) -> None:
        may_be_found.set()
        assert right.link is not None
        await workers._start(right.link, ASKED)
        assert {model: asker.name for model, asker in workers.askers.items()} == {"m": "left"}

    run(tmp_path, work)
