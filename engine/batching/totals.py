"""What an engine has done since its start, as sums and histograms. Plain numbers: no names of any metrics format.

The engine's thread adds; other threads read numbers that are recent, though not all of the same instant.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

# Upper bounds in seconds. A first token comes after a few milliseconds of cached prompt or minutes of a long one.
_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
_REQUEST_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0)
_BETWEEN_TOKENS_S = (
    0.002,
    0.004,
    0.006,
    0.008,
    0.01,
    0.015,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.2,
    0.5,
    1.0,
    5.0,
)
_QUEUE_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)

# The tail is to be of single milliseconds; a slow link's may be seconds.
_TAIL_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 1.0)


class Histogram:
    """Counts of values up to each of `bounds`, the last for all above; and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def counts(self) -> list[int]:
        """One for each bound, and one more. From any thread."""
        return list(self._counts)


@dataclass(kw_only=True)
class Totals:
    """Since the engine's start. A prompt's tokens count when its request is over, by where they came from.

    `wire_bytes` are what came over the link in handoffs that ran to their end.
    Handoffs came in for `receive_s`, of which `hidden_s` took no time of their own, as the worker was still computing.
    `goodput` and `best_goodput` are bytes a second: of the last handoff, and the highest of all.
    """

    cached_tokens: int = 0
    local_tokens: int = 0
    remote_tokens: int = 0
    generated_tokens: int = 0
    handoff_bytes: int = 0
    wire_bytes: int = 0
    receive_s: float = 0.0
    hidden_s: float = 0.0
    goodput: float = 0.0
    best_goodput: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    routes: Counter[tuple[str, str]] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    link_downs: Counter[str] = field(default_factory=Counter)
    first_token_s: Histogram = field(default_factory=lambda: Histogram(_FIRST_TOKEN_S))
    between_tokens_s: Histogram = field(default_factory=lambda: Histogram(_BETWEEN_TOKENS_S))
    queue_s: Histogram = field(default_factory=lambda: Histogram(_QUEUE_S))
    prefill_s: Histogram = field(default_factory=lambda: Histogram(_FIRST_TOKEN_S))
    request_s: Histogram = field(default_factory=lambda: Histogram(_REQUEST_S))
    tail_s: Histogram = field(default_factory=lambda: Histogram(_TAIL_S))
    overlap: Histogram = field(default_factory=lambda: Histogram(_SHARES))
