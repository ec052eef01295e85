"""`baton worker`: the engine that prefills prompts for another computer. It has no endpoint of its own."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from engine import config
from engine.cli.lifetime import add_lifetime_flags, say_alive, watch_stdin
from engine.cli.log import SAY_AGAIN_S, log_to_stderr, tell
from engine.cli.progress import ProgressBar, loading_bar
from engine.errors import UserError
from engine.node.listening import listening_fault
from engine.node.models.library import Library
from engine.node.running import announce
from engine.quick_imports import quick_imports
from engine.repeats import Repeats

if TYPE_CHECKING:
    from engine.assembly import PrefillEngine

EXAMPLE = """\
  baton worker --model smollm2-135m --listen 0.0.0.0:7118 --trust FINGERPRINT
  baton worker --model ./model.gguf --dial 192.168.1.10:7118 --trust FINGERPRINT
"""

SETTINGS = [
    *(config.MODEL, config.LISTEN, config.DIAL, config.TRUST, config.IDENTITY, config.DATA_STREAMS),
    *(config.SLOTS, config.PREFILLS, config.PASS_TOKENS, config.PREFIX_CACHE),
    *(config.CTX, config.KV_TYPE, config.WEIGHTS, config.DEVICE, config.THREADS),
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    config.add_flags(parser, SETTINGS)
    add_lifetime_flags(parser)


def run(args: argparse.Namespace) -> int:
    if args.exit_with_stdin:
        watch_stdin()
    _check(args)
    log_to_stderr()
    with ProgressBar(args.model) as progress:
        path = Library().resolve(args.model, progress)

    began_s = time.monotonic()
    with quick_imports():
        from engine.assembly import open_prefill_engine
    imports_s = time.monotonic() - began_s

    link = UntilReady(LinkNews(args).say)
    with loading_bar(f"loading {path.name}") as progress:
        engine = open_prefill_engine(args, path, progress.advance, link.say)
    try:
        address = args.dial or config.join_address(
            config.split_address(args.listen)[0], engine.listen_port or 0
        )
        with announce({"role": "worker", "model": engine.model_id, "address": address}):
            _say_ready(args, engine, address, imports_s)
            link.begin()
            if args.json and args.exit_with_stdin:
                say_alive(lambda: engine.worker.pulse.is_stuck)
            engine.worker.run()
    finally:
        engine.close()
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.listen and args.dial:
        raise UserError(
            "--listen and --dial exclude each other: one of the two computers calls, the other waits"
        )
    if not (args.listen or args.dial):
        raise UserError(
            f"say how the two computers meet: --listen {config.LISTEN.example} waits for the other one's call, "
            f"--dial {config.DIAL.example} calls it"
        )
    if args.prefills and args.prefills > args.slots:
        raise UserError(
            f"{config.PREFILLS.flag} {args.prefills}: each prompt needs room in the cache, and "
            f"{config.SLOTS.flag} {args.slots} makes room for {args.slots}"
        )
    if not args.trust:
        raise UserError(
            f"--trust is missing: it takes the fingerprint that `baton serve` prints on the other computer. "
            f"This one's is {_own_fingerprint(args)}"
        )
    if args.listen and (fault := listening_fault(*config.split_address(args.listen))):
        raise UserError(f"{config.LISTEN.flag} {args.listen}: {fault}")


def _own_fingerprint(args: argparse.Namespace) -> str:
    from engine.node.trust.identity import Identity
    from engine.paths import identity_dir

    return Identity.load_or_create(identity_dir(args.identity)).fingerprint


def _say_ready(args: argparse.Namespace, engine: PrefillEngine, address: str, imports_s: float) -> None:
    if args.json:
        took = {"imports_s": imports_s, **asdict(engine.took)}
        _print_event(ready=True, port=engine.listen_port, fingerprint=engine.fingerprint, took=took)
        return
    tell(
        f"{engine.model_id} is ready to prefill; this computer's fingerprint: {engine.fingerprint}",
        sys.stderr,
    )
    other = (
        f"--listen 0.0.0.0:{config.split_address(args.dial)[1]}"
        if args.dial
        else f"--peer THIS-COMPUTER:{engine.listen_port}"
    )
    tell(
        f"On the other computer:\n  baton serve --model {args.model} {other} --trust {engine.fingerprint}",
        sys.stderr,
    )


class UntilReady:
    """Keeps what is said until the worker has said that it is ready, and passes it on from then on; from any thread."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._is_ready = False
        self._kept: list[str] = []

    def begin(self) -> None:
        with self._lock:
            self._is_ready = True
            for note in self._kept:
                self._say(note)

    def say(self, note: str) -> None:
        with self._lock:
            if self._is_ready:
                self._say(note)
            else:
                self._kept.append(note)


class LinkNews:
    """Says when the other computer comes and goes. Why it is away once, and again when that changes or after long."""

    def __init__(self, args: argparse.Namespace, repeats: Repeats | None = None) -> None:
        self._json = args.json
        self._repeats = repeats or Repeats(SAY_AGAIN_S)

    def say(self, note: str) -> None:
        """`note` is why it is away; empty when it is there."""
        if not note:
            self._repeats.forget()
        elif self._repeats.say(note) is None:
            return
        if self._json:
            _print_event(link=not note, note=note)
        else:
            tell("The other computer is connected" if not note else f"Not connected: {note}", sys.stderr)


def _print_event(**event: Any) -> None:
    tell(json.dumps(event), sys.stdout)
