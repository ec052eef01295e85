"""`baton bench quality`: how far the served weights stray from the float32 reference, beside llama.cpp where asked.

A fixed text of the project's own is cut into windows; every position of each is compared, none skipped. Baton's
numbers are taken in the ways that it computes them:

    prompt   the window is prefilled; each position's logits are then what a prompt that ends there would get: its
             last token decoded over the prefilled cache, as `serve` does it
    decode   every token decoded, one by one
    prefill  the logits of the prefilled rows themselves, which are never sampled from
    int8     as prompt, where the worker prefilled and `--codec int8` brought the rows

The result is the worse of the first two; the others are shown beside them. llama.cpp is measured on the same tokens as
a batch and one by one, and its better way counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

import torch
from torch import Tensor

from engine.bench import peer as peers
from engine.bench.divergence import Divergence, Score
from engine.bench.processor import n_cores
from engine.bench.speed import context_length, model_path
from engine.bench.subject import Subject
from engine.cache.sequence import SequencePool, SequenceState
from engine.cache.spec import KVType
from engine.config import DEVICE, MODEL, THREADS, WEIGHTS, Setting, add_flags
from engine.errors import UserError
from engine.files import file_fault, user_path
from engine.gguf.reader import GGUFFile
from engine.layers.step import Segment
from engine.models.base import Model
from engine.models.registry import WeightsMode, load_model
from engine.node.scratch import private_folder
from engine.tokenizer import Tokenizer
from engine.wire.blocks import RowSpan, block_codec
from engine.wire.codec import PayloadCodec

WINDOW_TOKENS = 512
CHUNK = 512

# A shorter rest of the text says little.
_MIN_WINDOW_TOKENS = 16

_TEXT = Setting(
    name="text",
    kind=str,
    default=None,
    metavar="FILE",
    help="another text, in UTF-8 (default: Baton's own)",
)
_WINDOWS = Setting(
    name="windows",
    kind=int,
    default=None,
    minimum=1,
    metavar="N",
    help="only the first N windows of the text (default: all)",
)
_WINDOW_TOKENS = Setting(
    name="window_tokens",
    kind=int,
    default=WINDOW_TOKENS,
    minimum=_MIN_WINDOW_TOKENS,
    metavar="N",
    help="tokens of a window",
)

# A longer text would take days.
_MAX_TEXT_BYTES = 64 << 20

# Logits of decoded positions are compared in groups of this many rows.
_ROWS_AT_ONCE = 32

PROMPT, DECODE, PREFILL, INT8 = "prompt", "decode", "prefill", "int8"
# What counts: the ways in which logits come about that a token is sampled from.
SERVED = (PROMPT, DECODE)
PEER_BATCH, PEER_ONE = "batch", "one_by_one"


@dataclass(frozen=True, kw_only=True)
class QualityReport:
    """Scores by way of computing; `peer` is empty without one."""

    model: str
    weights: str
    kv_type: str
    device: str
    n_windows: int
    window_tokens: int
    own: dict[str, Score]
    peer: dict[str, Score]
    peer_version: str | None = None
    peer_features: tuple[str, ...] = ()

    @property
    def kld(self) -> float:
        return max(self.own[way].kld for way in SERVED)

    @property
    def same_top(self) -> float:
        return min(self.own[way].same_top for way in SERVED)

    @property
    def peer_kld(self) -> float | None:
        return min((score.kld for score in self.peer.values()), default=None)

    @property
    def peer_same_top(self) -> float | None:
        return max((score.same_top for score in self.peer.values()), default=None)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, (MODEL,))
    parser.add_argument(
        "--peer",
        choices=peers.PEERS,
        help="measure this engine on the same tokens, too (built by `make peer`)",
    )
    add_flags(parser, (_TEXT, _WINDOWS, _WINDOW_TOKENS))
    parser.add_argument("--kv-type", choices=list(KVType), default=KVType.BF16, help="type of cached K and V")
    add_flags(parser, (WEIGHTS, DEVICE, THREADS))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--allow-generic-peer",
        action="store_true",
        help="compare even with a peer that was not built for this computer",
    )


def run(args: argparse.Namespace) -> int:
    if args.threads:
        torch.set_num_threads(args.threads)
    path = model_path(args.model)
    check_window(args.window_tokens, context_length(path))
    text = quality_text() if args.text is None else read_text(args.text)
    file = GGUFFile.open(path)
    windows = cut_windows(Tokenizer.from_metadata(file.metadata), text, args.window_tokens)[: args.windows]
    if not windows:
        raise UserError(
            f"{_TEXT.flag} {args.text}: the text has fewer than {_MIN_WINDOW_TOKENS} tokens; choose a longer one"
        )
    with contextlib.ExitStack() as stack:
        peer, info = None, None
        if args.peer is not None:
            peer = stack.enter_context(peers.start_peer())
            info = peers.peer_info(peer)
            # On which device the peer computes does not matter much here: its CPU is asked.
            peers.check_native(info, on_gpu=False, allow_generic=args.allow_generic_peer)
            peer.ask(
                "load",
                path=str(path),
                n_ctx=args.window_tokens,
                n_threads=args.threads or n_cores(),
                n_gpu_layers=0,
            )
        reference = load_model(file, device="cpu", weights=WeightsMode.FLOAT32)
        model = load_model(file, device=args.device, weights=WeightsMode(args.weights))
        own = Reader(model, KVType(args.kv_type), args.window_tokens)
        other = Reader(reference, KVType.F32, args.window_tokens)
        own_scores, peer_scores = compare(windows, other, own, peer, on_note=_note)
    report = QualityReport(
        model=str(path),
        weights=args.weights,
        kv_type=args.kv_type,
        device=model.device.kind,
        n_windows=len(windows),
        window_tokens=args.window_tokens,
        own=own_scores,
        peer=peer_scores,
        peer_version=info.version if info is not None else None,
        peer_features=info.features if info is not None else (),
    )
    print(json.dumps(summary(report)) if args.json else render(report))
    return 0


def check_window(window_tokens: int, n_ctx: int) -> None:
    """Raises UserError for a window that the model's context cannot hold."""
    if window_tokens > n_ctx:
        raise UserError(
            f"{_WINDOW_TOKENS.flag} {window_tokens}: the model's context holds {n_ctx} tokens; take fewer"
        )


class Reader:
    """A model with one sequence, that gives the logits of a window's tokens in each way."""

    def __init__(self, model: Model, kv_type: KVType, n_ctx: int) -> None:
        spec = model.spec.cache_spec(kv_type=kv_type, n_ctx=n_ctx, n_slots=1)
        self._model = model
        self._memory = memoryview(mmap.mmap(-1, spec.total_bytes()))
        self._pool = SequencePool(spec, model.device, self._memory)
        self._int8 = block_codec(PayloadCodec.INT8, kv_type)

    @property
    def _sequence(self) -> SequenceState:
        return self._pool.sequence(0)

    def prefilled(self, tokens: list[int]) -> Tensor:
        """The prefilled rows' own logits, float32 [T, V]."""
        self._sequence.reset()
        return torch.cat(
            [
                self._model.forward([Segment(sequence=self._sequence, tokens=chunk, n_logits=len(chunk))], [])
                for chunk in (tokens[first : first + CHUNK] for first in range(0, len(tokens), CHUNK))
            ]
        ).cpu()

    def decoded(self, tokens: list[int]) -> Iterator[tuple[int, Tensor]]:
        """Each position and its logits, float32 [V], everything decoded."""
        self._sequence.reset()
        for position, token in enumerate(tokens):
            yield position, self._decode(token)

    def prompted(self, tokens: list[int], *, by_int8: bool = False) -> Iterator[tuple[int, Tensor]]:
        """Each position and its logits, float32 [V], decoded over prefilled ones, or what int8 makes of those.

        From the end on: decoding a token replaces its prefilled row, and no earlier position sees that.
        """
        self._sequence.reset()
        for position in range(len(tokens) - 1, -1, -1):
            self._hold(tokens[:position], by_int8=by_int8)
            yield position, self._decode(tokens[position])

    def _hold(self, tokens: list[int], *, by_int8: bool) -> None:
        """Have `tokens` in the cache, prefilled, and nothing else; a cache that cannot go back is filled again."""
        keep = self._sequence.reusable(tokens)
        self._sequence.truncate(keep)
        for first in range(keep, len(tokens), CHUNK):
            segment = Segment(sequence=self._sequence, tokens=tokens[first : first + CHUNK], n_logits=0)
            self._model.forward([segment], [])
        if by_int8:
            self._pass_over_wire(keep, len(tokens))

    def _pass_over_wire(self, first: int, stop: int) -> None:
        """Rows [first, stop) as they land when they come by int8. The worker itself goes on with its own."""
        spec, sequence, memory = self._pool.spec, self._sequence, self._memory
        for index, layer in enumerate(spec.layers):
            sequence.flush_out(index, first, stop, final=True, start=first, stop=stop)
            for (offset, n_bytes), row_bytes, head_dim in zip(
                sequence.spans(index, first, stop, final=True, start=first, stop=stop),
                (layer.k_row_bytes(spec.kv_type), layer.v_row_bytes(spec.kv_type)),
                (layer.k_head_dim, layer.v_head_dim),
                strict=True,
            ):
                rows = RowSpan(offset=offset, n_bytes=n_bytes, row_bytes=row_bytes, head_dim=head_dim)
                for at, block_bytes in rows.blocks():
                    block = memory[at : at + block_bytes]
                    if body := self._int8.pack(block, head_dim):
                        self._int8.unpack(memoryview(b"".join(body)), block, head_dim)
        sequence.flush_in(first, stop, final=True)

    def _decode(self, token: int) -> Tensor:
        return self._model.forward([], [Segment(sequence=self._sequence, tokens=[token])])[0].cpu()


def compare(
    windows: Sequence[list[int]],
    reference: Reader,
    own: Reader,
    peer: Subject | None,
    *,
    on_note: Callable[[str], None] = lambda sentence: None,
) -> tuple[dict[str, Score], dict[str, Score]]:
    """Scores of our ways and the peer's, against the reference. One window's logits are held at a time."""
    ours = {way: Divergence() for way in (PROMPT, DECODE, PREFILL, INT8)}
    theirs = {way: Divergence() for way in (PEER_BATCH, PEER_ONE)} if peer is not None else {}
    for index, tokens in enumerate(windows):
        on_note(f"window {index + 1} of {len(windows)}")
        wanted = reference.prefilled(tokens)
        ours[PREFILL].add(wanted, own.prefilled(tokens))
        _add_rows(ours[DECODE], wanted, own.decoded(tokens))
        _add_rows(ours[PROMPT], wanted, own.prompted(tokens))
        _add_rows(ours[INT8], wanted, own.prompted(tokens, by_int8=True))
        for way, divergence in theirs.items():
            if peer is not None:
                _add_peer(divergence, wanted, peer, tokens, one_by_one=way == PEER_ONE)
    return (
        {way: divergence.score() for way, divergence in ours.items()},
        {way: divergence.score() for way, divergence in theirs.items()},
    )


def _add_rows(divergence: Divergence, wanted: Tensor, rows: Iterable[tuple[int, Tensor]]) -> None:
    positions: list[int] = []
    logits: list[Tensor] = []
    for position, row in rows:
        positions.append(position)
        logits.append(row)
        if len(positions) == _ROWS_AT_ONCE:
            divergence.add(wanted[positions], torch.stack(logits))
            positions, logits = [], []
    if positions:
        divergence.add(wanted[positions], torch.stack(logits))


def _add_peer(
    divergence: Divergence, wanted: Tensor, peer: Subject, tokens: list[int], *, one_by_one: bool
) -> None:
    with private_folder("bench") as folder:
        path = str(folder / "logits")
        peer.ask("logits", tokens=tokens, path=path, one_by_one=one_by_one)
        divergence.add(wanted, torch.from_file(path, size=wanted.numel()).view_as(wanted))


def cut_windows(tokenizer: Tokenizer, text: str, window_tokens: int) -> list[list[int]]:
    """The text's tokens in windows, each with the begin-of-text token first where the model wants one."""
    bos = [tokenizer.bos_id] if tokenizer.adds_bos and tokenizer.bos_id is not None else []
    tokens = tokenizer.encode(text, add_special=False, parse_special=False)
    step = window_tokens - len(bos)
    windows = [bos + tokens[first : first + step] for first in range(0, len(tokens), step)]
    return [window for window in windows if len(window) >= _MIN_WINDOW_TOKENS]


def quality_text() -> str:
    """Baton's own text: prose, dialogue, tables, code and several languages."""
    return resources.files("resources").joinpath("quality.txt").read_text(encoding="utf-8")


def summary(report: QualityReport) -> dict[str, Any]:
    """One object; divergences in nats a token, rates as shares."""
    return {
        "kld": report.kld,
        "same_top": report.same_top,
        "peer_kld": report.peer_kld,
        "peer_same_top": report.peer_same_top,
        "own": {way: asdict(score) for way, score in report.own.items()},
        "peer": {way: asdict(score) for way, score in report.peer.items()},
        "model": report.model,
        "weights": report.weights,
        "kv_type": report.kv_type,
        "device": report.device,
        "n_windows": report.n_windows,
        "window_tokens": report.window_tokens,
        "peer_version": report.peer_version,
        "peer_features": list(report.peer_features),
    }


def render(report: QualityReport) -> str:
    """A table for people."""
    lines = [
        f"{report.model}",
        f"weights {report.weights}, KV {report.kv_type}, {report.device}; against float32 on "
        f"{report.own[DECODE].n_tokens} tokens in {report.n_windows} windows",
        "",
        f"{'':24}{'mean KL divergence':>26}{'same top token':>18}",
    ]
    ways = [(f"Baton {way}", score) for way, score in report.own.items()]
    ways += [(f"llama.cpp {way.replace('_', ' ')}", score) for way, score in report.peer.items()]
    for name, score in ways:
        lines.append(
            f"{name:24}{f'{score.kld:.6f} ± {score.kld_error:.6f}':>26}{f'{score.same_top:.2%}':>18}"
        )
    if report.peer_kld is not None:
        verdict = "not worse" if report.kld <= report.peer_kld else "worse"
        lines += [
            "",
            f"Baton's worse served way is {verdict} than llama.cpp's better one: "
            f"{report.kld:.6f} against {report.peer_kld:.6f}",
        ]
    return "\n".join(lines)


def read_text(name: str) -> str:
    """The text of the file called `name`; raises UserError with what is wrong with it."""
    path = user_path(name)
    wrong = f"{_TEXT.flag} {name}"
    try:
        with path.open("rb") as file:  # a pipe is as good as a file
            content = file.read(_MAX_TEXT_BYTES + 1)
    except OSError as error:
        fault = file_fault(path, wanted="a text") or f"it cannot be read ({error.strerror})"
        raise UserError(f"{wrong}: {fault}") from error
    if len(content) > _MAX_TEXT_BYTES:
        raise UserError(f"{wrong}: the text has more than {_MAX_TEXT_BYTES >> 20} MB; choose a shorter one")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{wrong}: this is not text in UTF-8 (byte {error.start + 1} is wrong); save it in UTF-8"
        ) from None


def _note(sentence: str) -> None:
    print(f"bench quality: {sentence}", file=sys.stderr, flush=True)
