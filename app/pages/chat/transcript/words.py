"""The short lines around an answer: how long it thought, how it came about, how far its prompt is."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QCoreApplication

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
        parts.append(Part(text=_tr("{} to first token").format(seconds(stats.first_token_s))))
    if stats.tokens_per_s is not None:
        parts.append(Part(text=_tr("{} tok/s").format(f"{stats.tokens_per_s:.1f}")))
    if stats.n_reused is not None and stats.n_prompt is not None:
        reused = _tr("reused {0} of {1}").format(f"{stats.n_reused:,}", f"{stats.n_prompt:,}")
        parts.append(Part(text=reused))
    elif stats.n_prompt is not None:
        parts.append(Part(text=_tr("prompt of {} tokens").format(f"{stats.n_prompt:,}")))
    if stats.prefilled_on:
        parts.append(Part(text=_tr("prefilled on {}").format(stats.prefilled_on), is_remote=stats.is_remote))
    if stats.tail_ms is not None:
        parts.append(Part(text=_tr("tail {}").format(milliseconds(stats.tail_ms)), is_remote=stats.is_remote))
    if stats.saved_s is not None and abs(stats.saved_s) >= 0.05:
        words = _tr("saved {}") if stats.saved_s > 0 else _tr("cost {}")
        parts.append(Part(text=words.format(seconds(abs(stats.saved_s))), is_remote=stats.is_remote))
    return parts


def stats_line(stats: Stats) -> str:
    return DOT.join(part.text for part in stats_parts(stats))


def thought(shown: Shown) -> str:
    """What stands over an answer's reasoning."""
    if shown.is_live and not shown.text:
        return _tr("Thinking")
    if shown.reasoning_s is None:
        return _tr("Thoughts")
    return _tr("Thought for {}").format(seconds(shown.reasoning_s, rough=True))


def prefill_lead(prefill: Prefill) -> str:
    """What is going on, in a line over the bar."""
    if not prefill.total:
        return _tr("Reading the prompt")
    far = _tr("{0} of {1} tokens").format(f"{prefill.done:,}", f"{prefill.total:,}")
    if not prefill.where:
        return _tr("Reading the prompt: {}").format(far)
    return _tr("Reading the prompt on {0}: {1}").format(prefill.where, far)


def prefill_parts(prefill: Prefill) -> list[Part]:
    """The figures under the bar."""
    parts = []
    if prefill.is_remote and prefill.total:
        parts.append(Part(text=_tr("{} arrived here").format(f"{prefill.arrived:,}"), is_remote=True))
    if prefill.tokens_per_s:
        parts.append(Part(text=_tr("{} tok/s").format(f"{prefill.tokens_per_s:,.0f}")))
    if prefill.left_s is not None:
        parts.append(Part(text=_tr("{} left").format(seconds(prefill.left_s, rough=True))))
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


def _tr(text: str) -> str:
    return QCoreApplication.translate("Transcript", text)
