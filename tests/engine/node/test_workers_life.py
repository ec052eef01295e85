"""Workers for paired computers: there as long as they are asked for, and no longer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine import config
from engine.config import Setting
from engine.errors import PeerRefused
from engine.node import workers
from engine.node.engines import ModelFile
from engine.node.supervisor import State
from engine.node.trust.identity import TrustStore
from engine.node.workers import START, STOP, StartPrefill, Workers
from tests.engine.node.glue import End, run, two_ends

pytestmark = pytest.mark.usefixtures("child_script")

CHILD = """
import json, sys
if "broken" in sys.argv[sys.argv.index("--model") + 1]:
    print("baton: there is no memory left", file=sys.stderr)
    sys.exit(1)
print(json.dumps({"ready": True, "port": 7}), flush=True)
for line in sys.stdin:
    pass
"""

ASKED = {"digest": "a" * 64, "model": "model", "n_ctx": 64, "n_slots": 1, "dial": 9}


@dataclass
class Pair:
    """`asks` has the link with the computer where the workers run."""

    asks: End
    runs: End
    workers: Workers

    async def ask(self, method: str = START, **changes: Any) -> Any:
        assert self.asks.link is not None
        asked = ASKED if method == START else {"digest": ASKED["digest"]}
        return await self.asks.link.call(method, asked | changes)

    async def link_anew(self) -> None:
        old = self.runs.link
        assert self.asks.link is not None
        await self.asks.link.close("the cable was pulled")
        await self.runs.until(lambda: self.runs.link is None)
        self.workers.look_again()
        await self.runs.until(lambda: self.runs.link is not None)
        await self.asks.until(lambda: self.asks.link is not None and self.asks.link.is_open)
        assert self.runs.link is not old
        self.workers.look_again()


def _is_ending(worker: Any) -> bool:
    return worker.ending is not None


@contextlib.asynccontextmanager
async def a_pair(
    folder: Path, model: str = "model", settings: Mapping[Setting, Any] | None = None
) -> AsyncIterator[Pair]:
    settings = settings if settings is not None else {}

    async def find(asked: StartPrefill) -> ModelFile:
        await asyncio.sleep(0)
        return ModelFile(model_id=model, path=folder / model, needed_bytes=1)

    async def make_room(model: ModelFile, *, beside_bytes: int) -> None:
        pass

    async with two_ends(folder) as (asks, runs):
        found = Workers(
            find=find,
            make_room=make_room,
            name="right",
            links=lambda: runs.links,
            trust=TrustStore(folder),
            settings=lambda: settings,
            environment={},
            log_folder=folder,
            on_change=runs.changed.set,
        )
        found.offer_methods(runs.offers)
        try:
            yield Pair(asks, runs, found)
        finally:
            await found.close()


def test_one_is_started_for_who_asks_and_ended_when_he_says_so(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_pair(tmp_path) as pair:
            assert await pair.ask() == {"port": 7}
            (one,) = pair.workers.snapshot()
            assert (one["model"], one["state"]) == ("model", State.READY)
            await pair.ask(STOP)
            assert pair.workers.snapshot() == []

    run(work())


def test_two_who_ask_at_once_get_the_same_one(tmp_path: Path) -> None:
    """None is left over that nobody knows of."""

    async def work() -> None:
        async with a_pair(tmp_path) as pair:
            await asyncio.gather(pair.ask(), pair.ask())
            (one,) = pair.workers.snapshot()
            assert one["starts"] == 1

    run(work())


def test_one_that_is_not_asked_for_again_after_the_link_was_lost_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model may have been unloaded meanwhile, or the other node started anew: nobody will say so."""
    monkeypatch.setattr(workers, "KEPT_WITHOUT_LINK_S", 0.01)

    async def work() -> None:
        async with a_pair(tmp_path) as pair:
            await pair.ask()
            await pair.link_anew()
            await pair.runs.until(lambda: pair.workers.snapshot() == [])

    run(work())


def test_one_that_is_asked_for_again_stays(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_pair(tmp_path) as pair:
            await pair.ask()
            await pair.link_anew()
            (worker,) = pair.workers._workers.values()
            assert _is_ending(worker)
            await pair.ask()
            pair.workers.look_again()
            assert not _is_ending(worker)
            assert [one["starts"] for one in pair.workers.snapshot()] == [1]

    run(work())


def test_why_one_does_not_start_is_told_at_once_though_it_is_tried_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_pair(tmp_path, "broken") as pair:
            with pytest.raises(PeerRefused, match="there is no memory left"):
                await pair.ask()
            (one,) = pair.workers.snapshot()
            assert one["last_exits"][0]["reason"] == "there is no memory left"

    run(work())


def test_one_is_started_anew_with_other_settings_where_it_was(tmp_path: Path) -> None:
    """The room and the type of its cache are the other computer's to say."""
    settings: dict[Setting, Any] = {config.PREFIX_CACHE: 16, config.PREFILLS: 8}

    async def work() -> None:
        async with a_pair(tmp_path, settings=settings) as pair:
            await pair.ask(n_slots=2, kv_type="f16")
            (worker,) = pair.workers._workers.values()
            before = " ".join(worker.process.words)
            assert "--prefix-cache 16" in before and "--prefills 2" in before and "--kv-type f16" in before
            assert pair.workers.outdated_settings() == []

            worker.settings = dict(worker.settings)  # those of its start
            settings[config.PREFIX_CACHE] = 32
            assert pair.workers.outdated_settings() == [worker.settings]
            await pair.workers.reload_outdated()
            assert pair.workers.outdated_settings() == []
            assert " ".join(worker.process.words) == before.replace("--prefix-cache 16", "--prefix-cache 32")
            (one,) = pair.workers.snapshot()
            assert (one["state"], one["starts"]) == (State.READY, 2)
            assert "other settings" in one["last_exits"][-1]["reason"]

    run(work())
