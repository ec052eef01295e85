"""The news of an engine, numbered, of which the last are kept: whoever reads keeps his own place in them.

A reader that is slow falls behind what is kept and learns how much he missed; the writer never waits, and costs the
same however many read. Knows nothing of what the news are.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")

# A handful for a request and one for each chunk: the last few dozen requests, in a few hundred kilobytes.
KEPT_NEWS = 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class Numbered(Generic[T]):
    number: int
    item: T


class Feed(Generic[T]):
    """Any thread may `say` and read. Numbers begin at 1."""

    def __init__(self, *, keep: int = KEPT_NEWS) -> None:
        self._kept: deque[Numbered[T]] = deque(maxlen=keep)
        self._last = 0
        self._lock = threading.Lock()
        self._wakeup: Callable[[], None] | None = None

    def on_news(self, wakeup: Callable[[], None] | None) -> None:
        """Call `wakeup`, which must not block, on the thread that says something; None for nobody."""
        self._wakeup = wakeup

    def say(self, item: T) -> None:
        with self._lock:
            self._last += 1
            self._kept.append(Numbered(number=self._last, item=item))
        wakeup = self._wakeup
        if wakeup is not None:
            wakeup()

    @property
    def last(self) -> int:
        """The number of the last news, 0 before the first."""
        return self._last

    def after(self, number: int, *, at_most: int) -> list[Numbered[T]] | None:
        """The news that follow `number`, the oldest first; None when some of them are not kept any more."""
        with self._lock:
            n_new = self._last - number
            if not 0 <= n_new <= len(self._kept):
                return None
            at = len(self._kept) - n_new
            return list(islice(self._kept, at, min(at + at_most, len(self._kept))))
