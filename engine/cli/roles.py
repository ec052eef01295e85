"""`baton roles`: which of two paired computers prefills and which decodes, for each model, why, and what you wish."""

from __future__ import annotations

import argparse
import json
from typing import Any

from engine.errors import InvalidRequest
from engine.node.client import NodeClient

EXAMPLE = """\
  baton roles
  baton roles --prefill spark
  baton roles --prefill auto
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prefill",
        metavar="NAME",
        help="have that computer prefill, whatever was measured; auto takes that back",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    client = NodeClient.find()
    if args.prefill is not None:
        client.post("/roles", {"prefill": _node_id(client, args.prefill)})
    roles = client.get("/roles")
    if args.json:
        print(json.dumps(roles, indent=2))
    else:
        _print(roles, _names(client))
    return 0


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
        print(f"{agreed['model']}: {_said(agreed['reason'])}")
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


def _said(reason: str) -> str:
    return reason[:1].upper() + reason[1:]
