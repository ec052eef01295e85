"""An engine here and a worker there: joined whoever called whom, joined anew when either changes, and parted."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from engine import config
from engine.cache.spec import KVType
from engine.errors import ModelNotFound
from engine.node.cluster import Cluster
from engine.node.engines import Engines, Memory, ModelFile
from engine.node.peering.offers import Method
from engine.node.peering.peer_link import PeerLink
from engine.node.trust.identity import TrustStore
from engine.node.workers import START, STOP, Started, StartPrefill, StopPrefill
from tests.engine.node.glue import TIMEOUT_S, End, run, two_ends

pytestmark = pytest.mark.usefixtures("child_script")

ROOM = {config.CTX: 64, config.SLOTS: 2, config.KV_TYPE: "auto"}

# Listens on another port each time it is told to listen, as an engine does.
CHILD = """
import json, sys
port = 40000
def hear(line):
    global port
    if "listen" in line:
        port += 1
        return {"listen_port": port}
    return {}
first = hear(sys.stdin.readline())
print(json.dumps({"ready": True, "port": 7, **first}), flush=True)
for line in sys.stdin:
    if event := hear(line):
        print(json.dumps(event), flush=True)
"""


class Home:
    """`decoder` has an engine, `worker` prefills; `asked` is what the worker's node was asked for."""

    def __init__(self, folder: Path, decoder: End, worker: End) -> None:
        self.decoder, self.worker = decoder, worker
        self.asked: list[StartPrefill | StopPrefill] = []
        self.refusals = 0
        self.tells_port = True
        self.prefills = True
        self.changed = asyncio.Event()
        self.settings = ROOM
        worker.offers.calls[START] = Method(self._start, StartPrefill)
        worker.offers.calls[STOP] = Method(self._stop, StopPrefill)
        self.engines = Engines(
            find=self._find,
            memory=lambda: Memory(total_bytes=1 << 40, available_bytes=1 << 40),
            settings=lambda: self.settings,
            environment={},
            log_folder=folder,
            on_change=lambda: self.cluster.look_again(),
        )
        self.cluster = Cluster(
            self.engines,
            prefiller_for=lambda engine: self.decoder.link if self.prefills else None,
            digest_of=self._digest,
            is_paired=lambda node_id: self.decoder.book.get(node_id) is not None,
            trust=TrustStore(folder),
            on_change=self.changed.set,
        )

    async def _find(self, model_id: str) -> ModelFile:
        return ModelFile(model_id=model_id, path=Path(model_id), needed_bytes=1)

    async def _digest(self, model_id: str) -> str:
        return "d" * 64

    async def _start(self, link: PeerLink, asked: StartPrefill) -> Started:
        self.asked.append(asked)
        self.changed.set()
        if self.refusals:
            self.refusals -= 1
            raise ModelNotFound("copy it there")
        return Started(port=50000 if asked.dial is None and self.tells_port else None)

    async def _stop(self, link: PeerLink, asked: StopPrefill) -> None:
        self.asked.append(asked)
        self.changed.set()

    async def until_asked(self, n: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.asked) < n or any(join["note"] for join in self.cluster.snapshot()):
                self.changed.clear()
                await self.changed.wait()

    async def close(self) -> None:
        await self.cluster.close()
        await self.engines.close()


def target_of(home: Home) -> dict[str, Any]:
    target: dict[str, Any] = json.loads(home.engines.all()[0].target.line())
    return target


def test_who_called_is_who_calls_for_the_cache_too(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            home = Home(tmp_path, decoder=left, worker=right)
            await home.engines.use("m", wait_s=TIMEOUT_S)
            await home.until_asked(1)
            assert home.asked == [StartPrefill(digest="d" * 64, model="m", n_ctx=64, n_slots=2)]
            assert target_of(home) == {"dial": "127.0.0.1:50000", "trust": right.identity.fingerprint}
            await home.close()

    run(work())


def test_who_was_called_waits_for_the_call_on_a_port_that_is_the_present_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            home = Home(tmp_path, decoder=right, worker=left)
            await home.engines.use("m", wait_s=TIMEOUT_S)
            await home.until_asked(1)
            assert target_of(home)["listen"] == "127.0.0.1:0"
            home.prefills = False
            home.cluster.look_again()
            await home.until_asked(2)
            assert isinstance(home.asked[1], StopPrefill)
            assert target_of(home) == {}
            home.prefills = True
            home.cluster.look_again()
            await home.until_asked(3)
            ports = [asked.dial for asked in home.asked if isinstance(asked, StartPrefill)]
            assert ports == [40001, 40002]
            await home.close()

    run(work())


def test_an_engine_that_was_started_again_gets_its_worker_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            home = Home(tmp_path, decoder=left, worker=right)
            engine = await home.engines.use("m", wait_s=TIMEOUT_S)
            await home.until_asked(1)
            process = engine.process._process
            assert process is not None
            process.kill()
            await home.until_asked(2)
            assert [type(asked) for asked in home.asked] == [StartPrefill, StartPrefill]
            await home.close()

    run(work())


def test_a_model_whose_name_is_longer_than_names_are_gets_a_worker_too(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            home = Home(tmp_path, decoder=left, worker=right)
            await home.engines.use("m" * 250, wait_s=TIMEOUT_S)
            await home.until_asked(1)
            assert target_of(home)["dial"] == "127.0.0.1:50000"
            await home.close()

    run(work())


def test_a_worker_that_is_nowhere_is_none(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            home = Home(tmp_path, decoder=left, worker=right)
            home.tells_port = False
            await home.engines.use("m", wait_s=TIMEOUT_S)
            async with asyncio.timeout(TIMEOUT_S):
                while "does not say where" not in home.cluster.snapshot()[0]["note"]:
                    home.changed.clear()
                    await home.changed.wait()
            assert target_of(home) == {}
            await home.close()

    run(work())


def test_a_refusal_is_told_and_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.node.cluster._FIRST_WAIT_S", 0.01)

    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            home = Home(tmp_path, decoder=left, worker=right)
            home.refusals = 1
            notes = []
            home.cluster._on_change = lambda: notes.extend(join["note"] for join in home.cluster.snapshot())
            await home.engines.use("m", wait_s=TIMEOUT_S)
            async with asyncio.timeout(TIMEOUT_S):
                while target_of(home) == {}:
                    home.changed.clear()
                    await asyncio.wait_for(home.changed.wait(), TIMEOUT_S)
                    await asyncio.sleep(0)
            assert "copy it there" in notes
            await home.close()

    run(work())


def test_unloading_tells_the_worker_to_end(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            home = Home(tmp_path, decoder=left, worker=right)
            await home.engines.use("m", wait_s=TIMEOUT_S)
            await home.until_asked(1)
            await home.engines.unload("m")
            await home.until_asked(2)
            assert home.asked[1] == StopPrefill(digest="d" * 64)
            await home.close()

    run(work())


def test_a_worker_is_asked_to_keep_its_cache_as_the_engine_does(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            home = Home(tmp_path, decoder=left, worker=right)
            await home.engines.use("m", wait_s=TIMEOUT_S)
            await home.until_asked(1)
            home.settings = {config.CTX: 128, config.SLOTS: 3, config.KV_TYPE: "f32"}
            await home.engines.reload_outdated()
            await home.until_asked(3)
            started = [asked for asked in home.asked if isinstance(asked, StartPrefill)]
            assert started == [
                StartPrefill(digest="d" * 64, model="m", n_ctx=64, n_slots=2),
                StartPrefill(digest="d" * 64, model="m", n_ctx=128, n_slots=3, kv_type=KVType.F32),
            ]
            await home.close()

    run(work())
