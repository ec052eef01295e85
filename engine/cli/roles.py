"""`baton roles`: which of two paired computers prefills and which decodes, for each model, why, and what you wish."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from engine.errors import InvalidRequest
from engine.node.client import NodeClient

EXAMPLE = """\
  baton roles
  baton roles --prefill spark
  baton roles --prefill auto
"""

# Two computers agree within a round trip; one of them may be busy.
_AGREED_WITHIN_S = 3.0
_LOOK_EVERY_S = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prefill",
        metavar="NAME",
        help="have that computer prefill, whatever was measured; auto takes that back",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    client = NodeClient.find()
    roles = client.get("/roles")
    if args.prefill is not None:
        roles = _wish(client, _node_id(client, args.prefill))
    if args.json:
        print(json.dumps(roles, indent=2))
    else:
        _print(roles, _names(client))
    return 0


def _wish(client: NodeClient, prefill: str) -> dict[str, Any]:
    """Say what is wished; the roles that follow from it, or that hold where it cannot be had."""
    client.post("/roles", {"prefill": prefill})
    give_up_at = time.monotonic() + _AGREED_WITHIN_S
    while True:
        roles: dict[str, Any] = client.get("/roles")
        is_so = all(agreed["is_wish"] == (prefill != "auto") for agreed in roles["agreed"])
        if is_so and all(prefill in ("auto", agreed["prefill"]) for agreed in roles["agreed"]):
            return roles
        if time.monotonic() > give_up_at:
            return roles
        time.sleep(_LOOK_EVERY_S)


def _names(client: NodeClient) -> dict[str, str]:
    status = client.get("/status")
    return {node["node_id"]: node["name"] for node in (status["node"], *status["peers"])}


def _node_id(client: NodeClient, name: str) -> str:
    if name == "auto":
        return name
    names = _names(client)
    found = [node_id for node_id, known in names.items() if name.lower() in (known.lower(), node_id)]
    if len(found) != 1:
        raise InvalidRequest(f"--prefill {name}: there are auto, {', '.join(names.values())}")
    return found[0]


def _print(roles: dict[str, Any], names: dict[str, str]) -> None:
    if not roles["agreed"]:
        print("Nothing is agreed yet: both computers need the same model, and a connection")
    for agreed in roles["agreed"]:
        print(f"{agreed['model']}: {agreed['reason']}")
        for way in agreed["ways"]:
            print(f"  {_way(way, agreed, names)}")
    for model, problem in roles["not_measured"].items():
        print(f"{model} could not be measured here: {problem}")


def _way(way: dict[str, Any], agreed: dict[str, Any], names: dict[str, str]) -> str:
    prefill, decode = (names.get(way[part], way[part]) for part in ("prefill", "decode"))
    who = f"{decode} alone" if prefill == decode else f"{prefill} prefills, {decode} decodes"
    if way["obstacle"]:
        return f"{who}: {way['obstacle']}"
    if way["total_s"] is None:
        return f"{who}: not measured yet"
    return (
        f"{who}: {agreed['prompt_tokens']:,} tokens and an answer of {agreed['answer_tokens']} in "
        f"{way['total_s']:.1f} s, the first after {way['first_token_s']:.1f} s"
    )
