"""A report of the link doctor as what a person reads: findings first, then what was found to be well, with numbers.

Knows nothing of Qt. A report is that of `/link`, or the last line of `/link/probe`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.telemetry import figures
from app.words import QT_TRANSLATE_NOOP, translate

# The hue of each severity; what is only worth knowing has none.
_TONES = {"broken": "danger", "slow": "warning", "note": ""}

# What of the link a finding is about: where there is one, nothing is said to be well.
_SUBJECTS = {
    "no_cable": "cable",
    "not_over_the_cable": "cable",
    "no_address": "cable",
    "shared_port": "cable",
    "address_collision": "cable",
    "same_address": "cable",
    "slow_port": "speed",
    "slow_link": "speed",
    "one_way_slower": "speed",
    "mtu_black_hole": "packets",
    "small_mtu": "packets",
    "unequal_mtu": "packets",
    "no_datagrams": "packets",
    "long_round_trips": "round trips",
    "lost_packets": "round trips",
    "packet_errors": "errors",
    "small_buffers": "buffers",
    "slow_start_after_idle": "pauses",
}

# Where the doctor speaks to somebody at a terminal.
_FIXES = {
    "same_address": QT_TRANSLATE_NOOP(
        "Link", "Undo the address on one of the two computers, then fix the cable once more."
    )
}

_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at. `tone` is local where it is well, warning or danger where it is not, else none.

    `is_tunable`: tuning this computer's end of the cable, and the other's, mends it.
    """

    code: str
    tone: str
    what: str
    why: str = ""
    fix: str = ""
    is_tunable: bool = False

    @property
    def is_well(self) -> bool:
        return self.tone == "local"


def checks(report: dict[str, Any]) -> list[Check]:
    """All of a report: what matters most first, what is well last."""
    has_cable = bool(report["cable"]["interface"])
    found = [_of_finding(finding, has_cable=has_cable) for finding in report["findings"]]
    spoken_of = {_SUBJECTS.get(check.code) for check in found}
    return [*found, *(check for check in _what_is_well(report) if check.code not in spoken_of)]


def summary(found: list[Check]) -> str:
    """ "5 checks passed, 1 could be better"."""
    n_well = sum(check.is_well for check in found)
    n_other = sum(check.tone in ("warning", "danger") for check in found)
    if n_well == 1:
        passed = translate("Link", "1 check passed")
    else:
        passed = translate("Link", "{} checks passed").format(n_well)
    return translate("Link", "{0}, {1} could be better").format(passed, n_other) if n_other else passed


def sentence(text: str) -> str:
    """A part of a line, as the node says it, as a sentence of its own, in the window's units; a name of the system's
    stays as it is."""
    if not text:
        return ""
    begins_with_name = any(letter.isdigit() for letter in text.split(maxsplit=1)[0])
    begin = text[:1] if begins_with_name else text[:1].upper()
    return begin + text[1:].replace("Gbit/s", "Gb/s") + ("" if text.endswith((".", "?")) else ".")


def about(note: str, computer: str) -> str:
    """What the node notes of a computer, as a sentence; the computer's name stays as it is, also where it begins with
    it."""
    if note.startswith(f"{computer} "):
        return f"{computer}{sentence(note[len(computer) :])}"
    return sentence(note)


def _of_finding(finding: dict[str, Any], *, has_cable: bool) -> Check:
    would_be_tuned = bool(finding.get("is_tunable"))
    is_tunable = would_be_tuned and has_cable
    if is_tunable:
        fix = translate("Link", "Baton can set this up. You see every change before it is made.")
    elif would_be_tuned:
        fix = translate("Link", "Baton can set this up once a direct cable joins the two computers.")
    elif known := _FIXES.get(finding["code"]):
        fix = translate("Link", known)
    else:
        fix = sentence(finding["fix"])
    return Check(
        code=finding["code"],
        tone=_TONES.get(finding["severity"], "warning"),
        what=sentence(finding["what"]),
        why=sentence(finding["why"]),
        fix=fix,
        is_tunable=is_tunable,
    )


def _what_is_well(report: dict[str, Any]) -> Iterator[Check]:
    """By the name of its subject, with what was measured."""
    peer = report.get("peer")
    if interface := report["cable"]["interface"]:
        speed = _speed(report, interface)
        where = f"{interface}, {speed}" if speed else interface
        yield _well("cable", translate("Link", "The cable is on {}.").format(where))
    if peer is None or peer["path"] is None:
        return
    name, out, back = peer["name"], peer["path"]["to_peer"], peer["path"]["from_peer"]
    trips = peer["path"]["round_trips"]
    there, again = (
        figures.rate(max(way["goodput_gbps"], way["goodput_two_streams_gbps"]) * 1e9 / 8)
        for way in (out, back)
    )
    yield _well("speed", translate("Link", "{0} to {1}, {2} back.").format(there, name, again))
    if trips is not None:
        took, worst = figures.duration(trips["median_ms"]), figures.duration(trips["worst_ms"])
        if trips["lost"]:
            words = translate("Link", "A round trip takes {0}, {1} at worst; {2} of {3} lost.")
        else:
            words = translate("Link", "A round trip takes {0}, {1} at worst; none of {3} lost.")
        yield _well("round trips", words.format(took, worst, trips["lost"], trips["sent"]))
    mtus = [way["path_mtu"] for way in (out, back)]
    if None not in mtus:
        yield _well(
            "packets", translate("Link", "Packets of {} bytes pass both ways.").format(f"{min(mtus):,}")
        )
    held = f"{_buffer(report) / _MIB:.0f}"
    yield _well("buffers", translate("Link", "Connections may hold {} MiB at both ends.").format(held))
    after = figures.duration(max(way["burst_after_idle_ms"] for way in (out, back)))
    burst = figures.size(out["burst_bytes"])
    yield _well("pauses", translate("Link", "After a pause, a burst of {0} takes {1}.").format(burst, after))
    yield _well("errors", translate("Link", "No packet was faulty or dropped."))


def _well(code: str, what: str) -> Check:
    return Check(code=code, tone="local", what=what)


def _speed(report: dict[str, Any], name: str) -> str:
    interfaces = report["here"]["network"]["interfaces"]
    mbps = next((each["speed_mbps"] for each in interfaces if each["name"] == name), None)
    return figures.link_speed(mbps) if mbps else ""


def _buffer(report: dict[str, Any]) -> int:
    """The smallest that a connection gets at either end."""
    held = []
    for limits in (report["here"]["limits"], report["peer"]["facts"]["limits"]):
        for way in ("receive", "send"):
            granted, auto = limits[f"{way}_granted"], limits[f"{way}_auto_max"]
            held.append(auto if auto is not None and granted < _MIB else granted)
    return min(held)
