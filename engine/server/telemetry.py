"""How slots, timelines and their news are worded for clients: plain data. Never what anyone's prompt says."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from engine.batching.journal import ChunkNews, LinkNews, News, RequestNews, SlotsNews
from engine.batching.snapshot import SlotSnapshot
from engine.batching.timeline import Chunk, Timeline
from engine.batching.totals import Totals
from engine.handoff.client_events import ClientStatus
from engine.handoff.telemetry import unpack_layers
from engine.server.backend import Engine


def snapshot_body(engine: Engine) -> dict[str, Any]:
    """Everything that the news change: slots, queue, link, and the requests that run or ran lately."""
    snapshot = engine.snapshot()
    journal = engine.journal
    return {
        "slots": [slot_body(slot) for slot in snapshot.slots],
        "n_queued": snapshot.n_queued,
        "worker": worker_body(snapshot.worker),
        "requests": [timeline_body(timeline) for timeline in journal.timelines.recent()],
        "totals": totals_body(journal.totals),
    }


def news_body(news: News) -> tuple[str, dict[str, Any]]:
    """The name of an event and its data."""
    match news:
        case RequestNews():
            return "request", timeline_body(news.timeline, with_chunks=news.timeline.ended_at is not None)
        case ChunkNews():
            return "chunk", {
                "id": news.request_id,
                "slot": news.slot,
                "n_prompt_tokens": news.n_prompt,
                **_chunk(news.chunk, news.asked_at, with_layers=True),
            }
        case LinkNews():
            return "link", worker_body(news.status) | {"reason": news.code or None}
        case SlotsNews():
            return "slots", {"slots": [slot_body(slot) for slot in news.slots]}


def slot_body(slot: SlotSnapshot) -> dict[str, Any]:
    """llama-server's fields, and ours."""
    return {
        "id": slot.slot,
        "id_task": slot.request_id,
        "n_ctx": slot.n_ctx,
        "is_processing": slot.state != "idle",
        "state": slot.state,
        "n_cached_tokens": slot.n_cached,
        "n_prompt_tokens": slot.n_prompt,
        "n_prompt_tokens_processed": slot.n_processed,
        "n_decoded": slot.n_generated,
        "prefill": slot.prefill,
    }


def worker_body(link: ClientStatus | None) -> dict[str, Any]:
    ready = link is not None and link.ready
    return {
        "configured": link is not None,
        "connected": ready,
        "peer": link.peer if link is not None and ready else None,
        "note": link.note if link is not None and not ready else None,
        "link": asdict(link.setup) if link is not None and link.setup is not None else None,
    }


def timeline_body(
    timeline: Timeline, *, with_chunks: bool = True, with_layers: bool = False
) -> dict[str, Any]:
    """A request's life; moments in milliseconds since it was asked, null until they come."""
    asked = timeline.asked_at
    body: dict[str, Any] = {
        "id": timeline.request_id,
        "slot": timeline.slot,
        "state": timeline.state,
        "asked": timeline.asked_unix_s,
        "queued_ms": _since(asked, timeline.queued_at),
        "started_ms": _since(asked, timeline.began_at),
        "accepted_ms": _since(asked, timeline.accepted_at),
        "prefilled_ms": _since(asked, timeline.prefilled_at),
        "first_token_ms": _since(asked, timeline.first_token_at),
        "last_token_ms": _since(asked, timeline.last_token_at),
        "ended_ms": _since(asked, timeline.ended_at),
        "outcome": timeline.outcome,
        "error": timeline.error,
        "n_prompt_tokens": timeline.n_prompt,
        "n_cached_tokens": timeline.n_cached,
        "n_remote_tokens": timeline.n_remote,
        "n_prompt_tokens_processed": timeline.n_processed,
        "n_decoded": timeline.n_decoded,
        "route": _route(timeline),
        "fallback": _fallback(timeline),
        "handoff": _handoff(timeline),
        "n_chunks": timeline.n_chunks,
    }
    if with_chunks:
        body["chunks"] = [_chunk(chunk, asked, with_layers=with_layers) for chunk in timeline.chunks.copy()]
    return body


def totals_body(totals: Totals) -> dict[str, Any]:
    """Since the engine's start."""
    return {
        "prompt_tokens": {
            "cached": totals.cached_tokens,
            "local": totals.local_tokens,
            "remote": totals.remote_tokens,
        },
        "generated_tokens": totals.generated_tokens,
        "outcomes": dict(totals.outcomes),
        "fallbacks": dict(totals.fallbacks),
        "handoff_bytes": totals.handoff_bytes,
        "handoff_wire_bytes": totals.wire_bytes,
        "hidden_share": totals.hidden_s / totals.receive_s if totals.receive_s > 0 else None,
        **goodput_body(totals),
    }


def goodput_body(totals: Totals) -> dict[str, Any]:
    """Of the last handoff, and the highest of all: the nearest that is known to what the link can carry."""
    return {
        "goodput_bytes_per_second": totals.goodput or None,
        "best_goodput_bytes_per_second": totals.best_goodput or None,
    }


def _route(timeline: Timeline) -> dict[str, Any] | None:
    route = timeline.route
    if route is None:
        return None
    predicted = {"local_ms": route.local_ms, "remote_ms": route.remote_ms}
    return {
        "prefill": route.prefill,
        "reason": route.reason,
        "detail": route.detail,
        "predicted": None if route.local_ms is None else predicted,
    }


def _fallback(timeline: Timeline) -> dict[str, Any] | None:
    fallback = timeline.fallback
    if fallback is None:
        return None
    return {
        "reason": fallback.reason,
        "detail": fallback.detail,
        "at_ms": _since(timeline.asked_at, fallback.at),
    }


def _handoff(timeline: Timeline) -> dict[str, Any] | None:
    """Null where the worker was not asked; the figures are null until it has done all that it was asked."""
    if timeline.n_handoffs == 0:
        return None
    figures = timeline.figures
    return {
        "n_handoffs": timeline.n_handoffs,
        "bytes": timeline.bytes,
        "wire_bytes": figures and figures.wire_bytes,
        "codec": figures and figures.codec,
        "codec_reason": figures and figures.codec_reason,
        "reused_tokens": timeline.n_reused_there,
        "overlap": figures and figures.overlap,
        "tail_ms": figures and figures.tail_ms,
        "compute_ms": figures and figures.compute_ms,
        "receive_ms": figures and figures.receive_ms,
        "hidden_ms": figures and figures.hidden_ms,
        "hidden_share": figures and figures.hidden_share,
        "goodput_bytes_per_second": figures and figures.goodput,
        "best_goodput_bytes_per_second": figures and figures.best_goodput,
    }


def _chunk(chunk: Chunk, asked_at: float, *, with_layers: bool) -> dict[str, Any]:
    body: dict[str, Any] = {
        "first": chunk.first,
        "stop": chunk.stop,
        "prefill": "remote" if chunk.remote else "local",
        "at_ms": _since(asked_at, chunk.at),
        "compute_ms": chunk.compute_ms,
        "computed_ms": _since(asked_at, chunk.computed_at),
        "bytes": chunk.n_bytes,
    }
    if with_layers:
        body["layers"] = [
            {
                "layer": layer.layer,
                "queued_ms": _since(asked_at, layer.queued_s),
                "first_byte_ms": _since(asked_at, layer.first_byte_s),
                "last_byte_ms": _since(asked_at, layer.last_byte_s),
                "bytes": layer.n_bytes,
            }
            for layer in unpack_layers(chunk.layers)
        ]
    return body


def _since(start: float, moment: float | None) -> float | None:
    """In milliseconds, to the microsecond that couriers count in."""
    return None if moment is None else round((moment - start) * 1000.0, 3)
