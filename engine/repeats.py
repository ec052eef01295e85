"""Keeps a log readable where the same happens again and again: the first of a kind is said, the others are counted.

Decides only; whoever has something to say asks here first, and says it himself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

# Kinds that are remembered; the oldest is forgotten for a new one.
MAX_KINDS = 256


@dataclass(slots=True)
class _Kind:
    sentence: str
    said_at: float
    n_unsaid: int = 0


class Repeats:
    """`window_s` after one of a kind was said, the next may be; `clock` gives seconds. For one thread at a time."""

    def __init__(self, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._kinds: dict[str, _Kind] = {}

    def say(self, sentence: str, *, kind: str | None = None) -> int | None:
        """How many of the kind were left unsaid since the last, if this is to be said now; None if it is not.

        Without `kind`, only the very same sentence is of the same kind.
        """
        kind = sentence if kind is None else kind
        now = self._clock()
        known = self._kinds.get(kind)
        if known is not None and now - known.said_at < self._window_s:
            known.n_unsaid += 1
            return None
        self._kinds.pop(kind, None)
        while len(self._kinds) >= MAX_KINDS:
            del self._kinds[next(iter(self._kinds))]
        self._kinds[kind] = _Kind(sentence, now)
        return known.n_unsaid if known is not None else 0

    def overdue(self) -> list[tuple[str, int]]:
        """Sentences whose window is over, with how many like them were left unsaid in it; to be said now.

        Each begins another window. Kinds of which nothing was left unsaid are forgotten.
        """
        now = self._clock()
        over = [kind for kind, known in self._kinds.items() if now - known.said_at >= self._window_s]
        counts = []
        for kind in over:
            known = self._kinds.pop(kind)
            if known.n_unsaid:
                counts.append((known.sentence, known.n_unsaid))
                self._kinds[kind] = _Kind(known.sentence, now)
        return counts

    def forget(self) -> None:
        """Whatever is said next is said for the first time."""
        self._kinds.clear()
