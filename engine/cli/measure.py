"""`baton measure`: how fast this computer runs a model; started by the node, which keeps the result."""

from __future__ import annotations

import argparse
import json

from engine import config

EXAMPLE = "  baton measure --model smollm2-135m\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    config.add_flags(parser, [config.MODEL, config.DEVICE])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--exit-with-stdin",
        action="store_true",
        help="end when standard input does: a parent that holds its other end takes this process with it",
    )


def run(args: argparse.Namespace) -> int:
    import msgspec

    from engine.cli.lifetime import watch_stdin
    from engine.cli.progress import loading_bar
    from engine.node.models.library import Library

    if args.exit_with_stdin:
        watch_stdin()
    with loading_bar(args.model) as progress:
        path = Library().resolve(args.model, progress)

    from engine.bench.at_hand import ANSWER_TOKENS, PROMPT_TOKENS, measure

    found = measure(str(path), device=args.device)
    if args.json:
        print(json.dumps(msgspec.to_builtins(found)))
        return 0
    print(f"prompt   {found.prefill_tokens_per_s:,.0f} tokens/s ({PROMPT_TOKENS} at once)")
    print(f"answer   {found.decode_tokens_per_s:,.1f} tokens/s ({ANSWER_TOKENS} one by one)")
    print(f"loading  {found.load_s:.2f} s")
    print(f"on       {found.device_name or found.device}")
    return 0
