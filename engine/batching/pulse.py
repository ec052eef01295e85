"""Whether a thread that computes still moves. It beats with each piece of its work; while it has none, nobody minds."""

from __future__ import annotations

import time
from collections.abc import Callable

# The slowest piece is one layer of one chunk, or one step of decoding: seconds, for the largest model on a processor
# that is no good at it. A thread that does not end one within this will not.
STUCK_AFTER_S = 120.0


class Pulse:
    """`work` and `rest` are for the thread that computes, `beat` is for whoever does a piece of its work."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._has_work = False
        self._moved_s = clock()

    def work(self) -> None:
        """There is something to do from now on."""
        self.beat()
        self._has_work = True

    def rest(self) -> None:
        """There is nothing to do until the next `work`."""
        self._has_work = False

    def beat(self) -> None:
        """A piece of the work is done. Begins no work: others may be late with theirs."""
        self._moved_s = self._clock()

    @property
    def still_s(self) -> float:
        """For how long nothing has been done though there was work; from any thread."""
        return max(0.0, self._clock() - self._moved_s) if self._has_work else 0.0

    @property
    def is_stuck(self) -> bool:
        return self.still_s > STUCK_AFTER_S
