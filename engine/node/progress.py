"""What a long job reports while it runs. How that looks is the business of who shows it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives a job's progress; called from the thread that runs the job."""

    def note(self, sentence: str) -> None:
        """Something worth a line, such as a second source being tried."""

    def advance(self, done: int, total: int) -> None:
        """`done` of `total` bytes are there; it may fall when something has to be fetched again."""
