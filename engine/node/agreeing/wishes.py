"""Which computer of a pair its users want to prefill: kept on disk, told to the other one; what was said last holds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import InvalidRequest
from engine.files import write_whole
from engine.node.agreeing.roles import Wish, later
from engine.node.peering.offers import Method, Offers
from engine.node.peering.peer_link import PeerLink

_METHOD = "roles.wish"
_MAX_FILE_BYTES = 65_536

# People change their minds; a count that is so far ahead would leave none for those who come after.
_MAX_AHEAD = 1 << 20


class Wishes:
    """The wish that holds for each pair that this computer is in; `on_change` is called when another one does.

    `paired` gives the ids of the other computers.
    """

    def __init__(
        self,
        path: Path,
        node_id: str,
        *,
        paired: Callable[[], Iterable[str]],
        on_change: Callable[[], None],
    ) -> None:
        self._path = path
        self._node_id = node_id
        self._paired = paired
        self._on_change = on_change
        self._wishes = self._read()

    def offer_methods(self, offers: Offers) -> None:
        offers.news[_METHOD] = Method(self._hear, Wish)

    def with_peer(self, node_id: str) -> Wish:
        return self._wishes.get(node_id, Wish())

    def snapshot(self) -> dict[str, Any]:
        """By the other computer's id."""
        return {peer: msgspec.to_builtins(self.with_peer(peer)) for peer in self._paired()}

    def greet(self, link: PeerLink) -> None:
        """Tell a computer that has just come what is wished here."""
        link.tell(_METHOD, self.with_peer(link.peer.node_id))

    def say(self, prefill: str, links: Iterable[PeerLink]) -> None:
        """From now on that computer of the pair is to prefill, or "auto". Raises InvalidRequest for what is neither.

        This computer's own id and "auto" are said for every pair.
        """
        concerned = [peer for peer in self._paired() if self._may_say(prefill, peer)]
        if not concerned:
            raise InvalidRequest(
                'prefill is "auto", or the id of this or of a paired computer', param="prefill"
            )
        for peer in concerned:
            count = self.with_peer(peer).count + 1
            self._take(peer, Wish(prefill=prefill, count=count, by=self._node_id))
        for link in links:
            if link.peer.node_id in concerned:
                self.greet(link)

    def forget_unpaired(self) -> None:
        """Who is paired anew begins anew."""
        paired = set(self._paired())
        if self._wishes.keys() - paired:
            self._wishes = {peer: wish for peer, wish in self._wishes.items() if peer in paired}
            self._keep()

    def _may_say(self, prefill: str, peer: str) -> bool:
        return prefill in ("auto", self._node_id, peer)

    def _hear(self, link: PeerLink, wish: Wish) -> None:
        peer = link.peer.node_id
        if self._may_say(wish.prefill, peer) and wish.count <= self.with_peer(peer).count + _MAX_AHEAD:
            self._take(peer, wish)

    def _take(self, peer: str, wish: Wish) -> None:
        if later(wish, self.with_peer(peer)) == self.with_peer(peer):
            return
        self._wishes[peer] = wish
        self._keep()
        self._on_change()

    def _keep(self) -> None:
        # a wish that cannot be kept holds until the node ends
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, msgspec.json.encode(self._wishes))

    def _read(self) -> dict[str, Wish]:
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(_MAX_FILE_BYTES), type=dict[str, Wish])
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return {}
