"""How far a long prompt is, out of the endpoint's `/events`. Events in, a Prefill out; no clock and no network."""

from __future__ import annotations

from typing import Any

from app.chats.models import Computers
from app.pages.chat.transcript.model import Prefill
from app.words import translate

# Of less than this nobody wants to read a rate.
_MIN_RATED_S = 0.2


class PrefillProgress:
    """Of the request with that id."""

    def __init__(self, request_id: str, computers: Computers) -> None:
        self._id, self._computers = request_id, computers
        self._total = self._done = 0
        self._by_worker = False
        self._note = ""
        self._began: tuple[int, float] | None = None
        self._rate: float | None = None
        self.is_over = False

    @property
    def prefill(self) -> Prefill | None:
        """None before anything is known, and after it is over."""
        if self.is_over or not self._total:
            return None
        left = self._total - self._done
        where, is_other = self._computers.prefilled(by_worker=self._by_worker)
        return Prefill(
            done=self._done,
            arrived=self._done,
            total=self._total,
            tokens_per_s=self._rate,
            left_s=left / self._rate if self._rate else None,
            where=where,
            is_remote=is_other,
            note=self._note,
        )

    def hear(self, name: str, data: dict[str, Any]) -> bool:
        """An event; whether it was about this request."""
        if name == "snapshot":
            timelines = [one for one in data.get("requests") or () if one.get("id") == self._id]
            for timeline in timelines:
                self._hear_timeline(timeline)
            return bool(timelines)
        if data.get("id") != self._id:
            return False
        if name == "request":
            self._hear_timeline(data)
        elif name == "chunk":
            self._hear_chunk(data, int(data.get("n_prompt_tokens") or 0))
        return True

    def _hear_timeline(self, timeline: dict[str, Any]) -> None:
        if timeline.get("first_token_ms") is not None or timeline.get("ended_ms") is not None:
            self.is_over = True
            return
        total = int(timeline.get("n_prompt_tokens") or 0)
        cached = int(timeline.get("n_cached_tokens") or 0)
        if self._began is None and timeline.get("started_ms") is not None:
            self._began = cached, float(timeline["started_ms"])
        self._total = total
        self._done = max(self._done, cached, int(timeline.get("n_prompt_tokens_processed") or 0))
        self._by_worker = timeline.get("state") == "prefill_remote"
        if fallback := timeline.get("fallback"):
            self._note = translate("Answer", "{0} could not go on: {1}. {2} does.").format(
                self._computers.worker, fallback.get("detail"), self._computers.decoder
            )
        for chunk in timeline.get("chunks") or ():
            self._hear_chunk(chunk, total)

    def _hear_chunk(self, chunk: dict[str, Any], total: int) -> None:
        self._total = total or self._total
        self._done = max(self._done, int(chunk["stop"]))
        self._by_worker = chunk.get("prefill") == "remote"
        if self._began is None:
            self._began = int(chunk["first"]), float(chunk["at_ms"]) - float(chunk.get("compute_ms") or 0.0)
        first, began_ms = self._began
        took_s = (float(chunk["at_ms"]) - began_ms) / 1000
        if took_s >= _MIN_RATED_S:
            self._rate = (self._done - first) / took_s
