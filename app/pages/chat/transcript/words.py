"""The short lines around an answer: how long it thought, how it came about, how far its prompt is."""

from __future__ import annotations

from dataclasses import dataclass

from app.pages.chat.transcript.model import Prefill, Shown, Stats

DOT = " · "
NO_BREAK = "\u00a0"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A few words; `is_remote` where they tell of the other computer."""

    text: str
    is_remote: bool = False


def stats_parts(stats: Stats) -> list[Part]:
    """What is known of how an answer came about, in the order of its happening."""
    parts = []
    if stats.first_token_s is not None:
        parts.append(Part(text=f"{seconds(stats.first_token_s)} to first token"))
    if stats.tokens_per_s is not None:
        parts.append(Part(text=f"{stats.tokens_per_s:.1f} tok/s"))
    if stats.n_reused is not None and stats.n_prompt is not None:
        parts.append(Part(text=f"reused {stats.n_reused:,} of {stats.n_prompt:,}"))
    elif stats.n_prompt is not None:
        parts.append(Part(text=f"prompt of {stats.n_prompt:,} tokens"))
    if stats.prefilled_on:
        parts.append(Part(text=f"prefilled on {stats.prefilled_on}", is_remote=stats.is_remote))
    if stats.tail_ms is not None:
        parts.append(Part(text=f"tail {milliseconds(stats.tail_ms)}", is_remote=stats.is_remote))
    if stats.saved_s is not None and abs(stats.saved_s) >= 0.05:
        word = "saved" if stats.saved_s > 0 else "cost"
        parts.append(Part(text=f"{word} {seconds(abs(stats.saved_s))}", is_remote=stats.is_remote))
    return parts


def stats_line(stats: Stats) -> str:
    return DOT.join(part.text for part in stats_parts(stats))


def thought(shown: Shown) -> str:
    """What stands over an answer's reasoning."""
    if shown.is_live and not shown.text:
        return "Thinking"
    if shown.reasoning_s is None:
        return "Thoughts"
    return f"Thought for {seconds(shown.reasoning_s, rough=True)}"


def prefill_lead(prefill: Prefill) -> str:
    """What is going on, in a line over the bar."""
    if not prefill.total:
        return "Reading the prompt"
    where = f" on {prefill.where}" if prefill.where else ""
    return f"Reading the prompt{where}: {prefill.done:,} of {prefill.total:,} tokens"


def prefill_parts(prefill: Prefill) -> list[Part]:
    """The figures under the bar."""
    parts = []
    if prefill.is_remote and prefill.total:
        parts.append(Part(text=f"{prefill.arrived:,} arrived here", is_remote=True))
    if prefill.tokens_per_s:
        parts.append(Part(text=f"{prefill.tokens_per_s:,.0f} tok/s"))
    if prefill.left_s is not None:
        parts.append(Part(text=f"{seconds(prefill.left_s, rough=True)} left"))
    return parts


def seconds(span_s: float, *, rough: bool = False) -> str:
    """0.94 s as "0.9 s", 83 s as "1 min 23 s"; a rough one has no tenths."""
    if span_s >= 59.5:
        minutes, rest = divmod(round(span_s), 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    if rough:
        return f"{max(1, round(span_s))} s"
    return f"{span_s:.2f} s" if span_s < 0.1 else f"{span_s:.1f} s"


def milliseconds(span_ms: float) -> str:
    if span_ms >= 1000:
        return seconds(span_ms / 1000)
    return (
        f"{span_ms:.1f} ms" if span_ms < 9.95 and round(span_ms, 1) != round(span_ms) else f"{span_ms:.0f} ms"
    )
