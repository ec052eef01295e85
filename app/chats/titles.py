"""What a conversation is called while nobody named it, and under which day it is listed. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from enum import Enum
from typing import Protocol

_MAX_CHARS = 48

# Before these a title says more than after them.
_ENDS = ".?!"

# "Dr." is no sentence.
_MIN_SENTENCE_CHARS = 8


def title_of(text: str, file_names: Sequence[str] = ()) -> str:
    """The first sentence of what was asked, cut between words; of files alone, their names; "" of nothing."""
    lines = (line.strip() for line in text.splitlines())
    words = next((line for line in lines if line and not line.startswith("```")), "")
    words = " ".join(words.lstrip("#>*- \t").split())
    for at, letter in enumerate(words):
        if letter in _ENDS and at >= _MIN_SENTENCE_CHARS and words[at + 1 : at + 2] in ("", " "):
            words = words[:at] if letter == "." else words[: at + 1]
            break
    if not words:
        return shortened(", ".join(file_names))
    return shortened(words[0].upper() + words[1:])


def shortened(text: str, chars: int = _MAX_CHARS) -> str:
    if len(text) <= chars:
        return text
    cut = text[: chars - 1]
    if " " in cut[chars // 2 :]:
        cut = cut.rsplit(" ", 1)[0]
    return cut.rstrip(" ,;:") + "…"


class Group(Enum):
    """When a conversation was last spoken in. The order is that of the list."""

    PINNED = "pinned"
    TODAY = "today"
    YESTERDAY = "yesterday"
    WEEK = "previous 7 days"
    MONTH = "previous 30 days"
    OLDER = "older"


class Dated(Protocol):
    @property
    def pinned(self) -> bool: ...

    @property
    def updated(self) -> float: ...


class Groups:
    """By the days of this computer's time zone, as they are `today`."""

    def __init__(self, today: date) -> None:
        self._begins = [
            (_begin(today - timedelta(days=days)), group)
            for days, group in ((0, Group.TODAY), (1, Group.YESTERDAY), (7, Group.WEEK), (30, Group.MONTH))
        ]

    def group_of(self, one: Dated) -> Group:
        if one.pinned:
            return Group.PINNED
        updated = one.updated
        for begin, group in self._begins:
            if updated >= begin:
                return group
        return Group.OLDER


def _begin(day: date) -> float:
    return datetime.combine(day, time()).timestamp()
