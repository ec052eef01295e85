"""The log lines that a window holds: bounded, filtered by level, source and words, and held still. Knows no Qt."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MAX_LINES = 2000

LEVELS = ("info", "warning", "error")


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    at: float
    source: str
    level: str
    text: str

    @property
    def clock(self) -> str:
        return time.strftime("%H:%M:%S", time.localtime(self.at))

    @property
    def plain(self) -> str:
        """As it is copied."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.at))
        return f"{when} {self.level.upper()} {self.source}: {self.text}"


def line_of(told: Mapping[str, Any]) -> Line:
    level = str(told.get("level", ""))
    return Line(
        at=float(told.get("at", 0.0)),
        source=str(told.get("source", "")),
        level=level if level in LEVELS else "info",
        text=str(told.get("text", "")),
    )


class LogBook:
    """While it is paused, what comes is kept apart; no more of it than of the rest."""

    def __init__(self) -> None:
        self._lines: deque[Line] = deque(maxlen=MAX_LINES)
        self._held: deque[Line] = deque(maxlen=MAX_LINES)
        self.words = ""
        self.level = LEVELS[0]
        self.is_paused = False

    def begin(self, told: Iterable[Mapping[str, Any]]) -> None:
        """All that there is: it takes the place of what was held."""
        lines = list(map(line_of, told))
        if self.is_paused:
            self._held.clear()
            known = set(self._lines)
            self._held.extend(line for line in lines if line not in known)
            return
        self._lines.clear()
        self._lines.extend(lines)

    def add(self, told: Iterable[Mapping[str, Any]]) -> list[Line]:
        """More lines; those of them that are to be shown now."""
        lines = list(map(line_of, told))
        if self.is_paused:
            self._held.extend(lines)
            return []
        self._lines.extend(lines)
        return [line for line in lines if self.shows(line)]

    def go_on(self) -> None:
        self.is_paused = False
        self._lines.extend(self._held)
        self._held.clear()

    @property
    def n_held(self) -> int:
        return len(self._held)

    @property
    def n_lines(self) -> int:
        return len(self._lines)

    def shown(self) -> list[Line]:
        return [line for line in self._lines if self.shows(line)]

    def shows(self, line: Line) -> bool:
        """Whether level and words let it pass; words are looked for in the text and in where it is from."""
        if LEVELS.index(line.level) < LEVELS.index(self.level):
            return False
        found = f"{line.source} {line.text}".casefold()
        return all(word in found for word in self.words.casefold().split())
