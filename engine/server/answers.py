"""The objects that answers are sent as: OpenAI's shapes, with llama-server's `timings`. Plain data, no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.batching.request import Finished, Handoff, Logprobs, Progress, Timings, Token, TokenLogprob, Usage
from engine.server.backend import Tokenizer


@dataclass(kw_only=True)
class Choice:
    """One answer as far as it has come. `tokens` are the last event's in a stream, all of them otherwise."""

    index: int
    text: str = ""
    n_chars: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[tuple[Token, int]] = field(default_factory=list)
    finished: Finished | None = None

    def add(self, token: Token) -> None:
        self.tokens.append(token.token_id)
        if token.logprobs is not None:
            self.logprobs.append((token, self.n_chars))
        self._add_text(token.text)

    def end(self, finished: Finished) -> None:
        self.finished = finished
        self._add_text(finished.text)

    def drain(self) -> None:
        """What there is has been sent."""
        self.text = ""
        self.tokens = []
        self.logprobs = []

    def _add_text(self, text: str) -> None:
        self.text += text
        self.n_chars += len(text)


class Shape(Protocol):
    """How an endpoint words a choice; `whole_name` and `chunk_name` are the `object` of answer and chunk."""

    whole_name: str
    chunk_name: str
    id_prefix: str

    def whole(self, choice: Choice) -> dict[str, Any]: ...

    def opening(self, index: int) -> dict[str, Any] | None: ...

    def part(self, choice: Choice) -> dict[str, Any]: ...

    def closing(self, choice: Choice) -> dict[str, Any]: ...


class ChatShape:
    """/v1/chat/completions."""

    whole_name = "chat.completion"
    chunk_name = "chat.completion.chunk"
    id_prefix = "chatcmpl-"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def whole(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text},
            "logprobs": self._logprobs(choice),
            "finish_reason": _reason(choice),
        }

    def opening(self, index: int) -> dict[str, Any] | None:
        """The first chunk says who speaks."""
        return self._chunk(index, {"role": "assistant", "content": ""})

    def part(self, choice: Choice) -> dict[str, Any]:
        chunk = self._chunk(choice.index, {"content": choice.text} if choice.text else {})
        if choice.logprobs:
            chunk["logprobs"] = self._logprobs(choice)
        return chunk

    def closing(self, choice: Choice) -> dict[str, Any]:
        """The last chunk holds no text, only why the answer ended."""
        return self._chunk(choice.index, {}) | {"finish_reason": _reason(choice)}

    def _chunk(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _logprobs(self, choice: Choice) -> dict[str, Any] | None:
        if not choice.logprobs:
            return None
        return {"content": [self._token(token.logprobs) for token, _ in choice.logprobs if token.logprobs]}

    def _token(self, logprobs: Logprobs) -> dict[str, Any]:
        return self._entry(logprobs.chosen) | {"top_logprobs": [self._entry(top) for top in logprobs.top]}

    def _entry(self, entry: TokenLogprob) -> dict[str, Any]:
        spelling = self._tokenizer.token_bytes(entry.token_id, special=True)
        return {
            "token": spelling.decode("utf-8", "replace"),
            "logprob": entry.logprob,
            "bytes": list(spelling),
        }


class CompletionShape:
    """/v1/completions."""

    whole_name = "text_completion"
    chunk_name = "text_completion"
    id_prefix = "cmpl-"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def whole(self, choice: Choice) -> dict[str, Any]:
        return self.part(choice) | {"finish_reason": _reason(choice)}

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def part(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": choice.text,
            "logprobs": self._logprobs(choice),
            "finish_reason": None,
        }

    def closing(self, choice: Choice) -> dict[str, Any]:
        return {"index": choice.index, "text": "", "logprobs": None, "finish_reason": _reason(choice)}

    def _logprobs(self, choice: Choice) -> dict[str, Any] | None:
        if not choice.logprobs:
            return None
        entries = [(token.logprobs, offset) for token, offset in choice.logprobs if token.logprobs]
        return {
            "tokens": [self._spell(logprobs.chosen) for logprobs, _ in entries],
            "token_logprobs": [logprobs.chosen.logprob for logprobs, _ in entries],
            "top_logprobs": [
                {self._spell(top): top.logprob for top in logprobs.top} for logprobs, _ in entries
            ],
            "text_offset": [offset for _, offset in entries],
        }

    def _spell(self, entry: TokenLogprob) -> str:
        return self._tokenizer.token_bytes(entry.token_id, special=True).decode("utf-8", "replace")


def usage_body(usages: Iterable[tuple[int, Usage]], n: int) -> dict[str, Any]:
    """Counts over all choices, given with their index; the `n` choices of a prompt share it and it counts once."""
    prompt = cached = completion = 0
    for index, usage in usages:
        completion += usage.completion_tokens
        if index % n == 0:
            prompt += usage.prompt_tokens
            cached += usage.cached_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def timings_body(timings: Timings) -> dict[str, Any]:
    """llama-server's `timings`, and with them where the prompt was prefilled."""
    return {
        "cache_n": timings.cache_n,
        "prompt_n": timings.prompt_n,
        "prompt_ms": timings.prompt_ms,
        "prompt_per_token_ms": timings.prompt_per_token_ms,
        "prompt_per_second": timings.prompt_per_second,
        "predicted_n": timings.predicted_n,
        "predicted_ms": timings.predicted_ms,
        "predicted_per_token_ms": timings.predicted_per_token_ms,
        "predicted_per_second": timings.predicted_per_second,
        "queue_ms": timings.queue_ms,
        "handoff": _handoff_body(timings.handoff),
    }


def progress_body(progress: Progress) -> dict[str, Any]:
    """llama-server's `prompt_progress`; `total` and `processed` include the cached tokens."""
    return {
        "total": progress.total,
        "cache": progress.cached,
        "processed": progress.processed,
        "time_ms": progress.time_ms,
    }


def _handoff_body(handoff: Handoff | None) -> dict[str, Any] | None:
    if handoff is None:
        return None
    return {
        "prefill": handoff.prefill,
        "reason": handoff.reason,
        "detail": handoff.detail,
        "bytes": handoff.bytes,
        "remote_tokens": handoff.remote_tokens,
        "overlap": handoff.overlap,
        "tail_ms": handoff.tail_ms,
        "predicted": {
            "local_ms": handoff.predicted.local_s * 1000,
            "remote_ms": handoff.predicted.remote_s * 1000,
        }
        if handoff.predicted is not None
        else None,
    }


def _reason(choice: Choice) -> str | None:
    return choice.finished.reason.value if choice.finished else None
