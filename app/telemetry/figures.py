"""Figures as people read them: a number with its unit, never more digits than matter. Knows nothing of Qt."""

from __future__ import annotations

from app.words import translate

DASH = "–"


def size(n_bytes: float | None) -> str:
    """ "1.1 GB"; decimal, as networks and disks count."""
    if n_bytes is None:
        return DASH
    if n_bytes >= 1e9:
        return translate("Figures", "{} GB").format(_short(n_bytes / 1e9))
    if n_bytes >= 1e6:
        return translate("Figures", "{} MB").format(_short(n_bytes / 1e6))
    if n_bytes >= 1e3:
        return translate("Figures", "{} KB").format(_short(n_bytes / 1e3))
    return translate("Figures", "{} B").format(f"{n_bytes:.0f}")


def memory(n_bytes: float) -> str:
    """ "192 GB"; as memory is sold, in powers of two, whole from 10 on."""
    gib = n_bytes / (1 << 30)
    return translate("Figures", "{} GB").format(f"{gib:.0f}" if gib >= 10 else f"{gib:.1f}")


def rate(bytes_per_s: float | None) -> str:
    """ "9.7 Gb/s"; bits, as cables are sold."""
    if bytes_per_s is None:
        return DASH
    gbps = bytes_per_s * 8 / 1e9
    if gbps >= 0.095 or gbps == 0:
        return translate("Figures", "{} Gb/s").format(f"{gbps:.1f}")
    if gbps >= 0.0005:
        return translate("Figures", "{} Mb/s").format(f"{gbps * 1000:.0f}")
    return translate("Figures", "{} kb/s").format(f"{gbps * 1e6:.0f}")


def link_speed(mbps: float) -> str:
    """ "10 Gb/s"; what a network card says of itself."""
    if mbps >= 1000:
        return translate("Figures", "{} Gb/s").format(f"{mbps / 1000:g}")
    return translate("Figures", "{} Mb/s").format(f"{mbps:g}")


def duration(ms: float | None) -> str:
    """ "2.1 ms", "320 ms", "8.4 s", "2 min 5 s"."""
    if ms is None:
        return DASH
    if ms < 1000:
        return translate("Figures", "{} ms").format(f"{ms:.1f}" if ms < 100 else f"{ms:.0f}")
    seconds = ms / 1000
    if seconds < 100:
        return translate("Figures", "{} s").format(f"{seconds:.1f}" if seconds < 60 else f"{seconds:.0f}")
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return translate("Figures", "{0} min {1} s").format(minutes, rest)
    return translate("Figures", "{0} h {1} min").format(minutes // 60, minutes % 60)


def passed(seconds: float) -> str:
    """How long something has lasted, which goes on: "12 s", "2 min 5 s", "2 h 5 min"; in whole seconds."""
    whole = max(0, int(seconds))
    if whole >= 100:
        return duration(whole * 1000)
    if whole >= 60:
        return translate("Figures", "{0} min {1} s").format(1, whole - 60)
    return translate("Figures", "{} s").format(whole)


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
    figure = f"{tokens_per_s:.1f}" if tokens_per_s < 100 else f"{tokens_per_s:,.0f}"
    return translate("Figures", "{} tok/s").format(figure)


def _short(number: float) -> str:
    return f"{number:.1f}" if number < 10 else f"{number:.0f}"
