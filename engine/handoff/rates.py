"""How long prompts take to prefill here and at the worker, learned from those that were. No clocks, no I/O.

Speed differs with length: short prompts pay for round trips and a worker's first chunk, long ones for attention. So it
is kept for each power of two of the length, and read off between two of those.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# How much the newest prompt counts against all before it: a link or a load that changed is believed after a few.
_NEWEST_SHARE = 0.3

# Lengths beyond these are taken for the nearest.
_LEAST_EXPONENT, _MOST_EXPONENT = 4, 22
_EXPONENTS = frozenset(map(str, range(_LEAST_EXPONENT, _MOST_EXPONENT + 1)))

# A worker that looked slower is tried again after this long: nothing else would tell that its link has been mended.
_STALE_AFTER_S = 600.0

# Fewer prompts than these may all have met a computer that was busy with something else.
_ENOUGH_PROMPTS = 3


@dataclass(frozen=True)
class _Known:
    """The average length of some prompts, as its binary logarithm, and their seconds a token."""

    place: float
    rate: float


@dataclass
class SpeedByLength:
    """Seconds a token, by the length of what was prefilled."""

    _known: dict[int, _Known] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        return bool(self._known)

    def observe(self, n_tokens: int, seconds: float) -> None:
        """`n_tokens` > 0 took `seconds` > 0."""
        exponent = min(max(n_tokens.bit_length() - 1, _LEAST_EXPONENT), _MOST_EXPONENT)
        place, rate = math.log2(n_tokens), seconds / n_tokens
        before = self._known.get(exponent, _Known(place, rate))
        self._known[exponent] = _Known(
            before.place + _NEWEST_SHARE * (place - before.place),
            before.rate + _NEWEST_SHARE * (rate - before.rate),
        )

    def predict(self, n_tokens: int) -> float | None:
        """Seconds for `n_tokens` > 0; None while nothing has been seen."""
        # A copy, as another thread may ask while the engine's learns.
        known = sorted(list(self._known.values()), key=_place)
        if not known:
            return None
        place = math.log2(n_tokens)
        above = next((index for index, one in enumerate(known) if one.place > place), len(known))
        if above in (0, len(known)):
            return n_tokens * known[min(above, len(known) - 1)].rate
        low, high = known[above - 1], known[above]
        share = (place - low.place) / (high.place - low.place)
        return n_tokens * (low.rate + share * (high.rate - low.rate))

    def tokens_per_second(self) -> dict[int, float]:
        """By the length of the prompts that it was seen with."""
        return {round(2**one.place): 1 / one.rate for one in sorted(list(self._known.values()), key=_place)}

    def to_json(self) -> dict[str, list[float]]:
        return {str(exponent): [one.place, one.rate] for exponent, one in list(self._known.items())}

    @classmethod
    def from_json(cls, data: object) -> SpeedByLength:
        """What `to_json` gave; whatever else stands there is left out."""
        speed = cls()
        for key, numbers in data.items() if isinstance(data, Mapping) else ():
            match key, numbers:
                case str(), [float(place), float(rate)] if (
                    key in _EXPONENTS and 0 <= place <= 64 and 0 < rate < math.inf
                ):
                    speed._known[int(key)] = _Known(place, rate)
        return speed


def _place(known: _Known) -> float:
    return known.place


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Seconds until the prompt is prefilled, either way."""

    local_s: float
    remote_s: float


@dataclass
class PrefillRates:
    """Both ways, for one model on these two computers. `remote_at` is when the worker was last measured, in seconds of
    a clock that goes on between starts, and `remote_prompts` how often. `link_tps` is how many tokens' cache cross the
    link in a second, 0 while it was never what limited a handoff."""

    local: SpeedByLength = field(default_factory=SpeedByLength)
    remote: SpeedByLength = field(default_factory=SpeedByLength)
    remote_at: float = 0.0
    remote_prompts: int = 0
    link_tps: float = 0.0

    def observe_remote(self, n_tokens: int, seconds: float, *, now: float) -> None:
        """The worker was asked for `n_tokens` > 0, and the last came `seconds` > 0 later."""
        self.remote.observe(n_tokens, seconds)
        self.remote_at = now
        self.remote_prompts += 1

    def observe_link(self, n_tokens: int, seconds: float) -> None:
        """What `n_tokens` > 0 hold took `seconds` > 0 to come, and the link was what they waited for."""
        speed = n_tokens / seconds
        self.link_tps += (_NEWEST_SHARE if self.link_tps else 1.0) * (speed - self.link_tps)

    def forget_remote(self) -> None:
        """There is another worker."""
        self.remote = SpeedByLength()
        self.remote_at, self.remote_prompts, self.link_tps = 0.0, 0, 0.0

    def remote_is_stale(self, now: float) -> bool:
        """Whether the worker should be tried even where this computer is expected to be sooner."""
        return self.remote_prompts < _ENOUGH_PROMPTS or now - self.remote_at > _STALE_AFTER_S

    def predict(
        self,
        n_tokens: int,
        *,
        worker_tokens: int | None = None,
        local_backlog: int = 0,
        remote_in_flight: int = 0,
    ) -> Prediction | None:
        """For `n_tokens` > 0, for which the worker has to compute `worker_tokens` (None: as many; 0: it has them all).

        `local_backlog` tokens wait to be prefilled here before them, or `remote_in_flight` other prompts share the
        worker's time with them. None until both ways have been seen.
        """
        if worker_tokens is None:
            worker_tokens = n_tokens
        local, remote = self.local.predict(n_tokens), self.remote.predict(max(1, worker_tokens))
        if local is None or remote is None:
            return None
        if self.link_tps:
            remote = max(remote, n_tokens / self.link_tps)
        waiting = self.local.predict(local_backlog) if local_backlog else 0.0
        return Prediction(local_s=local + (waiting or 0.0), remote_s=remote * (1 + remote_in_flight))

    def crossover(self) -> int | None:
        """The length from which on the worker is sooner, both being idle; None where it is not known or never."""
        shortest = None
        for eighth in range(8 * _MOST_EXPONENT, 8 * _LEAST_EXPONENT - 1, -1):
            n_tokens = round(2 ** (eighth / 8))
            prediction = self.predict(n_tokens)
            if prediction is None or prediction.remote_s >= prediction.local_s:
                break
            shortest = n_tokens
        return shortest

    def to_json(self) -> dict[str, Any]:
        return {
            "local": self.local.to_json(),
            "remote": self.remote.to_json(),
            "remote_at": self.remote_at,
            "remote_prompts": self.remote_prompts,
            "link_tps": self.link_tps,
        }

    @classmethod
    def from_json(cls, data: object) -> PrefillRates:
        """What `to_json` gave; whatever else stands there is left out."""
        if not isinstance(data, Mapping):
            return cls()
        at, prompts, link = data.get("remote_at"), data.get("remote_prompts"), data.get("link_tps")
        return cls(
            local=SpeedByLength.from_json(data.get("local")),
            remote=SpeedByLength.from_json(data.get("remote")),
            remote_at=at if isinstance(at, float) and math.isfinite(at) else 0.0,
            remote_prompts=prompts if isinstance(prompts, int) and prompts >= 0 else 0,
            link_tps=link if isinstance(link, float) and 0 <= link < math.inf else 0.0,
        )
