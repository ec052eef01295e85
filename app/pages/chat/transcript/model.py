"""What the transcript is told of a conversation. Knows nothing of Qt, and nothing of where messages are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["user", "assistant", "system"]


@dataclass(frozen=True, kw_only=True)
class ShownFile:
    """A file that goes with a message. `n_tokens` is None where it was not counted."""

    name: str
    n_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Stats:
    """How an answer came about; None for what is not known.

    `n_reused` of the prompt's `n_prompt` tokens had been computed before. `prefilled_on` is a computer's name, "" where
    not known; `is_remote` says that it is the other one. `saved_s` is against doing it alone.
    """

    first_token_s: float | None = None
    tokens_per_s: float | None = None
    n_reused: int | None = None
    n_prompt: int | None = None
    prefilled_on: str = ""
    is_remote: bool = False
    tail_ms: float | None = None
    saved_s: float | None = None
    n_answer: int | None = None


@dataclass(frozen=True, kw_only=True)
class Prefill:
    """How far a prompt of `total` tokens is: `done` are computed on `where`, `arrived` of them are here.

    Where it is computed here, `arrived` equals `done`. `note` is a sentence for what a person should know of it.
    """

    done: int
    arrived: int
    total: int
    tokens_per_s: float | None = None
    left_s: float | None = None
    where: str = ""
    is_remote: bool = False
    note: str = ""


# Notes as they are kept with a message, in whatever language it was written: the user ended it, or Baton was ended.
STOPPED = "stopped"
CUT_OFF = "the window was closed"


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A message as it is now. `text` is Markdown in an answer, and plain in what a user wrote.

    `reasoning_s` is how long it thought, None where not known. `note` is STOPPED, CUT_OFF, or a sentence of what went
    wrong. `branch` is which of how many versions this is, counted from 1. `is_live` while more of it is expected.
    """

    id: str
    role: Role
    text: str
    reasoning: str = ""
    reasoning_s: float | None = None
    note: str = ""
    attachments: tuple[ShownFile, ...] = ()
    branch: tuple[int, int] = (1, 1)
    stats: Stats | None = None
    is_live: bool = False
