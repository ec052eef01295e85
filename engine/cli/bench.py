"""`baton bench speed|quality|handoff|copy|cluster`: measurements, each a module of `engine.bench` with its flags."""

from __future__ import annotations

import argparse
import importlib

BENCHES = {
    "speed": "prompt and decode speed, in llama-bench's terms",
    "quality": "how far the packed weights stray from the float32 reference",
    "handoff": "what the handoff costs, with paced compute in place of a model",
    "copy": "a model copied to another computer, beside what iperf3 carries over the same link",
    "cluster": "this computer alone, the other alone, and both together",
}

EXAMPLE = """\
  baton bench speed --model qwen2.5-coder-0.5b --peer llama.cpp
  baton bench quality --model qwen2.5-coder-0.5b --json
  baton bench handoff --geometry qwen3.6-27b --tokens 28800 --chunk 512 --compute-ms-per-chunk 300
  baton bench cluster --model qwen2.5-coder-0.5b
  sudo baton bench copy --link netns:10gbit
  baton bench handoff --help
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    listing = "; ".join(f"{name}: {text}" for name, text in BENCHES.items())
    parser.add_argument("bench", choices=BENCHES, metavar="|".join(BENCHES), help=listing)
    parser.add_argument(
        "flags", nargs=argparse.REMAINDER, metavar="...", help="its own flags; see its --help"
    )


def run(args: argparse.Namespace) -> int:
    module = importlib.import_module(f"engine.bench.{args.bench}")
    parser = argparse.ArgumentParser(
        prog=f"baton bench {args.bench}",
        description=BENCHES[args.bench][0].upper() + BENCHES[args.bench][1:] + ".",
        epilog=f"examples:\n{EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    status: int = module.run(parser.parse_args(args.flags))
    return status
