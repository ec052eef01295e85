"""Engines and workers are joined, and joined again when the worker stays away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine import config
from engine.handoff.target import Target
from engine.node import cluster
from engine.node.cluster import Cluster
from engine.node.engines import Engines, LoadedEngine, ModelFile
from engine.node.peering.offers import Method
from engine.node.peering.peer_link import PeerLink
from engine.node.reporting.logs import RotatingLog
from engine.node.supervisor import EngineProcess, State
from engine.node.trust.identity import TrustStore
from engine.node.workers import START, STOP
from tests.engine.node.glue import TIMEOUT_S, End, run, two_ends


def new_engine(folder: Path) -> LoadedEngine:
    process = EngineProcess("model", [], log=RotatingLog(folder / "log"), on_change=lambda: None)
    model = ModelFile(model_id="model", path=folder / "model", needed_bytes=1)
    return LoadedEngine(model, process, settings={config.CTX: 64, config.SLOTS: 1, config.KV_TYPE: "auto"})


class Prefills:
    """The other computer: `asked` are the calls for a worker."""

    def __init__(self, end: End) -> None:
        self.asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.stopped = asyncio.Event()
        end.offers.calls.update({START: Method(self._start), STOP: Method(self._stop)})

    async def _start(self, link: PeerLink, params: Any) -> Any:
        self.asked.put_nowait(params)
        return {"port": 7}

    async def _stop(self, link: PeerLink, params: Any) -> Any:
        self.stopped.set()


def joined(folder: Path, link: Callable[[], PeerLink], loaded: list[LoadedEngine]) -> Cluster:
    async def digest_of(model_id: str) -> str:
        return "a" * 64

    return Cluster(
        cast(Engines, SimpleNamespace(all=lambda: loaded)),
        prefiller_for=lambda one: link(),
        digest_of=digest_of,
        is_paired=lambda node_id: True,
        trust=TrustStore(folder),
        on_change=lambda: None,
    )


def test_a_worker_that_stays_away_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have ended for good; nobody else would find out."""
    monkeypatch.setattr(cluster, "_ALONE_S", 0.01)

    async def work() -> None:
        async with two_ends(tmp_path) as (decodes, end):
            prefills, engine, loaded = Prefills(end), new_engine(tmp_path), list[LoadedEngine]()
            assert decodes.link is not None
            link = decodes.link
            cluster = joined(tmp_path, lambda: link, loaded)
            loaded.append(engine)
            cluster.look_again()
            async with asyncio.timeout(TIMEOUT_S):
                await prefills.asked.get()
                await prefills.asked.get()
                assert engine.target.dial == "127.0.0.1:7"
                loaded.clear()
                cluster.look_again()
                await prefills.stopped.wait()
            assert engine.target == Target()
            await cluster.close()

    run(work())


class Elsewhere:
    """A link with a third computer, which takes its time."""

    peer = SimpleNamespace(node_id="c" * 32, name="third", certificate_der=b"", fingerprint="")
    is_open = is_dialled = True

    async def call(self, method: str, *_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()


@pytest.mark.parametrize("why", ["another prefills", "the engine broke"])
def test_a_worker_that_nobody_works_with_is_told_to_end(tmp_path: Path, why: str) -> None:
    async def work() -> None:
        async with two_ends(tmp_path) as (decodes, end):
            prefills, engine = Prefills(end), new_engine(tmp_path)
            assert decodes.link is not None
            links = [decodes.link]
            cluster = joined(tmp_path, lambda: links[-1], [engine])
            cluster.look_again()
            async with asyncio.timeout(TIMEOUT_S):
                await prefills.asked.get()
                if why == "another prefills":
                    links.append(cast(PeerLink, Elsewhere()))
                else:
                    engine.process.state = State.FAILED
                cluster.look_again()
                await prefills.stopped.wait()
            await cluster.close()

    run(work())


def test_an_engine_that_waits_elsewhere_now_is_not_called_at_its_last_port(tmp_path: Path) -> None:
    engine = new_engine(tmp_path)
    engine.retarget(Target(listen="127.0.0.1:0", trust="first"))
    engine.process.ready["listen_port"] = 1234
    engine.retarget(Target(listen="127.0.0.1:0", trust="second"))
    assert "listen_port" not in engine.process.ready
