"""A report of the link doctor as what a person reads: findings first, then what was found to be well, with numbers.

Knows nothing of Qt. A report is that of `/link`, or the last line of `/link/probe`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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
_FIXES = {"same_address": "Undo the address on one of the two computers, then fix the cable once more."}

_BY_TUNING = "Baton can set this up. You see every change before it is made."

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
    found = [_of_finding(finding) for finding in report["findings"]]
    spoken_of = {_SUBJECTS.get(check.code) for check in found}
    return [*found, *(check for check in _what_is_well(report) if check.code not in spoken_of)]


def summary(found: list[Check]) -> str:
    """ "5 checks passed, 1 could be better"."""
    n_well = sum(check.is_well for check in found)
    n_other = sum(check.tone in ("warning", "danger") for check in found)
    passed = f"{n_well} {'check' if n_well == 1 else 'checks'} passed"
    return f"{passed}, {n_other} could be better" if n_other else passed


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


def _of_finding(finding: dict[str, Any]) -> Check:
    is_tunable = bool(finding.get("is_tunable"))
    fix = _BY_TUNING if is_tunable else _FIXES.get(finding["code"], sentence(finding["fix"]))
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
    if report["cable"]["interface"]:
        speed = _speed(report, report["cable"]["interface"])
        yield _well(
            "cable", f"The cable is on {report['cable']['interface']}{f', {speed}' if speed else ''}."
        )
    if peer is None or peer["path"] is None:
        return
    name, out, back = peer["name"], peer["path"]["to_peer"], peer["path"]["from_peer"]
    trips = peer["path"]["round_trips"]
    goodput = [max(way["goodput_gbps"], way["goodput_two_streams_gbps"]) for way in (out, back)]
    yield _well("speed", f"{goodput[0]:.1f} Gb/s to {name}, {goodput[1]:.1f} Gb/s back.")
    if trips is not None:
        yield _well(
            "round trips",
            f"A round trip takes {trips['median_ms']:.1f} ms, {trips['worst_ms']:.1f} ms at worst; "
            f"{trips['lost'] or 'none'} of {trips['sent']} lost.",
        )
    mtus = [way["path_mtu"] for way in (out, back)]
    if None not in mtus:
        yield _well("packets", f"Packets of {min(mtus):,} bytes pass both ways.")
    yield _well("buffers", f"Connections may hold {_buffer(report) / _MIB:.0f} MiB at both ends.")
    after_ms = max(way["burst_after_idle_ms"] for way in (out, back))
    yield _well(
        "pauses", f"After a pause, a burst of {out['burst_bytes'] / 1e6:.1f} MB takes {after_ms:.1f} ms."
    )
    yield _well("errors", "No packet was faulty or dropped.")


def _well(code: str, what: str) -> Check:
    return Check(code=code, tone="local", what=what)


def _speed(report: dict[str, Any], name: str) -> str:
    interfaces = report["here"]["network"]["interfaces"]
    mbps = next((each["speed_mbps"] for each in interfaces if each["name"] == name), None)
    if not mbps:
        return ""
    return f"{mbps / 1000:g} Gb/s" if mbps >= 1000 else f"{mbps:g} Mb/s"


def _buffer(report: dict[str, Any]) -> int:
    """The smallest that a connection gets at either end."""
    held = []
    for limits in (report["here"]["limits"], report["peer"]["facts"]["limits"]):
        for way in ("receive", "send"):
            granted, auto = limits[f"{way}_granted"], limits[f"{way}_auto_max"]
            held.append(auto if auto is not None and granted < _MIB else granted)
    return min(held)
