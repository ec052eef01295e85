"""`baton bench speed`: prompt and decode speed in llama-bench's terms, beside llama.cpp where asked.

Both contestants run in processes of their own and take turns, each idle while the other is timed, so that what else
happens on the computer falls on both. Neither tokenising nor sampling is timed, and the tokens that make up the depth
are computed before the clock starts.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.bench import peer as peers
from engine.bench.processor import load_average, n_cores, processor_name
from engine.bench.report import (
    FORMS,
    OWN_NAME,
    Engine,
    LoadTimes,
    Row,
    Samples,
    SpeedReport,
    Test,
    render,
    summary,
)
from engine.bench.subject import Subject
from engine.cache.spec import KVType
from engine.config import DEVICE, MODEL, THREADS, WEIGHTS, Setting, add_flags
from engine.errors import InvalidRequest, UserError
from engine.gguf.reader import GGUFFile
from engine.numbers import whole_numbers
from engine.paths import own_command

N_BATCH = 512

# Loading is repeated in fresh processes, which takes seconds each.
_MAX_LOADS = 3

# What comes before the first timed repetition of a test: enough to touch all weights and start all threads.
_WARM_UP_GEN = 4

_REPETITIONS = Setting(
    name="repetitions", kind=int, default=5, minimum=1, metavar="N", example="3", help="of each test"
)

# Caches are made for multiples of this.
_CTX_STEP = 256

# All layers of any model, in llama.cpp's setting for how many it keeps on the GPU.
_ALL_LAYERS = 999


@dataclass(frozen=True, kw_only=True)
class SpeedConfig:
    """What to measure, and of which model."""

    model: Path
    tests: tuple[Test, ...]
    repetitions: int
    device: str
    weights: str
    kv_type: KVType
    n_threads: int
    with_peer: bool
    allow_generic_peer: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, (MODEL,))
    parser.add_argument(
        "--peer", choices=peers.PEERS, help="measure this engine too, taking turns (built by `make peer`)"
    )
    parser.add_argument(
        "-p",
        "--n-prompt",
        type=whole_numbers,
        default=(512,),
        metavar="N,...",
        help="prompt tokens (default 512)",
    )
    parser.add_argument(
        "-n",
        "--n-gen",
        type=whole_numbers,
        default=(128,),
        metavar="N,...",
        help="decoded tokens (default 128)",
    )
    parser.add_argument(
        "-d",
        "--n-depth",
        type=whole_numbers,
        default=(0,),
        metavar="N,...",
        help="tokens in the cache before each test starts (default 0)",
    )
    parser.add_argument(
        "-r",
        _REPETITIONS.flag,
        type=_REPETITIONS.parse,
        default=_REPETITIONS.default,
        metavar="N",
        help=_REPETITIONS.describe(),
    )
    parser.add_argument(
        "-o", "--output", choices=FORMS, default="md", help="form of the results (default md)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object of the medians")
    parser.add_argument("--kv-type", choices=list(KVType), default=KVType.BF16, help="type of cached K and V")
    add_flags(parser, (WEIGHTS, DEVICE, THREADS))
    parser.add_argument(
        "--allow-generic-peer",
        action="store_true",
        help="compare even with a peer that was not built for this computer",
    )
    parser.add_argument("--contestant", action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    if args.contestant:
        from engine.bench import own_program

        return own_program.main()
    config = _config(args)
    report = measure(config, on_note=_note)
    print(json.dumps(summary(report)) if args.json else render(report, args.output))
    return 0


def measure(
    config: SpeedConfig,
    *,
    start_own: Callable[[], Subject] | None = None,
    start_peer: Callable[[], Subject] | None = None,
    on_note: Callable[[str], None] = lambda sentence: None,
) -> SpeedReport:
    """Measure both contestants, taking turns. Raises InvalidRequest for an unfair peer, ProcessFailed, and others."""
    start_own = start_own or _start_own
    start_peer = (start_peer or peers.start_peer) if config.with_peer else None
    peer_info = None
    load_before = load_average()
    if start_peer is not None:
        with start_peer() as peer:
            peer_info = peers.peer_info(peer)
        peers.check_native(peer_info, on_gpu=False, allow_generic=config.allow_generic_peer)
    _read_through(config.model)
    with ExitStack() as stack:
        on_note("loading, in fresh processes")
        match = _load(config, stack, start_own, start_peer, peer_info)
        tokens = _tokens(match.n_ctx, match.own_facts["n_vocab"])
        threads = None
        if match.peer is not None:
            on_note("looking for the peer's best number of threads")
            threads = peers.find_threads(match.peer, n_cores=config.n_threads, tokens=tokens)
        rows = []
        for test in config.tests:
            on_note(test.name)
            own_s, peer_s = _take_turns(match, test, tokens, config.repetitions)
            rows.append(
                Row(
                    test=test,
                    own=Samples(n_tokens=test.n_tokens, seconds=own_s),
                    n_threads=match.own_facts["n_threads"],
                    peer=Samples(n_tokens=test.n_tokens, seconds=peer_s) if peer_s else None,
                    peer_n_threads=0
                    if threads is None
                    else threads.prefill
                    if test.n_prompt
                    else threads.decode,
                )
            )
        calls = match.own.ask("calls")
        return _report(config, match, peer_info, tuple(rows), calls, load_before)


@dataclass(frozen=True, kw_only=True)
class _Match:
    """Both contestants, loaded; what they said of the model, and how long each loading took."""

    own: Subject
    own_facts: dict[str, Any]
    peer: Subject | None
    peer_facts: dict[str, Any] | None
    load: LoadTimes
    n_ctx: int


def _load(
    config: SpeedConfig,
    stack: ExitStack,
    start_own: Callable[[], Subject],
    start_peer: Callable[[], Subject] | None,
    peer_info: peers.PeerInfo | None,
) -> _Match:
    """Load in fresh processes several times, turn by turn; the last two stay, and `stack` ends them."""
    n_ctx = max(test.n_depth + test.n_tokens for test in config.tests)
    n_ctx = -(-n_ctx // _CTX_STEP) * _CTX_STEP
    path = str(config.model)
    own_s: list[float] = []
    peer_s: list[float] = []
    own: Subject | None = None
    peer: Subject | None = None
    own_facts: dict[str, Any] = {}
    peer_facts = None
    for _ in range(min(config.repetitions, _MAX_LOADS)):
        for earlier in (own, peer):
            if earlier is not None:
                earlier.close()
        own = stack.enter_context(start_own())
        peer = stack.enter_context(start_peer()) if start_peer is not None else None
        own_facts = own.ask(
            "load",
            path=path,
            n_ctx=n_ctx,
            n_threads=config.n_threads,
            device=config.device,
            weights=config.weights,
            kv_type=config.kv_type,
        )
        own_s.append(own_facts["seconds"])
        if peer is not None and peer_info is not None:
            on_gpu = own_facts["device"] != "cpu"
            peers.check_native(peer_info, on_gpu=on_gpu, allow_generic=config.allow_generic_peer)
            n_gpu_layers = _ALL_LAYERS if on_gpu else 0
            peer_facts = peer.ask(
                "load", path=path, n_ctx=n_ctx, n_threads=config.n_threads, n_gpu_layers=n_gpu_layers
            )
            peer_s.append(peer_facts["seconds"])
    if own is None:
        raise InvalidRequest("at least one repetition is needed", param="repetitions")
    return _Match(
        own=own,
        own_facts=own_facts,
        peer=peer,
        peer_facts=peer_facts,
        load=LoadTimes(own=tuple(own_s), peer=tuple(peer_s), parts=tuple(own_facts["parts"].items())),
        n_ctx=n_ctx,
    )


def _take_turns(
    match: _Match, test: Test, tokens: list[int], repetitions: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds of each repetition, ours and the peer's; who goes first changes each time."""
    depth = tokens[: test.n_depth]
    timed = tokens[test.n_depth : test.n_depth + test.n_tokens]
    command = "prefill" if test.n_prompt else "decode"
    contestants = [match.own] if match.peer is None else [match.own, match.peer]
    seconds: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for contestant in contestants:
        warm_up = timed if test.n_prompt else timed[:_WARM_UP_GEN]
        contestant.ask(command, tokens=warm_up, depth=depth)
    for repetition in range(repetitions):
        for contestant in contestants[:: -1 if repetition % 2 else 1]:
            answer = contestant.ask(command, tokens=timed, depth=depth)
            seconds[contestant.name].append(answer["seconds"])
    return tuple(seconds[match.own.name]), tuple(seconds[match.peer.name]) if match.peer else ()


def _report(
    config: SpeedConfig,
    match: _Match,
    peer_info: peers.PeerInfo | None,
    rows: tuple[Row, ...],
    calls: dict[str, Any],
    load_before: float | None,
) -> SpeedReport:
    device = match.own_facts["device"]
    peer = None
    if match.peer is not None and peer_info is not None:
        peer = Engine(
            name=match.peer.name,
            version=peer_info.version,
            backend="CPU" if device == "cpu" else device.upper(),
            kv_type="f16",
            features=peer_info.features,
        )
    return SpeedReport(
        model_filename=str(config.model),
        # llama.cpp's own name for the model is the one that its users know.
        model_type=(match.peer_facts or match.own_facts)["model_type"],
        model_size=match.own_facts["model_size"],
        model_n_params=match.own_facts["model_n_params"],
        cpu_info=processor_name(),
        gpu_info=match.own_facts["gpu_info"],
        n_cores=n_cores(),
        n_batch=N_BATCH,
        test_time=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        own=Engine(
            name=OWN_NAME,
            version=match.own_facts["version"],
            backend="CPU" if device == "cpu" else device.upper(),
            kv_type=config.kv_type,
        ),
        peer=peer,
        rows=rows,
        load=match.load,
        calls=calls["calls"],
        n_layers=calls["n_layers"],
        missing_features=peer_info.missing if peer_info is not None else (),
        load_average=load_before,
    )


def _tokens(n: int, n_vocab: int) -> list[int]:
    """Token ids that jump about the vocabulary, the same for both; a depth is always a prefix of these."""
    return [(index * 7919 + 17) % n_vocab for index in range(n)]


def _start_own() -> Subject:
    return Subject("the engine", [*own_command(), "bench", "speed", "--contestant"])


def _read_through(path: Path) -> None:
    """Have the file in the page cache, so that nobody's loading waits for the disk."""
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 24):
            pass


def _config(args: argparse.Namespace) -> SpeedConfig:
    tests = tuple(
        test
        for depth in args.n_depth
        for test in (
            *(Test(n_prompt=n, n_depth=depth) for n in args.n_prompt if n),
            *(Test(n_gen=n, n_depth=depth) for n in args.n_gen if n),
        )
    )
    if not tests:
        raise UserError("-p 0 -n 0: there is nothing to measure")
    path = model_path(args.model)
    check_fits(tests, context_length(path))
    return SpeedConfig(
        model=path,
        tests=tests,
        repetitions=args.repetitions,
        device=args.device,
        weights=args.weights,
        kv_type=KVType(args.kv_type),
        n_threads=args.threads or n_cores(),
        with_peer=args.peer is not None,
        allow_generic_peer=args.allow_generic_peer,
    )


def context_length(path: Path) -> int:
    """How many tokens the model at `path` was made for; raises ModelFileError."""
    with GGUFFile.open(path) as file:
        return file.metadata.integer(f"{file.architecture}.context_length")


def check_fits(tests: Sequence[Test], n_ctx: int) -> None:
    """Raises UserError for a test that the model's context cannot hold, before anything is loaded for it."""
    for test in tests:
        if test.n_depth + test.n_tokens > n_ctx:
            flag = "-p" if test.n_prompt else "-n"
            needs = f"{flag} {test.n_tokens}" + (f" after -d {test.n_depth}" if test.n_depth else "")
            raise UserError(f"{needs}: the model's context holds {n_ctx} tokens; take fewer")


def model_path(name_or_file: str) -> Path:
    """The file of `--model NAME|FILE`, fetched when it is missing."""
    from engine.cli.progress import ProgressBar
    from engine.node.models.library import Library

    with ProgressBar(Path(name_or_file).name) as progress:
        return Library().resolve(name_or_file, progress)


def _note(sentence: str) -> None:
    print(f"bench speed: {sentence}", file=sys.stderr, flush=True)
