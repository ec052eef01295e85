"""How many data connections a link should have: as many as were asked for, or as many as its threads' loads ask for.

Pure policy: loads come in, nothing is measured here.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.wire.limits import MAX_DATA_STREAMS

# A thread that spent so much of its time on the processor was hardly ever waiting for bytes.
_SATURATED = 0.9


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a thread did in a span of `wall_s`: its time on the processor, and how long cores stood idle, all added."""

    wall_s: float
    cpu_s: float
    idle_s: float

    def since(self, earlier: Load) -> Load:
        return Load(
            wall_s=self.wall_s - earlier.wall_s,
            cpu_s=self.cpu_s - earlier.cpu_s,
            idle_s=self.idle_s - earlier.idle_s,
        )


class StreamCount:
    """`wanted` is how many the next link should have. Without a number `asked` it is 1 at first, and grows one by one.

    Another one helps only where a receiving thread cannot keep up with the link, and a core has nothing to do.
    """

    def __init__(self, asked: int | None) -> None:
        self.wanted = asked or 1
        self._is_measured = asked is None

    def observe(self, load: Load, *, used: int) -> None:
        """Learn from a receiving thread of a link that has `used` connections."""
        is_saturated = load.cpu_s >= _SATURATED * load.wall_s
        has_free_core = load.idle_s >= load.wall_s
        if self._is_measured and used == self.wanted < MAX_DATA_STREAMS and is_saturated and has_free_core:
            self.wanted += 1
