"""What every page is given: the node, the bridge to it, what the window remembers, and ways to speak to the user."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from app.bridge import Bridge
from app.node.client import NodeClient
from app.node.faults import NodeGone
from app.preferences import Preferences
from app.state import NodeState
from app.telemetry.feeds import Feeds
from app.telemetry.sides import sides_of
from app.words import translate

if TYPE_CHECKING:
    from app.widgets.feedback import Action


class Shell(Protocol):
    """The window around the pages."""

    def toast(self, text: str, action: Action | None = None) -> None: ...

    def go(self, page: str) -> None:
        """Show a page by its name: chat, cluster, telemetry, models, server, settings, or the wizard: setup."""

    def notify(self, title: str, text: str) -> None:
        """Tell of long work that is over, if the user has gone elsewhere meanwhile."""


@dataclass(kw_only=True)
class Context:
    """`data` is the folder for what belongs to the user, as chats; `command` are the words that start Baton."""

    bridge: Bridge
    client: NodeClient
    state: NodeState
    preferences: Preferences
    data: Path
    command: tuple[str, ...]
    shell: Shell = field(init=False)

    @cached_property
    def feeds(self) -> Feeds:
        """What the engines do; they are followed from the first time that a page asks."""
        return Feeds(self.bridge, self.client, self.state, sides=partial(sides_of, self))

    @property
    def computer(self) -> str:
        """This computer's name."""
        return str(self.state.part("node", {}).get("name") or translate("Cluster", "this computer"))

    @property
    def peer(self) -> dict[str, Any] | None:
        """The paired computer that is worked with, as `peers` tells of it; None without one.

        Of several, one that is there comes first, then one where a model has its worker, then one that was wished for.
        """
        peers: list[dict[str, Any]] = self.state.part("peers", [])
        joined = {each["prefill_node_id"] for each in self.state.part("joins", [])}
        wishes = self.state.part("roles", {}).get("wishes", {})
        wished = {node_id for node_id, wish in wishes.items() if wish["prefill"] == node_id}

        def rank(peer: dict[str, Any]) -> tuple[bool, bool, bool]:
            return not is_there(peer), peer["node_id"] not in joined, peer["node_id"] not in wished

        return min(peers, key=rank, default=None)

    @property
    def other_peers(self) -> list[dict[str, Any]]:
        """The paired computers beside `peer`."""
        peer = self.peer
        return [each for each in self.state.part("peers", []) if each is not peer]

    def tell(self, error: Exception) -> None:
        """Say what went wrong, shortly; for what needs no decision. A node that has gone is in the window's banner."""
        if not isinstance(error, NodeGone) or self.client.look():
            self.shell.toast(str(error))


def is_there(peer: dict[str, Any]) -> bool:
    """Whether an authenticated link to that computer is up just now."""
    return bool(peer.get("connected"))
