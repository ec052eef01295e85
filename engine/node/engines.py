"""The models that are loaded on this computer, an engine each: loaded when asked for, unloaded when memory is short.

It decides which engine answers for a model; how a process is kept running is `supervisor`'s, and what is said to it is
`front`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import Setting, words_of
from engine.errors import BatonError, OutOfMemory
from engine.handoff.target import Target
from engine.node.reporting.logs import OnLine, RotatingLog, engine_log
from engine.node.supervisor import EngineProcess, StartProcess, State
from engine.server.errors import LoadedAnew, Refused, StillLoading

log = logging.getLogger(__name__)

# A request waits so long for its model to load before it is told to come back: small models need no second try.
WAIT_FOR_LOADING_S = 3.0

# Clients take a longer wait for none at all.
_RETRY_WITHIN_S = 30

# A model that was loaded is used for so long before another may take its place: two that do not fit together would each
# throw the other out before it has answered anything. Who was told to come back for it has as long to do so.
STAYS_S = 10.0

# How long an answer takes that keeps another model waiting, as far as anybody can know.
_BUSY_RETRY_S = 5.0

# The system and other programs keep this share of the memory.
_KEPT_FREE_SHARE = 0.05

# The largest models take minutes to load from a slow disk.
_LOAD_TIMEOUT_S = 600.0

# A model that is to be loaded anew begins answers for so long while others of it still run: most end sooner, and nobody
# is kept waiting. After that it begins none, or one that is always asked something would never be loaded anew.
_PATIENCE_S = 60.0

# What is said to an engine of its worker.
_WORKER = "worker"


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """A model that can be loaded: its name at the endpoint, its file, and the memory that it takes."""

    model_id: str
    path: Path
    needed_bytes: int


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Of this computer or of the device where models are computed, in bytes."""

    total_bytes: int
    available_bytes: int


class LoadedEngine:
    """One model's engine, from the moment it is asked for."""

    def __init__(
        self,
        model: ModelFile,
        process: EngineProcess,
        *,
        settings: Mapping[Setting, Any],
        on_change: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`settings` are those that it was started with."""
        self.model = model
        self.process = process
        self.settings = settings
        self.progress = 0.0
        self.n_active = 0
        self.used_at = time.time()
        self.worker: dict[str, Any] = {}
        self.target = Target()
        self._on_change = on_change
        self._clock = clock
        self._stays_until_s = clock() + STAYS_S
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_to_leave = False
        self._left: asyncio.Event | None = None

    @property
    def is_ready(self) -> bool:
        return self.process.state is State.READY

    @property
    def stays_for_s(self) -> float:
        """How long it still keeps its place, though nobody waits for an answer of it; one that broke keeps none."""
        if self.process.state not in (State.STARTING, State.READY):
            return 0.0
        return max(0.0, self._stays_until_s - self._clock())

    def stay(self, after_s: float = 0.0) -> None:
        """Keep its place until it has had time to be used, which begins in `after_s`."""
        self._stays_until_s = max(self._stays_until_s, self._clock() + after_s + STAYS_S)

    @property
    def url(self) -> str:
        """Of the engine that is ready."""
        return f"http://127.0.0.1:{self.process.port}"

    def still_loading(self) -> StillLoading:
        """What to tell who asks before it is ready: how far it is, and when it should be. Until then it stays."""
        if self.is_leaving and self.n_active:
            return LoadedAnew(self.model.model_id, self.n_active, retry_after_s=_whole_seconds(_BUSY_RETRY_S))
        left_s = 0.0
        if self.progress > 0:
            left_s = (time.time() - self.process.since_s) * (1 - self.progress) / self.progress
        retry_after_s = _whole_seconds(left_s)
        self.stay(retry_after_s)
        return StillLoading(self.model.model_id, self.progress, retry_after_s=retry_after_s)

    @property
    def is_leaving(self) -> bool:
        """Whether it begins no answer any more, and ends when those that run have ended."""
        return self._left is not None

    async def leave(self) -> None:
        """Wait for a moment when nothing is answered, and begin no answer from then on; or sooner, if none comes."""
        self._is_to_leave = True
        self._on_change()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                while self.n_active:
                    await self._idle.wait()
        self._left = self._left or asyncio.Event()
        self._on_change()
        await self._idle.wait()

    def has_left(self) -> None:
        """Its successor is there, or there will be none."""
        self._is_to_leave = False
        if self._left is not None:
            self._left.set()

    async def until_left(self, timeout_s: float) -> None:
        """Wait, no longer than that, for `has_left`."""
        if self._left is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._left.wait()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[LoadedEngine]:
        self.n_active += 1
        self._idle.clear()
        try:
            self._on_change()
            yield self
        finally:
            self.n_active -= 1
            if self.n_active == 0:
                self._idle.set()
            self.used_at = time.time()
            self._on_change()

    def retarget(self, target: Target) -> None:
        """Have it work with another worker, or with none."""
        if target != self.target:
            self.target = target
            self.process.ready.pop("listen_port", None)  # that of the last one
            self.process.tell(_WORKER, target.line())

    def snapshot(self) -> dict[str, Any]:
        return {
            "model": self.model.model_id,
            "progress": 1.0 if self.is_ready else self.progress,
            "active": self.n_active,
            "leaving": self._is_to_leave or self.is_leaving,
            "used_at": self.used_at,
            "needed_bytes": self.model.needed_bytes,
            "worker": self.worker,
            **self.process.snapshot(),
        }


class Engines:
    """All engines of this computer that answer. On the node's event loop."""

    def __init__(
        self,
        *,
        find: Callable[[str], Awaitable[ModelFile]],
        memory: Callable[[], Memory],
        settings: Callable[[], Mapping[Setting, Any]],
        environment: Mapping[str, str],
        log_folder: Path,
        on_change: Callable[[], None],
        words: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
        on_line: OnLine | None = None,
        start_process: StartProcess | None = None,
        on_device: Callable[[dict[str, Any]], None] = lambda told: None,
    ) -> None:
        """`find` gives a model of this computer, or raises ModelNotFound. `memory` is what models may have.

        `on_device` hears what an engine that is ready says of its device.

        `settings` are those of an engine that is started now; `words` are flags beside them. `on_line` hears what
        engines log. `start_process` is each engine's.
        """
        self._find = find
        self._memory = memory
        self._settings = settings
        self._words = tuple(words)
        self._environment = environment
        self._start_process = start_process
        self._log_folder = log_folder
        self._on_change = on_change
        self._clock = clock
        self._on_line = on_line
        self._on_device = on_device
        self._engines: dict[str, LoadedEngine] = {}
        self._loading = asyncio.Lock()

    @property
    def held_bytes(self) -> int:
        """What those that are loaded, or are being loaded, have taken."""
        return sum(
            int(engine.model.needed_bytes * (1.0 if engine.is_ready else engine.progress))
            for engine in self._engines.values()
        )

    def all(self) -> list[LoadedEngine]:
        return list(self._engines.values())

    def get(self, model_id: str) -> LoadedEngine | None:
        return self._engines.get(model_id)

    def latest(self) -> LoadedEngine | None:
        """The one that was used last, of those that are ready."""
        ready = [engine for engine in self._engines.values() if engine.is_ready and not engine.is_leaving]
        return max(ready, key=lambda engine: engine.used_at, default=None)

    def snapshot(self) -> list[dict[str, Any]]:
        return [engine.snapshot() for engine in self._engines.values()]

    async def use(self, model_id: str, *, wait_s: float = WAIT_FOR_LOADING_S) -> LoadedEngine:
        """The ready engine of a model, loaded first where it is not.

        Raises ModelNotFound, StillLoading when that takes longer than `wait_s`, OutOfMemory, Refused where others that
        are in use or were just loaded leave no room, or ProcessFailed with the reason why it cannot be loaded.
        """
        engine = await self.load(model_id)
        if engine.is_leaving:
            await engine.until_left(wait_s)
            engine = await self.load(model_id)
            if engine.is_leaving:
                raise engine.still_loading()
        if not engine.is_ready:
            await engine.process.until_settled(wait_s)
        if engine.is_ready:
            engine.used_at = time.time()
            return engine
        if engine.process.state is State.FAILED:
            # Somebody has to be told, and the next one may try again: the file may have been mended.
            if self._engines.get(model_id) is engine:
                await self.unload(model_id)
            raise engine.process.failure()
        raise engine.still_loading()

    async def load(self, model_id: str) -> LoadedEngine:
        """Begin to load a model, anew where that failed, and return at once. Raises as `use` does, but for what loading
        brings."""
        await self.unload_failed(model_id)
        if (engine := self._engines.get(model_id)) is not None:
            return engine  # and waits for no other one that is being put away
        async with self._loading:
            if (engine := self._engines.get(model_id)) is not None:
                return engine
            model = await self._find(model_id)
            if (short := await self._unload_for(model)) > 0:
                # What other programs hold may be given back: the engine will say if it is not.
                log.warning("%s needs %.1f GB more than are free just now", model_id, short / 1e9)
            engine = self._new(model)
            self._engines[model_id] = engine
            engine.process.start()
            self._on_change()
            return engine

    def outdated(self) -> list[LoadedEngine]:
        """Those that were started with other settings than hold now."""
        now = self._settings()
        return [engine for engine in self._engines.values() if engine.settings != now]

    async def reload(self, engine: LoadedEngine) -> None:
        """Load the engine's model anew, once its answers have ended; who asks meanwhile waits. Raises as `load`."""
        try:
            await engine.leave()
            if self._engines.get(engine.model.model_id) is not engine:
                return
            await self.unload(engine.model.model_id)
            successor = await self.load(engine.model.model_id)
        finally:
            engine.has_left()
        await successor.process.until_tried(_LOAD_TIMEOUT_S)

    async def reload_outdated(self) -> str:
        """As `reload`, one after the other; what went wrong, or nothing."""
        faults = []
        for engine in self.outdated():
            try:
                await self.reload(engine)
            except BatonError as error:
                log.warning("%s could not be loaded anew: %s", engine.model.model_id, error)
                faults.append(f"{engine.model.model_id} could not be loaded anew: {error}")
        return "; ".join(faults)

    async def unload(self, model_id: str) -> bool:
        """End a model's engine; whether there was one."""
        engine = self._engines.pop(model_id, None)
        if engine is None:
            return False
        self._on_change()
        await engine.process.stop()
        self._on_change()
        return True

    async def unload_failed(self, model_id: str) -> None:
        """Forget an engine that is not started again, and that would keep its model from being removed."""
        engine = self._engines.get(model_id)
        if engine is not None and engine.process.state is State.FAILED:
            await self.unload(model_id)

    async def close(self) -> None:
        await asyncio.gather(*(self.unload(model_id) for model_id in list(self._engines)))

    def _new(self, model: ModelFile) -> LoadedEngine:
        engine: LoadedEngine
        settings = self._settings()
        words = [*words_of(settings), *self._words]
        process = EngineProcess(
            model.model_id,
            ["serve", "--model", str(model.path), "--port", "0", "--peer", "-", "--progress", *words],
            log=RotatingLog(engine_log(self._log_folder, "serve", model.model_id), on_line=self._on_line),
            on_change=lambda: self._on_state(engine),
            on_event=lambda event: self._on_event(engine, event),
            environment=self._environment,
            start_process=self._start_process,
        )
        engine = LoadedEngine(model, process, settings=settings, on_change=self._on_change, clock=self._clock)
        process.tell(_WORKER, engine.target.line())
        return engine

    def _on_state(self, engine: LoadedEngine) -> None:
        if engine.is_ready:
            engine.stay()
            if isinstance(told := engine.process.ready.get("device"), dict):
                self._on_device(told)
        else:
            engine.progress, engine.worker = 0.0, {}
        self._on_change()

    def _on_event(self, engine: LoadedEngine, event: dict[str, Any]) -> None:
        if "loading" in event:
            engine.progress = float(event["loading"])
        if "worker" in event:
            engine.worker = {"connected": bool(event["worker"]), "note": event.get("note", "")}
        if "listen_port" in event:
            engine.process.ready["listen_port"] = event["listen_port"]
        self._on_change()

    async def make_room(self, model: ModelFile, *, beside_bytes: int = 0) -> None:
        """Unload what is of no use until a model fits that is no engine of these, and `beside_bytes` of others.

        Raises OutOfMemory or Refused where it does not.
        """
        async with self._loading:
            short = await self._unload_for(model, beside_bytes)
        if short > 0:
            raise OutOfMemory(
                f"{model.model_id} needs {short / 1e9:.1f} GB more than other programs leave free: end some of them, "
                "or take a smaller --ctx"
            )

    async def _unload_for(self, model: ModelFile, beside_bytes: int = 0) -> int:
        """Unload what was not used for longest until the model fits; the bytes that are missing all the same.

        Raises OutOfMemory for one that never will, and Refused while others have to stay.
        """
        _check_size(model, int(self._memory().total_bytes * (1 - _KEPT_FREE_SHARE)))
        needed = model.needed_bytes + beside_bytes
        may_go = [engine for engine in self._engines.values() if not (engine.n_active or engine.stays_for_s)]
        if len(may_go) < len(self._engines):
            short = needed - self._available_bytes() - sum(engine.model.needed_bytes for engine in may_go)
            if short > 0:
                raise self._no_room(model, short)
        for engine in sorted(may_go, key=lambda engine: engine.used_at):
            if needed <= self._available_bytes():
                return 0
            log.info("%s is unloaded to make room for %s", engine.model.model_id, model.model_id)
            await self.unload(engine.model.model_id)
        short = needed - self._available_bytes()
        if short > 0 and self._engines:
            raise self._no_room(model, short)
        return max(0, short)

    def _no_room(self, model: ModelFile, short: int) -> Refused:
        """What to tell who wants a model while others keep their places, and when that may be over."""
        answering = [engine for engine in self._engines.values() if engine.n_active]
        others = answering or list(self._engines.values())
        names = ", ".join(engine.model.model_id for engine in others)
        wait_s = _BUSY_RETRY_S if answering else min(engine.stays_for_s for engine in others)
        retry_after_s = _whole_seconds(wait_s)
        why = "in use" if answering else "loaded only just now, for somebody else"
        return Refused(
            f"{model.model_id} needs {short / 1e9:.1f} GB more than are free, and {names} cannot make room, being "
            f"{why}: try again in {retry_after_s} s",
            status=503,
            kind="unavailable_error",
            retry_after_s=retry_after_s,
        )

    def _available_bytes(self) -> int:
        """What is free, less what those that are loading have not taken yet."""
        to_come = sum(
            engine.model.needed_bytes * (1 - engine.progress)
            for engine in self._engines.values()
            if engine.process.state is State.STARTING
        )
        return self._memory().available_bytes - int(to_come)


def _check_size(model: ModelFile, most: int) -> None:
    """Raises OutOfMemory for a model that needs more than there is at all."""
    if model.needed_bytes > most:
        raise OutOfMemory(
            f"{model.model_id} needs {model.needed_bytes / 1e9:.1f} GB, and this computer has {most / 1e9:.1f} GB of "
            "memory for it: take a smaller model, or a smaller --ctx"
        )


def _whole_seconds(seconds: float) -> int:
    """For a client that is to come back."""
    return max(1, min(math.ceil(seconds), _RETRY_WITHIN_S))
