"""Copies between two nodes that are really joined: either side may call, and either may end it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from engine.errors import BatonError, InvalidRequest, PeerError, PeerRefused, ProtocolError, UserError
from engine.gguf.digest import model_digest
from engine.handoff.transport import Address
from engine.node.models import copies
from engine.node.models.copies import CallMe, Copies, Copy, News, Offer
from engine.node.models.model_folder import Folder, ToldModel
from engine.node.models.shelf import Shelf
from engine.node.models.transfer import FileEntry
from engine.node.peering.offers import Method
from engine.node.peering.peer_link import PeerLink
from engine.node.trust.identity import Identity
from tests.engine.node.glue import End, two_ends
from tests.engine.node.models.models_at_hand import write_model

TIMEOUT_S = 60.0


@dataclass(kw_only=True)
class Node:
    """One computer: its end of the link, its models and its copies."""

    end: End
    shelf: Shelf
    copies: Copies
    changed: asyncio.Event

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()

    async def send(self, model_id: str) -> list[dict[str, Any]]:
        assert self.end.link is not None
        await self.shelf.refresh()
        return await self.to_its_end(self.copies.send(self.shelf.find(model_id), self.end.link))

    async def fetch(self, model_id: str, **changed: Any) -> list[dict[str, Any]]:
        """As the control API does, of what the other computer tells."""
        return await self.to_its_end(self.copies.fetch(await self.told(model_id, **changed), self.link))

    async def told(self, model_id: str, **changed: Any) -> ToldModel:
        models = await self.link.call("models.list", gives=list[ToldModel])
        (told,) = [model for model in models if model.id == model_id]
        return msgspec.structs.replace(told, **changed)

    @property
    def link(self) -> PeerLink:
        assert self.end.link is not None
        return self.end.link

    def be_a_stranger(self, folder: Path) -> None:
        """To the other computer's copies, though not to its links."""
        self.copies._identity = Identity.load_or_create(folder / "nobody")

    async def to_its_end(self, copy: Copy) -> list[dict[str, Any]]:
        async with contextlib.aclosing(self.copies.follow(copy)) as steps:
            return [each.snapshot() async for each in steps]


def new_node(end: End, folder: Path) -> Node:
    changed = asyncio.Event()
    (folder / "models").mkdir(parents=True)
    shelf = Shelf(Folder(folder / "models", folder / "digests"), on_change=changed.set, in_use=dict)
    node = Node(
        end=end,
        shelf=shelf,
        copies=Copies(shelf, end.identity, on_change=changed.set),
        changed=changed,
    )
    node.copies.offer_methods(end.offers)
    shelf.offer_methods(end.offers)
    return node


@contextlib.asynccontextmanager
async def two_nodes(folder: Path) -> AsyncIterator[tuple[Node, Node]]:
    async with two_ends(folder) as (left, right):
        here, there = new_node(left, folder / "here"), new_node(right, folder / "there")
        try:
            yield here, there
        finally:
            await here.copies.close()
            await there.copies.close()


def run(folder: Path, work: Callable[[Node, Node], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with asyncio.timeout(TIMEOUT_S), two_nodes(folder) as (here, there):
            await work(here, there)

    asyncio.run(inside())


def test_a_model_is_copied_whole_and_known_there_by_its_digest(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        source = write_model(here.shelf.folder.path / "mine.gguf", n_bytes=5 << 20)
        steps = await here.send("mine")
        assert steps[-1]["state"] == "done" and steps[-1]["done_bytes"] == source.stat().st_size
        assert (there.shelf.folder.path / "mine.gguf").read_bytes() == source.read_bytes()
        assert there.shelf.find("mine").digest == here.shelf.find("mine").digest
        (arrived,) = there.copies.snapshot()
        assert (arrived["direction"], arrived["state"], arrived["model"]) == ("in", "done", "mine")
        assert arrived["done_bytes"] == arrived["total_bytes"] == source.stat().st_size

    run(tmp_path, work)


def test_the_receiver_calls_where_it_cannot_be_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = copies._Sender._run
    n_tries = iter(range(10))

    async def run_own(self: Any, job: Any) -> None:
        if job.dial is not None:
            next(n_tries)
            # nobody is there: what a firewall that answers makes of a call
            job = msgspec.structs.replace(job, dial=str(Address(host="127.0.0.1", port=1)))
        await real(self, job)

    monkeypatch.setattr(copies._Sender, "_run", run_own)

    async def work(here: Node, there: Node) -> None:
        source = write_model(here.shelf.folder.path / "mine.gguf")
        assert (await here.send("mine"))[-1]["state"] == "done"
        assert (there.shelf.folder.path / "mine.gguf").read_bytes() == source.read_bytes()
        assert next(n_tries) == 1

    run(tmp_path, work)


def test_a_model_that_is_there_under_another_name_is_not_copied(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        source = write_model(here.shelf.folder.path / "mine.gguf")
        (there.shelf.folder.path / "theirs.gguf").write_bytes(source.read_bytes())
        assert (await here.send("mine"))[-1]["state"] == "done"
        assert [path.name for path in there.shelf.folder.path.iterdir()] == ["theirs.gguf"]
        assert there.copies.snapshot()[0]["model"] == "theirs"

    run(tmp_path, work)


def test_another_model_of_the_same_name_stays_and_the_new_one_gets_a_name_with_its_digest(
    tmp_path: Path,
) -> None:
    async def work(here: Node, there: Node) -> None:
        source = write_model(here.shelf.folder.path / "mine.gguf")
        other = write_model(there.shelf.folder.path / "mine.gguf", name="Another")
        content = other.read_bytes()
        await here.send("mine")
        digest = model_digest([source], cache_dir=tmp_path / "digests")
        assert other.read_bytes() == content
        assert (there.shelf.folder.path / f"mine-{digest[:8]}.gguf").read_bytes() == source.read_bytes()

    run(tmp_path, work)


@pytest.fixture
def nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender's process is a stranger to the receiver, and neither gives up: a copy that never ends by itself."""
    monkeypatch.setattr(copies, "_OTHERS_REASON_S", 1000.0)


@pytest.mark.usefixtures("nothing_is_sent")
@pytest.mark.parametrize("side", ["sender", "receiver"])
def test_either_side_can_cancel_and_both_say_so(tmp_path: Path, side: str) -> None:
    async def work(here: Node, there: Node) -> None:
        write_model(here.shelf.folder.path / "mine.gguf", n_bytes=1 << 20)
        here.be_a_stranger(tmp_path)
        sending = asyncio.create_task(here.send("mine"))
        await there.until(lambda: any(c["direction"] == "in" for c in there.copies.snapshot()))
        await there.until(lambda: bool(there.copies._call_backs))
        node = here if side == "sender" else there
        (copy,) = node.copies.snapshot()
        node.copies.cancel(copy["id"])
        with pytest.raises((UserError, PeerRefused), match="cancelled"):
            await sending
        await there.until(lambda: there.copies.snapshot()[0]["state"] == "cancelled")
        assert here.copies.snapshot()[0]["state"] == ("cancelled" if side == "sender" else "failed")
        assert not (there.shelf.folder.path / "mine.gguf").exists()
        with pytest.raises(InvalidRequest, match="no copy"):
            node.copies.cancel(copy["id"])

    run(tmp_path, work)


@pytest.mark.usefixtures("nothing_is_sent")
def test_a_lost_link_ends_the_copy_on_both_computers(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        write_model(here.shelf.folder.path / "mine.gguf", n_bytes=1 << 20)
        here.be_a_stranger(tmp_path)
        sending = asyncio.create_task(here.send("mine"))
        await there.until(lambda: bool(there.copies._call_backs))
        there.end.book.remove(here.end.identity.node_id)
        there.end.links.look_again()
        with pytest.raises(PeerError):
            await sending
        await there.until(lambda: there.copies.snapshot()[0]["state"] == "cancelled")
        assert here.copies.snapshot()[0]["state"] == "failed"

    run(tmp_path, work)


def test_the_receivers_reason_reaches_the_sender(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        write_model(here.shelf.folder.path / "mine.gguf")
        os.rmdir(there.shelf.folder.path)
        there.shelf.folder.path.write_bytes(b"in the way")
        with pytest.raises(PeerRefused, match="models"):
            await here.send("mine")
        assert here.copies.snapshot()[0]["problem"]

    run(tmp_path, work)


def test_a_model_that_cannot_be_run_is_not_sent(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        (here.shelf.folder.path / "broken.gguf").write_bytes(b"GGUF")
        with pytest.raises(UserError, match="cannot be sent"):
            await here.send("broken")

    run(tmp_path, work)


ENTRY = {"size_bytes": 10, "sha256": "0" * 64}


@pytest.mark.parametrize(
    "names",
    [
        ["../x.gguf"],
        ["/etc/x.gguf"],
        ["a\\b.gguf"],
        ["C:x.gguf"],
        [".hidden.gguf"],
        ["x.gguf\n"],
        ["x.exe"],
        ["x.gguf", "y.gguf"],
        ["m-00002-of-00002.gguf", "m-00001-of-00002.gguf"],
        ["m-00001-of-00002.gguf"],
        ["m-00003-of-00002.gguf"],
    ],
    ids=str,
)
def test_files_with_names_that_lead_elsewhere_are_refused(tmp_path: Path, names: list[str]) -> None:
    async def work(here: Node, there: Node) -> None:
        assert here.end.link is not None
        files = [{**ENTRY, "name": name} for name in names]
        with pytest.raises(PeerRefused):
            async for _ in here.end.link.stream("models.take", {"copy_id": "0" * 16, "files": files}):
                pass
        assert list(there.shelf.folder.path.iterdir()) == [] and there.copies.snapshot() == []

    run(tmp_path, work)


def test_nobody_can_make_this_computer_call_for_a_copy_that_is_not(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        assert here.end.link is not None
        with pytest.raises(PeerRefused, match="no such copy"):
            await here.end.link.call("models.call_me", msgspec.to_builtins(CallMe(copy_id="0" * 16, port=80)))

    run(tmp_path, work)


def test_a_receiver_is_called_once(tmp_path: Path) -> None:
    """Each call is a process here."""

    async def two_ports(link: PeerLink, params: Any) -> AsyncIterator[Any]:
        yield {"port": 1}
        yield {"port": 2}

    async def work(here: Node, there: Node) -> None:
        write_model(here.shelf.folder.path / "mine.gguf")
        there.end.offers.streams["models.take"] = Method(two_ports)
        with pytest.raises(ProtocolError, match="more than one"):
            await here.send("mine")

    run(tmp_path, work)


def test_what_is_said_of_a_copy_is_checked() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"copy_id": "0" * 16, "files": []}, Offer)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"port": 0}, News)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"name": "x.gguf", "size_bytes": 1 << 60, "sha256": "0" * 64}, FileEntry)


class Reading:
    """A shelf that computes a digest until it may go on."""

    def __init__(self) -> None:
        self.began, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def digests(self, model: Any) -> tuple[str, ...]:
        self.began.set()
        await self.may_go_on.wait()
        return ("ab" * 32,)


async def reading(folder: Path) -> tuple[Copies, Copy, Reading]:
    """A copy whose model is being read for its digest."""
    write_model(folder / "mine.gguf")
    (model,) = Folder(folder, folder / "digests").models()
    shelf = Reading()
    here = Copies(shelf, None, on_change=lambda: None)  # type: ignore[arg-type]
    link = SimpleNamespace(peer=SimpleNamespace(name="studio", node_id="b" * 32))
    copy = here.send(model, link)  # type: ignore[arg-type]
    await shelf.began.wait()
    return here, copy, shelf


def test_a_copy_may_be_cancelled_before_it_has_begun_to_send(tmp_path: Path) -> None:
    """Reading a large model for its digest takes a while."""

    async def story() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            here, copy, shelf = await reading(tmp_path)
            here.cancel(copy.copy_id)
            shelf.may_go_on.set()
            with pytest.raises(UserError, match="was cancelled"):
                async for _ in here.follow(copy):
                    pass
        assert here.snapshot()[0]["state"] == "cancelled"

    asyncio.run(story())


@pytest.mark.usefixtures("nothing_is_sent")
def test_a_copy_goes_on_when_nobody_follows_it_and_is_begun_once(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        write_model(here.shelf.folder.path / "mine.gguf")
        await here.shelf.refresh()
        identity = here.copies._identity
        here.be_a_stranger(tmp_path)
        copy = here.copies.send(here.shelf.find("mine"), here.link)
        async with contextlib.aclosing(here.copies.follow(copy)) as followed:
            await anext(followed)
        await there.until(lambda: bool(there.copies._call_backs))
        assert here.copies.send(here.shelf.find("mine"), here.link) is copy and copy.is_running
        here.copies.cancel(copy.copy_id)
        await there.until(lambda: there.copies.snapshot()[0]["state"] == "cancelled")
        here.copies._identity = identity
        assert (await here.send("mine"))[-1]["state"] == "done"
        assert [each["state"] for each in here.copies.snapshot()] == ["done"]

    run(tmp_path, work)


def test_a_model_of_the_other_computer_is_copied_here(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        source = write_model(there.shelf.folder.path / "theirs.gguf", n_bytes=5 << 20)
        steps = await here.fetch("theirs")
        assert (here.shelf.folder.path / "theirs.gguf").read_bytes() == source.read_bytes()
        last = steps[-1]
        assert (last["direction"], last["state"], last["source"]) == ("in", "done", "theirs")
        assert (last["begun_here"], last["peer_id"]) == (True, there.end.identity.node_id)
        assert last["done_bytes"] == last["total_bytes"] == source.stat().st_size
        (given,) = there.copies.snapshot()
        assert (given["direction"], given["state"], given["begun_here"]) == ("out", "done", False)

    run(tmp_path, work)


def test_a_computer_gives_only_models_that_it_has_told_of(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        write_model(there.shelf.folder.path / "theirs.gguf")
        secret = write_model(tmp_path / "secret.gguf")
        for name in ("secret", str(secret), "../secret.gguf", "theirs.gguf/../../secret.gguf"):
            with pytest.raises(PeerRefused, match="no such model"):
                await here.fetch("theirs", id=name)
        assert not list(here.shelf.folder.path.glob("*.gguf")) and there.copies.snapshot() == []

    run(tmp_path, work)


def test_another_model_than_was_asked_for_is_not_taken(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        write_model(there.shelf.folder.path / "theirs.gguf")
        with pytest.raises(PeerRefused, match="another model"):
            await here.fetch("theirs", digest="0" * 64)
        assert not list(here.shelf.folder.path.glob("*.gguf"))

    run(tmp_path, work)


def test_nobody_else_may_send_what_a_computer_was_asked_for(tmp_path: Path) -> None:
    """The copy's id is known to the one that was asked; it counts once, and from that one alone."""

    async def wait_for_ever(link: PeerLink, params: Any) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield

    async def work(here: Node, there: Node) -> None:
        write_model(there.shelf.folder.path / "theirs.gguf")
        there.end.offers.streams["models.give"] = Method(wait_for_ever)
        copy = here.copies.fetch(await here.told("theirs"), here.link)
        copy.peer = msgspec.structs.replace(copy.peer, node_id="c" * 32)
        offer = {"copy_id": copy.copy_id, "files": [{**ENTRY, "name": "theirs.gguf"}]}
        with pytest.raises(PeerRefused, match="offered before"):
            async for _ in there.link.stream("models.take", offer):
                pass
        here.copies.cancel(copy.copy_id)
        await here.until(lambda: not copy.is_running)

    run(tmp_path, work)


@pytest.mark.usefixtures("nothing_is_sent")
@pytest.mark.parametrize("side", ["receiver", "sender"])
def test_either_side_can_cancel_what_was_asked_for(tmp_path: Path, side: str) -> None:
    async def work(here: Node, there: Node) -> None:
        write_model(there.shelf.folder.path / "theirs.gguf", n_bytes=1 << 20)
        there.be_a_stranger(tmp_path)
        fetching = asyncio.create_task(here.fetch("theirs"))
        await here.until(lambda: bool(here.copies._call_backs))
        node = here if side == "receiver" else there
        node.copies.cancel(node.copies.snapshot()[0]["id"])
        with pytest.raises((UserError, PeerRefused), match="cancelled"):
            await fetching
        await there.until(lambda: there.copies.snapshot()[0]["state"] != "running")
        assert here.copies.snapshot()[0]["state"] == ("cancelled" if side == "receiver" else "failed")
        assert not here.copies._call_backs and not (here.shelf.folder.path / "theirs.gguf").exists()

    run(tmp_path, work)


def test_why_this_computer_cannot_take_what_it_asked_for_is_said_in_its_own_words(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        write_model(there.shelf.folder.path / "theirs.gguf")
        os.rmdir(here.shelf.folder.path)
        here.shelf.folder.path.write_bytes(b"in the way")
        with pytest.raises(BatonError) as told:
            await here.fetch("theirs")
        assert "says" not in str(told.value) and here.copies.snapshot()[0]["state"] == "failed"

    run(tmp_path, work)


def test_a_copy_whose_model_is_still_read_keeps_no_node_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "_GRACE_S", 0.01)

    async def story() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            here, copy, _ = await reading(tmp_path)
            await here.close()
        assert copy.state == "cancelled" and copy.task is not None and copy.task.done()

    asyncio.run(story())
