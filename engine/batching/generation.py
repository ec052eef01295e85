"""One request in a slot: from its tokens so far to its events. No tensors, no clock of its own, no slots' policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.batching.request import (
    Event,
    Finished,
    FinishReason,
    Handoff,
    Logprobs,
    Progress,
    Request,
    Started,
    Timings,
    Token,
    Usage,
)
from engine.batching.sampler import Sampler
from engine.batching.textstream import TextStream
from engine.batching.timeline import Timeline


class Generation:
    """A request being answered.

    `tokens` are the prompt's and the answer's, `next_token` the one that the next decode row evaluates. Times come
    in as seconds of one monotonic clock. Methods return the events to send. `timeline` is the journal's, carried along.
    """

    def __init__(
        self,
        request: Request,
        *,
        sampler: Sampler,
        text: TextStream,
        end_ids: frozenset[int],
        n_ctx: int,
        slot: int,
        timeline: Timeline,
        cached_tokens: int,
        queued_at: float,
        started_at: float,
    ) -> None:
        self.request = request
        self.sampler = sampler
        self.slot = slot
        self.timeline = timeline
        self.tokens = list(request.tokens)
        self.n_prompt = len(self.tokens)
        self.cached_tokens = cached_tokens
        self.n_processed = cached_tokens
        self.handoff: Handoff | None = None
        # Where the last handoff began, what those before it brought, and how often the worker may still be asked: it
        # was away, and may come back before the prompt is done here.
        self.handed_over_from = cached_tokens
        self.bytes_before = 0
        self.remote_tokens_before = 0
        self.returns_left = 0
        # Tokens of the prompt computed on this computer, and what their steps took.
        self.prefilled_here = 0
        self.prefill_seconds = 0.0
        self._text = text
        self._end_ids = frozenset() if request.sampling.ignore_eos else end_ids
        self._n_ctx = n_ctx
        self._queued_at = queued_at
        self._started_at = started_at
        self._first_token_at: float | None = None

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def next_token(self) -> int:
        return self.tokens[-1]

    @property
    def n_generated(self) -> int:
        return len(self.tokens) - self.n_prompt

    def started(self) -> Started:
        return Started(
            request_id=self.request_id,
            slot=self.slot,
            prompt_tokens=self.n_prompt,
            cached_tokens=self.cached_tokens,
        )

    def processed(self, n_tokens: int, now: float) -> Progress:
        """`n_tokens` of the prompt are in the cache."""
        self.n_processed = n_tokens
        return Progress(
            request_id=self.request_id,
            total=self.n_prompt,
            cached=self.cached_tokens,
            processed=n_tokens,
            time_ms=(now - self._started_at) * 1000.0,
        )

    def hand_over(self, start: int) -> None:
        """The worker is asked for all from `start` on; `note_came` counts from here."""
        self.handed_over_from = start
        if self.handoff is not None:
            self.bytes_before = self.handoff.bytes
            self.remote_tokens_before = self.handoff.remote_tokens

    def note_came(self, *, stop: int | None = None, n_bytes: int | None = None) -> None:
        """Of the last handoff, positions up to `stop` can be used, and so many bytes came whole."""
        if n_bytes is not None:
            self.note_remote(bytes=self.bytes_before + n_bytes)
        if stop is not None:
            before = self.remote_tokens_before if stop >= self.handed_over_from else 0
            self.note_remote(remote_tokens=before + max(0, stop - self.handed_over_from))

    def note_remote(self, **known: Any) -> None:
        """Fill in what has become known of the prefill's place; the fields are `Handoff`'s."""
        if self.handoff is not None:
            self.handoff = replace(self.handoff, **known)

    def accept(self, token_id: int, logprobs: Logprobs | None, now: float) -> list[Event]:
        """Take the token chosen after `next_token`; the last event is `Finished` when the answer ends with it."""
        if self._first_token_at is None:
            self._first_token_at = now
            if self.request.sampling.max_tokens == 0:
                return [self.finished(FinishReason.LENGTH, now)]
        self.tokens.append(token_id)
        ends = token_id in self._end_ids
        text = "" if ends else self._text.push(token_id)
        token = Token(request_id=self.request_id, token_id=token_id, text=text, logprobs=logprobs)
        if ends or self._text.stop is not None:
            return [token, self.finished(FinishReason.STOP, now)]
        max_tokens = self.request.sampling.max_tokens
        if max_tokens is not None and self.n_generated >= max_tokens:
            return [token, self.finished(FinishReason.LENGTH, now)]
        if len(self.tokens) > self._n_ctx:
            return [token, self.finished(FinishReason.LENGTH, now, truncated=True)]
        return [token]

    def finished(self, reason: FinishReason, now: float, *, truncated: bool = False) -> Finished:
        """The end of the answer, for whatever reason."""
        text = self._text.finish()
        if self._text.stop is not None:
            reason, truncated = FinishReason.STOP, False
        return Finished(
            request_id=self.request_id,
            reason=reason,
            text=text,
            stop=self._text.stop,
            truncated=truncated,
            usage=Usage(
                prompt_tokens=self.n_prompt,
                cached_tokens=self.cached_tokens,
                completion_tokens=self.n_generated,
            ),
            timings=self._timings(now),
        )

    def _timings(self, now: float) -> Timings:
        prompt_end = now if self._first_token_at is None else self._first_token_at
        return Timings(
            cache_n=self.cached_tokens,
            prompt_n=self.n_prompt - self.cached_tokens,
            prompt_ms=(prompt_end - self._started_at) * 1000.0,
            predicted_n=self.n_generated,
            predicted_ms=(now - prompt_end) * 1000.0,
            queue_ms=(self._started_at - self._queued_at) * 1000.0,
            handoff=self.handoff,
        )
