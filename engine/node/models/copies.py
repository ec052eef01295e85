"""Copies of models to and from paired computers: who listens, who calls, how far each is, and what went wrong.

A copy that was begun here is the node's own: it goes on whoever looks, until it is over or cancelled. The sender offers
a model over the link of the two nodes; as long as the receiver answers that call, the copy lives, and whatever ends it
ends the copy on both computers. The bytes themselves move between two processes, one at either end (`transfer`). The
receiver listens and the sender calls; where it cannot be reached so, it is the other way round.

Who wants a model that a peer has asks it by `models.give`, and is sent it in that way.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from engine import errors
from engine.errors import (
    BatonError,
    HostError,
    InvalidRequest,
    ModelFileError,
    PeerError,
    PeerLost,
    PeerRefused,
    PeerUnreachable,
    ProcessFailed,
    ProtocolError,
    UserError,
)
from engine.gguf.digest import digest_of_parts
from engine.gguf.reader import MAX_PARTS, part_paths
from engine.handoff.courier_process import tls_environment
from engine.handoff.transport import Address
from engine.node.models.catalogue import model_id_of
from engine.node.models.model_folder import LocalModel, ToldModel, free_names
from engine.node.models.shelf import Shelf
from engine.node.models.transfer import FileEntry, TransferJob
from engine.node.peering.offers import Method, Offers
from engine.node.peering.peer_link import PeerLink
from engine.node.supervisor import end_process, to_its_end
from engine.node.trust.identity import Identity
from engine.node.trust.peers import Peer
from engine.paths import own_command

log = logging.getLogger(__name__)

# Copies that are kept in memory after their end, for whoever looks.
_KEPT = 16

# Copies that may come in at the same time, or be given to who asks: more would only share the link.
_MAX_AT_A_TIME = 4

# A copy of which nothing comes for so long is given up; a sender that first reads what the receiver holds takes longer.
_STALL_S = 60.0
_SLOWEST_DISK_BYTES_PER_S = 50e6

# When our own end breaks because the other did, that one's reason says more: wait for it so long.
_OTHERS_REASON_S = 3.0

# What an ended process may take to be gone.
_GRACE_S = 2.0

# A name of one file, with no folder, on every system.
_SAFE_NAME = re.compile(r"\w[\w .+()\[\]-]*\.gguf")

_CANCELLED = "the copy was cancelled"
_CANCELLED_THERE = "the copy was cancelled on the computer that was to get it"

# Of an offer with as many files as a model may have.
_MAX_OFFER_BYTES = 1 << 20

# In place of the port to call.
_STOP = 0

CopyId = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]


class Offer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model, by its files in order."""

    copy_id: CopyId
    files: Annotated[tuple[FileEntry, ...], Meta(min_length=1, max_length=MAX_PARTS)]

    @property
    def digest(self) -> str:
        return digest_of_parts([file.sha256 for file in self.files])

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(file.name for file in self.files)

    @property
    def n_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class CallMe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sender could not reach the receiver, and listens itself."""

    copy_id: CopyId
    port: Annotated[int, Meta(ge=1, le=65535)]


class News(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the receiver says of a copy: where it listens, how much it holds, or under which id the model is there."""

    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    done_bytes: Annotated[int, Meta(ge=0)] | None = None
    model_id: Annotated[str, Meta(max_length=256)] | None = None


class Wanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that the caller was told of, by its id there; it is to be offered as that copy."""

    copy_id: CopyId
    model: Annotated[str, Meta(min_length=1, max_length=1024)]


@dataclass(kw_only=True)
class Copy:
    """One copy, running or over. `state` is running, done, failed or cancelled; `problem` says why it failed.

    `source` is what it is asked for by where it is sent from; `is_ours` says that it was begun here, and can be again.
    `names` are those of its files at the receiver, once they were offered.
    """

    copy_id: str
    model_id: str
    source: str
    peer: Peer
    is_incoming: bool
    is_ours: bool
    total_bytes: int
    digest: str | None = None
    names: tuple[str, ...] = ()
    done_bytes: int = 0
    state: str = "running"
    error: BatonError | None = None
    since_s: float = field(default_factory=time.time)
    is_unwanted: bool = False
    is_received: bool = False
    end: Callable[[], None] = lambda: None
    task: asyncio.Task[None] | None = None
    put_away: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    @property
    def problem(self) -> str:
        return str(self.error or "")

    def is_of(self, other: Copy) -> bool:
        """Whether it moves the same model the same way."""
        mine, theirs = (
            (each.source, each.peer.node_id, each.is_incoming, each.is_ours) for each in (self, other)
        )
        return mine == theirs

    def stop(self) -> None:
        """End it, or have it end as soon as what is done before the first byte is done."""
        self.is_unwanted = True
        self.end()

    def cancel_task(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def check_wanted(self) -> None:
        """Raises UserError once it was stopped."""
        if self.is_unwanted:
            raise _Cancelled(_CANCELLED_THERE if self.is_incoming else _CANCELLED)

    def hear(self, news: News) -> None:
        if news.done_bytes is not None:
            self.done_bytes = news.done_bytes
        if news.model_id is not None:
            self.done_bytes = self.total_bytes
            self.model_id = news.model_id if self.is_incoming else self.model_id

    def snapshot(self) -> dict[str, Any]:
        return {
            "id": self.copy_id,
            "model": self.model_id,
            "source": self.source,
            "peer": self.peer.name,
            "peer_id": self.peer.node_id,
            "direction": "in" if self.is_incoming else "out",
            "begun_here": self.is_ours,
            "total_bytes": self.total_bytes,
            "done_bytes": self.done_bytes,
            "state": self.state,
            "problem": self.problem,
            "since": self.since_s,
        }


class Copies:
    """Sends models and takes them in; `on_change` is called when the snapshot has changed."""

    def __init__(self, shelf: Shelf, identity: Identity, *, on_change: Callable[[], None]) -> None:
        self._shelf = shelf
        self._identity = identity
        self._on_change = on_change
        self._copies: dict[str, Copy] = {}
        self._call_backs: dict[str, asyncio.Queue[int]] = {}

    def offer_methods(self, offers: Offers) -> None:
        """Let paired computers send models here, and ask for those that they are told of."""
        offers.streams["models.take"] = Method(self._take, Offer, _MAX_OFFER_BYTES)
        offers.streams["models.give"] = Method(self._give, Wanted)
        offers.calls["models.call_me"] = Method(self._call_me, CallMe)

    async def close(self) -> None:
        running = [copy for copy in self._copies.values() if copy.is_running]
        for copy in running:
            copy.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_S):
                await asyncio.gather(*(copy.ended.wait() for copy in running))
        # one that still reads its model has heard nothing of it
        tasks = [copy.task for copy in running if copy.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def snapshot(self) -> list[dict[str, Any]]:
        return [copy.snapshot() for copy in self._copies.values()]

    def send(self, model: LocalModel, link: PeerLink) -> Copy:
        """Copy a model to the peer, or give the copy of it that runs. Raises UserError for one that cannot be sent."""
        copy = self._outgoing(secrets.token_hex(8), model, link, is_ours=True)
        return self._begin(copy, lambda: self._send(copy, model, link))

    def fetch(self, told: ToldModel, link: PeerLink) -> Copy:
        """Have the peer copy a model here that it told of, or give the copy of it that runs.

        Raises UserError for one that cannot be copied.
        """
        _check_can_be_sent(told.id, told.problem)
        copy = Copy(
            copy_id=secrets.token_hex(8),
            model_id=told.id,
            source=told.id,
            peer=link.peer,
            is_incoming=True,
            is_ours=True,
            total_bytes=told.size_bytes,
            digest=told.digest,
        )
        return self._begin(copy, lambda: self._fetch(copy, link))

    async def follow(self, copy: Copy) -> AsyncGenerator[Copy, None]:
        """The copy, again and again as it goes on, the last time when it is over. To close it ends nothing.

        Raises what the copy failed with, or that it was cancelled.
        """
        is_over = False
        while not is_over:
            is_over, changed = not copy.is_running, copy.changed
            yield copy
            if not is_over:
                await changed.wait()
        if copy.error is not None:
            raise copy.error

    def cancel(self, copy_id: str) -> None:
        """End a copy; what came of it is kept for another try. Raises InvalidRequest when there is none."""
        copy = self._copies.get(copy_id)
        if copy is None or not copy.is_running:
            raise InvalidRequest(f"no copy {copy_id[:32]!r} is running")
        copy.stop()

    async def forget(self, copy_id: str) -> Copy:
        """End a copy if it runs, and know of it no more. What came of it is the receiver's."""
        copy = self._copies.get(copy_id)
        if copy is None:
            raise InvalidRequest(f"there is no copy {copy_id[:32]!r}")
        if copy.is_running:
            copy.stop()
            await copy.ended.wait()
        self._copies.pop(copy_id, None)
        self._on_change()
        return copy

    def _begin(self, copy: Copy, steps: Callable[[], AsyncGenerator[None, None]]) -> Copy:
        """Have it go on by itself."""
        for each in self._copies.values():
            if each.is_running and each.is_of(copy):
                return each
        if copy.is_incoming and self._is_full:
            raise InvalidRequest(
                f"{_MAX_AT_A_TIME} models are being copied here already: wait for one of them"
            )
        for old in [each for each in self._copies.values() if each.is_of(copy)]:
            del self._copies[old.copy_id]

        async def work() -> None:
            copy.check_wanted()
            async with contextlib.aclosing(steps()) as each:
                async for _ in each:
                    pass

        def over(task: asyncio.Task[None]) -> None:
            self._end(copy, asyncio.CancelledError() if task.cancelled() else task.exception())

        self._keep(copy)
        copy.task = asyncio.create_task(work(), name=f"copy {copy.copy_id}")
        copy.task.add_done_callback(over)
        return copy

    def _outgoing(self, copy_id: str, model: LocalModel, link: PeerLink, *, is_ours: bool) -> Copy:
        _check_can_be_sent(model.model_id, model.problem)
        return Copy(
            copy_id=copy_id,
            model_id=model.model_id,
            source=model.model_id,
            peer=link.peer,
            is_incoming=False,
            is_ours=is_ours,
            total_bytes=model.size_bytes,
        )

    async def _send(self, copy: Copy, model: LocalModel, link: PeerLink) -> AsyncGenerator[None, None]:
        digests = await self._shelf.digests(model)
        copy.check_wanted()
        files = tuple(
            FileEntry(name=name, size_bytes=path.stat().st_size, sha256=digest)
            for name, path, digest in zip(model.names, model.paths, digests, strict=True)
        )
        offer = Offer(copy_id=copy.copy_id, files=files)
        sender = _Sender(offer, model, link, self._identity)
        copy.end = sender.stop
        async with contextlib.aclosing(sender.news()) as news:
            async for item in news:
                self._hear(copy, item)
                yield

    async def _fetch(self, copy: Copy, link: PeerLink) -> AsyncGenerator[None, None]:
        """The peer is asked, and then offers it as any other (`_take`), while this goes on."""
        copy.end = copy.cancel_task
        wanted = Wanted(copy_id=copy.copy_id, model=copy.source)
        try:
            async with contextlib.aclosing(link.stream("models.give", wanted)) as parts:
                async for _ in parts:
                    yield
        except PeerRefused as error:
            raise copy.error or PeerRefused(f"{link.peer.name} says: {error}") from error
        finally:
            if copy.names:
                await copy.put_away.wait()
        if not copy.is_received:
            raise ProtocolError(f"{link.peer.name} ended the copy before it was done")

    async def _give(self, link: PeerLink, wanted: Wanted) -> AsyncGenerator[None, None]:
        """Send a model to the peer that asks for it, as long as it waits for that."""
        given = [c for c in self._copies.values() if c.is_running and not (c.is_incoming or c.is_ours)]
        if len(given) >= _MAX_AT_A_TIME:
            raise PeerRefused(f"{len(given)} models are being copied from it already: try again later")
        if wanted.copy_id in self._copies:
            raise ProtocolError("this copy was asked for before")
        await self._shelf.refresh()
        model = self._shelf.find_told(wanted.model)
        copy = self._outgoing(wanted.copy_id, model, link, is_ours=False)
        async with self._kept(copy), contextlib.aclosing(self._send(copy, model, link)) as steps:
            async for _ in steps:
                yield

    async def _take(self, link: PeerLink, offer: Offer) -> AsyncGenerator[Any, None]:
        """The receiver's side of a copy, as long as it takes."""
        _check_names(offer)
        copy = self._copies.get(offer.copy_id)
        if copy is not None:
            async with contextlib.aclosing(self._take_wanted(copy, link, offer)) as wanted:
                async for item in wanted:
                    yield item
            return
        if self._is_full:
            raise PeerRefused(f"{_MAX_AT_A_TIME} models are being copied to it already: try again later")
        copy = Copy(
            copy_id=offer.copy_id,
            model_id=model_id_of(Path(offer.files[0].name)),
            source="",
            peer=link.peer,
            is_incoming=True,
            is_ours=False,
            total_bytes=offer.n_bytes,
            names=offer.names,
        )
        async with self._kept(copy), contextlib.aclosing(self._receive(copy, offer, link)) as news:
            async for item in news:
                self._hear(copy, item)
                yield item

    async def _take_wanted(self, copy: Copy, link: PeerLink, offer: Offer) -> AsyncGenerator[Any, None]:
        """What this computer has asked for: `_fetch` waits for its end, and hears why it failed."""
        is_waited_for = copy.is_running and copy.is_ours and copy.is_incoming and not copy.names
        if not is_waited_for or copy.peer.node_id != link.peer.node_id:
            raise ProtocolError("this copy was offered before")
        if copy.digest not in (None, offer.digest):
            raise PeerRefused("another model was offered than was asked for: look at the models again")
        copy.total_bytes, copy.names = offer.n_bytes, offer.names
        try:
            async with contextlib.aclosing(self._receive(copy, offer, link)) as news:
                async for item in news:
                    self._hear(copy, item)
                    copy.is_received = item.model_id is not None
                    yield item
        except BatonError as error:
            copy.error = error
            raise
        finally:
            copy.put_away.set()

    @property
    def _is_full(self) -> bool:
        """Enough comes in already."""
        return sum(c.is_incoming and c.is_running for c in self._copies.values()) >= _MAX_AT_A_TIME

    async def _receive(self, copy: Copy, offer: Offer, link: PeerLink) -> AsyncGenerator[News, None]:
        if (model := await self._here_already(offer)) is not None:
            yield News(model_id=model.model_id)
            return
        names = await asyncio.to_thread(
            free_names,
            self._shelf.folder,
            offer.names,
            tuple(file.sha256 for file in offer.files),
        )
        copy.check_wanted()
        copy.names = names
        files = tuple(
            msgspec.structs.replace(file, name=name) for file, name in zip(offer.files, names, strict=True)
        )
        job = TransferJob(
            identity_dir=str(self._identity.key_path.parent),
            peer_der=link.peer.certificate_der,
            files=files,
            folder=str(self._shelf.folder.path),
            digests_dir=str(self._shelf.folder.digests_dir),
        )
        call_backs = self._call_backs.setdefault(offer.copy_id, asyncio.Queue())
        copy.end = functools.partial(call_backs.put_nowait, _STOP)
        try:
            async with contextlib.aclosing(_received(job, self._identity, link, call_backs)) as news:
                async for item in news:
                    yield item
        finally:
            self._call_backs.pop(offer.copy_id, None)
        await self._shelf.refresh()
        yield News(model_id=self._shelf.find(names[0]).model_id)

    async def _here_already(self, offer: Offer) -> LocalModel | None:
        """The model with that content, if there is one."""
        await self._shelf.refresh()
        for model in self._shelf.models:
            if model.size_bytes == offer.n_bytes and not model.problem:
                if model.digest is None:
                    with contextlib.suppress(ModelFileError):
                        await self._shelf.digests(model)
                if self._shelf.find(model.model_id).digest == offer.digest:
                    return model
        return None

    async def _call_me(self, link: PeerLink, asked: CallMe) -> None:
        queue = self._call_backs.get(asked.copy_id)
        if queue is None or queue.qsize():
            raise PeerRefused("no such copy waits to call")
        queue.put_nowait(asked.port)

    @contextlib.asynccontextmanager
    async def _kept(self, copy: Copy) -> AsyncIterator[None]:
        """The copy is known while it runs, and for a while after; how it ended is written down."""
        self._keep(copy)
        try:
            yield
        except BaseException as error:
            self._end(copy, error)
            raise
        self._end(copy, None)

    def _keep(self, copy: Copy) -> None:
        for old in [each for each in self._copies.values() if not each.is_running][: -_KEPT + 1 or None]:
            del self._copies[old.copy_id]
        self._copies[copy.copy_id] = copy
        self._tell(copy)

    def _hear(self, copy: Copy, item: News) -> None:
        copy.hear(item)
        self._tell(copy)

    def _end(self, copy: Copy, error: BaseException | None) -> None:
        match error:
            case None:
                copy.state, copy.error = "done", None
            case _Cancelled() | asyncio.CancelledError() | GeneratorExit():
                copy.state, copy.error = "cancelled", _Cancelled(_CANCELLED).worded("cancelled")
            case BatonError():
                copy.state, copy.error = "failed", error
            case _:
                log.error("a mistake while copying %s", copy.model_id, exc_info=error)
                mistake = HostError("a mistake of Baton's own: its log has the details")
                copy.state, copy.error = "failed", mistake
        copy.ended.set()
        self._tell(copy)

    def _tell(self, copy: Copy) -> None:
        waiting, copy.changed = copy.changed, asyncio.Event()
        waiting.set()
        self._on_change()


def _check_can_be_sent(model_id: str, problem: str) -> None:
    if problem:
        raise UserError(f"{model_id} cannot be sent: {problem}")


def _check_names(offer: Offer) -> None:
    """All are the names of one model's files, each once, and lead into no other folder. Raises InvalidRequest."""
    names = list(offer.names)
    if not all(_SAFE_NAME.fullmatch(name) for name in names):
        raise InvalidRequest("a model's file has a name that is not taken here: it has to end in .gguf")
    if [path.name for path in part_paths(Path(names[0]))] != names:
        raise InvalidRequest("the files that were offered are not the parts of one model, in order")


async def _received(
    job: TransferJob, identity: Identity, link: PeerLink, call_backs: asyncio.Queue[int]
) -> AsyncGenerator[News, None]:
    """Run the receiving process: it listens, or calls where the sender asks for that."""
    here = str(Address(host=link.local_host, port=0))
    end = _Process(msgspec.structs.replace(job, listen=here), identity)
    calling: asyncio.Task[int] = asyncio.create_task(call_backs.get())
    try:
        await end.start()
        n_held: int | None = None
        while True:
            stall_s = _STALL_S + (n_held or 0) / _SLOWEST_DISK_BYTES_PER_S
            item = await end.next_or(calling, stall_s)
            if item is None:
                if calling.result() == _STOP:
                    raise _Cancelled(_CANCELLED_THERE)
                await end.close()
                there = str(Address(host=link.remote_host, port=calling.result()))
                end = _Process(msgspec.structs.replace(job, dial=there), identity)
                calling = asyncio.create_task(call_backs.get())
                await end.start()
            elif "port" in item:
                yield News(port=item["port"])
            elif "done_bytes" in item:
                n_held = item["done_bytes"] if n_held is None else n_held
                yield News(done_bytes=item["done_bytes"])
            elif "done" in item:
                return
    finally:
        calling.cancel()
        await end.close()


class _Sender:
    """The sender's side: what the receiver says, and what our own process does."""

    def __init__(self, offer: Offer, model: LocalModel, link: PeerLink, identity: Identity) -> None:
        self._offer = offer
        self._link = link
        self._identity = identity
        self._job = TransferJob(
            identity_dir=str(identity.key_path.parent),
            peer_der=link.peer.certificate_der,
            files=offer.files,
            paths=tuple(str(path) for path in model.paths),
        )
        self._events: asyncio.Queue[News | BatonError | None] = asyncio.Queue()
        self._own: asyncio.Task[None] | None = None

    async def news(self) -> AsyncGenerator[News, None]:
        """What the receiver says, until it has the model. Raises what ended the copy."""
        listening = asyncio.create_task(self._listen(), name="copy")
        own_error: BatonError | None = None
        try:
            while True:
                wait_s = None if own_error is None else _OTHERS_REASON_S
                try:
                    async with asyncio.timeout(wait_s):
                        item = await self._events.get()
                except TimeoutError:
                    raise own_error or PeerLost("the copy broke") from None
                if isinstance(item, _OwnEnd):
                    own_error = item.error
                    if not isinstance(own_error, PeerError):
                        raise own_error
                    continue
                if isinstance(item, BatonError):
                    raise item
                if item is None:
                    raise own_error or ProtocolError("the other computer ended the copy before it was done")
                if item.port is not None:
                    if self._own is not None:
                        raise ProtocolError("the other computer asked for more than one connection")
                    self._own = asyncio.create_task(self._run_own(item.port), name="copy sender")
                yield item
                if item.model_id is not None:
                    return
        finally:
            tasks = [task for task in (listening, self._own) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self) -> None:
        self._events.put_nowait(_Cancelled(_CANCELLED))

    async def _listen(self) -> None:
        """Hand over what the receiver says; at the end how it ended."""
        try:
            stream = self._link.stream("models.take", self._offer, gives=News)
            async with contextlib.aclosing(stream) as parts:
                async for part in parts:
                    self._events.put_nowait(part)
            self._events.put_nowait(None)
        except PeerRefused as error:
            self._events.put_nowait(PeerRefused(f"{self._link.peer.name} says: {error}"))
        except BatonError as error:
            self._events.put_nowait(error)

    async def _run_own(self, port: int) -> None:
        """Send: call the receiver, and where it cannot be reached, be called."""
        there = str(Address(host=self._link.remote_host, port=port))
        here = str(Address(host=self._link.local_host, port=0))
        try:
            try:
                await self._run(msgspec.structs.replace(self._job, dial=there))
            except PeerUnreachable as error:
                log.info("%s: it is asked to call this one", error)
                await self._run(msgspec.structs.replace(self._job, listen=here))
        except BatonError as error:
            self._events.put_nowait(_OwnEnd(error))

    async def _run(self, job: TransferJob) -> None:
        end = _Process(job, self._identity)
        try:
            await end.start()
            while "done" not in (item := await end.next()):
                if "port" in item:
                    call = CallMe(copy_id=self._offer.copy_id, port=item["port"])
                    await self._link.call("models.call_me", call)
        finally:
            await end.close()


class _Cancelled(UserError):
    """Somebody wanted the copy to end."""


class _OwnEnd(BatonError):
    """Our own process ended with `error`."""

    def __init__(self, error: BatonError) -> None:
        super().__init__(str(error))
        self.error = error


class _Process:
    """One end's process of its own, so that the node's loop is free: `baton transfer`."""

    def __init__(self, job: TransferJob, identity: Identity) -> None:
        self._job = job
        self._identity = identity
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Raises ProcessFailed."""
        try:
            await to_its_end(self._start())
        except OSError as error:
            raise ProcessFailed(f"the process that copies could not be started: {error}") from error

    async def _start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *own_command(),
            "transfer",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=tls_environment() | self._identity.environment(),
        )
        if self._process.stdin is not None:
            with contextlib.suppress(ConnectionError):
                self._process.stdin.write(msgspec.json.encode(self._job) + b"\n")
                await self._process.stdin.drain()

    async def next(self) -> dict[str, Any]:
        """The next thing that it says. Raises the error that it tells of, or ProcessFailed when it has ended."""
        process = self._process
        if process is None or process.stdout is None:
            raise ProcessFailed("the process that copies was not started")
        line = await process.stdout.readline()
        if not line:
            status = await process.wait()
            raise ProcessFailed(f"the process that copies ended with status {status}: try again")
        said: dict[str, Any] = msgspec.json.decode(line)
        if "error" in said:
            raise _error(said)
        return said

    async def next_or(self, other: asyncio.Task[Any], timeout_s: float) -> dict[str, Any] | None:
        """As `next`, or None when `other` is done first. Raises PeerLost when neither comes in time."""
        mine = asyncio.create_task(self.next())
        try:
            await asyncio.wait((mine, other), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if other.done():
                return None
            if mine.done():
                return mine.result()
        finally:
            mine.cancel()
            await asyncio.gather(mine, return_exceptions=True)
        raise PeerLost(f"nothing came of the model for {timeout_s:.0f} s: send it again, what came is kept")

    async def close(self) -> None:
        """End it, if it has not ended by itself; it keeps what came."""
        if self._process is not None:
            await to_its_end(end_process(self._process))


def _error(said: dict[str, Any]) -> BatonError:
    """An error that a process told of, as the error that it was."""
    kind = getattr(errors, str(said.get("kind")), HostError)
    if isinstance(kind, type) and issubclass(kind, BatonError):
        with contextlib.suppress(TypeError):
            return kind(str(said["error"]))
    return HostError(str(said["error"]))
