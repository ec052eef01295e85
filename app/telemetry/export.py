"""Requests as files for other programs: all of it as JSON, or a line for each as CSV. Knows nothing of Qt."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from app.telemetry.ledger import Chunk, Record

_OF_TIMELINE = (
    *("id", "slot", "state", "outcome", "error"),
    *("n_prompt_tokens", "n_cached_tokens", "n_remote_tokens", "n_decoded"),
    *(
        "queued_ms",
        "started_ms",
        "accepted_ms",
        "prefilled_ms",
        "first_token_ms",
        "last_token_ms",
        "ended_ms",
    ),
)
_OF_HANDOFF = (
    *("n_handoffs", "bytes", "wire_bytes", "codec", "reused_tokens", "overlap", "tail_ms"),
    *("compute_ms", "receive_ms", "hidden_ms", "goodput_bytes_per_second"),
)
COLUMNS = (
    *("model", "asked", *_OF_TIMELINE),
    *("prefill", "reason", "predicted_local_ms", "predicted_remote_ms", "fallback"),
    *(f"handoff_{name}" for name in _OF_HANDOFF),
)


def as_json(records: Iterable[tuple[str, Record]]) -> str:
    """Each with its model; timelines as the endpoint words them, with chunks and the layers that are known."""
    told = [
        {"model": model, **record.told, "chunks": [_chunk(chunk) for chunk in record.in_order]}
        for model, record in records
    ]
    return json.dumps(told, indent=1) + "\n"


def as_csv(records: Iterable[tuple[str, Record]]) -> str:
    """A line each; what is not known is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\r\n")
    writer.writeheader()
    for model, record in records:
        writer.writerow(_line(model, record.told))
    return text.getvalue()


def _line(model: str, told: dict[str, Any]) -> dict[str, Any]:
    route, handoff = told["route"] or {}, told["handoff"] or {}
    predicted, fallback = route.get("predicted") or {}, told["fallback"] or {}
    return {
        "model": model,
        "asked": datetime.fromtimestamp(told["asked"], UTC).isoformat(timespec="milliseconds"),
        **{name: told[name] for name in _OF_TIMELINE},
        "prefill": route.get("prefill"),
        "reason": route.get("reason"),
        "predicted_local_ms": predicted.get("local_ms"),
        "predicted_remote_ms": predicted.get("remote_ms"),
        "fallback": fallback.get("reason"),
        **{f"handoff_{name}": handoff.get(name) for name in _OF_HANDOFF},
    }


def _chunk(chunk: Chunk) -> dict[str, Any]:
    return {
        "first": chunk.first,
        "stop": chunk.stop,
        "prefill": "remote" if chunk.remote else "local",
        "at_ms": chunk.at_ms,
        "compute_ms": chunk.compute_ms,
        "computed_ms": chunk.computed_ms,
        "bytes": chunk.n_bytes,
        "layers": [
            {
                "layer": layer.layer,
                "queued_ms": layer.queued_ms,
                "first_byte_ms": layer.first_ms,
                "last_byte_ms": layer.last_ms,
                "bytes": layer.n_bytes,
            }
            for layer in chunk.layers
        ],
    }
