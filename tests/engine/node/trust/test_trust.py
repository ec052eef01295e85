"""Who was unpaired, was never paired, or plays somebody else gets nowhere, at any port that computers call."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.errors import PeerLost
from engine.node.peering.peer_links import PeerLinks
from engine.node.peering.peer_messages import NODE_PROTOCOL
from engine.node.trust.identity import MUTUAL_NAME, Identity, introduction_context, peers_context
from engine.node.trust.pairing_port import PairingPort
from engine.node.trust.peers import Peer
from tests.engine.node.glue import End, new_end, peer_of, run, two_ends


def without_certificate() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([NODE_PROTOCOL])
    return context


async def heard(port: int, context: ssl.SSLContext | None, said: bytes = b"") -> bytes:
    """What a node says to a caller; nothing where it hangs up."""
    name = MUTUAL_NAME if context is not None else None
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    except OSError:
        return b""
    try:
        writer.write(said)
        return await reader.read(100)
    except OSError:
        return b""
    finally:
        writer.close()


def pairing_port(end: End, name: str) -> PairingPort:
    return PairingPort(
        end.identity,
        end.book,
        name=name,
        baton="1.0",
        node_port=lambda: end.port,
        found=list,
        on_change=end.changed.set,
        host="127.0.0.1",
        port=0,
    )


def connect_book(end: End) -> None:
    """As the node does."""
    end.offers.news.update(end.book.news())
    end.book.on_change(end.links.look_again)


@contextlib.asynccontextmanager
async def closing(*parts: PairingPort | PeerLinks) -> Any:
    try:
        yield
    finally:
        for part in parts:
            await part.close()


def test_from_the_code_to_a_live_link(tmp_path: Path) -> None:
    """The whole way: strangers, a code, a link in both directions, within the three seconds that are promised."""

    async def work() -> None:
        left, right = new_end(tmp_path, "left"), new_end(tmp_path, "right")
        shows, types = pairing_port(left, "left"), pairing_port(right, "right")
        async with closing(shows, types, left.links, right.links):
            for end in (left, right):
                connect_book(end)
                end.port = await end.links.start()
            offer = await shows.offer()
            since_s = time.monotonic()
            await types.join(f"127.0.0.1:{offer.port}", offer.code)
            await left.until(lambda: left.link is not None)
            await right.until(lambda: right.link is not None)
            assert time.monotonic() - since_s < 3
            assert left.link and left.link.peer.name == "right"
            assert right.link and right.link.peer.name == "left"

    run(work())


@pytest.mark.parametrize("is_dialler", [True, False])
def test_unpairing_cuts_both_ends_at_once(tmp_path: Path, is_dialler: bool) -> None:
    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            for end in (left, right):
                connect_book(end)
            here, there = (left, right) if is_dialler else (right, left)
            link, node_id = here.link, there.identity.node_id
            assert link is not None
            assert here.book.unpair(node_id, link)
            assert here.book.all() == () and here.links.get(node_id) is None
            with pytest.raises(PeerLost):
                await link.call("anything")
            await there.until(lambda: there.book.all() == ())
            await there.until(lambda: there.link is None)

    run(work())


def test_a_revoked_peer_that_does_not_listen_is_cut_all_the_same(tmp_path: Path) -> None:
    """It keeps its pairing and its key, holds on to the link, and calls again: nothing is answered."""

    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            right.book.on_change(right.links.look_again)
            link = left.link
            assert link is not None
            right.book.unpair(left.identity.node_id, right.link)
            with pytest.raises(PeerLost):
                while True:
                    await link.call("models.list")
            assert left.book.all() != ()

            await left.until(lambda: left.link is None)
            context = peers_context(
                left.identity, left.book.all(), server_side=False, protocols=(NODE_PROTOCOL,)
            )
            assert await heard(right.port, context) == b""
            assert right.links.all() == []

    run(work())


def test_a_stranger_hears_nothing_from_a_node(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_ends(tmp_path) as (_, right):
            stranger = Identity.load_or_create(tmp_path / "stranger")
            known = [peer_of(right, "right")]
            contexts = [
                without_certificate(),
                introduction_context(stranger, server_side=False),
                peers_context(stranger, known, server_side=False, protocols=(NODE_PROTOCOL,)),
                None,
            ]
            for context in contexts:
                assert await heard(right.port, context, b"BN" + b"\0" * 200) == b""
            assert right.link is not None and right.link.is_open

    run(work())


def test_one_paired_computer_cannot_play_another(tmp_path: Path) -> None:
    """A third one is paired too, and says hello with the id of the first."""

    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            third = new_end(tmp_path, "third")
            right.book.add(peer_of(third, "third"))
            right.links.look_again()
            third.links._hello = msgspec.structs.replace(third.links._hello, node_id=left.identity.node_id)
            async with closing(third.links):
                third.book.add(peer_of(right, "right", f"127.0.0.1:{right.port}"))
                await third.links.start()
                await third.until(
                    lambda: third.link is None and "not been found" not in third.links.snapshot()[0]["note"]
                )
                assert right.links.get(third.identity.node_id) is None
                assert right.links.get(left.identity.node_id) is right.link is not None

    run(work())


def test_a_changed_key_is_explained_where_it_is_called(tmp_path: Path) -> None:
    async def work() -> None:
        caller, impostor = new_end(tmp_path, "caller"), new_end(tmp_path, "impostor")
        before = Identity.load_or_create(tmp_path / "before")
        async with closing(caller.links, impostor.links):
            impostor.book.add(peer_of(caller, "caller"))
            impostor.port = await impostor.links.start()
            caller.book.add(
                Peer(
                    node_id=before.node_id,
                    name="studio",
                    certificate_der=before.certificate_der,
                    addresses=(f"127.0.0.1:{impostor.port}",),
                )
            )
            await caller.links.start()
            await caller.until(lambda: "another key" in caller.links.snapshot()[0]["note"])
            assert caller.link is None

    run(work())
