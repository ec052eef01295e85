"""Who listens to a feed: woken together, on the event loop, by what another thread says."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from engine.batching.feed import Feed

T = TypeVar("T")


class Listeners(Generic[T]):
    """All listeners of one feed, woken together. On the event loop, but for what the feed calls."""

    def __init__(self, feed: Feed[T]) -> None:
        self.feed = feed
        self._listeners: set[asyncio.Event] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wakeup_due = False

    @property
    def n_listeners(self) -> int:
        return len(self._listeners)

    def add(self, listener: asyncio.Event) -> None:
        self._listeners.add(listener)
        if len(self._listeners) == 1:
            self._loop, self._wakeup_due = asyncio.get_running_loop(), False
            self.feed.on_news(self._on_news)

    def discard(self, listener: asyncio.Event) -> None:
        self._listeners.discard(listener)
        if not self._listeners:
            self.feed.on_news(None)

    def _on_news(self) -> None:
        """On the thread that says something. The event loop is woken once for all that comes before it looks."""
        if self._wakeup_due or self._loop is None:
            return
        self._wakeup_due = True
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # the loop is closed: nobody listens any more
            self._wakeup_due = False

    def _wake(self) -> None:
        # Reset before anyone reads: what comes after that wakes again.
        self._wakeup_due = False
        for listener in self._listeners:
            listener.set()
