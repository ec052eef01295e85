"""Workers that a paired computer asks for: one a model, and none for who is paired no more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from engine.errors import PeerLost, ProtocolError
from engine.node import workers as module
from engine.node.cluster import _started
from engine.node.supervisor import State
from engine.node.trust.identity import TrustStore
from engine.node.workers import Workers
from tests.engine.node.glue import TIMEOUT_S, End, two_ends

ASKED = {"digest": "0" * 64, "model": "m", "n_ctx": 512, "n_slots": 1}


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

            async def find(digest: str) -> Path:
                await may_be_found.wait()
                return folder / "m.gguf"

            workers = Workers(
                find=find,
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
        both = [asyncio.create_task(workers.start(right.link, ASKED)) for _ in range(2)]
        await asyncio.sleep(0)
        may_be_found.set()
        assert await asyncio.gather(*both) == [{"port": 7118}] * 2
        assert len(started) == 1

    run(tmp_path, work)
    assert started == []


def test_who_is_unpaired_while_the_model_is_looked_for_gets_none(
    tmp_path: Path, started: list[Process]
) -> None:
    async def work(left: End, right: End, workers: Workers, may_be_found: asyncio.Event) -> None:
        assert right.link is not None
        link = right.link
        call = asyncio.create_task(workers.start(link, ASKED))
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


@pytest.mark.parametrize("answer", [None, {}, {"port": None}, {"port": 1 << 20}, [7118]])
def test_an_answer_that_names_no_port_is_tried_again(answer: Any) -> None:
    with pytest.raises(ProtocolError, match="does not say where"):
        _started(answer)
