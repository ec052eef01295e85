"""`baton demo`: two engines on this computer, joined over TLS as two computers would be, answer one question.

One is `baton worker`, the other `baton serve`; this process starts both, asks, shows what happened, and ends them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.cli.answer import Answer
from engine.cli.progress import ProgressBar
from engine.cli.two_engines import Pair, engine_words, new_identities, two_engines
from engine.config import DEVICE, MODEL, PORT, THREADS, WEIGHTS, add_flags
from engine.node.endpoint import Endpoint
from engine.node.models.library import Library

EXAMPLE = """\
  baton demo
  baton demo --model qwen2.5-coder-0.5b
  baton demo --json
  baton demo --keep
"""

_MAX_TOKENS = 96
_CTX = 2048

# Long enough for several hundred tokens, so that prefilling it elsewhere is worth a handoff.
_TEXT = """\
In a relay race four runners share one distance. Each of them runs one leg, and each but the last hands a baton to the \
next. The baton is a smooth, hollow tube, about thirty centimetres long, and it must be carried in the hand from the \
start to the finish. If a runner drops it, the same runner has to pick it up. A team that finishes without its baton \
has not finished at all.

The handover is the heart of the race. It may only happen inside a marked zone of the track. The runner who waits \
does not stand still: she begins to run before the baton arrives, looking ahead, with one hand stretched out behind \
her. If she starts too late, the team loses speed, because the one who comes must brake. If she starts too early, the \
baton never reaches her inside the zone, and the team is disqualified. In a good handover the baton hardly slows down: \
both runners move at full speed for a moment, and the tube changes hands while they do.

This is why a team of four good runners who have trained together can beat four faster ones who have not. The time of \
a relay team is often shorter than the sum of the four runners' best times, since three of them get a flying start. \
Coaches therefore choose the order with care. The first runner has to be quick out of the blocks. The second and the \
third must be safe with the baton, because they take it and pass it on. The last one must be able to keep calm when \
others are close, and to hold her speed until the line.

The same idea is used far away from the track. When a task has two parts that ask for different strengths, it can be \
given to two who are each good at one of them, as long as the handover between them costs less than it saves. What \
has been done must be passed on whole, and it should arrive while the first is still at work, so that the second never \
has to wait.
"""
_QUESTION = "What is the most important moment of a relay race, and why?"
_PROMPT = f"Read this text.\n\n{_TEXT}\n{_QUESTION}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, [MODEL, WEIGHTS, DEVICE, THREADS])
    parser.add_argument(
        "--keep", action="store_true", help="leave the endpoint running until Ctrl-C, and say where"
    )
    parser.add_argument(
        "--port", type=PORT.parse, default=0, metavar="PORT", help="of the endpoint (default: a free one)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(args: argparse.Namespace) -> int:
    with ProgressBar(args.model) as progress:
        path = Library().resolve(args.model, progress)
    with _two_engines(args, path) as pair:
        _say(args, f"\n{_QUESTION}\n")
        answer = _ask(pair.endpoint, quiet=args.json)
        report = answer.report()
        if args.json:
            print(json.dumps(report), flush=True)
        else:
            print(f"\n\n{_table(report)}")
        if args.keep:
            _keep(args, pair)
    return 0


@contextlib.contextmanager
def _two_engines(args: argparse.Namespace, path: Path) -> Iterator[Pair]:
    from engine.node.scratch import private_folder

    words = engine_words(args, path, n_ctx=_CTX)
    with private_folder("demo") as folder:
        fingerprints = new_identities(folder)
        _say(args, f"Two engines on this computer, each with {path.name}:")
        with two_engines(
            words, folder=folder, fingerprints=fingerprints, port=args.port, say=lambda it: _say(args, it)
        ) as pair:
            yield pair


def _ask(endpoint: Endpoint, *, quiet: bool) -> Answer:
    body = {
        "messages": [{"role": "user", "content": _PROMPT}],
        "max_tokens": _MAX_TOKENS,
        "temperature": 0,
        "prefill": "remote",
    }
    answer = Answer(endpoint, body, clock=time.perf_counter)
    spaces = ""
    for text in answer.texts():
        # spaces wait for what follows, so that none stand between the answer and the table
        shown = (spaces + text).rstrip()
        spaces = (spaces + text)[len(shown) :]
        if not quiet:
            print(shown, end="", flush=True)
    return answer


def _table(report: dict[str, Any]) -> str:
    where = "on the worker" if report["prefill"] == "remote" else f"here: {report['detail']}"
    rows = [
        ("prompt prefilled", where),
        ("prompt", f"{report['prompt_tokens']} tokens"),
        ("moved", f"{report['handoff_bytes'] / 1e6:.1f} MB"),
        (
            "overlap",
            "none" if report["overlap"] is None else f"{report['overlap']:.1%} arrived during prefill",
        ),
        ("tail", "none" if report["tail_ms"] is None else f"{report['tail_ms']:.1f} ms"),
        (
            "first token",
            "none" if report["ttft_ms"] is None else f"{report['ttft_ms']:.0f} ms after the question",
        ),
        ("decode", f"{report['decode_tps']:.1f} tok/s"),
    ]
    return "\n".join(f"  {name:<18}{value}" for name, value in rows)


def _keep(args: argparse.Namespace, pair: Pair) -> None:
    """Leave everything running until Ctrl-C, or until the decoder ends; without the worker it goes on alone."""
    url = pair.endpoint.url
    stream = sys.stderr if args.json else sys.stdout
    body = '{"messages": [{"role": "user", "content": "Say hello."}]}'
    print(
        f"\nThe endpoint stays at {url}/v1 until Ctrl-C. Try:\n"
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'\n"
        f'  {_own_name()} chat "Say hello." --port {pair.endpoint.port}',
        file=stream,
        flush=True,
    )
    has_worker = True
    while True:
        pair.decoder.check()
        if has_worker and not pair.worker.is_running:
            has_worker = False
            print("The worker has ended: prompts are prefilled by the decoder now", file=stream, flush=True)
        time.sleep(1.0)


def _own_name() -> str:
    """What to type to get this program again."""
    return "baton" if shutil.which("baton") else os.path.relpath(sys.argv[0])


def _say(args: argparse.Namespace, sentence: str) -> None:
    print(sentence, file=sys.stderr if args.json else sys.stdout, flush=True)
