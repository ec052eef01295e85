"""`baton wake`: wake the other computer, and wait until it is there."""

from __future__ import annotations

import argparse
import json
from urllib.parse import quote

from engine.node.client import NodeClient

EXAMPLE = """\
  baton wake studio
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a paired computer, by its name or id")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """0 when it is awake, 1 when it does not come back."""
    outcome = NodeClient.find().post(f"/peers/{quote(args.name, safe='')}/wake")
    print(json.dumps(outcome, indent=2) if args.json else outcome["note"])
    return 0 if outcome["awake"] else 1
