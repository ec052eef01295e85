"""Figures as people read them: a number with its unit, never more digits than matter. Knows nothing of Qt."""

from __future__ import annotations

DASH = "–"


def size(n_bytes: float | None) -> str:
    """ "1.1 GB"; decimal, as networks and disks count."""
    if n_bytes is None:
        return DASH
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if n_bytes >= unit:
            return f"{_short(n_bytes / unit)} {name}"
    return f"{n_bytes:.0f} B"


def memory(n_bytes: float) -> str:
    """ "192 GB"; as memory is sold, in powers of two, whole from 10 on."""
    gib = n_bytes / (1 << 30)
    return f"{gib:.0f} GB" if gib >= 10 else f"{gib:.1f} GB"


def rate(bytes_per_s: float | None) -> str:
    """ "9.7 Gb/s"; bits, as cables are sold."""
    if bytes_per_s is None:
        return DASH
    gbps = bytes_per_s * 8 / 1e9
    if gbps >= 0.095 or gbps == 0:
        return f"{gbps:.1f} Gb/s"
    return f"{gbps * 1000:.0f} Mb/s" if gbps >= 0.0005 else f"{gbps * 1e6:.0f} kb/s"


def duration(ms: float | None) -> str:
    """ "2.1 ms", "320 ms", "8.4 s", "2 min 5 s"."""
    if ms is None:
        return DASH
    if ms < 1000:
        return f"{ms:.1f} ms" if ms < 100 else f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 60 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def passed(seconds: float) -> str:
    """How long something has lasted, which goes on: "12 s", "2 min 5 s", "2 h 5 min"; in whole seconds."""
    whole = max(0, int(seconds))
    return f"{whole} s" if whole < 60 else duration(whole * 1000) if whole >= 100 else f"1 min {whole - 60} s"


def count(n: float | None) -> str:
    """ "28,800"."""
    return DASH if n is None else f"{n:,.0f}"


def share(part: float | None) -> str:
    """ "99.7%"; never rounded up to all of it, nor down to nothing."""
    if part is None:
        return DASH
    if part in (0, 1):
        return f"{part:.0%}"
    return f"{min(99.9, max(0.1, part * 100)):.1f}%"


def speed(tokens_per_s: float | None) -> str:
    """ "24.8 tok/s"."""
    if tokens_per_s is None:
        return DASH
    return f"{tokens_per_s:.1f} tok/s" if tokens_per_s < 100 else f"{tokens_per_s:,.0f} tok/s"


def _short(number: float) -> str:
    return f"{number:.1f}" if number < 10 else f"{number:.0f}"
