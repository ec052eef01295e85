"""Amounts as people read them, with their units; and how fast something goes on. Knows nothing of Qt."""

from __future__ import annotations

from collections import deque

from app.words import translate

# Over how long a rate is taken: shorter jumps about, longer lags behind.
_WINDOW_S = 4.0


def size_text(n_bytes: float) -> str:
    """ "98 MB", "17.3 GB"; as disks are sold."""
    if n_bytes < 1e6:
        return translate("Figures", "{} kB").format(f"{n_bytes / 1e3:.0f}")
    if n_bytes < 1e9:
        return translate("Figures", "{} MB").format(f"{n_bytes / 1e6:.0f}")
    gb = n_bytes / 1e9
    return translate("Figures", "{} GB").format(f"{gb:.1f}" if gb < 100 else f"{gb:,.0f}")


def memory_text(n_bytes: float) -> str:
    """ "192 GB", as memory is sold."""
    gib = n_bytes / (1 << 30)
    return translate("Figures", "{} GB").format(f"{gib:.0f}" if gib >= 10 else f"{gib:.1f}")


def duration_text(seconds: float) -> str:
    """ "6 s", "4 min", "1 h 20 min"; what is left of something that takes time."""
    if seconds < 60:
        return translate("Figures", "{} s").format(max(1, round(seconds)))
    hours, minutes = divmod(round(seconds / 60), 60)
    if not hours:
        return translate("Figures", "{} min").format(minutes)
    if not minutes:
        return translate("Figures", "{} h").format(hours)
    return translate("Figures", "{0} h {1} min").format(hours, minutes)


def rate_text(per_s: float) -> str:
    """Tokens a second: "2,310 tokens/s", "24.8 tokens/s"."""
    return translate("Figures", "{} tokens/s").format(f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.1f}")


class Pace:
    """How fast a count grows, by what was heard of it in the last seconds."""

    def __init__(self) -> None:
        self._heard: deque[tuple[float, float]] = deque()

    def hear(self, count: float, now_s: float) -> None:
        """A count that falls begins anew, as after something was fetched again."""
        if self._heard and count < self._heard[-1][1]:
            self._heard.clear()
        self._heard.append((now_s, count))
        while now_s - self._heard[0][0] > _WINDOW_S and len(self._heard) > 2:
            self._heard.popleft()

    @property
    def per_s(self) -> float:
        """0 while it is not known."""
        if len(self._heard) < 2:
            return 0.0
        (from_s, before), (to_s, after) = self._heard[0], self._heard[-1]
        return (after - before) / (to_s - from_s) if to_s > from_s else 0.0

    def left_s(self, total: float) -> float | None:
        """Seconds until `total` is reached at this pace; None while that is not known."""
        return (total - self._heard[-1][1]) / self.per_s if self.per_s > 0 else None
