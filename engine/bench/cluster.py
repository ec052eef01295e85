"""`baton bench cluster`: this computer alone, the other alone, and both together, on the same prompts.

Everything is asked of endpoints, as any client would: one decoder with its worker gives "this computer alone" and "both
together", by the request's own wish. The other computer alone is an endpoint of its own. Without one only what its
worker computed is known, by the worker's clock, and the rest is told as not measured.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.bench.cluster_report import ClusterReport, Handed, Row, Sample, Way, render, summary
from engine.bench.processor import load_average, n_cores, processor_name
from engine.bench.report import is_busy
from engine.bench.speed import context_length, model_path
from engine.cli.children import Child
from engine.cli.two_engines import (
    CONNECT_TIMEOUT_S,
    START_TIMEOUT_S,
    engine_words,
    new_identities,
    two_engines,
)
from engine.config import (
    DEVICE,
    IDENTITY,
    MODEL,
    THREADS,
    TRUST,
    WEIGHTS,
    WORKER,
    Setting,
    add_flags,
    split_address,
)
from engine.errors import HostError, ProcessFailed, UserError
from engine.node.endpoint import Endpoint
from engine.node.scratch import private_folder
from engine.numbers import whole_numbers

EXAMPLE = """\
  baton bench cluster --model qwen2.5-coder-0.5b
  baton bench cluster --prompts 512,2048,8192 --n-decode 300 --json
  baton bench cluster --worker 192.168.1.20:7118 --trust FINGERPRINT
"""

_PROMPTS = (512, 2048)

_N_DECODE = Setting(
    name="n_decode",
    kind=int,
    default=128,
    minimum=2,
    maximum=65536,
    metavar="N",
    help="tokens of each answer",
)
_REPETITIONS = Setting(
    name="repetitions", kind=int, default=3, minimum=1, maximum=100, metavar="N", help="of each row"
)
_OTHER = Setting(
    name="other",
    kind=str,
    default=None,
    metavar="HOST:PORT",
    check=WORKER.check,
    example="127.0.0.1:7200",
    help="the endpoint of a `baton serve` that runs on the other computer without a worker, for its row; best reached "
    "through a tunnel such as ssh -L 7200:127.0.0.1:7117",
)

# What a person adds with the second turn of a chat.
_N_ADDED = 256

# Someone who reads an answer leaves both computers alone for so long.
_READING_S = 2.0

# A handoff's figures may come a moment after its answer.
_FIGURES_TIMEOUT_S = 5.0
_FIGURES_EVERY_S = 0.02

# Cut into tokens, and repeated until a prompt is long enough.
_TEXT = """Four runners share one race, and three times the baton changes hands. What counts is not how fast each of
them is, but how little is lost when it does: the one who waits must be running already, and the one who comes must not
brake. Whoever trains only his start will be overtaken in the zone. """


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """What to measure: prompts of each length, answers of `n_decode` tokens, each `repetitions` times."""

    prompts: tuple[int, ...]
    n_decode: int
    repetitions: int

    @property
    def n_ctx(self) -> int:
        """Room for the longest chat of two turns."""
        return max(self.prompts) + _N_ADDED + 2 * self.n_decode


@dataclass(frozen=True, kw_only=True)
class Engines:
    """The endpoints to ask: `cluster` has a worker, `other` none, and is None where nobody can say.

    `joined` says in words what they are, `children` are those that end with us.
    """

    cluster: Endpoint
    other: Endpoint | None
    joined: str
    children: tuple[Child, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, (MODEL,))
    parser.add_argument(
        "--prompts",
        type=whole_numbers,
        default=_PROMPTS,
        metavar="N,...",
        help=f"tokens of the prompts (default {','.join(map(str, _PROMPTS))})",
    )
    add_flags(parser, (_N_DECODE, _REPETITIONS, WORKER, TRUST, IDENTITY, _OTHER, WEIGHTS, DEVICE, THREADS))
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    config = ClusterConfig(prompts=args.prompts, n_decode=args.n_decode, repetitions=args.repetitions)
    _check(args, config)
    path = model_path(args.model)
    n_ctx = context_length(path)
    if config.n_ctx > n_ctx:
        raise UserError(
            f"--prompts {max(config.prompts)}: with two answers and a second question the chat has {config.n_ctx} "
            f"tokens, and the model's context holds {n_ctx}; take fewer"
        )
    busy = is_busy(load_average(), n_cores())
    engines_of = _real_engines if args.worker else _own_engines
    with private_folder("cluster") as folder, engines_of(args, path, folder, n_ctx=config.n_ctx) as engines:
        _note(engines.joined)
        try:
            rows, turns = measure(engines, config, on_note=_note)
        except HostError:
            for child in engines.children:
                child.check()
            raise
    report = ClusterReport(
        model=path.name,
        joined=engines.joined,
        n_decode=config.n_decode,
        rows=rows,
        turns=turns,
        notes=_notes(engines),
        processor=f"{processor_name()}, {n_cores()} cores",
        was_busy=busy,
    )
    print(json.dumps(summary(report)) if args.json else render(report), flush=True)
    return 0


def measure(
    engines: Engines,
    config: ClusterConfig,
    *,
    on_note: Callable[[str], None] = lambda sentence: None,
    pause: Callable[[], None] = lambda: time.sleep(_READING_S),
) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """The rows of each prompt length, then those of a chat's second turn after the longest prompt.

    The ways take turns; who goes first changes. Raises HostError when the worker did not do what it was asked.
    """
    client = _Client(engines, config.n_decode)
    on_note("warming up")
    for way in client.ways:
        client.first_turn(way, min(config.prompts))
    rows: list[Row] = []
    for n_prompt in config.prompts:
        on_note(f"prompts of {n_prompt} tokens")
        rows += _take_turns(client, config.repetitions, client.first_turn, n_prompt)
    on_note("the second turn of a chat")
    second = functools.partial(client.second_turn, pause=pause)
    turns = _take_turns(client, config.repetitions, second, max(config.prompts))
    return tuple(rows), tuple(turns)


def _take_turns(
    client: _Client, repetitions: int, answer: Callable[[Way, int], Sample], n_prompt: int
) -> list[Row]:
    samples: dict[Way, list[Sample]] = {way: [] for way in client.ways}
    for repetition in range(repetitions):
        for way in client.ways[:: -1 if repetition % 2 else 1]:
            samples[way].append(answer(way, n_prompt))
    if Way.OTHER not in samples:
        samples[Way.OTHER] = [
            Sample(
                n_prompt=sample.n_prompt,
                n_cached=sample.handed.n_reused,
                prompt_ms=sample.handed.compute_ms,
            )
            for sample in samples[Way.BOTH]
            if sample.handed is not None
        ]
    return [Row(way=way, samples=tuple(samples[way])) for way in Way]


class _Client:
    """Asks each way's endpoint, and reads what an answer took."""

    def __init__(self, engines: Engines, n_decode: int) -> None:
        self._endpoints = {Way.HERE: engines.cluster, Way.OTHER: engines.other, Way.BOTH: engines.cluster}
        self.ways = [way for way in Way if self._endpoints[way] is not None]
        self._n_decode = n_decode
        # Each token once: prompts that begin with different ones of them are different.
        self._text = list(dict.fromkeys(engines.cluster.ask("/tokenize", {"content": _TEXT})["tokens"]))
        self._numbers = itertools.count()

    def _new_prompt(self, n_tokens: int) -> list[int]:
        """One that begins as no other did, so that no cache holds anything of it."""
        number, n_text = next(self._numbers), len(self._text)
        beginning = [self._text[number % n_text], self._text[number // n_text % n_text]]
        return [*beginning, *itertools.islice(itertools.cycle(self._text), n_tokens)][:n_tokens]

    def first_turn(self, way: Way, n_prompt: int) -> Sample:
        """An answer to a new prompt, which finds nothing cached."""
        return self._ask(way, self._new_prompt(n_prompt), cache_prompt=False)[0]

    def second_turn(self, way: Way, n_prompt: int, *, pause: Callable[[], None]) -> Sample:
        """The second answer of a chat whose first prompt has `n_prompt` tokens."""
        prompt = self._new_prompt(n_prompt)
        _, answer = self._ask(way, prompt, cache_prompt=True)
        pause()
        return self._ask(way, [*prompt, *answer, *self._new_prompt(_N_ADDED)], cache_prompt=True)[0]

    def _ask(self, way: Way, prompt: list[int], *, cache_prompt: bool) -> tuple[Sample, list[int]]:
        """What an answer took, and its tokens."""
        endpoint = self._endpoints[way]
        if endpoint is None:
            raise ValueError(f"there is no endpoint for {way}")
        body = {
            "prompt": prompt,
            "max_tokens": self._n_decode,
            "temperature": 0,
            "ignore_eos": True,
            "return_tokens": True,
            "cache_prompt": cache_prompt,
            "prefill": "remote" if way is Way.BOTH else "local",
        }
        tokens: list[int] = []
        timings: dict[str, Any] = {}
        begun = time.perf_counter()
        for part in endpoint.stream("/v1/completions", body):
            tokens += part.get("tokens") or ()
            timings = part.get("timings") or timings
            answer_id = part.get("id")
        total_ms = (time.perf_counter() - begun) * 1000
        if "predicted_ms" not in timings:
            raise endpoint.stranger("it sends no timings")
        sample = Sample(
            n_prompt=len(prompt),
            n_cached=timings["cache_n"],
            prompt_ms=timings["prompt_ms"],
            decode_tps=(timings["predicted_n"] - 1) * 1000 / timings["predicted_ms"],
            total_ms=total_ms,
            handed=_handed(endpoint, f"{answer_id}-0", timings["handoff"]) if way is Way.BOTH else None,
        )
        return sample, tokens


def _handed(endpoint: Endpoint, request_id: str, handoff: dict[str, Any]) -> Handed:
    """The figures of an answer's handoff; raises HostError where there was none."""
    if handoff["prefill"] != "remote":
        raise HostError(f"the worker did not prefill a prompt that it was asked for: {handoff['detail']}")
    deadline = time.monotonic() + _FIGURES_TIMEOUT_S
    while True:
        figures = endpoint.get(f"/requests/{request_id}")["handoff"]
        if figures["tail_ms"] is not None:
            return Handed(
                n_bytes=figures["bytes"],
                n_reused=figures["reused_tokens"],
                overlap=figures["overlap"],
                tail_ms=figures["tail_ms"],
                compute_ms=figures["compute_ms"],
                goodput=figures["goodput_bytes_per_second"],
            )
        if time.monotonic() > deadline:
            raise HostError(
                f"{endpoint.url} has not told a handoff's figures within {_FIGURES_TIMEOUT_S:g} s: look at its log"
            )
        time.sleep(_FIGURES_EVERY_S)


@contextlib.contextmanager
def _own_engines(args: argparse.Namespace, path: Path, folder: Path, *, n_ctx: int) -> Iterator[Engines]:
    """A worker, a decoder and a third engine that stands for the other computer, all on this one."""
    words = engine_words(args, path, n_ctx=n_ctx)
    alone = ["serve", "--port", "0", "--identity", str(folder / "alone"), *words]
    with (
        two_engines(words, folder=folder, fingerprints=new_identities(folder), say=_note) as pair,
        Child("engine without a worker", alone, folder / "alone.log") as other,
    ):
        port = other.wait_for("ready", timeout_s=START_TIMEOUT_S)["port"]
        yield Engines(
            cluster=pair.endpoint,
            other=Endpoint("127.0.0.1", port),
            joined=f"a worker and a decoder on this computer, joined over TLS on {pair.address}; a third engine stands "
            "for the other computer alone. They share its cores: two computers would not",
            children=(pair.worker, pair.decoder, other),
        )


@contextlib.contextmanager
def _real_engines(args: argparse.Namespace, path: Path, folder: Path, *, n_ctx: int) -> Iterator[Engines]:
    """A decoder on this computer, and the worker that runs on the other one."""
    words = ["serve", "--port", "0", "--peer", args.worker, "--trust", args.trust]
    words += ["--identity", args.identity] if args.identity else []
    words += engine_words(args, path, n_ctx=n_ctx)
    with Child("decoder", words, folder / "decoder.log") as decoder:
        endpoint = Endpoint("127.0.0.1", decoder.wait_for("ready", timeout_s=START_TIMEOUT_S)["port"])
        try:
            decoder.wait_for("worker", timeout_s=CONNECT_TIMEOUT_S)
        except ProcessFailed as error:
            decoder.check()
            note = endpoint.get("/worker")["note"]
            raise HostError(f"--worker {args.worker}: the worker is not connected: {note}") from error
        other = Endpoint(*split_address(args.other)) if args.other else None
        if other is not None and _model(other) != _model(endpoint):
            raise UserError(
                f"--other {args.other}: it answers with {_model(other)}, and here it is {_model(endpoint)}: "
                "start both with the same --model"
            )
        yield Engines(
            cluster=endpoint,
            other=other,
            joined=f"this computer decodes, the worker at {args.worker} prefills, joined over TLS",
            children=(decoder,),
        )


def _model(endpoint: Endpoint) -> str:
    return str(endpoint.get("/v1/models")["data"][0]["id"])


def _notes(engines: Engines) -> tuple[str, ...]:
    if engines.other is not None:
        return ()
    return (
        "the other alone: what its worker computed, by the worker's clock; how it decodes is known once `baton serve` "
        "runs there and --other names its endpoint",
    )


def _check(args: argparse.Namespace, config: ClusterConfig) -> None:
    if args.worker and not args.trust:
        raise UserError("--trust is missing: it takes the fingerprint that the worker prints when it starts")
    if not args.worker and (args.trust or args.identity or args.other):
        raise UserError(
            "--trust, --identity and --other need --worker HOST:PORT; without it both engines run on this computer"
        )
    if min(config.prompts) < 2:
        raise UserError("--prompts: 2 at least, as a prompt's last token is always computed here")


def _note(sentence: str) -> None:
    print(f"bench cluster: {sentence.strip()}", file=sys.stderr, flush=True)
