"""A probe from its parts: what this computer says of itself, and the report that is made of both halves."""

from __future__ import annotations

import time

import msgspec

from engine.link.commands import Runner, run_command
from engine.link.findings import findings
from engine.link.interfaces import Network, direct_cable, read_network
from engine.link.limits import read_limits
from engine.link.report import HostFacts, PeerHalf, Report


def read_facts(run: Runner = run_command) -> HostFacts:
    """This computer's. Blocks for some tens of milliseconds (seconds on Windows); raises HostError."""
    return HostFacts(network=read_network(run), limits=read_limits(run))


def make_report(
    here: HostFacts, *, began_s: float, peer: PeerHalf | None = None, missing: str = ""
) -> Report:
    """The report with its findings; `began_s` is when the probe began, by `time.time()`."""
    in_use = peer.local_interface if peer is not None else ""
    report = Report(
        measured_at=began_s,
        took_s=round(time.time() - began_s, 2),
        here=here,
        cable=direct_cable(here.network, in_use=in_use),
        peer=peer,
        missing=missing,
    )
    return msgspec.structs.replace(report, findings=findings(report))


def interface_holding(network: Network, host: str) -> str:
    """The name of the interface with that address, or ""."""
    interface = network.holding(host)
    return interface.name if interface is not None else ""
