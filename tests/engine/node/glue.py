"""Two nodes' ends of one link, joined over TLS on loopback as two computers would be."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.node.peering.offers import Offers
from engine.node.peering.peer_link import PeerLink
from engine.node.peering.peer_links import PeerLinks
from engine.node.peering.peer_messages import NODE_PROTOCOL_MAJOR, NODE_PROTOCOL_MINOR, NodeHello
from engine.node.trust.identity import Identity
from engine.node.trust.peers import Peer, PeerBook

# Far more than anything on loopback takes.
TIMEOUT_S = 20.0


def run(work: Coroutine[Any, Any, None]) -> None:
    """One test's work, with an end."""

    async def bounded() -> None:
        async with asyncio.timeout(2 * TIMEOUT_S):
            await work

    asyncio.run(bounded())


@dataclass(kw_only=True)
class End:
    """One node: who it is, whom it trusts, what it offers, and its links once they are started."""

    identity: Identity
    book: PeerBook
    offers: Offers
    links: PeerLinks
    port: int
    changed: asyncio.Event

    @property
    def link(self) -> PeerLink | None:
        """The link with the only peer."""
        return next(iter(self.links.all()), None)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something that `on_change` tells of is so."""
        async with asyncio.timeout(TIMEOUT_S):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()


def new_end(
    folder: Path,
    name: str,
    *,
    host: str = "127.0.0.1",
    addresses: Callable[[str], list[str]] = lambda node_id: [],
    on_link: Callable[[PeerLink], Coroutine[Any, Any, None]] | None = None,
    node_port: int = 0,
    instance: str = "",
    changed: asyncio.Event | None = None,
) -> End:
    """`changed` is set whenever something of its links changes; two ends may share one."""
    identity = Identity.load_or_create(folder / name)
    book = PeerBook(folder / f"{name}-peers.json")
    offers, changed = Offers(), changed or asyncio.Event()

    async def ignore(link: PeerLink) -> None:
        pass

    hello = NodeHello(
        protocol_major=NODE_PROTOCOL_MAJOR,
        protocol_minor=NODE_PROTOCOL_MINOR,
        baton="0.0.test",
        node_id=identity.node_id,
        instance=instance or identity.node_id,
        name=name,
    )
    links = PeerLinks(
        identity,
        book,
        hello,
        port=node_port,
        addresses=addresses,
        offers=offers,
        on_change=changed.set,
        on_link=on_link or ignore,
        host=host,
    )
    return End(identity=identity, book=book, offers=offers, links=links, port=0, changed=changed)


def peer_of(end: End, name: str, *addresses: str) -> Peer:
    return Peer(
        node_id=end.identity.node_id,
        name=name,
        certificate_der=end.identity.certificate_der,
        addresses=addresses,
    )


@contextlib.asynccontextmanager
async def two_ends(folder: Path) -> AsyncIterator[tuple[End, End]]:
    """Paired and connected: `left` has called `right`. Offer methods by `end.offers`, call by `end.link`."""
    left, right = new_end(folder, "left"), new_end(folder, "right")
    right.port = await right.links.start()
    left.port = await left.links.start()
    try:
        right.book.add(peer_of(left, "left"))
        right.links.look_again()
        left.book.add(peer_of(right, "right", f"127.0.0.1:{right.port}"))
        left.links.look_again()
        await left.until(lambda: left.link is not None)
        await right.until(lambda: right.link is not None)
        yield left, right
    finally:
        await left.links.close()
        await right.links.close()
