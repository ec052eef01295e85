"""`baton link`: what the two computers' link is good for. `selftest` compares their answers token for token.

`probe` and `tune` have files of their own.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from engine.cli import link_probe, link_tune
from engine.config import HOST, PORT, add_flags
from engine.node.endpoint import Endpoint
from engine.node.selftest import LENGTHS, SelfTest
from engine.numbers import whole_numbers

EXAMPLE = """\
  baton link probe
  baton link tune --dry-run
  baton link tune --apply
  baton link selftest
  baton link selftest --lengths 100,2000 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    link_probe.add_arguments(
        actions.add_parser("probe", help="measure the cable, and say what slows it down and how to mend that")
    )
    link_tune.add_arguments(
        actions.add_parser(
            "tune", help="give the cable addresses, large packets and the buffers that it needs"
        )
    )
    selftest = actions.add_parser(
        "selftest", help="prefill the same prompts here and at the worker, and compare the answers"
    )
    selftest.add_argument(
        "--lengths",
        type=whole_numbers,
        default=LENGTHS,
        metavar="N,...",
        help="tokens of each prompt (default: around the borders of a chunk, as far as the context goes)",
    )
    add_flags(selftest, [HOST, PORT])
    selftest.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    if args.action == "probe":
        return link_probe.run(args)
    if args.action == "tune":
        return link_tune.run(args)
    return _selftest(args)


def _selftest(args: argparse.Namespace) -> int:
    """0 when the worker prefilled every prompt, and the answers are the same or part at a near tie; else 1."""
    test = SelfTest(Endpoint.named(args.host, args.port))
    for prompt in test.prompts(args.lengths):
        row = test.compare(prompt)
        if not args.json:
            print(_line(row), flush=True)
    if args.json:
        print(json.dumps({"passed": test.passed, "prompts": test.rows}))
    else:
        print(test.verdict())
    return 0 if test.passed else 1


def _line(row: dict[str, Any]) -> str:
    if row["prefill"] != "remote":
        outcome = f"not prefilled by the worker: {row['detail']}"
    elif row["same"]:
        outcome = "same answer"
    elif row["near_tie"]:
        outcome = f"parts at token {row['diverges_at']}, a near tie ({row['margin']:.3f})"
    elif row["margin"] is None:
        outcome = "one answer is longer"
    else:
        outcome = f"PARTS at token {row['diverges_at']}, by {row['margin']:.3f}"
    times = f"{row['local_ms']:8.0f} ms here {row['remote_ms']:8.0f} ms by the worker"
    return f"{row['prompt_tokens']:6d} tokens {times} {row['bytes'] / 1e6:8.1f} MB  {outcome}"
