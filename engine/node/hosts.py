"""What each computer is, as people know it: device, system, memory, and which models are in that memory just now.

Every node tells its paired ones when they meet, and again when it has changed. It is shown and nothing more: roles
follow from reports, which say what was measured.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Collection, Iterable
from typing import Annotated, Any

import msgspec
import psutil
from msgspec import Meta

from engine.node.peering.offers import Method, Offers
from engine.node.peering.peer_link import PeerLink

_METHOD = "host.is"

# No system tells when programs take memory; a change of less than this share of it is no news.
_LOOK_EVERY_S = 10.0
_NEWS_SHARE = 0.01

_SYSTEMS = {"Darwin": "macOS"}

Bytes = Annotated[int, Meta(ge=0, le=1 << 60)]


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """One computer. `gpu_bytes` is the memory that its device lets programs have, 0 where that is the computer's own.

    What a newer version tells beside this is passed over.
    """

    device: Annotated[str, Meta(max_length=256)]
    system: Annotated[str, Meta(max_length=64)]
    memory_bytes: Bytes
    free_bytes: Bytes
    gpu_bytes: Bytes = 0
    loaded: Annotated[tuple[Annotated[str, Meta(max_length=1024)], ...], Meta(max_length=64)] = ()

    def is_news(self, known: Host | None) -> bool:
        """Whether whoever knows that much should hear of this."""
        if known is None or msgspec.structs.replace(self, free_bytes=known.free_bytes) != known:
            return True
        return abs(self.free_bytes - known.free_bytes) > _NEWS_SHARE * self.memory_bytes


class Hosts:
    """This computer and the paired ones; `on_change` is called when one of them has changed. On one event loop."""

    def __init__(
        self,
        node_id: str,
        *,
        read: Callable[[], Host],
        links: Callable[[], Iterable[PeerLink]],
        paired: Callable[[], Collection[str]],
        on_change: Callable[[], None],
    ) -> None:
        """`read` says what this computer is now; `paired` are the ids of those whom to remember while they are away."""
        self._node_id = node_id
        self._read = read
        self._links = links
        self._paired = paired
        self._on_change = on_change
        self._known: dict[str, Host] = {}
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.look_again()
        self._looking = asyncio.create_task(self._look_for_ever(), name="hosts")

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    def offer_methods(self, offers: Offers) -> None:
        offers.news[_METHOD] = Method(self._hear, Host)

    def greet(self, link: PeerLink) -> None:
        """A paired computer has come."""
        link.tell(_METHOD, self._read())

    def look_again(self) -> None:
        """What this computer is may have changed: models were loaded, or measured."""
        host = self._read()
        if host.is_news(self._known.get(self._node_id)):
            self._known[self._node_id] = host
            for link in self._links():
                link.tell(_METHOD, host)
            self._on_change()

    def snapshot(self) -> dict[str, Any]:
        """By node id; a paired computer that is away is as it was last."""
        shown = {self._node_id, *self._paired()}
        return {
            node_id: msgspec.to_builtins(host) for node_id, host in self._known.items() if node_id in shown
        }

    def _hear(self, link: PeerLink, host: Host) -> None:
        self._known[link.peer.node_id] = host
        self._on_change()

    async def _look_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self.look_again()


def read_host(*, device: str, gpu_bytes: int, loaded: Iterable[str]) -> Host:
    """This computer now."""
    memory = psutil.virtual_memory()
    system = platform.system()
    return Host(
        device=device[:256],
        system=_SYSTEMS.get(system, system),
        memory_bytes=memory.total,
        free_bytes=memory.available,
        gpu_bytes=gpu_bytes,
        loaded=tuple(sorted(loaded))[:64],
    )
