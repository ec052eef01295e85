"""Who prefills and who decodes: from what was measured on both computers, what fits where, and what their users want.

Pure: both computers come to the same answer from the same two reports. Nothing is guessed from names or brands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from engine.node.agreeing.measure import Measurement
from engine.node.peering.peer_messages import NodeId

# What the ways are compared by.
PROMPT_TOKENS = 4000
ANSWER_TOKENS = 300

# What has to cross the link after a prompt's last chunk is computed.
_CHUNK_TOKENS = 512

# Of a computer's memory, what a model may take: the rest is its user's.
_USABLE_SHARE = 0.8

# Ways that differ by less than measurements do from one time to the next are alike.
_ALIKE = 0.1

Bytes = Annotated[int, Meta(ge=0, le=1 << 60)]


class Report(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one computer says of itself and of one model.

    `needed_bytes` and `kv_bytes_per_token` are the model's, 0 where it is not there; `link_bytes_per_s` is what this
    computer has measured of the link to the other one.
    """

    node_id: NodeId
    name: Annotated[str, Meta(max_length=256)]
    memory_bytes: Bytes
    has_model: bool = False
    needed_bytes: Bytes = 0
    kv_bytes_per_token: Bytes = 0
    measurement: Measurement | None = None
    link_bytes_per_s: Annotated[float, Meta(gt=0, le=1e15)] | None = None

    @property
    def usable_bytes(self) -> float:
        """Memory that a model may take where it is computed."""
        device = self.measurement.device_bytes if self.measurement is not None else 0
        return _USABLE_SHARE * (device or self.memory_bytes)


class Wish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the users want: the node id of who is to prefill, or "auto". Of two the one with the higher count holds.

    `by` is the node where it was said: it tells two apart that were said at the same time.
    """

    prefill: Annotated[str, Meta(pattern=r"^(auto|[0-9a-f]{32})\Z")] = "auto"
    count: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    by: Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?\Z")] = ""


def later(one: Wish, other: Wish) -> Wish:
    return max(one, other, key=lambda wish: (wish.count, wish.by))


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to answer: who prefills, who decodes, and in how many seconds; None where that is not known."""

    prefill: str
    decode: str
    first_token_s: float | None
    total_s: float | None
    obstacle: str = ""


@dataclass(frozen=True, kw_only=True)
class Roles:
    """What was agreed. `prefill` is None where one computer does all; `reason` is a sentence for the users."""

    prefill: str | None
    decode: str
    reason: str
    ways: tuple[Way, ...]
    is_wish: bool = False

    def snapshot(self) -> dict[str, Any]:
        return {
            "prefill": self.prefill,
            "decode": self.decode,
            "reason": self.reason,
            "is_wish": self.is_wish,
            "prompt_tokens": PROMPT_TOKENS,
            "answer_tokens": ANSWER_TOKENS,
            "ways": [
                {
                    "prefill": way.prefill,
                    "decode": way.decode,
                    "first_token_s": way.first_token_s,
                    "total_s": way.total_s,
                    "obstacle": way.obstacle,
                }
                for way in self.ways
            ],
        }


def agree(one: Report, other: Report, wish: Wish) -> Roles:
    """The roles of both; the order of the two reports does not matter.

    Who decodes is whose answers are soonest, whether the other prefills for it or not: short prompts, and all of them
    while the other is away, are answered there alone.
    """
    first, second = sorted((one, other), key=lambda report: report.node_id)
    ways = _ways(first, second)
    wished = _wished(wish, first, second, ways)
    if wished is not None and not wished.obstacle:
        names = {report.node_id: report.name for report in (first, second)}
        reason = f"{names[wished.prefill]} prefills and {names[wished.decode]} decodes, as was chosen"
        return Roles(prefill=wished.prefill, decode=wished.decode, reason=reason, ways=ways, is_wish=True)
    roles = _chosen(first, second, ways)
    if wished is None:
        return roles
    return replace(roles, reason=f"{roles.reason}; another wish cannot be met: {wished.obstacle}")


def _wished(wish: Wish, first: Report, second: Report, ways: tuple[Way, ...]) -> Way | None:
    """The way that the users want, where these two computers are meant."""
    for prefill, decode in ((first, second), (second, first)):
        if prefill.node_id == wish.prefill:
            return next(way for way in ways if (way.prefill, way.decode) == (prefill.node_id, decode.node_id))
    return None


def _chosen(first: Report, second: Report, ways: tuple[Way, ...]) -> Roles:
    names = {report.node_id: report.name for report in (first, second)}
    # Where the model fits neither, one of them has to try all the same.
    possible = [way for way in ways if not way.obstacle] or [way for way in ways if way.prefill == way.decode]
    best = {
        decode: min((way for way in possible if way.decode == decode), key=_seconds)
        for decode in sorted({way.decode for way in possible})
    }
    if len(best) == 1:
        (decode,) = best
        why = next(way.obstacle for way in ways if way.decode != decode)
    elif any(way.total_s is None for way in best.values()):
        decode = min(best)
        why = "which of the two answers sooner with this model is not measured yet"
    else:
        decode, why = _faster(best, names)
    helper = next((way.prefill for way in possible if way.decode == decode != way.prefill), None)
    if helper is not None and best[decode].prefill == decode and best[decode].total_s is not None:
        why += f"; {names[helper]} prefills only the prompts that it is sooner with"
    return Roles(prefill=helper, decode=decode, reason=f"{names[decode]} decodes: {why}", ways=ways)


def _seconds(way: Way) -> float:
    return way.total_s if way.total_s is not None else math.inf


def _faster(best: dict[str, Way], names: dict[str, str]) -> tuple[str, str]:
    """Who decodes, of two of whom both are measured, and why."""
    one, other = sorted(best)
    decode = one if _seconds(best[one]) <= (1 + _ALIKE) * _seconds(best[other]) else other
    way, loser = best[decode], best[other if decode == one else one]
    how = "alone" if way.prefill == decode else f"with {names[way.prefill]} prefilling"
    what = f"{PROMPT_TOKENS:,} tokens with an answer of {ANSWER_TOKENS}"
    return decode, (
        f"{what} take {way.total_s:.1f} s {how}, and {loser.total_s:.1f} s at best where {names[loser.decode]} decodes"
    )


def _ways(first: Report, second: Report) -> tuple[Way, ...]:
    """Both alone, and both splits; the first of each pair is the first of the reports."""
    links = [report.link_bytes_per_s for report in (first, second) if report.link_bytes_per_s is not None]
    link = min(links) if links else None
    pairs = ((first, first), (second, second), (first, second), (second, first))
    return tuple(_way(prefill, decode, link) for prefill, decode in pairs)


def _way(prefill: Report, decode: Report, link_bytes_per_s: float | None) -> Way:
    obstacle = next(filter(None, (_obstacle(report, prefill, decode) for report in (prefill, decode))), "")
    first_token_s: float | None = None
    total_s: float | None = None
    if prefill.measurement is not None and decode.measurement is not None:
        first_token_s = PROMPT_TOKENS / prefill.measurement.prefill_tokens_per_s
        if prefill is not decode and link_bytes_per_s is not None:
            row_s = max(prefill.kv_bytes_per_token, decode.kv_bytes_per_token) / link_bytes_per_s
            # it crosses the link while it is computed, but for the last chunk
            first_token_s = (
                max(first_token_s, (PROMPT_TOKENS - _CHUNK_TOKENS) * row_s) + _CHUNK_TOKENS * row_s
            )
        per_token_s = 1 / decode.measurement.decode_tokens_per_s
        first_token_s += per_token_s
        total_s = first_token_s + (ANSWER_TOKENS - 1) * per_token_s
    return Way(
        prefill=prefill.node_id,
        decode=decode.node_id,
        first_token_s=first_token_s,
        total_s=total_s,
        obstacle=obstacle,
    )


def _obstacle(report: Report, prefill: Report, decode: Report) -> str:
    """What keeps a computer from its role, as a part of a sentence."""
    needed = max(prefill.needed_bytes, decode.needed_bytes, report.needed_bytes)
    if needed > report.usable_bytes:
        room = report.usable_bytes
        return f"the model takes {needed / 1e9:.1f} GB, and {report.name} can give it {room / 1e9:.1f} GB"
    return ""
