"""What of the node's state needs the user now, as a sentence and what can be done about it. Knows no Qt.

One at a time, the worst first; what mends itself in a moment is not said at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Remedy(Enum):
    """What the button under a trouble does."""

    LOAD_AGAIN = "load again"
    SEE_CLUSTER = "see cluster"
    RECONNECT = "reconnect"
    OPEN_SETUP = "open setup"


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """`subject` is a model or a computer, `node_id` the computer's; `detail` the cause in the node's words, which may
    be empty. `served` is for whom a worker prefills."""

    kind: str
    tone: str
    subject: str
    detail: str
    remedy: Remedy
    node_id: str = ""
    served: str = ""


def worst(state: Mapping[str, Any]) -> Trouble | None:
    """Of the parts of the node's `/state`; of its peers the one that is worked with comes first."""
    for engine in state.get("engines", []):
        if engine.get("state") == "failed":
            return Trouble(
                kind="engine failed",
                tone="danger",
                subject=engine["model"],
                detail=_reason(engine),
                remedy=Remedy.LOAD_AGAIN,
            )
    for kind, part in (("engine restarting", "engines"), ("worker restarting", "workers")):
        for process in state.get(part, []):
            # One end may be chance, and is over in a second.
            if process.get("state") in ("waiting", "starting") and process.get("starts", 0) > 1:
                return Trouble(
                    kind=kind,
                    tone="warning",
                    subject=process["model"],
                    detail=_reason(process),
                    remedy=Remedy.SEE_CLUSTER,
                    served=process.get("for", ""),
                )
    if (state.get("permission") or {}).get("state") == "denied":
        return Trouble(
            kind="permission denied",
            tone="warning",
            subject="",
            detail=state["permission"].get("sentence", ""),
            remedy=Remedy.OPEN_SETUP,
        )
    peers = state.get("peers", [])
    # Of several, one that is there is enough to prefill.
    if peers and state.get("engines") and not any(peer.get("connected") for peer in peers):
        peer = peers[0]
        return Trouble(
            kind="peer away",
            tone="warning",
            subject=peer["name"],
            detail=peer.get("note", ""),
            remedy=Remedy.RECONNECT,
            node_id=peer["node_id"],
        )
    return None


def _reason(engine: Mapping[str, Any]) -> str:
    exits = engine.get("last_exits") or []
    return str(exits[-1].get("reason", "")) if exits else ""
