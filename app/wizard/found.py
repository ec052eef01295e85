"""Which of the computers that discovery tells of are worth offering, and what is said of each. Knows nothing of Qt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.words import translate


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A computer to pair with. `shows_code`: it takes a code now; `answers` is false for a mere address.

    `typed` is the address by which somebody had it looked for, "" where it was found without.
    """

    name: str
    about: str
    shows_code: bool
    answers: bool
    node_id: str = ""
    typed: str = ""


def candidates(discovery: dict[str, Any], peers: list[dict[str, Any]], own_id: str) -> list[Candidate]:
    """Those that are neither paired nor this one, who shows a code first."""
    known = {own_id, *(peer["node_id"] for peer in peers)}
    typed = discovery.get("manual", [])
    found = [_candidate(told, typed) for told in discovery.get("found", []) if told["node_id"] not in known]
    return sorted(found, key=lambda each: (not each.shows_code, not each.answers, each.name))


def networks(discovery: dict[str, Any]) -> list[str]:
    """The names of the interfaces on which somebody is looked for."""
    working = [each["name"] for each in discovery.get("interfaces", []) if not each["fault"]]
    return list(dict.fromkeys(working))


def _candidate(told: dict[str, Any], typed: list[str]) -> Candidate:
    answers = told["node_id"] is not None
    address = _host(told["addresses"][0]) if told["addresses"] else ""
    about = [address]
    if not answers:
        about.append(translate("Wizard", "does not answer yet"))
    elif told["version"]:
        about.append(f"Baton {told['version']}")
    return Candidate(
        name=told["name"] or address,
        about=" · ".join(filter(None, about)),
        shows_code=bool(told["pairing_addresses"]),
        answers=answers,
        node_id=told["node_id"] or "",
        typed=next((each for each in told["addresses"] if each in typed), ""),
    )


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")
