"""`baton standby`: a process that has imported what an engine needs, and waits to be told which one it is."""

from __future__ import annotations

import argparse
import gc
import os

import msgspec

from engine.node.standby import Order

EXAMPLE = """\
  echo '{"words": ["serve", "--model", "smollm2-135m", "--port", "0"]}' | baton standby
"""

# What the order says is not read with it: the engine's own words come on the same standard input.
_ONE_BYTE = 1

_MAX_ORDER_BYTES = 1 << 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = f"{parser.description} Standard input says as what: one line of JSON."


def run(args: argparse.Namespace) -> int:
    _import_engine()
    line = _first_line()
    if not line:
        return 0  # it was never needed
    order = msgspec.json.decode(line, type=Order)
    os.environ.update(order.environment)

    from engine.cli.main import run_command

    return run_command(list(order.words))


def _import_engine() -> None:
    """All that engines of both kinds import before they look at a model."""
    gc.disable()  # what is imported is no garbage, and to look through it takes a tenth of the time
    import engine.assembly
    import engine.server.app
    import engine.server.run  # noqa: F401

    gc.freeze()
    gc.enable()


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < _MAX_ORDER_BYTES:
        byte = os.read(0, _ONE_BYTE)
        if not byte:
            break
        line += byte
    return line
