"""Two engines on this computer, joined over TLS as two computers would be; they end with their context."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.cli.children import Child, ended_together
from engine.config import FROM_STDIN
from engine.handoff.target import Target
from engine.node.endpoint import Endpoint

# Loading a model of the catalogue takes seconds; a slow disk gets its time.
START_TIMEOUT_S = 300.0
CONNECT_TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The two engines while they run. `address` is the worker's, `folder` a private one that goes with them."""

    worker: Child
    decoder: Child
    endpoint: Endpoint
    address: str
    folder: Path


def engine_words(args: argparse.Namespace, path: Path, *, n_ctx: int) -> list[str]:
    """The flags of an engine with one slot, for the flags WEIGHTS, DEVICE and THREADS that were given."""
    words = ["--model", str(path), "--weights", args.weights, "--device", args.device]
    return [*words, "--ctx", str(n_ctx), "--slots", "1", "--threads", str(args.threads or _threads())]


def new_identities(folder: Path) -> tuple[str, str]:
    """Keys for a worker and a decoder, in folders of these names; returns their fingerprints.

    Apart from the start of the engines: it imports what a signal should not come into.
    """
    from engine.node.trust.identity import Identity

    worker, decoder = (Identity.load_or_create(folder / name).fingerprint for name in ("worker", "decoder"))
    return worker, decoder


@contextlib.contextmanager
def two_engines(
    words: list[str],
    *,
    folder: Path,
    fingerprints: tuple[str, str],
    port: int = 0,
    say: Callable[[str], None] = lambda sentence: None,
) -> Iterator[Pair]:
    """Start both with the flags `words` and the keys in `folder`; the endpoint gets `port`.

    `say` hears how far they are.
    """
    worker_id, decoder_id = fingerprints
    worker_words = ["worker", "--listen", "127.0.0.1:0", "--identity", str(folder / "worker")]
    worker_words += ["--trust", decoder_id, *words]
    decoder_words = ["serve", "--port", str(port), "--identity", str(folder / "decoder")]
    decoder_words += ["--peer", FROM_STDIN, "--trust", worker_id, *words]
    # both load at the same time; the decoder is told where the worker listens once it does
    with (
        Child("worker", worker_words, folder / "worker.log") as worker,
        Child("decoder", decoder_words, folder / "decoder.log") as decoder,
        ended_together(worker, decoder),
    ):
        address = f"127.0.0.1:{worker.wait_for('ready', timeout_s=START_TIMEOUT_S)['port']}"
        say(f"  the worker, which prefills the prompt (process {worker.pid})")
        decoder.tell(Target(dial=address).line())
        endpoint_port = decoder.wait_for("ready", timeout_s=START_TIMEOUT_S)["port"]
        say(f"  the decoder, which writes the answer (process {decoder.pid})")
        decoder.wait_for("worker", timeout_s=CONNECT_TIMEOUT_S)
        say(f"  joined over TLS on {address}")
        yield Pair(
            worker=worker,
            decoder=decoder,
            endpoint=Endpoint("127.0.0.1", endpoint_port),
            address=address,
            folder=folder,
        )


def _threads() -> int:
    """The two take turns, so each may have every core."""
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
