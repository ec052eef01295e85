"""Which models are loaded: when asked for, as long as there is memory, and the least used goes first."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine import config
from engine.config import Setting
from engine.errors import ModelNotFound, OutOfMemory, ProcessFailed
from engine.node import engines
from engine.node.engines import Engines, LoadedEngine, Memory, ModelFile
from engine.server.errors import Refused, StillLoading

GB = 1_000_000_000

CHILD = """
import json, sys
model = sys.argv[sys.argv.index("--model") + 1]
if "broken" in model:
    print("baton: this file is cut short: fetch it again", file=sys.stderr)
    sys.exit(2)
first = sys.stdin.readline()
print(json.dumps({"loading": 0.5}), flush=True)
if "slow" in model:
    sys.stdin.readline()
device = {"total_bytes": 8, "free_bytes": 3, "is_host": False} if "gpu" in model else None
print(json.dumps({"ready": True, "port": 7, "first": first.strip(), "device": device}), flush=True)
for line in sys.stdin:
    print(json.dumps({"worker": "dial" in line, "note": line.strip()}), flush=True)
"""


@dataclass
class Computer:
    """Memory that engines take and give back."""

    folder: Path
    total_bytes: int = 10 * GB
    others_bytes: int = 0
    n_changes: int = 0
    now_s: float = 1000.0
    settings: dict[Setting, Any] = field(default_factory=lambda: {config.CTX: 64})
    engines: Engines = field(init=False)
    sizes: dict[str, int] = field(default_factory=dict)
    devices: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engines = Engines(
            find=self.find,
            memory=self.memory,
            settings=lambda: self.settings,
            environment={},
            log_folder=self.folder,
            on_change=self._count,
            on_device=self.devices.append,
            clock=lambda: self.now_s,
        )

    def _count(self) -> None:
        self.n_changes += 1

    async def find(self, model_id: str) -> ModelFile:
        if model_id not in self.sizes:
            raise ModelNotFound(f"no {model_id}")
        return ModelFile(
            model_id=model_id, path=self.folder / model_id, needed_bytes=self.sizes[model_id] * GB
        )

    def memory(self) -> Memory:
        taken = sum(
            int(engine.model.needed_bytes * (1.0 if engine.is_ready else engine.progress))
            for engine in self.engines.all()
        )
        return Memory(
            total_bytes=self.total_bytes,
            available_bytes=max(0, self.total_bytes - taken - self.others_bytes),
        )

    def let_time_pass(self) -> None:
        """Until no model stays because it was only just loaded."""
        self.now_s += 100.0

    @property
    def loaded(self) -> list[str]:
        return [engine.model.model_id for engine in self.engines.all()]


@pytest.fixture
def computer(tmp_path: Path, child_script: None) -> Computer:
    return Computer(tmp_path)


def run(computer: Computer, work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(40.0):
            try:
                await work
            finally:
                await computer.engines.close()

    asyncio.run(bounded())


def use(computer: Computer, model: str) -> Coroutine[Any, Any, LoadedEngine]:
    return computer.engines.use(model, wait_s=20.0)


def test_each_is_loaded_once(computer: Computer) -> None:
    computer.sizes = {"a": 2}

    async def work() -> None:
        one, two = await asyncio.gather(use(computer, "a"), use(computer, "a"))
        assert one is two and one.is_ready and one.process.n_starts == 1
        assert one.process.ready["first"] == "{}"
        assert one.url == "http://127.0.0.1:7"
        with pytest.raises(ModelNotFound):
            await use(computer, "b")

    run(computer, work())


def test_the_least_recently_used_goes_when_memory_is_short(computer: Computer) -> None:
    computer.sizes = {"a": 4, "b": 4, "c": 4}

    async def work() -> None:
        for model in ("a", "b"):
            await use(computer, model)
        await use(computer, "a")
        computer.let_time_pass()
        await use(computer, "c")
        assert computer.loaded == ["a", "c"]

    run(computer, work())


def test_what_is_being_loaded_will_need_its_memory(computer: Computer) -> None:
    computer.sizes = {"slow": 6, "b": 6}

    async def work() -> None:
        await computer.engines.load("slow")
        computer.let_time_pass()
        assert computer.memory().available_bytes == 10 * GB
        await use(computer, "b")
        assert computer.loaded == ["b"]

    run(computer, work())


def test_none_is_taken_away_while_it_answers(computer: Computer) -> None:
    computer.sizes = {"a": 6, "b": 6, "huge": 11}

    async def work() -> None:
        engine = await use(computer, "a")
        computer.let_time_pass()
        with (
            engine.in_use(),
            pytest.raises(Refused, match=r"2\.0 GB more than are free, and a cannot .* in use") as error,
        ):
            await use(computer, "b")
        assert (error.value.status, error.value.retry_after_s) == (503, 5)
        assert (await use(computer, "b")).is_ready
        assert computer.loaded == ["b"]
        with pytest.raises(OutOfMemory, match=r"needs 11\.0 GB, and this computer has 9\.5 GB"):
            await use(computer, "huge")
        assert computer.loaded == ["b"]

    run(computer, work())


def test_two_that_do_not_fit_together_do_not_throw_each_other_out(computer: Computer) -> None:
    """Each would be loaded again and again, and neither would ever answer."""
    computer.sizes = {"a": 6, "b": 6}

    async def work() -> None:
        await use(computer, "a")
        computer.now_s += 4.0
        with pytest.raises(Refused, match="a cannot make room, being loaded only just now") as error:
            await use(computer, "b")
        assert (error.value.status, error.value.retry_after_s) == (503, 6)
        assert (await use(computer, "a")).process.n_starts == 1
        computer.now_s += 6.0
        assert (await use(computer, "b")).is_ready
        assert computer.loaded == ["b"]

    run(computer, work())


def test_one_that_somebody_was_told_to_come_back_for_is_not_given_up_before(computer: Computer) -> None:
    computer.sizes = {"slow": 6, "b": 6}

    async def work() -> None:
        engine = await computer.engines.load("slow")
        computer.now_s += 9.0
        with pytest.raises(StillLoading) as told:
            await computer.engines.use("slow", wait_s=0.0)
        assert told.value.retry_after_s is not None
        computer.now_s += told.value.retry_after_s
        with pytest.raises(Refused, match="slow cannot make room"):
            await use(computer, "b")
        engine.process.tell("more", "go")
        assert await use(computer, "slow") is engine

    run(computer, work())


def test_one_that_is_loaded_is_used_though_another_is_being_put_away(computer: Computer) -> None:
    computer.sizes = {"a": 2}

    async def work() -> None:
        engine = await use(computer, "a")
        async with computer.engines._loading:
            assert await use(computer, "a") is engine

    run(computer, work())


def test_none_goes_where_that_would_not_be_enough(computer: Computer) -> None:
    computer.sizes = {"idle": 3, "busy": 5, "b": 6}

    async def work() -> None:
        await use(computer, "idle")
        engine = await use(computer, "busy")
        computer.let_time_pass()
        with engine.in_use(), pytest.raises(Refused, match="busy cannot make room"):
            await use(computer, "b")
        assert computer.loaded == ["idle", "busy"]

    run(computer, work())


def test_room_is_made_for_what_is_no_engine_here(computer: Computer) -> None:
    computer.sizes = {"a": 6, "worker": 6, "huge": 11}

    async def work() -> None:
        await use(computer, "a")
        worker, huge = await computer.find("worker"), await computer.find("huge")
        with pytest.raises(Refused, match="only just now"):
            await computer.engines.make_room(worker)
        computer.let_time_pass()
        await computer.engines.make_room(worker)
        assert computer.loaded == []
        with pytest.raises(OutOfMemory, match=r"worker needs 2\.0 GB more than other programs leave free"):
            await computer.engines.make_room(worker, beside_bytes=6 * GB)
        with pytest.raises(OutOfMemory, match="a smaller model"):
            await computer.engines.make_room(huge)

    run(computer, work())


def test_what_an_engine_says_of_its_device_is_passed_on(computer: Computer) -> None:
    computer.sizes = {"a": 1, "gpu": 2}

    async def work() -> None:
        await use(computer, "a")
        assert computer.devices == [] and computer.engines.held_bytes == GB
        await use(computer, "gpu")
        assert computer.devices == [{"total_bytes": 8, "free_bytes": 3, "is_host": False}]
        assert computer.engines.held_bytes == 3 * GB

    run(computer, work())


def test_that_one_answers_is_news_and_that_it_does_no_more(computer: Computer) -> None:
    computer.sizes = {"a": 1}

    async def work() -> None:
        engine = await use(computer, "a")
        before = computer.n_changes
        with engine.in_use():
            assert computer.n_changes == before + 1
        assert computer.n_changes == before + 2

    run(computer, work())


def test_memory_that_other_programs_hold_is_asked_for_all_the_same(computer: Computer) -> None:
    computer.sizes, computer.others_bytes = {"a": 6}, 9 * GB

    async def work() -> None:
        assert (await use(computer, "a")).is_ready

    run(computer, work())


def test_who_waits_is_told_how_far_it_is(computer: Computer) -> None:
    computer.sizes = {"slow": 1}

    async def work() -> None:
        engine = await computer.engines.load("slow")
        while engine.progress == 0:
            await engine.process.until_changed()
        with pytest.raises(StillLoading, match="slow is being loaded, 50% are done") as error:
            await computer.engines.use("slow", wait_s=0.0)
        assert error.value.progress == 0.5
        engine.process.tell("more", "go")
        assert await use(computer, "slow") is engine

    run(computer, work())


def test_one_that_cannot_be_loaded_says_why_and_may_be_tried_again(computer: Computer) -> None:
    computer.sizes = {"broken": 1}

    async def work() -> None:
        for _ in range(2):
            with pytest.raises(ProcessFailed, match="this file is cut short: fetch it again"):
                await use(computer, "broken")
            assert computer.loaded == []

    run(computer, work())


def test_one_that_failed_holds_nothing_that_is_to_go(computer: Computer) -> None:
    computer.sizes.update({"broken": 1, "b": 1})

    async def work() -> None:
        engine = await computer.engines.load("broken")
        assert await engine.process.until_settled(20.0)
        await use(computer, "b")
        await computer.engines.unload_failed("b")
        assert computer.loaded == ["broken", "b"]
        # asked for again, it is tried again
        again = await computer.engines.load("broken")
        assert again is not engine and await again.process.until_settled(20.0)
        await computer.engines.unload_failed("broken")
        assert computer.loaded == ["b"]

    run(computer, work())


def test_one_that_is_to_be_loaded_anew_answers_as_before_until_it_is_idle(computer: Computer) -> None:
    computer.sizes = {"a": 2}

    async def work() -> None:
        engine = await use(computer, "a")
        computer.settings = {config.CTX: 128}
        with contextlib.ExitStack() as answers:
            answers.enter_context(engine.in_use())
            reloading = asyncio.create_task(computer.engines.reload_outdated())
            while not engine.snapshot()["leaving"]:
                await asyncio.sleep(0)
            assert await computer.engines.use("a", wait_s=0.01) is engine
            later = contextlib.ExitStack()
            later.enter_context(engine.in_use())
            answers.close()
            await asyncio.sleep(0)
            assert engine.is_ready and not reloading.done()
            later.close()
        assert await reloading == ""
        assert computer.engines.get("a") is not engine

    run(computer, work())


def test_a_model_is_loaded_anew_when_its_answers_have_ended_though_it_is_always_asked(
    computer: Computer, monkeypatch: pytest.MonkeyPatch
) -> None:
    computer.sizes = {"a": 2}
    monkeypatch.setattr(engines, "_PATIENCE_S", 0.0)

    async def work() -> None:
        engine = await use(computer, "a")
        assert computer.engines.outdated() == []
        computer.settings = {config.CTX: 128}
        assert computer.engines.outdated() == [engine]
        with engine.in_use():
            reloading = asyncio.create_task(computer.engines.reload_outdated())
            while not engine.is_leaving:
                await asyncio.sleep(0)
            with pytest.raises(
                StillLoading, match="loaded anew, with other settings, as soon as 1 answer that"
            ):
                await computer.engines.use("a", wait_s=0.01)
            assert engine.is_ready  # the answer goes on
            waiting = asyncio.create_task(use(computer, "a"))
            await asyncio.sleep(0)
        assert await reloading == ""
        successor = await waiting
        assert successor is not engine and successor.is_ready
        assert successor.process.words[successor.process.words.index("--ctx") + 1] == "128"
        assert computer.engines.outdated() == []

    run(computer, work())


def test_one_that_does_not_come_back_is_said_and_keeps_no_other_from_it(computer: Computer) -> None:
    computer.sizes = {"a": 2, "b": 2}

    async def work() -> None:
        for model in ("a", "b"):
            await use(computer, model)
        computer.settings = {config.CTX: 128}
        computer.sizes["a"] = 100
        assert "a could not be loaded anew: a needs 100.0 GB" in await computer.engines.reload_outdated()
        assert computer.loaded == ["b"]
        assert computer.engines.outdated() == []

    run(computer, work())
