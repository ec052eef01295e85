"""`baton privileged`: the helper that `baton link tune` starts as administrator; never started by a person."""

from __future__ import annotations

import argparse
import base64
import os
import signal
import sys

EXAMPLE = "  (started by `baton link tune`; its plan comes on standard input)\n"

# The system's own tools, and those alone: no folder of these is a user's to write into.
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin:/run/current-system/sw/bin"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--order", metavar="BASE64", help="the plan, where the system's dialog passes no standard input on"
    )


def run(args: argparse.Namespace) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a plan is done whole; that takes moments
    if os.name == "posix":
        os.environ["PATH"] = _PATH
    from engine.errors import UserError
    from engine.link.privileged import MAX_ORDER_BYTES, main
    from engine.link.tune import system_roots

    if args.order is None:
        return main(sys.stdin.buffer.read(MAX_ORDER_BYTES + 1), system_roots())
    try:
        return main(base64.urlsafe_b64decode(args.order), system_roots())
    except ValueError as error:
        raise UserError("--order: this is no plan of Baton's") from error
