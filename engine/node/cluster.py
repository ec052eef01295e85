"""What two paired computers do together: each loaded model gets a worker on the computer that prefills.

The computer that decodes drives: it asks the other one for a worker, and tells its engine where that is. Who calls whom
follows the link between the nodes, since one of the two may not be able to call out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from engine import config
from engine.cache.spec import KVType
from engine.errors import BatonError, PeerLost, ProtocolError
from engine.handoff.target import Target
from engine.handoff.transport import Address
from engine.node.engines import Engines, LoadedEngine
from engine.node.peering.peer_link import PeerLink
from engine.node.supervisor import State
from engine.node.trust.identity import TrustStore
from engine.node.workers import START, STOP, Started, StartPrefill, StopPrefill
from engine.wire.limits import MAX_NAME_CHARS

log = logging.getLogger(__name__)

# A worker's model loads as long as any other.
_START_TIMEOUT_S = 620.0

# An engine says at once where it listens, or not at all.
_LISTEN_TIMEOUT_S = 15.0

# Between two tries to get a worker: the peer may copy the model, or free memory.
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 30.0

# An engine whose worker is away for so long asks for it anew: it may have failed for good, or have been ended.
_ALONE_S = 30.0

_NO_WORKER = Target()


@dataclass(kw_only=True)
class _Join:
    """An engine that works, or is to work, with the worker of one link. `note` is how far that is."""

    engine: LoadedEngine
    link: PeerLink
    n_starts: int
    task: asyncio.Task[None] | None = None
    digest: str = ""
    note: str = ""
    since_s: float = field(default_factory=time.time)


class Cluster:
    """Keeps engines and workers joined as `prefiller_for(engine)` says, which gives the link with who prefills."""

    def __init__(
        self,
        engines: Engines,
        *,
        prefiller_for: Callable[[LoadedEngine], PeerLink | None],
        digest_of: Callable[[str], Awaitable[str]],
        is_paired: Callable[[str], bool],
        trust: TrustStore,
        on_change: Callable[[], None],
    ) -> None:
        """`digest_of(model)` is that of its file here; it may have to be read through first."""
        self._engines = engines
        self._prefiller_for = prefiller_for
        self._digest_of = digest_of
        self._is_paired = is_paired
        self._trust = trust
        self._on_change = on_change
        self._joins: dict[str, _Join] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        tasks = [*self._tasks, *(join.task for join in self._joins.values() if join.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def snapshot(self) -> list[dict[str, Any]]:
        return [
            {
                "model": model_id,
                "prefill": join.link.peer.name,
                "prefill_node_id": join.link.peer.node_id,
                "note": join.note,
                "since": join.since_s,
            }
            for model_id, join in self._joins.items()
        ]

    def look_again(self) -> None:
        """Engines, links or roles have changed."""
        engines = {
            engine.model.model_id: engine
            for engine in self._engines.all()
            if engine.process.state is not State.FAILED
        }
        for model_id in list(self._joins):
            if model_id not in engines:
                self._part(model_id)
        for model_id, engine in engines.items():
            link = self._prefiller_for(engine)
            join = self._joins.get(model_id)
            if link is None or not link.is_open:
                if join is not None and not self._is_only_unlinked(join):
                    self._part(model_id)
                continue
            if join is not None and join.link is link and join.n_starts == engine.process.n_starts:
                continue
            self._begin(model_id, engine, link)

    def _is_only_unlinked(self, join: _Join) -> bool:
        """The nodes' link is down, and nobody said that the two shall not work together: couriers have their own."""
        return not join.link.is_open and self._is_paired(join.link.peer.node_id)

    def _begin(self, model_id: str, engine: LoadedEngine, link: PeerLink) -> None:
        old = self._joins.get(model_id)
        if old is not None:
            self._give_up(old, stays_with=link.peer.node_id)
        join = _Join(engine=engine, link=link, n_starts=engine.process.n_starts)
        self._joins[model_id] = join
        join.task = asyncio.create_task(self._join_for_ever(join), name=f"join {model_id}")

    def _part(self, model_id: str) -> None:
        join = self._joins.pop(model_id)
        join.engine.retarget(_NO_WORKER)
        self._give_up(join)
        self._on_change()

    def _give_up(self, join: _Join, *, stays_with: str = "") -> None:
        """Have the other computer end the worker, but for one of the id where the engine stays."""
        if join.task is not None:
            join.task.cancel()
        if join.digest and join.link.is_open and join.link.peer.node_id != stays_with:
            self._spawn(_tell_to_stop(join.link, join.digest))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _join_for_ever(self, join: _Join) -> None:
        """Try until a worker is ready, and again should it stay away."""
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                await self._join(join)
                wait_s = _FIRST_WAIT_S
                await _until_alone(join.engine)
                continue
            except PeerLost as error:
                self._note(join, str(error))
                if not join.link.is_open:
                    return
            except BatonError as error:
                self._note(join, str(error))
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    async def _join(self, join: _Join) -> None:
        engine, link = join.engine, join.link
        model_id = engine.model.model_id
        join.digest = await self._digest_of(model_id)
        self._trust.add_certificate(link.peer.certificate_der)
        self._note(join, f"{link.peer.name} is loading it")
        dial = None if link.is_dialled else await self._have_listen(engine, link)
        kv_type = engine.settings[config.KV_TYPE]
        asked = StartPrefill(
            digest=join.digest,
            model=model_id[:MAX_NAME_CHARS],
            n_ctx=engine.settings[config.CTX],
            n_slots=engine.settings[config.SLOTS],
            kv_type=None if kv_type == config.KV_TYPE.default else KVType(kv_type),
            dial=dial,
        )
        started = await link.call(START, asked, gives=Started, timeout_s=_START_TIMEOUT_S)
        if link.is_dialled:
            if started.port is None:
                raise ProtocolError(f"{link.peer.name} does not say where its worker is: update Baton there")
            address = Address(host=link.remote_host, port=started.port)
            engine.retarget(Target(dial=str(address), trust=link.peer.fingerprint))
        self._note(join, "")

    async def _have_listen(self, engine: LoadedEngine, link: PeerLink) -> int:
        """Have the engine wait for the worker's call, on the address that the peer knows; returns the port."""
        listening = Address(host=link.local_host, port=0)
        engine.retarget(Target(listen=str(listening), trust=link.peer.fingerprint))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LISTEN_TIMEOUT_S):
                while True:
                    if (port := engine.process.ready.get("listen_port")) is not None:
                        return int(port)
                    await engine.process.until_changed()
        raise PeerLost(f"the engine of {engine.model.model_id} did not listen for its worker in time")

    def _note(self, join: _Join, note: str) -> None:
        if join.note != note:
            join.note, join.since_s = note, time.time()
            self._on_change()


async def _until_alone(engine: LoadedEngine) -> None:
    """Wait until the engine has had no worker for some time."""
    while True:
        while engine.worker.get("connected"):
            await engine.process.until_changed()
        try:
            async with asyncio.timeout(_ALONE_S):
                while not engine.worker.get("connected"):
                    await engine.process.until_changed()
        except TimeoutError:
            return


async def _tell_to_stop(link: PeerLink, digest: str) -> None:
    with contextlib.suppress(BatonError):
        await link.call(STOP, StopPrefill(digest=digest))
