"""`baton bench handoff --saturate`: how much of a link a handoff uses when no compute holds it back.

Turn by turn in one run: a handoff by couriers, and as many bytes over a bare TLS connection between two Pythons.
iperf3, where it is there, says what the link carries without TLS.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from engine.bench import tls_pair
from engine.bench.ceiling import has_iperf3, iperf3_gbps
from engine.bench.couriers import CourierPair, HandoffConfig, Link, Run, caches, joined, opened
from engine.bench.tls_pair import Transfer
from engine.node.scratch import private_folder

RUNS = 5


@dataclass(frozen=True, kw_only=True)
class SaturationReport:
    """Medians. Rates are in Gbit/s of payload, `cpu_s_per_gb` is of both ends together."""

    bytes: int
    goodput_gbps: float
    tls_pair_gbps: float
    iperf3_gbps: float | None
    of_tls_pair: float
    of_iperf3: float | None
    cpu_s_per_gb: float
    tls_pair_cpu_s_per_gb: float


def measure(config: HandoffConfig, runs: int = RUNS) -> SaturationReport:
    """Raises HostError when what landed is not what was sent, and where the link cannot be had."""
    with opened(config.link) as link, caches(config) as memory:
        ceiling_gbps = _iperf3(link)
        with joined(config, link, memory) as pair:
            n_bytes = pair.hand_over().finished.payload_bytes  # every page is touched, every code path warm
            memory.check()
            with (
                private_folder("bench") as folder,
                tls_pair.connected(
                    folder,
                    host=link.worker_host,
                    source=memory.source,
                    landing=memory.landing,
                    n_bytes=n_bytes,
                    enter_sender=link.enter_worker,
                    enter_receiver=link.enter_decoder,
                ) as bare,
            ):
                bare.transfer()
                handoffs, transfers = _take_turns(pair, bare, runs)
        memory.check()
    return _report(handoffs, transfers, ceiling_gbps)


def _iperf3(link: Link) -> float | None:
    if not has_iperf3():
        return None
    return iperf3_gbps(link.decoder_host, receive_in=link.enter_decoder, send_in=link.enter_worker)


def _take_turns(pair: CourierPair, bare: tls_pair.Pair, runs: int) -> tuple[list[Run], list[Transfer]]:
    handoffs, transfers = [], []
    for index in range(runs):
        # Each goes first as often as the other: a computer slows down as it warms up.
        if index % 2:
            transfers.append(bare.transfer())
            handoffs.append(pair.hand_over())
        else:
            handoffs.append(pair.hand_over())
            transfers.append(bare.transfer())
    return handoffs, transfers


def _report(handoffs: list[Run], transfers: list[Transfer], ceiling_gbps: float | None) -> SaturationReport:
    goodput_gbps = statistics.median(run.goodput_gbps for run in handoffs)
    bare_gbps = statistics.median(transfer.goodput_gbps for transfer in transfers)
    return SaturationReport(
        bytes=handoffs[0].finished.payload_bytes,
        goodput_gbps=goodput_gbps,
        tls_pair_gbps=bare_gbps,
        iperf3_gbps=ceiling_gbps,
        of_tls_pair=goodput_gbps / bare_gbps,
        of_iperf3=goodput_gbps / ceiling_gbps if ceiling_gbps else None,
        cpu_s_per_gb=statistics.median(run.cpu_s_per_gb for run in handoffs),
        tls_pair_cpu_s_per_gb=statistics.median(transfer.cpu_s_per_gb for transfer in transfers),
    )


def table(config: HandoffConfig, report: SaturationReport) -> str:
    rows = [
        ("cache", f"{config.geometry.name}: {config.geometry.note}"),
        ("link", config.link),
        ("moved", f"{report.bytes / 1e9:.2f} GB, {RUNS} times each way"),
        ("handoff", f"{report.goodput_gbps:.2f} Gbit/s, {report.cpu_s_per_gb:.2f} s of processor a GB"),
        (
            "bare TLS",
            f"{report.tls_pair_gbps:.2f} Gbit/s, {report.tls_pair_cpu_s_per_gb:.2f} s of processor a GB: "
            f"the handoff has {report.of_tls_pair:.1%} of it",
        ),
    ]
    if report.iperf3_gbps is None:
        rows.append(("iperf3", "not installed"))
    else:
        rows.append(
            ("iperf3", f"{report.iperf3_gbps:.2f} Gbit/s: the handoff has {report.of_iperf3:.1%} of it")
        )
    return "\n".join(f"{name:<10}{text}" for name, text in rows)
