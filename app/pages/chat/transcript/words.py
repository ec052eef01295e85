"""The short lines around an answer: how long it thought, how it came about, how far its prompt is."""

from __future__ import annotations

from dataclasses import dataclass

from app.node.faults import begun
from app.pages.chat.transcript.model import CUT_OFF, STOPPED, Prefill, Shown, Stats
from app.words import translate

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
        parts.append(
            Part(text=translate("Transcript", "{} to first token").format(seconds(stats.first_token_s)))
        )
    if stats.tokens_per_s is not None:
        parts.append(Part(text=translate("Transcript", "{} tok/s").format(f"{stats.tokens_per_s:.1f}")))
    if stats.n_reused is not None and stats.n_prompt is not None:
        reused = translate("Transcript", "reused {0} of {1}").format(
            f"{stats.n_reused:,}", f"{stats.n_prompt:,}"
        )
        parts.append(Part(text=reused))
    elif stats.n_prompt is not None:
        parts.append(Part(text=translate("Transcript", "prompt of {} tokens").format(f"{stats.n_prompt:,}")))
    if stats.prefilled_on:
        parts.append(
            Part(
                text=translate("Transcript", "prefilled on {}").format(stats.prefilled_on),
                is_remote=stats.is_remote,
            )
        )
    if stats.tail_ms is not None:
        parts.append(
            Part(
                text=translate("Transcript", "tail {}").format(milliseconds(stats.tail_ms)),
                is_remote=stats.is_remote,
            )
        )
    if stats.saved_s is not None and abs(stats.saved_s) >= 0.05:
        words = (
            translate("Transcript", "saved {}") if stats.saved_s > 0 else translate("Transcript", "cost {}")
        )
        parts.append(Part(text=words.format(seconds(abs(stats.saved_s))), is_remote=stats.is_remote))
    return parts


def stats_line(stats: Stats) -> str:
    return DOT.join(part.text for part in stats_parts(stats))


def thought(shown: Shown) -> str:
    """What stands over an answer's reasoning."""
    if shown.is_live and not shown.text:
        return translate("Transcript", "Thinking")
    if shown.reasoning_s is None:
        return translate("Transcript", "Thoughts")
    return translate("Transcript", "Thought for {}").format(seconds(shown.reasoning_s, rough=True))


def note_line(note: str) -> str:
    """Why an answer ended early."""
    if note == STOPPED:
        return translate("Transcript", "Stopped")
    if note == CUT_OFF:
        return translate("Transcript", "The window was closed")
    return begun(note)


def prefill_lead(prefill: Prefill) -> str:
    """What is going on, in a line over the bar."""
    if not prefill.total:
        return translate("Transcript", "Reading the prompt")
    far = translate("Transcript", "{0} of {1} tokens").format(f"{prefill.done:,}", f"{prefill.total:,}")
    if not prefill.where:
        return translate("Transcript", "Reading the prompt: {}").format(far)
    return translate("Transcript", "Reading the prompt on {0}: {1}").format(prefill.where, far)


def prefill_parts(prefill: Prefill) -> list[Part]:
    """The figures under the bar."""
    parts = []
    if prefill.is_remote and prefill.total:
        parts.append(
            Part(
                text=translate("Transcript", "{} arrived here").format(f"{prefill.arrived:,}"), is_remote=True
            )
        )
    if prefill.tokens_per_s:
        parts.append(Part(text=translate("Transcript", "{} tok/s").format(f"{prefill.tokens_per_s:,.0f}")))
    if prefill.left_s is not None:
        parts.append(
            Part(text=translate("Transcript", "{} left").format(seconds(prefill.left_s, rough=True)))
        )
    return parts


def seconds(span_s: float, *, rough: bool = False) -> str:
    """0.94 s as "0.9 s", 83 s as "1 min 23 s"; a rough one has no tenths."""
    if span_s >= 59.5:
        minutes, rest = divmod(round(span_s), 60)
        if rest:
            return translate("Figures", "{0} min {1} s").format(minutes, rest)
        return translate("Figures", "{} min").format(minutes)
    if rough:
        return translate("Figures", "{} s").format(max(1, round(span_s)))
    return translate("Figures", "{} s").format(f"{span_s:.2f}" if span_s < 0.1 else f"{span_s:.1f}")


def milliseconds(span_ms: float) -> str:
    if span_ms >= 1000:
        return seconds(span_ms / 1000)
    has_tenths = span_ms < 9.95 and round(span_ms, 1) != round(span_ms)
    return translate("Figures", "{} ms").format(f"{span_ms:.1f}" if has_tenths else f"{span_ms:.0f}")
