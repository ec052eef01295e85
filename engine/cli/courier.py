"""`baton courier`: the process beside an engine that moves KV; started by the engine, never by a person."""

from __future__ import annotations

import argparse

EXAMPLE = "  (started by `baton serve` and `baton worker`; its settings come on standard input)\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    from engine.handoff.courier import main

    main()
    return 0
