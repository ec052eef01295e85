"""One request in words: why it was prefilled where it was, what was handed over, and what that cost. No Qt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.telemetry import figures
from app.telemetry.ledger import Record

# The node's reasons, as a person would say them of these two computers; others say themselves by their `detail`.
_REASONS = {
    "asked_local": "the request asked for it",
    "asked_remote": "the request asked for it",
    "set_local": "handoffs are switched off",
    "set_remote": "every prompt is to go there",
    "long_prompt": "long enough to be worth a handoff, and not both ways are measured yet",
    "short_prompt": "too short to be worth a handoff",
    "nothing_to_prefill": "all of it was in the cache already",
    "no_worker": "no other computer was ready to prefill for this model",
}


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A figure with its name; `note` is what it means, `tone` warning where it tells of something that went wrong."""

    name: str
    value: str
    note: str = ""
    tone: str = ""


def decision(record: Record, worker: str, decoder: str) -> str:
    """ "Prefilled on spark: predicted 3.1 s against 8.4 s on studio.", as it was decided when it began."""
    route = record.told["route"]
    if route is None and record.is_over:
        return "It ended before it got a slot."
    if route is None:
        return "It waits for a slot; where it is prefilled is decided then."
    is_remote = route["prefill"] == "remote"
    where = worker if is_remote else decoder
    begin = f"Prefilled on {where}"
    if is_remote and record.told["fallback"]:
        begin = f"Sent to {where}"
    elif record.told["prefilled_ms"] is None and not record.is_over:
        begin = f"Prefilling on {where}"
    predicted = route["predicted"]
    if route["reason"] in ("local_sooner", "remote_sooner") and predicted:
        ways = {True: predicted["remote_ms"], False: predicted["local_ms"]}
        other = decoder if is_remote else worker
        return (
            f"{begin}: predicted {figures.duration(ways[is_remote])}, "
            f"against {figures.duration(ways[not is_remote])} on {other}."
        )
    why = _REASONS.get(route["reason"]) or route["detail"]
    if route["reason"] == "worker_not_ready":
        why = f"{worker} was not ready ({route['detail']})"
    return f"{begin}: {why}."


def facts(record: Record, worker: str, decoder: str, limit_ms: float | None) -> list[Fact]:
    """What is known of it by now, what matters most first."""
    told = record.told
    found = []
    if told["error"]:
        found.append(Fact(name="Failed", value=_sentence(told["error"]), tone="danger"))
    if told["fallback"]:
        fallback = told["fallback"]
        found.append(
            Fact(
                name="Fallback",
                value=f"{worker} gave up after {figures.duration(fallback['at_ms'])}; {decoder} went on",
                note=_sentence(fallback["detail"]),
                tone="warning",
            )
        )
    if told["first_token_ms"] is not None:
        found.append(
            Fact(
                name="First token", value=figures.duration(told["first_token_ms"]), note="after it was asked"
            )
        )
    found += _of_prompt(told)
    if told["handoff"] is not None:
        n_bytes = sum(chunk.n_bytes for chunk in record.chunks.values())
        so_far = "before that" if told["fallback"] else "so far"
        found += _of_handoff(told["handoff"], n_bytes, so_far, limit_ms)
    if record.n_decoded:
        speed = _decode_speed(record)
        note = "" if speed is None else figures.speed(speed)
        found.append(Fact(name="Answer", value=_tokens(record.n_decoded), note=note))
    return found


def _of_prompt(told: dict[str, Any]) -> list[Fact]:
    n_prompt, n_cached = told["n_prompt_tokens"], told["n_cached_tokens"]
    note = f"{figures.count(n_cached)} reused" if n_cached else "none reused"
    return [Fact(name="Prompt", value=_tokens(n_prompt), note=note)]


def _of_handoff(handoff: dict[str, Any], n_bytes: int, so_far: str, limit_ms: float | None) -> list[Fact]:
    if handoff["tail_ms"] is None:
        return [Fact(name="Handed over", value=figures.size(n_bytes), note=so_far)]
    raw, wire = handoff["bytes"], handoff["wire_bytes"]
    codec = "" if handoff["codec"] == "raw" else f", {handoff['codec']}"
    limit = (
        f"the cable allows {figures.duration(limit_ms)}" if limit_ms is not None else "after the last compute"
    )
    return [
        Fact(name="Tail", value=figures.duration(handoff["tail_ms"]), note=limit),
        Fact(name="Overlap", value=figures.share(handoff["overlap"]), note="arrived during prefill"),
        Fact(
            name="Handed over",
            value=figures.size(raw),
            note=f"{figures.size(wire)} on the cable{codec}",
        ),
        Fact(
            name="Goodput",
            value=figures.rate(handoff["goodput_bytes_per_second"]),
            note=f"on average, over {figures.duration(handoff['receive_ms'])}",
        ),
    ]


def _tokens(n: int) -> str:
    return f"{figures.count(n)} tokens" if n != 1 else "1 token"


def _decode_speed(record: Record) -> float | None:
    first, last, n = record.told["first_token_ms"], record.last_token_ms, record.n_decoded
    if first is None or last is None or n < 2 or last <= first:
        return None
    return float((n - 1) * 1000 / (last - first))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")
