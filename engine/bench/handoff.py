"""`baton bench handoff`: what a handoff costs with everything real but the compute.

Two couriers as processes of their own, TLS between them, the engines' sides of the handoff and the commit of every
chunk; in place of a model, compute that takes the time it is told. What landed is compared with what was sent, byte
for byte, after the clock has stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.bench.cpu_time import cpu_seconds
from engine.bench.geometries import GEOMETRIES, Geometry
from engine.bench.paced import PacedPrefiller, landings_for
from engine.cache.spec import CacheSpec, KVType
from engine.config import Setting, add_flags
from engine.errors import HostError, PeerLost, ProcessFailed
from engine.handoff.channel import CourierConfig
from engine.handoff.client_events import Failed, Finished
from engine.handoff.prefill_client import PrefillClient
from engine.handoff.prefill_worker import PrefillWorker
from engine.handoff.shared import SharedMemory, landing_spans
from engine.node.identity import Identity
from engine.node.scratch import private_folder
from engine.wire.limits import MAX_CHUNK_TOKENS, MAX_PROMPT_TOKENS, MIN_CHUNK_TOKENS
from engine.wire.messages import ModelIdentity, Role, layer_shapes

EXAMPLE = """\
  baton bench handoff --geometry qwen3.6-27b --tokens 28800 --chunk 512 --compute-ms-per-chunk 300
  baton bench handoff --geometry llama-8b --tokens 8192 --chunk 512 --compute-ms-per-chunk 0 --json
"""

_TOKENS = Setting(
    name="tokens",
    kind=int,
    default=28_800,
    minimum=2,
    maximum=MAX_PROMPT_TOKENS,
    metavar="N",
    help="of the prompt",
)
_CHUNK = Setting(
    name="chunk",
    kind=int,
    default=512,
    minimum=MIN_CHUNK_TOKENS,
    maximum=MAX_CHUNK_TOKENS,
    metavar="N",
    help="tokens a chunk at most",
)
_COMPUTE_MS_PER_CHUNK = Setting(
    name="compute_ms_per_chunk",
    kind=float,
    default=300.0,
    minimum=0,
    maximum=1e6,
    metavar="MS",
    help="what a full chunk takes to compute; 0 lets the link run as fast as it can",
)

_CONNECT_TIMEOUT_S = 20.0

# A handoff that moves nothing for so long is not coming.
_STILL_TIMEOUT_S = 60.0

_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True, kw_only=True)
class HandoffConfig:
    """What to hand over. A prompt of `tokens` has `tokens` - 1 positions to hand over: the last is the decoder's."""

    geometry: Geometry
    tokens: int
    chunk_tokens: int
    compute_ms_per_chunk: float
    data_streams: int = 1

    @property
    def spec(self) -> CacheSpec:
        return CacheSpec(layers=self.geometry.layers, kv_type=KVType.BF16, n_ctx=self.tokens, n_slots=1)


@dataclass(frozen=True, kw_only=True)
class HandoffReport:
    """What one handoff cost. Rates are in Gbit/s of payload; `cpu_s_per_gb` is of both couriers together.

    On loopback there is no ceiling, and so no limit of the tail. `goodput_gbps` is over the whole handoff: the link's
    own only where compute takes no time.
    """

    bytes: int
    overlap: float
    tail_ms: float
    tail_limit_ms: float | None
    goodput_gbps: float
    ceiling_gbps: float | None
    cpu_s_per_gb: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--geometry",
        choices=GEOMETRIES,
        default="qwen3.6-27b",
        metavar="|".join(GEOMETRIES),
        help="whose cache is handed over (default: %(default)s)",
    )
    add_flags(parser, (_TOKENS, _CHUNK, _COMPUTE_MS_PER_CHUNK))
    parser.add_argument(
        "--link", choices=["loopback"], default="loopback", help="what joins the two (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    config = _config(args)
    report = measure(config)
    if args.json:
        print(json.dumps(asdict(report)), flush=True)
    else:
        print(table(config, report), flush=True)
    return 0


def measure(config: HandoffConfig) -> HandoffReport:
    """Do one handoff and measure it; raises HostError when what landed is not what was sent."""
    spec = config.spec
    stop = config.tokens - 1
    landings = landings_for(spec, stop)
    with _memory(spec) as source, _memory(spec) as landing, _joined(config, source, landing) as pair:
        for offset, n_bytes in landing_spans(landings):
            _fill(source.buffer[offset : offset + n_bytes], seed=offset)
            _touch(landing.buffer[offset : offset + n_bytes])
        cpu_before_s = pair.cpu_s()
        begun_s = time.monotonic()
        pair.client.start(1, [0] * stop, 0, stop, landings, config.chunk_tokens)
        finished = pair.wait_finished()
        took_s = time.monotonic() - begun_s
        cpu_s = pair.cpu_s() - cpu_before_s
        for offset, n_bytes in landing_spans(landings):
            _compare(source.buffer, landing.buffer, offset, n_bytes)
    return HandoffReport(
        bytes=finished.payload_bytes,
        overlap=finished.overlap,
        tail_ms=finished.tail_ms,
        tail_limit_ms=None,
        goodput_gbps=8e-9 * finished.payload_bytes / took_s,
        ceiling_gbps=None,
        cpu_s_per_gb=cpu_s / (finished.payload_bytes / 1e9),
    )


def table(config: HandoffConfig, report: HandoffReport) -> str:
    rows = [
        ("cache", f"{config.geometry.name}: {config.geometry.note}"),
        ("prompt", f"{config.tokens} tokens in chunks of at most {config.chunk_tokens}"),
        ("moved", f"{report.bytes / 1e9:.2f} GB"),
        ("overlap", f"{report.overlap:.2%} received before compute ended"),
        ("tail", f"{report.tail_ms:.2f} ms"),
        ("goodput", f"{report.goodput_gbps:.2f} Gbit/s over the whole handoff"),
        ("processor", f"{report.cpu_s_per_gb:.2f} s a GB, both couriers"),
    ]
    return "\n".join(f"{name:<10}{text}" for name, text in rows)


def _config(args: argparse.Namespace) -> HandoffConfig:
    return HandoffConfig(
        geometry=GEOMETRIES[args.geometry],
        tokens=args.tokens,
        chunk_tokens=args.chunk,
        compute_ms_per_chunk=args.compute_ms_per_chunk,
    )


class _Pair:
    """Both engines' sides, connected, in this process; their couriers are processes of their own."""

    def __init__(self, client: PrefillClient, worker: PrefillWorker) -> None:
        self.client = client
        self.worker = worker
        self._news = threading.Event()
        client.on_wakeup(self._news.set)

    def cpu_s(self) -> float:
        return sum(cpu_seconds(pid) for pid in (self.client.courier_pid, self.worker.courier_pid) if pid)

    def wait_connected(self) -> None:
        deadline_s = time.monotonic() + _CONNECT_TIMEOUT_S
        while not (status := self.client.status()).ready:
            if not self._wait(deadline_s - time.monotonic()):
                raise ProcessFailed(f"the two couriers did not find each other: {status.note}")

    def wait_finished(self) -> Finished:
        while self._wait(_STILL_TIMEOUT_S):
            for event in self.client.poll():
                if isinstance(event, Finished):
                    return event
                if isinstance(event, Failed):
                    raise PeerLost(f"the handoff failed ({event.code}): {event.message}")
        raise PeerLost("the handoff stopped moving")

    def _wait(self, timeout_s: float) -> bool:
        heard = self._news.wait(max(0.0, timeout_s))
        self._news.clear()
        return heard


@contextlib.contextmanager
def _joined(config: HandoffConfig, source: SharedMemory, landing: SharedMemory) -> Iterator[_Pair]:
    """A decoding side whose memory is `landing` and a worker whose memory is `source`, each trusting the other."""
    spec = config.spec
    prefiller = PacedPrefiller(
        spec, chunk_tokens=config.chunk_tokens, compute_s=config.compute_ms_per_chunk / 1000
    )
    with private_folder("bench") as folder, contextlib.ExitStack() as closing:
        decoder, worker_folder = folder / "decoder", folder / "worker"
        decoder_id, worker_id = Identity.load_or_create(decoder), Identity.load_or_create(worker_folder)
        common: dict[str, Any] = {
            "identity": _identity(config, spec),
            "data_streams": config.data_streams,
            "max_prompt_tokens": spec.n_ctx,
        }
        worker = PrefillWorker(
            prefiller,
            _courier(
                Role.PREFILL,
                worker_folder,
                decoder_id.fingerprint,
                listen="127.0.0.1:0",
                **common,
            ),
            source,
        )
        port = worker.open()
        closing.callback(worker.close)
        thread = threading.Thread(target=worker.run, name="paced-worker", daemon=True)
        thread.start()
        client = PrefillClient(
            _courier(Role.DECODE, decoder, worker_id.fingerprint, dial=f"127.0.0.1:{port}", **common),
            landing,
        )
        pair = _Pair(client, worker)
        client.open()
        closing.callback(client.close)
        pair.wait_connected()
        yield pair


def _courier(
    role: Role, folder: Path, trusted: str, *, dial: str | None = None, listen: str | None = None, **more: Any
) -> CourierConfig:
    return CourierConfig(
        role=role,
        identity_dir=str(folder),
        trust_dir=str(folder / "trusted"),
        fingerprint=trusted,
        dial=dial,
        listen=listen,
        channel_descriptor=-1,
        memory_descriptor=-1,
        memory_bytes=0,
        **more,
    )


def _identity(config: HandoffConfig, spec: CacheSpec) -> ModelIdentity:
    return ModelIdentity(
        model_name=config.geometry.name,
        model_digest="",
        tokenizer_digest="",
        layers=layer_shapes(spec),
        rope=(),
        kv_type=spec.kv_type,
    )


@contextlib.contextmanager
def _memory(spec: CacheSpec) -> Iterator[SharedMemory]:
    memory = SharedMemory.create(spec.total_bytes())
    try:
        yield memory
    finally:
        memory.close_descriptor()


def _fill(view: memoryview, *, seed: int) -> None:
    """Random bytes, so that no two places hold the same and nothing compresses."""
    import numpy as np

    rng = np.random.default_rng(seed)
    for at, n_bytes in _blocks(0, len(view)):
        view[at : at + n_bytes] = rng.bytes(n_bytes)


def _touch(view: memoryview) -> None:
    """Give it its pages, as a slot that has served before has them."""
    zeros = bytes(_BLOCK_BYTES)
    for at, n_bytes in _blocks(0, len(view)):
        view[at : at + n_bytes] = zeros[:n_bytes]


def _compare(sent: memoryview, landed: memoryview, offset: int, n_bytes: int) -> None:
    for at, length in _blocks(offset, n_bytes):
        if bytes(sent[at : at + length]) != bytes(landed[at : at + length]):
            raise HostError(
                f"what landed at {at} is not what was sent: this is a fault in Baton, please report it"
            )


def _blocks(offset: int, n_bytes: int) -> Iterator[tuple[int, int]]:
    for at in range(offset, offset + n_bytes, _BLOCK_BYTES):
        yield at, min(_BLOCK_BYTES, offset + n_bytes - at)
