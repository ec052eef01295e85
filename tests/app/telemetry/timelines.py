"""Events of an engine with figures as two real computers have them, without the two computers.

By default a prompt of 28,800 tokens of a hybrid model with 64 layers, in 57 chunks of 300 ms each, over a cable of
10 Gbit/s: 1.1 GB with the recurrent states, which come with the last chunk, and a tail of 3 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.telemetry.ledger import Ledger, Record

Event = tuple[str, dict[str, Any]]

ASKED_S = 1_790_000_000.0


@dataclass(frozen=True, kw_only=True)
class Handoff:
    """One request from its asking to its last token. `n_chunks` of `chunk_ms` each, the last one like the others."""

    request_id: str = "chat-7"
    asked_s: float = ASKED_S
    slot: int = 0
    n_prompt: int = 28_800
    n_chunks: int = 57
    n_layers: int = 64
    chunk_ms: float = 300.0
    rows_bytes: int = 950_000_000
    state_bytes: int = 157_000_000
    cable_bytes_per_s: float = 1.21e9
    last_commit_ms: float = 2.3
    n_decoded: int = 312
    decode_tokens_per_s: float = 24.8

    @property
    def started_ms(self) -> float:
        return 1.4

    @property
    def accepted_ms(self) -> float:
        return 4.2

    @property
    def compute_end_ms(self) -> float:
        return self.accepted_ms + self.n_chunks * self.chunk_ms

    def chunk(self, index: int) -> dict[str, Any]:
        """As a `chunk` event has it, but for the request that it is of."""
        n_tokens = -(-(self.n_prompt - 1) // self.n_chunks)
        began_ms = self.accepted_ms + index * self.chunk_ms
        layer_ms = self.chunk_ms / self.n_layers
        is_last = index == self.n_chunks - 1
        free_ms, layers = 0.0, []
        for layer in range(self.n_layers):
            n_bytes = self.rows_bytes // (self.n_chunks * self.n_layers)
            if is_last and layer % 4 != 3:
                n_bytes += self.state_bytes // (self.n_layers * 3 // 4)
            queued_ms = began_ms + (layer + 1) * layer_ms
            first_ms = max(queued_ms + 0.15, free_ms)
            free_ms = last_ms = first_ms + n_bytes * 1000 / self.cable_bytes_per_s
            layers.append(
                {
                    "layer": layer,
                    "queued_ms": round(queued_ms, 3),
                    "first_byte_ms": round(first_ms, 3),
                    "last_byte_ms": round(last_ms, 3),
                    "bytes": n_bytes,
                }
            )
        return {
            "first": index * n_tokens,
            "stop": min((index + 1) * n_tokens, self.n_prompt - 1),
            "prefill": "remote",
            "at_ms": round(free_ms + (self.last_commit_ms if is_last else 0.4), 3),
            "compute_ms": self.chunk_ms,
            "computed_ms": round(began_ms + self.chunk_ms, 3),
            "bytes": sum(layer["bytes"] for layer in layers),
            "layers": layers,
        }

    def timeline(self, state: str, *, n_chunks: int = 0, **more: Any) -> dict[str, Any]:
        """As a `request` event has it after so many chunks."""
        n_bytes = sum(self.chunk(index)["bytes"] for index in range(n_chunks)) if n_chunks else 0
        return {
            **nothing_yet(self.request_id, self.asked_s, self.n_prompt),
            "slot": self.slot,
            "state": state,
            "started_ms": self.started_ms,
            "accepted_ms": self.accepted_ms,
            "n_prompt_tokens_processed": self.chunk(n_chunks - 1)["stop"] if n_chunks else 0,
            "route": {
                "prefill": "remote",
                "reason": "remote_sooner",
                "detail": "the worker was expected to be done first",
                "predicted": {"local_ms": 84_200.0, "remote_ms": 17_300.0},
            },
            "handoff": {**no_figures(), "n_handoffs": 1, "bytes": n_bytes},
            "n_chunks": n_chunks,
            **more,
        }

    def ended(self) -> dict[str, Any]:
        """The last `request` event, with all chunks and without layers."""
        chunks = [self.chunk(index) for index in range(self.n_chunks)]
        ready_ms = chunks[-1]["at_ms"] + 0.2
        first_token_ms = ready_ms + 41.0
        last_ms = first_token_ms + (self.n_decoded - 1) * 1000 / self.decode_tokens_per_s
        n_bytes = sum(chunk["bytes"] for chunk in chunks)
        tail_ms = chunks[-1]["at_ms"] - self.compute_end_ms + 0.3
        receive_ms = chunks[-1]["at_ms"] - chunks[0]["layers"][0]["first_byte_ms"]
        late = sum(
            layer["bytes"] for layer in chunks[-1]["layers"] if layer["last_byte_ms"] > self.compute_end_ms
        )
        return {
            **self.timeline("ended", n_chunks=self.n_chunks),
            "prefilled_ms": ready_ms,
            "first_token_ms": first_token_ms,
            "last_token_ms": last_ms,
            "ended_ms": last_ms + 0.3,
            "outcome": "stop",
            "n_remote_tokens": self.n_prompt - 1,
            "n_decoded": self.n_decoded,
            "handoff": {
                **no_figures(),
                "n_handoffs": 1,
                "bytes": n_bytes,
                "wire_bytes": n_bytes,
                "codec": "raw",
                "codec_reason": "packing would take longer than it saves",
                "overlap": 1 - late / n_bytes,
                "tail_ms": tail_ms,
                "compute_ms": self.n_chunks * self.chunk_ms,
                "receive_ms": receive_ms,
                "hidden_ms": receive_ms - tail_ms,
                "hidden_share": 1 - tail_ms / receive_ms,
                "goodput_bytes_per_second": n_bytes * 1000 / receive_ms,
                "best_goodput_bytes_per_second": self.cable_bytes_per_s,
            },
            "chunks": [{**chunk, "layers": []} for chunk in chunks],
        }

    def until_chunk(self, n_chunks: int) -> Iterator[Event]:
        """From its asking to so many chunks."""
        yield "request", nothing_yet(self.request_id, self.asked_s, self.n_prompt)
        yield "request", self.timeline("prefill_remote")
        for index in range(n_chunks):
            yield (
                "chunk",
                {
                    "id": self.request_id,
                    "slot": self.slot,
                    "n_prompt_tokens": self.n_prompt,
                    **self.chunk(index),
                },
            )

    def events(self) -> Iterator[Event]:
        """All of it."""
        yield from self.until_chunk(self.n_chunks)
        yield "request", self.ended()


def local(request_id: str, asked_s: float, **more: Any) -> dict[str, Any]:
    """A short prompt that was prefilled where it is decoded, from its end."""
    return {
        **nothing_yet(request_id, asked_s, 96),
        "slot": 0,
        "state": "ended",
        "started_ms": 0.8,
        "prefilled_ms": 143.0,
        "first_token_ms": 183.0,
        "last_token_ms": 3_412.0,
        "ended_ms": 3_412.4,
        "outcome": "stop",
        "n_prompt_tokens_processed": 96,
        "n_decoded": 81,
        "route": {
            "prefill": "local",
            "reason": "local_sooner",
            "detail": "this computer was expected to be done first",
            "predicted": {"local_ms": 140.0, "remote_ms": 190.0},
        },
        "n_chunks": 1,
        "chunks": [
            {
                "first": 0,
                "stop": 95,
                "prefill": "local",
                "at_ms": 142.8,
                "compute_ms": 141.0,
                "computed_ms": 142.8,
                "bytes": 0,
            }
        ],
        **more,
    }


def nothing_yet(request_id: str, asked_s: float, n_prompt: int) -> dict[str, Any]:
    """A request that has just been asked."""
    return {
        "id": request_id,
        "slot": None,
        "state": "queued",
        "asked": asked_s,
        "queued_ms": 0.3,
        "started_ms": None,
        "accepted_ms": None,
        "prefilled_ms": None,
        "first_token_ms": None,
        "last_token_ms": None,
        "ended_ms": None,
        "outcome": None,
        "error": None,
        "n_prompt_tokens": n_prompt,
        "n_cached_tokens": 0,
        "n_remote_tokens": 0,
        "n_prompt_tokens_processed": 0,
        "n_decoded": 0,
        "route": None,
        "fallback": None,
        "handoff": None,
        "n_chunks": 0,
    }


def no_figures() -> dict[str, Any]:
    """A handoff that has not run to its end."""
    return {
        "n_handoffs": 0,
        "bytes": 0,
        "wire_bytes": None,
        "codec": None,
        "codec_reason": None,
        "reused_tokens": 0,
        "overlap": None,
        "tail_ms": None,
        "compute_ms": None,
        "receive_ms": None,
        "hidden_ms": None,
        "hidden_share": None,
        "goodput_bytes_per_second": None,
        "best_goodput_bytes_per_second": None,
    }


def slot(number: int = 0, state: str = "idle", **more: Any) -> dict[str, Any]:
    """As /slots has it."""
    return {
        "id": number,
        "id_task": None,
        "n_ctx": 32_768,
        "is_processing": state != "idle",
        "state": state,
        "n_cached_tokens": 0,
        "n_prompt_tokens": 0,
        "n_prompt_tokens_processed": 0,
        "n_decoded": 0,
        "prefill": None,
        **more,
    }


def snapshot(*requests: dict[str, Any], slots: list[dict[str, Any]] | None = None) -> Event:
    """The first event of a stream."""
    return "snapshot", {
        "slots": slots or [slot(0), slot(1)],
        "n_queued": 0,
        "worker": {
            "configured": True,
            "connected": True,
            "peer": "10.0.0.2:7118",
            "note": None,
            "link": None,
        },
        "requests": list(requests),
        "totals": {},
    }


def newest_first(ledger: Ledger) -> list[tuple[str, Record]]:
    return sorted(ledger.records.items(), key=lambda item: item[1].asked_s, reverse=True)
