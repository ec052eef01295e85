"""Which computer its users want to prefill: kept on disk, told to every paired computer; what was said last holds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import InvalidRequest
from engine.files import write_whole
from engine.node.peer_link import Offers, PeerLink
from engine.node.roles import Wish, later

_METHOD = "roles.wish"
_MAX_FILE_BYTES = 65_536

# People change their minds; a count that is so far ahead would leave none for those who come after.
_MAX_AHEAD = 1 << 20


class Wishes:
    """The wish that holds; `on_change` is called when another one does."""

    def __init__(self, path: Path, node_id: str, *, on_change: Callable[[], None]) -> None:
        self._path = path
        self._node_id = node_id
        self._on_change = on_change
        self.current = self._read()

    def offer_methods(self, offers: Offers) -> None:
        offers.news[_METHOD] = self._hear

    def greet(self, link: PeerLink) -> None:
        """Tell a computer that has just come what is wished here."""
        link.tell(_METHOD, msgspec.to_builtins(self.current))

    def say(self, prefill: str, links: Iterable[PeerLink]) -> None:
        """From now on that node is to prefill, or "auto". Raises InvalidRequest for what is neither."""
        try:
            wish = msgspec.convert(
                {"prefill": prefill, "count": self.current.count + 1, "by": self._node_id}, Wish
            )
        except msgspec.ValidationError:
            raise InvalidRequest('prefill is "auto" or the id of a node', param="prefill") from None
        self._take(wish)
        for link in links:
            self.greet(link)

    def _hear(self, link: PeerLink, params: Any) -> None:
        with contextlib.suppress(msgspec.ValidationError):
            wish = msgspec.convert(params, Wish)
            if wish.count <= self.current.count + _MAX_AHEAD:
                self._take(wish)

    def _take(self, wish: Wish) -> None:
        if later(wish, self.current) == self.current:
            return
        self.current = wish
        # a wish that cannot be kept holds until the node ends
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, msgspec.json.encode(wish))
        self._on_change()

    def _read(self) -> Wish:
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(_MAX_FILE_BYTES), type=Wish)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return Wish()
