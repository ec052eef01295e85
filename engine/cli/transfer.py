"""`baton transfer`: one end of a model's copy from computer to computer; started by the node, never by a person."""

from __future__ import annotations

import argparse

from engine.errors import BatonError

EXAMPLE = "  (started by `baton node`; what to copy comes on standard input, and its end ends the copy)\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    import msgspec

    from engine.cli.lifetime import watch_stdin
    from engine.node.models.transfer import TransferJob, run_job, say_line

    job = msgspec.json.decode(watch_stdin().get(), type=TransferJob)
    try:
        run_job(job, say_line)
    except BatonError as error:
        say_line({"error": str(error), "kind": type(error).__name__})
        return 1
    say_line({"done": True})
    return 0
