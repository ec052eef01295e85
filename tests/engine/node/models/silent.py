"""Progress that nobody looks at."""

from __future__ import annotations


class Silent:
    """Shows nothing."""

    def note(self, sentence: str) -> None:
        pass

    def advance(self, done: int, total: int) -> None:
        pass
