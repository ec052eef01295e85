"""One request in words: why it was prefilled where it was, what was handed over, and what that cost. No Qt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.telemetry import figures
from app.telemetry.ledger import Record
from app.words import QT_TRANSLATE_NOOP, translate

# The node's reasons, as a person would say them of these two computers; others say themselves by their `detail`.
_REASONS = {
    "asked_local": QT_TRANSLATE_NOOP("Decision", "the request asked for it"),
    "asked_remote": QT_TRANSLATE_NOOP("Decision", "the request asked for it"),
    "set_local": QT_TRANSLATE_NOOP("Decision", "handoffs are switched off"),
    "set_remote": QT_TRANSLATE_NOOP("Decision", "every prompt is to go there"),
    "long_prompt": QT_TRANSLATE_NOOP(
        "Decision", "long enough to be worth a handoff, and not both ways are measured yet"
    ),
    "short_prompt": QT_TRANSLATE_NOOP("Decision", "too short to be worth a handoff"),
    "nothing_to_prefill": QT_TRANSLATE_NOOP("Decision", "all of it was in the cache already"),
    "no_worker": QT_TRANSLATE_NOOP("Decision", "no other computer was ready to prefill for this model"),
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
        return translate("Decision", "It ended before it got a slot.")
    if route is None:
        return translate("Decision", "It waits for a slot; where it is prefilled is decided then.")
    is_remote = route["prefill"] == "remote"
    where = worker if is_remote else decoder
    predicted = route["predicted"]
    if route["reason"] in ("local_sooner", "remote_sooner") and predicted:
        ways = {True: predicted["remote_ms"], False: predicted["local_ms"]}
        other = decoder if is_remote else worker
        why = translate("Decision", "predicted {0}, against {1} on {2}").format(
            figures.duration(ways[is_remote]), figures.duration(ways[not is_remote]), other
        )
    elif route["reason"] == "worker_not_ready":
        why = translate("Decision", "{0} was not ready ({1})").format(worker, route["detail"])
    elif known := _REASONS.get(route["reason"]):
        why = translate("Decision", known)
    else:
        why = route["detail"]
    if is_remote and record.told["fallback"]:
        return translate("Decision", "Sent to {0}: {1}.").format(where, why)
    if record.told["prefilled_ms"] is None and not record.is_over:
        return translate("Decision", "Prefilling on {0}: {1}.").format(where, why)
    return translate("Decision", "Prefilled on {0}: {1}.").format(where, why)


def facts(record: Record, worker: str, decoder: str, limit_ms: float | None) -> list[Fact]:
    """What is known of it by now, what matters most first."""
    told = record.told
    found = []
    if told["error"]:
        found.append(
            Fact(name=translate("Decision", "Failed"), value=_sentence(told["error"]), tone="danger")
        )
    if told["fallback"]:
        fallback = told["fallback"]
        found.append(
            Fact(
                name=translate("Decision", "Fallback"),
                value=translate("Decision", "{0} gave up after {1}; {2} went on").format(
                    worker, figures.duration(fallback["at_ms"]), decoder
                ),
                note=_sentence(fallback["detail"]),
                tone="warning",
            )
        )
    if told["first_token_ms"] is not None:
        found.append(
            Fact(
                name=translate("Decision", "First token"),
                value=figures.duration(told["first_token_ms"]),
                note=translate("Decision", "after it was asked"),
            )
        )
    found += _of_prompt(told)
    if told["handoff"] is not None:
        n_bytes = sum(chunk.n_bytes for chunk in record.chunks.values())
        so_far = translate("Decision", "before that") if told["fallback"] else translate("Decision", "so far")
        found += _of_handoff(told["handoff"], n_bytes, so_far, limit_ms)
    if record.n_decoded:
        speed = _decode_speed(record)
        note = "" if speed is None else figures.speed(speed)
        answer = translate("Decision", "Answer")
        found.append(Fact(name=answer, value=_tokens(record.n_decoded), note=note))
    return found


def _of_prompt(told: dict[str, Any]) -> list[Fact]:
    n_prompt, n_cached = told["n_prompt_tokens"], told["n_cached_tokens"]
    if n_cached:
        note = translate("Decision", "{} reused").format(figures.count(n_cached))
    else:
        note = translate("Decision", "none reused")
    return [Fact(name=translate("Decision", "Prompt"), value=_tokens(n_prompt), note=note)]


def _of_handoff(handoff: dict[str, Any], n_bytes: int, so_far: str, limit_ms: float | None) -> list[Fact]:
    if handoff["tail_ms"] is None:
        return [Fact(name=translate("Decision", "Handed over"), value=figures.size(n_bytes), note=so_far)]
    raw, wire = handoff["bytes"], handoff["wire_bytes"]
    on_cable = translate("Decision", "{} on the cable").format(figures.size(wire))
    if limit_ms is not None:
        limit = translate("Decision", "the cable allows {}").format(figures.duration(limit_ms))
    else:
        limit = translate("Decision", "after the last compute")
    return [
        Fact(name=translate("Decision", "Tail"), value=figures.duration(handoff["tail_ms"]), note=limit),
        Fact(
            name=translate("Decision", "Overlap"),
            value=figures.share(handoff["overlap"]),
            note=translate("Decision", "arrived during prefill"),
        ),
        Fact(
            name=translate("Decision", "Handed over"),
            value=figures.size(raw),
            note=on_cable if handoff["codec"] == "raw" else f"{on_cable}, {handoff['codec']}",
        ),
        Fact(
            name=translate("Decision", "Goodput"),
            value=figures.rate(handoff["goodput_bytes_per_second"]),
            note=translate("Decision", "on average, over {}").format(figures.duration(handoff["receive_ms"])),
        ),
    ]


def _tokens(n: int) -> str:
    if n == 1:
        return translate("Decision", "1 token")
    return translate("Decision", "{} tokens").format(figures.count(n))


def _decode_speed(record: Record) -> float | None:
    first, last, n = record.told["first_token_ms"], record.last_token_ms, record.n_decoded
    if first is None or last is None or n < 2 or last <= first:
        return None
    return float((n - 1) * 1000 / (last - first))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")
