"""What computes on the worker, as its loop sees it. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A prompt's place: the sequence's number, and how many of its first tokens that holds already.

    `held` is None while a prefix is being brought there; `Prefiller.restored` then tells it.
    """

    sequence: int
    held: int | None


@dataclass(frozen=True, kw_only=True)
class Part:
    """One prompt's share of a pass: positions [first, end) of the tokens that its sequence was taken for.

    `on_layer(l)` is called in the order of layers when layer l's K and V are in the cache.
    """

    sequence: int
    first: int
    end: int
    on_layer: Callable[[int], None]


class Prefiller(Protocol):
    """Computes K and V of `n_layers` in the worker's cache memory, which has room for `n_sequences`."""

    @property
    def n_sequences(self) -> int: ...

    @property
    def n_layers(self) -> int: ...

    def on_wakeup(self, wakeup: Callable[[], None]) -> None:
        """Call `wakeup`, from any thread, whenever `restored` may have something."""

    def begin(self, tokens: list[int], free: Collection[int], *, reuse: bool) -> Taken:
        """Take one of the `free` sequences for a prompt: with `reuse` one that holds some of it, if there is any."""

    def restored(self) -> list[Taken]:
        """The sequences whose prefix has come since the last call."""

    def release(self, sequence: int) -> None:
        """Nobody computes or reads it now; it may be taken again. From any thread."""

    def compute(self, parts: list[Part]) -> None:
        """One pass over parts of different sequences, all before each being there. An error concerns all of them."""

    def spans(
        self, sequence: int, layer: int, first: int, end: int, *, final: bool, start: int, stop: int
    ) -> list[tuple[int, int]]:
        """(offset, bytes) in memory of what the chunk [first, end) sends for `layer`; may be empty."""

    def set_aside(self, sequence: int, layer: int, end: int) -> list[tuple[int, int]]:
        """Copy the window or state that `layer` has at `end`, its latest position; returns (offset, bytes) of the copy.

        There is room for one copy a layer, which a next call overwrites.
        """
