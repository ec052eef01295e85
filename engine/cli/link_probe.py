"""`baton link probe`: what the cable carries, what slows it down, and how to mend that."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.link.interfaces import Interface
    from engine.link.probe_path import Direction
    from engine.link.report import Report

_NO_NODE = (
    "no node runs on this computer, so only this computer was looked at: start one with `baton node`, and pair it with "
    "the other computer by `baton pair`"
)

_MARKS = {"broken": "BROKEN", "slow": "slow", "note": "note"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """0 when nothing is broken, else 1."""
    import msgspec

    from engine.link.report import Report, Severity

    found = _probe(quiet=args.json)
    report = msgspec.convert(found, Report)
    if args.json:
        print(json.dumps(found))
    else:
        print(describe(report))
    return 1 if any(finding.severity is Severity.BROKEN for finding in report.findings) else 0


def _probe(*, quiet: bool) -> Any:
    """The report as plain data: by the node, which knows the other computer; else of this computer alone."""
    from engine.node.client import NodeClient
    from engine.node.presence import NoNode

    began_s = time.time()
    try:
        for line in NodeClient.find().watch("/link/probe"):
            if "report" in line:
                return line["report"]
            if not quiet:
                print(f"  {line['part']} ...", file=sys.stderr, flush=True)
    except NoNode:
        pass
    import msgspec

    from engine.link.probe import make_report, read_facts

    return msgspec.to_builtins(make_report(read_facts(), began_s=began_s, missing=_NO_NODE))


def describe(report: Report) -> str:
    """The report for people."""
    from engine.link.findings import TUNE

    lines = [_row(each, report) for each in report.here.network.interfaces if each.kind.value != "loopback"]
    lines += ["", f"direct cable   {report.cable.interface or 'none'}: {report.cable.reason}"]
    if report.peer is not None:
        lines.append(
            f"other computer {report.peer.name}: {report.peer.local_interface or '?'} here, "
            f"{report.peer.peer_interface or '?'} there"
        )
        if (path := report.peer.path) is not None:
            if path.round_trips is not None:
                trips = path.round_trips
                lines.append(f"round trip     {trips.median_ms:.2f} ms, {trips.worst_ms:.2f} at worst")
            lines.append(f"to it          {_way(path.to_peer)}")
            lines.append(f"from it        {_way(path.from_peer)}")
    limits = report.here.limits
    lines.append(
        f"buffers here   {limits.receive_buffer / (1 << 20):.1f} MiB to receive, "
        f"{limits.send_buffer / (1 << 20):.1f} to send"
    )
    for finding in report.findings:
        lines += ["", f"{_MARKS[finding.severity.value]}: {finding.what}", f"  why  {finding.why}"]
        lines += [f"  fix  {finding.fix}"] if finding.fix else []
    if any(TUNE in finding.fix for finding in report.findings):
        lines += ["", "`baton link tune --dry-run` shows what it would change here"]
    if report.missing:
        lines += ["", report.missing]
    elif not report.findings:
        lines += ["", "nothing slows this link down"]
    return "\n".join(lines)


def _row(interface: Interface, report: Report) -> str:
    from engine.link.interfaces import speed_text

    speed = speed_text(interface.speed_mbps) if interface.speed_mbps else ""
    addresses = ", ".join(f"{address.text}/{address.prefix}" for address in interface.addresses)
    counters = interface.counters
    n_errors = counters.receive_errors + counters.send_errors
    notes = ["default route"] if report.here.network.has_default_route(interface) else []
    notes += [f"{n_errors} errors"] if n_errors else []
    state = "up" if interface.is_up else "down"
    row = f"{interface.name:14} {interface.kind.value:11} {state:5} MTU {interface.mtu:<6} {speed:12} {addresses}"
    return f"{row}  ({', '.join(notes)})" if notes else row.rstrip()


def _way(way: Direction) -> str:
    mtu = f"packets of {way.path_mtu} bytes" if way.path_mtu else "path MTU not known"
    return (
        f"{way.goodput_gbps:.2f} Gbit/s on one connection, {way.goodput_two_streams_gbps:.2f} on two; {mtu}; "
        f"{way.burst_bytes / 1e6:.1f} MB in {way.burst_warm_ms:.1f} ms, after a pause {way.burst_after_idle_ms:.1f}"
    )
