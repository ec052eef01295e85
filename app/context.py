"""What every page is given: the node, the bridge to it, what the window remembers, and ways to speak to the user."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from app.bridge import Bridge
from app.node.client import NodeClient
from app.preferences import Preferences
from app.state import NodeState

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

    @property
    def computer(self) -> str:
        """This computer's name."""
        return str(self.state.part("node", {}).get("name") or "this computer")

    @property
    def peer(self) -> dict[str, Any] | None:
        """The paired computer as `peers` tells of it, one that is there before one that is away; None without one."""
        peers: list[dict[str, Any]] = self.state.part("peers", [])
        return min(peers, key=lambda peer: not is_there(peer), default=None)

    def tell(self, error: Exception) -> None:
        """Say what went wrong, shortly; for what needs no decision."""
        self.shell.toast(str(error))


def is_there(peer: dict[str, Any]) -> bool:
    """Whether an authenticated link to that computer is up just now."""
    return bool(peer.get("connected"))
