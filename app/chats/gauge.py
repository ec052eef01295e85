"""How full a model's context is with a conversation. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.chats.model import File, Message

# Of English text, with common tokenizers; only of what was not counted.
_CHARS_PER_TOKEN = 4.0

NEARLY_FULL = 0.8


@dataclass(frozen=True, kw_only=True)
class Fill:
    """`n_tokens` of `n_ctx`, None where the model's context is not known. `is_exact` where all of it was counted."""

    n_tokens: int
    n_ctx: int | None
    is_exact: bool

    @property
    def share(self) -> float:
        return min(1.0, self.n_tokens / self.n_ctx) if self.n_ctx else 0.0

    @property
    def n_over(self) -> int:
        """How many tokens do not fit."""
        return max(0, self.n_tokens - self.n_ctx) if self.n_ctx else 0

    @property
    def is_nearly_full(self) -> bool:
        return self.share >= NEARLY_FULL


def fill_of(
    path: Sequence[Message], *, draft: str, files: Sequence[File], system: str, n_ctx: int | None
) -> Fill:
    """Of what would be asked if the draft were sent: counted up to the last answer, and guessed after it."""
    counted, rest = _guess(len(system)), list(path)
    is_exact = not system
    for at, message in enumerate(path):
        if message.stats is not None and message.stats.n_prompt is not None:
            counted, rest = message.stats.n_prompt + (message.stats.n_answer or 0), list(path[at + 1 :])
            is_exact = True
    n_tokens = counted + _tokens(rest, draft, files)
    return Fill(n_tokens=n_tokens, n_ctx=n_ctx, is_exact=is_exact and not (rest or draft or files))


def _tokens(messages: Sequence[Message], draft: str, files: Sequence[File]) -> int:
    all_files = [*files, *(file for message in messages for file in message.files)]
    chars = len(draft) + sum(len(message.text) for message in messages)
    return _guess(chars) + sum(file.n_tokens or _guess(len(file.text)) for file in all_files)


def _guess(n_chars: int) -> int:
    return round(n_chars / _CHARS_PER_TOKEN)
