"""`baton standby`: a process that has imported what an engine needs, and waits to be told which one it is."""

from __future__ import annotations

import argparse
import os

import msgspec

from engine.node.standby import Order
from engine.quick_imports import quick_imports

EXAMPLE = """\
  echo '{"words": ["serve", "--model", "smollm2-135m", "--port", "0"]}' | baton standby
"""

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
    with quick_imports():
        import engine.assembly
        import engine.server.app
        import engine.server.run  # noqa: F401


def _first_line() -> bytes:
    """Read byte by byte: what follows is for the engine, which reads the same standard input."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _MAX_ORDER_BYTES:
        byte = os.read(0, 1)
        if not byte:
            break
        line += byte
    return line
