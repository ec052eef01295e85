"""The results of `bench speed` in llama-bench's names and forms, so that rows of both can stand side by side.

Records (csv, json, jsonl) have its field names, one record for each contestant and test, and one more field, `engine`.
Pure arithmetic and text: measures nothing.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

OWN_NAME = "Baton"

FORMS = ("md", "csv", "json", "jsonl")

_GIB = 1 << 30

# Other programs that want more than this share of the processors leave their mark on every figure.
_BUSY_SHARE = 0.3


@dataclass(frozen=True, kw_only=True)
class Test:
    """What is timed after `n_depth` tokens: a prompt of `n_prompt` tokens, or `n_gen` tokens one by one."""

    __test__ = False  # no test of pytest's

    n_prompt: int = 0
    n_gen: int = 0
    n_depth: int = 0

    @property
    def n_tokens(self) -> int:
        return self.n_prompt + self.n_gen

    @property
    def name(self) -> str:
        kind = f"pp{self.n_prompt}" if self.n_prompt else f"tg{self.n_gen}"
        return f"{kind} @ d{self.n_depth}" if self.n_depth else kind


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Seconds of each repetition, at least one, and the tokens of each."""

    n_tokens: int
    seconds: tuple[float, ...]

    @property
    def tps(self) -> tuple[float, ...]:
        """Tokens per second of each repetition."""
        return tuple(self.n_tokens / seconds for seconds in self.seconds)

    @property
    def median_tps(self) -> float:
        return statistics.median(self.tps)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One test of one or both contestants, `n_threads` and `peer_n_threads` being what it was done with."""

    test: Test
    own: Samples
    n_threads: int
    peer: Samples | None = None
    peer_n_threads: int = 0

    @property
    def ratio(self) -> float | None:
        """How many times faster Baton is than the peer, by the medians."""
        return self.own.median_tps / self.peer.median_tps if self.peer is not None else None


@dataclass(frozen=True, kw_only=True)
class LoadTimes:
    """Seconds to load the model, imports aside, with the file in the page cache; `peer` is empty without a peer.

    `parts` says what the last of our own went to.
    """

    own: tuple[float, ...]
    peer: tuple[float, ...] = ()
    parts: tuple[tuple[str, float], ...] = ()

    @property
    def seconds(self) -> float:
        return statistics.median(self.own)

    @property
    def peer_seconds(self) -> float | None:
        return statistics.median(self.peer) if self.peer else None

    @property
    def ratio(self) -> float | None:
        """How many times faster Baton is than the peer, by the medians."""
        return self.peer_seconds / self.seconds if self.peer_seconds is not None else None


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One contestant: what it is, where it computes, and how it keeps K and V."""

    name: str
    version: str
    backend: str
    kv_type: str
    features: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SpeedReport:
    """Everything measured in one run; `test_time` is UTC in ISO 8601, `model_size` in bytes."""

    model_filename: str
    model_type: str
    model_size: int
    model_n_params: int
    cpu_info: str
    gpu_info: str
    n_cores: int
    n_batch: int
    test_time: str
    own: Engine
    rows: tuple[Row, ...]
    peer: Engine | None = None
    load: LoadTimes | None = None
    calls: int | None = None
    n_layers: int = 0
    missing_features: tuple[str, ...] = ()
    load_average: float | None = None

    @property
    def was_busy(self) -> bool:
        """Whether other programs kept this computer busy when the run began, so that its figures say little."""
        return is_busy(self.load_average, self.n_cores)


def is_busy(load_average: float | None, n_cores: int) -> bool:
    """Whether a load like that, where it is known, leaves its mark on every figure."""
    return load_average is not None and load_average > _BUSY_SHARE * n_cores


def render(report: SpeedReport, form: str) -> str:
    """`report` in one of FORMS, without a last line break."""
    match form:
        case "csv":
            return _csv(_records(report))
        case "json":
            return json.dumps(_records(report, samples=True), indent=2)
        case "jsonl":
            return "\n".join(json.dumps(record) for record in _records(report, samples=True))
    return _markdown(report)


def summary(report: SpeedReport) -> dict[str, Any]:
    """One object of the medians. The `load` row has seconds, not tokens a second; above 1 every ratio is for Baton."""
    rows: list[dict[str, Any]] = [
        {
            "test": row.test.name,
            "tps": _rounded(row.own.median_tps),
            "peer_tps": _rounded(row.peer.median_tps) if row.peer is not None else None,
            "ratio": _rounded(row.ratio),
        }
        for row in report.rows
    ]
    if report.load is not None:
        rows.append(
            {
                "test": "load",
                "tps": None,
                "peer_tps": None,
                "ratio": _rounded(report.load.ratio),
                "seconds": _rounded(report.load.seconds),
                "peer_seconds": _rounded(report.load.peer_seconds),
                "parts": {name: _rounded(seconds) for name, seconds in report.load.parts},
            }
        )
    return {
        "model": report.model_filename,
        "model_type": report.model_type,
        "model_size": report.model_size,
        "model_n_params": report.model_n_params,
        "machine": {
            "cpu": report.cpu_info,
            "gpu": report.gpu_info,
            "cores": report.n_cores,
            "load_average_before": _rounded(report.load_average),
            "was_busy": report.was_busy,
        },
        "own": _engine(report.own, [(row.test.name, row.n_threads) for row in report.rows]),
        "peer": _engine(report.peer, [(row.test.name, row.peer_n_threads) for row in report.rows])
        if report.peer is not None
        else None,
        "missing_features": list(report.missing_features),
        "calls_per_layer": _rounded(calls_per_layer(report)),
        "test_time": report.test_time,
        "rows": rows,
    }


def calls_per_layer(report: SpeedReport) -> float | None:
    """Torch operations of a decode step over its layers; what embedding and output matrix need is shared out."""
    return report.calls / report.n_layers if report.calls is not None else None


def _engine(engine: Engine, threads: list[tuple[str, int]]) -> dict[str, Any]:
    return {
        "name": engine.name,
        "version": engine.version,
        "backend": engine.backend,
        "kv_type": engine.kv_type,
        "features": list(engine.features),
        "threads": dict(threads),
    }


def _records(report: SpeedReport, *, samples: bool = False) -> list[dict[str, Any]]:
    """One record a contestant and test; `samples` adds each repetition's."""
    records = []
    for row in report.rows:
        records.append(_record(report, report.own, row.test, row.own, row.n_threads, samples=samples))
        if row.peer is not None and report.peer is not None:
            records.append(
                _record(report, report.peer, row.test, row.peer, row.peer_n_threads, samples=samples)
            )
    return records


def _record(
    report: SpeedReport, engine: Engine, test: Test, timed: Samples, n_threads: int, *, samples: bool
) -> dict[str, Any]:
    nanoseconds = [round(seconds * 1e9) for seconds in timed.seconds]
    record: dict[str, Any] = {
        "engine": engine.name,
        "build_commit": engine.version,
        "cpu_info": report.cpu_info,
        "gpu_info": report.gpu_info,
        "backends": engine.backend,
        "model_filename": report.model_filename,
        "model_type": report.model_type,
        "model_size": report.model_size,
        "model_n_params": report.model_n_params,
        "n_batch": report.n_batch,
        "n_ubatch": report.n_batch,
        "n_threads": n_threads,
        "type_k": engine.kv_type,
        "type_v": engine.kv_type,
        "flash_attn": 1,
        "n_prompt": test.n_prompt,
        "n_gen": test.n_gen,
        "n_depth": test.n_depth,
        "test_time": report.test_time,
        "avg_ns": round(statistics.fmean(nanoseconds)),
        "stddev_ns": round(_stddev(nanoseconds)),
        "avg_ts": round(statistics.fmean(timed.tps), 6),
        "stddev_ts": round(_stddev(timed.tps), 6),
    }
    if samples:
        record["samples_ns"] = nanoseconds
        record["samples_ts"] = [round(tps, 6) for tps in timed.tps]
    return record


def _csv(records: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().rstrip("\n")


def _markdown(report: SpeedReport) -> str:
    columns = ["model", "size", "params", "backend", "threads", "test", "t/s"]
    if report.peer is not None:
        columns += ["peer threads", f"{report.peer.name} t/s", "ratio"]
    table = [columns]
    for row in report.rows:
        cells = [
            report.model_type,
            f"{report.model_size / _GIB:.2f} GiB",
            _params(report.model_n_params),
            report.own.backend,
            str(row.n_threads),
            row.test.name,
            _plus_minus(row.own),
        ]
        if row.peer is not None and row.ratio is not None:
            cells += [str(row.peer_n_threads), _plus_minus(row.peer), f"{row.ratio:.2f}x"]
        table.append(cells)
    return "\n".join([*aligned(table, n_text_columns=1), "", *_notes(report)])


def _notes(report: SpeedReport) -> list[str]:
    notes = []
    if report.load is not None:
        note = f"load: {report.load.seconds:.2f} s"
        if report.peer is not None and report.load.peer_seconds is not None:
            note += f" ({report.peer.name} {report.load.peer_seconds:.2f} s, ratio {report.load.ratio:.2f}x)"
        if report.load.parts:
            note += "; of it " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in report.load.parts)
        notes.append(note)
    if (calls := calls_per_layer(report)) is not None:
        notes.append(f"decode step: {report.calls} torch calls, {calls:.1f} a layer")
    notes.append(f"processor: {report.cpu_info}, {report.n_cores} cores")
    if report.was_busy:
        notes.append(
            f"not reliable: other programs kept this computer busy when the run began (load {report.load_average:.1f})"
        )
    if report.peer is not None:
        notes.append(f"{report.peer.name} {report.peer.version}: {' '.join(report.peer.features)}")
        notes.append("ratio: medians, Baton over the peer; above 1 Baton is faster")
        if report.missing_features:
            notes.append(
                f"not a fair comparison: {report.peer.name} was built without {' '.join(report.missing_features)}"
            )
    return notes


def aligned(rows: Sequence[Sequence[str]], *, n_text_columns: int) -> list[str]:
    """Markdown, its columns aligned; the first `n_text_columns` to the left, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        aligned = [
            cell.ljust(width) if index < n_text_columns else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(aligned)} |"

    rule = [
        "-" * width if index < n_text_columns else "-" * (width - 1) + ":"
        for index, width in enumerate(widths)
    ]
    return [line(rows[0]), line(rule), *(line(row) for row in rows[1:])]


def _plus_minus(timed: Samples) -> str:
    return f"{statistics.fmean(timed.tps):.2f} ± {_stddev(timed.tps):.2f}"


def _params(n_params: int) -> str:
    return f"{n_params / 1e9:.2f} B" if n_params >= 1e9 else f"{n_params / 1e6:.2f} M"


def _stddev(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _rounded(value: float | None) -> float | None:
    return round(value, 4) if value is not None else None
