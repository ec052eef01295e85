"""`baton worker`: the engine that prefills prompts for another computer. It has no endpoint of its own."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import threading
from typing import TYPE_CHECKING, Any

from engine import config
from engine.cli.lifetime import add_lifetime_flags, unwinding_on_sigterm, watch_stdin
from engine.cli.log import log_to_stderr
from engine.cli.progress import ProgressBar, loading_bar
from engine.errors import UserError
from engine.node.library import Library
from engine.node.running import announce

if TYPE_CHECKING:
    from engine.assembly import WorkerEngine

EXAMPLE = """\
  baton worker --model smollm2-135m --listen 0.0.0.0:7118 --trust FINGERPRINT
  baton worker --model ./model.gguf --dial 192.168.1.10:7118 --trust FINGERPRINT
"""

SETTINGS = [
    *(config.MODEL, config.LISTEN, config.DIAL, config.TRUST, config.IDENTITY),
    *(config.SLOTS, config.CTX, config.CHUNK, config.WEIGHTS, config.DEVICE, config.THREADS),
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    config.add_flags(parser, SETTINGS)
    add_lifetime_flags(parser)


def run(args: argparse.Namespace) -> int:
    if args.exit_with_stdin:
        watch_stdin()
    if bool(args.listen) == bool(args.dial):
        raise UserError(
            "give exactly one of --listen HOST:PORT, to wait for the other computer, and --dial HOST:PORT"
        )
    if not args.trust:
        raise UserError(
            "--trust is missing: it takes the fingerprint that the other computer prints when it starts"
        )
    log_to_stderr()
    with unwinding_on_sigterm():
        return _work(args)


def _work(args: argparse.Namespace) -> int:
    with ProgressBar(args.model) as progress:
        path = Library().resolve(args.model, progress)

    from engine.assembly import open_worker_engine

    with loading_bar(f"loading {path.name}") as loading:
        engine = open_worker_engine(args, path, loading.advance, lambda note: _say_link(args, note))
    with announce({"role": "worker", "model": engine.model_id}), contextlib.closing(engine.worker):
        _say_ready(args, engine)
        # Not on the main thread, where a signal could leave the engine in the middle of a chunk.
        serving = threading.Thread(target=engine.worker.run, name="prefill", daemon=True)
        serving.start()
        serving.join()
    return 0


def _say_ready(args: argparse.Namespace, engine: WorkerEngine) -> None:
    if args.json:
        _print_event(ready=True, port=engine.port, fingerprint=engine.fingerprint)
        return
    print(f"This computer's fingerprint: {engine.fingerprint}", file=sys.stderr)
    if engine.port is None:
        print(f"Calling {args.dial}, to prefill with {engine.model_id}", file=sys.stderr)
        return
    print(
        f"Ready to prefill with {engine.model_id} on port {engine.port}. Start on the other computer\n"
        f"  baton serve --model {args.model} --peer THIS-COMPUTER:{engine.port} --trust {engine.fingerprint}",
        file=sys.stderr,
    )


def _say_link(args: argparse.Namespace, note: str) -> None:
    if args.json:
        _print_event(link=not note, note=note)
    elif note:
        print(f"The other computer is away: {note}", file=sys.stderr)
    else:
        print("The other computer is connected", file=sys.stderr)


def _print_event(**event: Any) -> None:
    print(json.dumps(event), flush=True)
