"""`baton bench handoff`: what a handoff costs with everything real but the compute.

Two couriers as processes of their own, TLS between them, the engines' sides of the handoff and the commit of every
chunk; in place of a model, compute that takes the time it is told. What landed is compared with what was sent, byte
for byte, after the clock has stopped.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace

from engine.batching.chunks import equal_chunks
from engine.bench import saturate, tls_pair
from engine.bench.ceiling import iperf3_gbps
from engine.bench.couriers import LINKS, LOOPBACK, HandoffConfig, Link, caches, joined, opened
from engine.bench.geometries import GEOMETRIES
from engine.config import CODEC, Setting, add_flags
from engine.errors import UserError
from engine.handoff.client_events import Finished
from engine.handoff.codec_choice import CodecPolicy
from engine.wire.limits import MAX_CHUNK_TOKENS, MAX_DATA_STREAMS, MAX_PROMPT_TOKENS, MIN_CHUNK_TOKENS

EXAMPLE = """\
  baton bench handoff --geometry qwen3.6-27b --tokens 28800 --chunk 512 --compute-ms-per-chunk 300
  baton bench handoff --geometry llama-8b --tokens 8192 --chunk 512 --compute-ms-per-chunk 0 --json
  sudo baton bench handoff --link netns:10gbit --codec int8
  baton bench handoff --saturate
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
_STREAMS = Setting(
    name="streams",
    kind=int,
    default=1,
    minimum=1,
    maximum=MAX_DATA_STREAMS,
    metavar="N",
    help="data connections that share the layers; each takes a thread at both ends",
)


_CODEC = replace(
    CODEC, default="raw", help="how K and V travel; auto sends a first handoff raw, to measure the link"
)


@dataclass(frozen=True, kw_only=True)
class HandoffReport:
    """What one handoff cost; `wire_bytes` came for its `bytes`. Rates are in Gbit/s of the former; `cpu_s_per_gb`, of
    the latter, is both couriers' together.

    On loopback there is no ceiling, and so no limit of the tail. `goodput_gbps` is over the whole handoff: the link's
    own only where compute takes no time.
    """

    bytes: int
    wire_bytes: int
    codec: str
    codec_reason: str
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
    add_flags(parser, (_TOKENS, _CHUNK, _COMPUTE_MS_PER_CHUNK, _STREAMS, _CODEC))
    parser.add_argument(
        "--link",
        choices=LINKS,
        default=LOOPBACK,
        metavar="|".join(LINKS),
        help="what joins the two (default: %(default)s); netns is a virtual cable of that speed, for root on Linux; "
        "iperf3 tells its ceiling",
    )
    parser.add_argument(
        "--saturate",
        action="store_true",
        help="no compute: the link as fast as it can, five times, beside a bare TLS connection and iperf3",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--tls-end", action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    if args.tls_end:
        return tls_pair.main()
    config = _config(args)
    if args.saturate:
        if config.codec is not CodecPolicy.RAW:
            raise UserError("--saturate measures the link itself, by raw bytes: leave --codec out")
        saturated = saturate.measure(config)
        print(json.dumps(asdict(saturated)) if args.json else saturate.table(config, saturated), flush=True)
        return 0
    report = measure(config)
    print(json.dumps(asdict(report)) if args.json else table(config, report), flush=True)
    return 0


def measure(config: HandoffConfig) -> HandoffReport:
    """Do one handoff and measure it; raises HostError when what landed is not what was sent."""
    with opened(config.link) as link, caches(config) as memory:
        ceiling_gbps = _ceiling_gbps(config, link)
        with joined(config, link, memory) as pair:
            run = pair.hand_over()
            if config.codec is CodecPolicy.AUTO:
                run = pair.hand_over()
        memory.check()
    return HandoffReport(
        bytes=run.finished.payload_bytes,
        wire_bytes=run.finished.wire_bytes,
        codec=run.finished.codec,
        codec_reason=run.finished.codec_reason,
        overlap=run.finished.overlap,
        tail_ms=run.finished.tail_ms,
        tail_limit_ms=_tail_limit_ms(config, ceiling_gbps, run.finished),
        goodput_gbps=run.goodput_gbps,
        ceiling_gbps=ceiling_gbps,
        cpu_s_per_gb=run.cpu_s_per_gb,
    )


def _ceiling_gbps(config: HandoffConfig, link: Link) -> float | None:
    if config.link == LOOPBACK:
        return None
    return iperf3_gbps(link.decoder_host, receive_in=link.enter_decoder, send_in=link.enter_worker)


def _tail_limit_ms(config: HandoffConfig, ceiling_gbps: float | None, finished: Finished) -> float | None:
    if ceiling_gbps is None:
        return None
    chunks = equal_chunks(0, config.stop, config.chunk_tokens)
    state_bytes = sum(layer.state_bytes for layer in config.spec.layers)
    packed = (finished.wire_bytes - state_bytes) / (finished.payload_bytes - state_bytes)
    bytes_per_s = ceiling_gbps * 1e9 / 8
    return 1000 * config.prefiller.tail_limit_s(chunks, bytes_per_s=bytes_per_s, packed=packed)


def table(config: HandoffConfig, report: HandoffReport) -> str:
    rows = [
        ("cache", f"{config.geometry.name}: {config.geometry.note}"),
        ("prompt", f"{config.tokens} tokens in chunks of at most {config.chunk_tokens}"),
        ("link", config.link),
        ("moved", f"{report.bytes / 1e9:.2f} GB"),
        ("codec", f"{report.codec}, {report.wire_bytes / 1e9:.2f} GB on the wire: {report.codec_reason}"),
        ("overlap", f"{report.overlap:.2%} received before compute ended"),
        ("tail", f"{report.tail_ms:.2f} ms"),
        ("goodput", f"{report.goodput_gbps:.2f} Gbit/s over the whole handoff"),
        ("processor", f"{report.cpu_s_per_gb:.2f} s a GB, both couriers"),
    ]
    if report.ceiling_gbps is not None and report.tail_limit_ms is not None:
        total_s = 8e-9 * report.wire_bytes / report.goodput_gbps
        compute_s = config.compute_ms_per_chunk / 1000 * config.stop / config.chunk_tokens
        least_s = max(compute_s, 8e-9 * report.wire_bytes / report.ceiling_gbps)
        rows += [
            (
                "ceiling",
                f"{report.ceiling_gbps:.2f} Gbit/s by iperf3, which leaves a tail of {report.tail_limit_ms:.2f} ms",
            ),
            (
                "total",
                f"{total_s:.2f} s, {total_s / least_s:.3f} of the longer of compute and transfer alone",
            ),
        ]
    return "\n".join(f"{name:<10}{text}" for name, text in rows)


def _config(args: argparse.Namespace) -> HandoffConfig:
    return HandoffConfig(
        geometry=GEOMETRIES[args.geometry],
        tokens=args.tokens,
        chunk_tokens=args.chunk,
        compute_ms_per_chunk=0.0 if args.saturate else args.compute_ms_per_chunk,
        link=args.link,
        data_streams=args.streams,
        codec=CodecPolicy(args.codec),
    )
