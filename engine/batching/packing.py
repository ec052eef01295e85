"""Who gets a chunk in the worker's next forward pass: pure policy, with no tensors, threads or clocks.

A member is a prompt being prefilled. It joins with all of its chunks, whose cut nobody else changes, and leaves by
itself with the last one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

Chunk = tuple[int, int]  # positions [first, end)

# Newcomers go first, so that a short prompt need not wait for the long ones; but no more often than this in a row.
MAX_PASSED_OVER = 3


@dataclass(kw_only=True, eq=False)
class _Member(Generic[Key]):
    key: Key
    chunks: deque[Chunk]
    is_new: bool = True
    passed_over: int = 0

    @property
    def rank(self) -> tuple[int, int]:
        """Least goes first: who has waited too long, newcomers, then the others by how long they have waited."""
        if self.passed_over >= MAX_PASSED_OVER:
            return 0, -self.passed_over
        return (1, 0) if self.is_new else (2, -self.passed_over)


class Packer(Generic[Key]):
    """A pass takes one chunk of each member, as many as fit into `pass_tokens`, and never none."""

    def __init__(self, *, pass_tokens: int) -> None:
        self._pass_tokens = pass_tokens
        self._members: list[_Member[Key]] = []

    def __len__(self) -> int:
        return len(self._members)

    def join(self, key: Key, chunks: Iterable[Chunk]) -> None:
        """`chunks` in their order, one or more."""
        member = _Member(key=key, chunks=deque(chunks))
        if not member.chunks or any(other.key == key for other in self._members):
            raise ValueError(f"{key} has nothing to compute, or is here already")
        self._members.append(member)

    def leave(self, key: Key) -> None:
        """Forget its chunks; nothing where it has left already."""
        self._members = [member for member in self._members if member.key != key]

    def next_pass(self) -> list[tuple[Key, Chunk]]:
        """The next chunk of each member whose turn it is; they count as computed.

        A chunk that is larger than a whole pass may be goes alone.
        """
        left = self._pass_tokens
        served: list[_Member[Key]] = []
        # Equal ranks keep their order: whose turn was longest ago is first in the list.
        for member in sorted(self._members, key=lambda member: member.rank):
            first, end = member.chunks[0]
            if end - first <= left or not served:
                served.append(member)
                left -= end - first
        waiting = [member for member in self._members if member not in served]
        for member in waiting:
            member.passed_over += 1
        taken = [(member.key, member.chunks.popleft()) for member in served]
        for member in served:
            member.is_new, member.passed_over = False, 0
        self._members = waiting + [member for member in served if member.chunks]
        return taken
