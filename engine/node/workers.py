"""The prefill engines that run on this computer for paired ones: one a model and computer, started when that asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from engine import config
from engine.cache.spec import KVType
from engine.config import Setting, words_of
from engine.errors import BatonError, ModelNotFound, PeerRefused
from engine.handoff.transport import Address
from engine.node.engines import ModelFile
from engine.node.listening import listening_fault
from engine.node.peering.offers import Method, Offers
from engine.node.peering.peer_link import PeerLink
from engine.node.peering.peer_links import PeerLinks
from engine.node.reporting.logs import OnLine, RotatingLog, engine_log
from engine.node.supervisor import EngineProcess, StartProcess, State
from engine.node.trust.identity import TrustStore
from engine.wire.messages import Digest, Name

# A worker outlives the link by which it was asked for by this much, unless it is asked for again: cables are pulled and
# daemons restarted, and who wants it no more meanwhile cannot say so.
KEPT_WITHOUT_LINK_S = 60.0

# The largest models take minutes to load from a slow disk.
_LOAD_TIMEOUT_S = 600.0

START, STOP = "prefill.start", "prefill.stop"

# What a peer may ask this computer to set aside for its prompts.
_MAX_CTX = config.CTX.maximum or 1
_MAX_SLOTS = config.SLOTS.maximum or 1


class StartPrefill(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decode engine wants a worker with the model of this digest. `dial` is the port where it waits for its call.

    `kv_type` is how its cache is kept, where that was chosen.
    """

    digest: Digest
    model: Name
    n_ctx: Annotated[int, Meta(ge=16, le=_MAX_CTX)]
    n_slots: Annotated[int, Meta(ge=1, le=_MAX_SLOTS)]
    dial: Annotated[int, Meta(ge=1, le=65535)] | None = None
    kv_type: KVType | None = None


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """Where the worker waits to be called; None where it calls."""

    port: Annotated[int, Meta(ge=1, le=65535)] | None = None


class StopPrefill(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    digest: Digest


@dataclass(kw_only=True)
class _Worker:
    peer_id: str
    peer_name: str
    asked: StartPrefill
    model: ModelFile
    asked_by: PeerLink
    process: EngineProcess
    settings: Mapping[Setting, Any]
    link: dict[str, Any]
    ending: asyncio.TimerHandle | None = None

    def let_be(self) -> None:
        if self.ending is not None:
            self.ending.cancel()
            self.ending = None


@dataclass(frozen=True, kw_only=True)
class Asker:
    """A computer that has a worker here, and what it calls the model."""

    name: str
    model: str


class MakesRoom(Protocol):
    """Has others give memory back for a model; raises OutOfMemory or Refused where it does not suffice."""

    async def __call__(self, model: ModelFile, *, beside_bytes: int) -> None: ...


class Workers:
    """Starts and ends workers as paired computers ask, and when they are paired no more."""

    def __init__(
        self,
        *,
        find: Callable[[StartPrefill], Awaitable[ModelFile | None]],
        make_room: MakesRoom,
        name: str,
        links: Callable[[], PeerLinks],
        trust: TrustStore,
        settings: Callable[[], Mapping[Setting, Any]],
        environment: Mapping[str, str],
        log_folder: Path,
        on_change: Callable[[], None],
        words: Sequence[str] = (),
        on_line: OnLine | None = None,
        start_process: StartProcess | None = None,
    ) -> None:
        """`find` gives this computer's model with the digest that is asked for, if there is one.

        `name` is what this computer is called. `settings` are those of a worker that is started now; `words` are flags
        beside them. `on_line` hears what workers log. `start_process` is each worker's.
        """
        self._find = find
        self._make_room = make_room
        self.name = name
        self._links = links
        self._trust = trust
        self._settings = settings
        self._words = tuple(words)
        self._environment = environment
        self._start_process = start_process
        self._log_folder = log_folder
        self._on_line = on_line
        self._on_change = on_change
        self._workers: dict[tuple[str, str], _Worker] = {}
        self._starting = asyncio.Lock()  # two calls for one model get one worker
        self._tasks: set[asyncio.Task[None]] = set()

    def offer_methods(self, offers: Offers) -> None:
        """Let paired computers have workers here."""
        offers.calls[START] = Method(self._start, StartPrefill)
        offers.calls[STOP] = Method(self._stop, StopPrefill)

    @property
    def is_any_ready(self) -> bool:
        return any(worker.process.state is State.READY for worker in self._workers.values())

    async def close(self) -> None:
        await asyncio.gather(*self._tasks, *(self._end(key) for key in list(self._workers)))

    def snapshot(self) -> list[dict[str, Any]]:
        return [
            {
                "model": worker.model.model_id,
                "for": worker.peer_name,
                "for_node_id": worker.peer_id,
                "link": worker.link,
                **worker.process.snapshot(),
            }
            for worker in self._workers.values()
        ]

    @property
    def held_bytes(self) -> int:
        """What those that are loaded have taken."""
        ready = (one for one in self._workers.values() if one.process.state is State.READY)
        return sum(worker.model.needed_bytes for worker in ready)

    @property
    def askers(self) -> dict[str, Asker]:
        """For whom models are loaded, by this computer's ids of them."""
        return {
            worker.model.model_id: Asker(name=worker.peer_name, model=worker.asked.model)
            for worker in self._workers.values()
        }

    def outdated_settings(self) -> list[Mapping[Setting, Any]]:
        """The settings of those that were started with others than hold now."""
        now = self._settings()
        return [worker.settings for worker in self._workers.values() if worker.settings != now]

    async def reload_outdated(self) -> None:
        """Start those anew, one after the other. What they prefill just now is prefilled where it is decoded."""
        for worker in list(self._workers.values()):
            if worker.settings != self._settings():
                worker.settings = self._settings()
                meeting = worker.process.words[-2:]
                worker.process.words = (*self._words_of(worker), *meeting)
                await worker.process.start_anew()
                await worker.process.until_tried(_LOAD_TIMEOUT_S)

    async def _start(self, link: PeerLink, asked: StartPrefill) -> Started:
        """Have a worker ready. Raises ModelNotFound, or PeerRefused with the reason why there is none."""
        async with self._starting:
            worker = await self._worker_for(link, asked)
        await worker.process.until_tried(_LOAD_TIMEOUT_S)
        if worker.process.state is not State.READY:
            if worker.process.state is State.FAILED:
                await self._end((link.peer.node_id, asked.digest))
            raise PeerRefused(str(worker.process.failure()))
        return Started(port=worker.process.port)

    async def _worker_for(self, link: PeerLink, asked: StartPrefill) -> _Worker:
        key = (link.peer.node_id, asked.digest)
        worker = self._workers.get(key)
        if worker is not None and worker.asked == asked:
            worker.asked_by = link
            worker.let_be()
            return worker
        await self._end(key)
        model = await self._find(asked)
        if model is None:
            raise ModelNotFound(
                f"{asked.model} is not on {self.name}, or another version of it is: copy it there with "
                f"`baton models send {asked.model}`"
            )
        try:
            await self._make_room(model, beside_bytes=self._to_come_bytes())
        except BatonError as error:
            raise PeerRefused(f"{self.name} has no room for it: {error}") from error
        # To look for a model takes minutes at times, in which the other computer may have been unpaired.
        if not link.is_open:
            raise link.reason
        worker = self._workers[key] = self._new(link, asked, model)
        worker.process.start()
        self._on_change()
        return worker

    def _to_come_bytes(self) -> int:
        """What those that are loading may still take."""
        loading = (one for one in self._workers.values() if one.process.state is State.STARTING)
        return sum(worker.model.needed_bytes for worker in loading)

    async def _stop(self, link: PeerLink, asked: StopPrefill) -> None:
        """The decode engine has been unloaded."""
        await self._end((link.peer.node_id, asked.digest))

    def look_again(self) -> None:
        """Links or pairings have changed."""
        links = {link.peer.node_id: link for link in self._links().all()}
        paired = {peer["node_id"] for peer in self._links().snapshot()}
        for key, worker in list(self._workers.items()):
            if worker.peer_id not in paired:
                self._spawn_end(key)
            elif links.get(worker.peer_id) is not worker.asked_by and worker.ending is None:
                loop = asyncio.get_running_loop()
                worker.ending = loop.call_later(KEPT_WITHOUT_LINK_S, self._spawn_end, key)

    def _spawn_end(self, key: tuple[str, str]) -> None:
        task = asyncio.create_task(self._end(key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self, key: tuple[str, str]) -> None:
        worker = self._workers.pop(key, None)
        if worker is not None:
            worker.let_be()
            self._on_change()
            await worker.process.stop()

    def _new(self, link: PeerLink, asked: StartPrefill, model: ModelFile) -> _Worker:
        self._trust.add_certificate(link.peer.certificate_der)
        if asked.dial is not None:
            meeting = ["--dial", str(Address(host=link.remote_host, port=asked.dial))]
        else:
            meeting = _listening(link.local_host, _free_port(link.local_host))
        worker: _Worker
        process = EngineProcess(
            f"{model.model_id} for {link.peer.name}",
            meeting,
            log=RotatingLog(engine_log(self._log_folder, "worker", model.model_id), on_line=self._on_line),
            on_change=lambda: self._on_state(worker, link.local_host),
            on_event=lambda event: self._on_event(worker, event),
            environment=self._environment,
            start_process=self._start_process,
            has_endpoint=False,
        )
        worker = _Worker(
            peer_id=link.peer.node_id,
            peer_name=link.peer.name,
            asked=asked,
            model=model,
            asked_by=link,
            process=process,
            settings=self._settings(),
            link={},
        )
        process.words = (*self._words_of(worker), *meeting)
        return worker

    def _words_of(self, worker: _Worker) -> list[str]:
        """All but how the two computers meet."""
        asked = worker.asked
        own = {
            **worker.settings,
            config.CTX: asked.n_ctx,
            config.SLOTS: asked.n_slots,
            config.KV_TYPE: asked.kv_type,
        }
        if (
            own.get(config.PREFILLS) is not None
        ):  # each prompt needs room in the cache, of which the other end decides
            own[config.PREFILLS] = min(own[config.PREFILLS], asked.n_slots)
        fingerprint = worker.asked_by.peer.fingerprint
        return [
            "worker",
            "--model",
            str(worker.model.path),
            "--trust",
            fingerprint,
            *words_of(own),
            *self._words,
        ]

    def _on_state(self, worker: _Worker, host: str) -> None:
        process = worker.process
        if process.state is State.READY and worker.asked.dial is None and process.port is not None:
            # The decode engine goes on calling the same port, whatever becomes of this process.
            process.words = (*process.words[:-2], *_listening(host, process.port))
        if process.state is not State.READY:
            worker.link = {}
        self._on_change()

    def _on_event(self, worker: _Worker, event: dict[str, Any]) -> None:
        if "link" in event:
            worker.link = {"connected": bool(event["link"]), "note": event.get("note", "")}
            self._on_change()


def _free_port(host: str) -> int:
    """The port that firewalls may know; any where another worker has it."""
    return 0 if listening_fault(host, config.COURIER_PORT) else config.COURIER_PORT


def _listening(host: str, port: int) -> list[str]:
    return ["--listen", str(Address(host=host, port=port))]
