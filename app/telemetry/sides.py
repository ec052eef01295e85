"""Which computer prefills for a model and which decodes, with their names and hues; and what the cable carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.words import translate

if TYPE_CHECKING:
    from app.context import Context


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Teal is this computer and violet the other one, whoever of the two prefills."""

    worker: str
    decoder: str
    worker_hue: str = "peer"
    decoder_hue: str = "local"


UNKNOWN = Sides(worker="the other computer", decoder="this computer")


def sides_of(context: Context, model: str) -> Sides:
    """As they are now; a request keeps those that it began with."""
    for worker in context.state.part("workers", []):
        if worker["model"] == model:
            return Sides(
                worker=context.computer, decoder=worker["for"], worker_hue="local", decoder_hue="peer"
            )
    peer = context.peer
    joined = [join["prefill"] for join in context.state.part("joins", []) if join["model"] == model]
    name = joined[0] if joined else peer["name"] if peer else translate("Cluster", "the other computer")
    return Sides(worker=name, decoder=context.computer)


def ceiling_of(context: Context) -> float | None:
    """What the cable was measured to carry in the worse direction, in bytes a second; None where it was not."""
    peer = context.peer
    if peer is None:
        return None
    ceiling = (context.state.part("link", {}).get("ceilings") or {}).get(peer["node_id"])
    if not ceiling:
        return None
    gbps = min(ceiling["send_gbps"], ceiling["receive_gbps"])
    return gbps * 1e9 / 8 if gbps > 0 else None
