"""What the node's parts are like just now, and a word to everyone who listens when one of them has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class News:
    """The parts by name, each with a function that gives it as plain data. On one event loop."""

    def __init__(self) -> None:
        self._parts: dict[str, Callable[[], Any]] = {}
        self._listeners: set[Listener] = set()

    def add(self, name: str, snapshot: Callable[[], Any]) -> Callable[[], None]:
        """Know of a part; returns what that is to call when it has changed."""
        self._parts[name] = snapshot
        return lambda: self._changed(name)

    def state(self) -> dict[str, Any]:
        return {name: snapshot() for name, snapshot in self._parts.items()}

    def part(self, name: str) -> Any:
        return self._parts[name]()

    def listen(self) -> Listener:
        listener = Listener(self)
        self._listeners.add(listener)
        return listener

    def forget(self, listener: Listener) -> None:
        self._listeners.discard(listener)

    @property
    def n_listeners(self) -> int:
        return len(self._listeners)

    def _changed(self, name: str) -> None:
        for listener in self._listeners:
            listener.hear(name)


class Listener:
    """Hears which parts have changed; however often one did, it is told once, as it is when that is asked for."""

    def __init__(self, news: News) -> None:
        self._news = news
        self._changed: dict[str, None] = {}
        self.woken = asyncio.Event()

    def hear(self, name: str) -> None:
        self._changed[name] = None
        self.woken.set()

    def take(self) -> dict[str, Any]:
        """The parts that have changed since the last time."""
        self.woken.clear()
        names, self._changed = self._changed, {}
        return {name: self._news.part(name) for name in names}
