"""The results of `bench cluster`: each way to answer beside the others, as a table or one JSON object.

Pure arithmetic and text: measures nothing. A figure that was not measured is None, and the table says so.
"""

from __future__ import annotations

import enum
import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.bench.report import aligned

_NOT_MEASURED = "not measured"


class Way(enum.StrEnum):
    """Who prefills and decodes."""

    HERE = "this computer alone"
    OTHER = "the other alone"
    BOTH = "both together"


@dataclass(frozen=True, kw_only=True)
class Handed:
    """What a handoff took; `goodput` is in bytes a second while they came in, None where all came at once.

    `n_reused` tokens were in the worker's own cache; `compute_ms` is by its clock.
    """

    n_bytes: int
    n_reused: int
    overlap: float
    tail_ms: float
    compute_ms: float
    goodput: float | None


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One answer: the time to its first token, the speed of those after it, and all of it as its client saw it."""

    n_prompt: int
    n_cached: int
    prompt_ms: float
    decode_tps: float | None = None
    total_ms: float | None = None
    handed: Handed | None = None


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Of the repetitions of one figure."""

    median: float
    lowest: float
    highest: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """The repetitions of one prompt length, at least one, answered one way."""

    way: Way
    samples: tuple[Sample, ...]

    @property
    def n_prompt(self) -> int:
        return self.samples[0].n_prompt

    def spread(self, figure: Callable[[Sample], float | None]) -> Spread | None:
        """None where the figure was not measured, or there is none."""
        values = [value for sample in self.samples if (value := figure(sample)) is not None]
        if not values:
            return None
        return Spread(median=statistics.median(values), lowest=min(values), highest=max(values))


@dataclass(frozen=True, kw_only=True)
class ClusterReport:
    """`joined` says what was measured, `turns` are second turns of a chat.

    `was_busy`: other programs kept this computer busy when the run began.
    """

    model: str
    joined: str
    n_decode: int
    rows: tuple[Row, ...]
    turns: tuple[Row, ...]
    notes: tuple[str, ...]
    processor: str
    was_busy: bool


def _handed(figure: Callable[[Handed], float | None]) -> Callable[[Sample], float | None]:
    return lambda sample: figure(sample.handed) if sample.handed is not None else None


# What is told of each row, by its name in JSON.
_FIGURES: dict[str, Callable[[Sample], float | None]] = {
    "prompt_ms": lambda sample: sample.prompt_ms,
    "decode_tps": lambda sample: sample.decode_tps,
    "total_ms": lambda sample: sample.total_ms,
    "cached_tokens": lambda sample: sample.n_cached,
    "bytes": _handed(lambda handed: handed.n_bytes),
    "worker_reused_tokens": _handed(lambda handed: handed.n_reused),
    "tail_ms": _handed(lambda handed: handed.tail_ms),
    "overlap": _handed(lambda handed: handed.overlap),
    "compute_ms": _handed(lambda handed: handed.compute_ms),
    "goodput_bytes_per_second": _handed(lambda handed: handed.goodput),
}


def crossover(rows: Sequence[Row]) -> tuple[int | None, str]:
    """From which prompt length on both together have the first token sooner than this computer, and that in words.

    Between two measured lengths the difference is taken for a straight line. None where it is later at the longest.
    """
    gains = _gains(rows)
    (longest, gain) = gains[-1]
    if gain <= 0:
        return None, f"this computer alone has the first token sooner, up to {longest} tokens at least"
    for (shorter, loss), (longer, gain) in reversed(list(itertools.pairwise(gains))):
        if loss <= 0 < gain:
            tokens = round(shorter - loss * (longer - shorter) / (gain - loss))
            return tokens, f"both together have the first token sooner from about {tokens} tokens on"
    shortest = gains[0][0]
    return (
        shortest,
        f"both together have the first token sooner from {shortest} tokens on, the shortest measured",
    )


def _gains(rows: Sequence[Row]) -> list[tuple[int, float]]:
    """Milliseconds that both together are sooner than this computer, by prompt length."""
    times = {(row.way, row.n_prompt): statistics.median(s.prompt_ms for s in row.samples) for row in rows}
    lengths = sorted({row.n_prompt for row in rows})
    return [(n, times[Way.HERE, n] - times[Way.BOTH, n]) for n in lengths]


def summary(report: ClusterReport) -> dict[str, Any]:
    """One object; each figure has its median, lowest and highest, or is null."""
    tokens, sentence = crossover(report.rows)
    return {
        "model": report.model,
        "joined": report.joined,
        "n_decode": report.n_decode,
        "processor": report.processor,
        "was_busy": report.was_busy,
        "rows": [_row(row) for row in report.rows],
        "crossover_tokens": tokens,
        "crossover": sentence,
        "second_turns": [_row(row) for row in report.turns],
        "notes": list(report.notes),
    }


def _row(row: Row) -> dict[str, Any]:
    figures = {name: row.spread(figure) for name, figure in _FIGURES.items()}
    return {
        "prompt_tokens": row.n_prompt,
        "way": row.way.name.lower(),
        "repetitions": len(row.samples),
        **{
            name: spread and {"median": spread.median, "lowest": spread.lowest, "highest": spread.highest}
            for name, spread in figures.items()
        },
    }


def render(report: ClusterReport) -> str:
    _, sentence = crossover(report.rows)
    n_samples = len(report.rows[0].samples)
    notes = [
        f"medians of {n_samples} taken in turns, the lowest and the highest in brackets; prompt processing ends with "
        "the first token, and where the worker computes slower than the link carries, goodput is the worker's pace",
        *report.notes,
        f"processor: {report.processor}",
    ]
    if report.was_busy:
        notes.append("not reliable: other programs kept this computer busy when the run began")
    return "\n".join(
        [
            f"{report.model}: {report.joined}",
            "",
            *aligned(_main_table(report), n_text_columns=2),
            "",
            f"crossover: {sentence}",
            "",
            "the second turn of a chat:",
            *aligned(_turn_table(report), n_text_columns=2),
            "",
            *notes,
        ]
    )


def _main_table(report: ClusterReport) -> list[list[str]]:
    table = [
        [
            *("prompt", "mode", "prompt processing", "decode", f"total ({report.n_decode} tok)"),
            *("tail", "overlap", "goodput"),
        ]
    ]
    for row in report.rows:
        table.append(
            [
                f"{row.n_prompt} tok",
                row.way.value,
                _seconds(row, "prompt_ms"),
                _cell(row, "decode_tps", "tok/s", digits=1),
                _seconds(row, "total_ms"),
                *_handoff_cells(row),
            ]
        )
    return table


def _turn_table(report: ClusterReport) -> list[list[str]]:
    table = [
        [
            *("prompt", "mode", "reused", "reused by the worker", "moved", "first token"),
            *("tail", "overlap", "goodput"),
        ]
    ]
    for row in report.turns:
        table.append(
            [
                f"{row.n_prompt} tok",
                row.way.value,
                _cell(row, "cached_tokens", "tok"),
                _cell(row, "worker_reused_tokens", "tok", absent="-"),
                _cell(row, "bytes", "MB", scale=1e-6, digits=2, absent="-"),
                _seconds(row, "prompt_ms"),
                *_handoff_cells(row),
            ]
        )
    return table


def _handoff_cells(row: Row) -> list[str]:
    return [
        _cell(row, "tail_ms", "ms", digits=1, absent="-"),
        _cell(row, "overlap", "%", scale=100, digits=1, absent="-"),
        _cell(row, "goodput_bytes_per_second", "Gbit/s", scale=8e-9, digits=2, absent="-"),
    ]


def _seconds(row: Row, name: str) -> str:
    return _cell(row, name, "s", scale=1e-3, digits=2)


def _cell(
    row: Row, name: str, unit: str, *, scale: float = 1, digits: int = 0, absent: str = _NOT_MEASURED
) -> str:
    """A figure's median with its range; one that never differs stands alone."""
    spread = row.spread(_FIGURES[name])
    if spread is None:
        return absent
    median, lowest, highest = (
        f"{value * scale:.{digits}f}" for value in (spread.median, spread.lowest, spread.highest)
    )
    return f"{median} {unit}" if lowest == highest else f"{median} {unit} ({lowest}-{highest})"
