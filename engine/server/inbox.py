"""Carries things from the engine's thread to one coroutine. Knows nothing of what they are."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """Many threads put, one coroutine takes. Made on the event loop that takes.

    The event loop is woken once for everything that comes before it looks, so that a burst of tokens costs one
    wakeup.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[T] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._wakeup_due = False

    def put(self, item: T) -> None:
        """From any thread; never blocks. What comes after the event loop has ended is dropped."""
        self._items.append(item)
        if self._wakeup_due:
            return
        self._wakeup_due = True
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # the loop is closed: nobody takes any more
            self._items.clear()

    async def take(self) -> list[T]:
        """Everything that is there, in order; waits for the first."""
        while not self._items:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        items = []
        while self._items:
            items.append(self._items.popleft())
        return items

    def _wake(self) -> None:
        # Reset before the items are taken: what comes after that wakes again.
        self._wakeup_due = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
