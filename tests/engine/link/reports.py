"""Reports of made-up probes: everything is well, but for what a test changes."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.link.interfaces import Interface, Network, direct_cable
from engine.link.probe_path import Direction, PathMeasures, RoundTrips
from engine.link.report import HostFacts, PeerHalf, Report
from tests.engine.link.networks import interface, limits, network

CABLE = interface("eth1", "10.71.17.1/24", mtu=9000, driver="r8127")
PEER_CABLE = interface("en5", "10.71.17.2/24", mtu=9000)

# As a sound cable of 10 Gbit/s has it.
WAY = Direction(
    path_mtu=9000,
    goodput_gbps=9.8,
    goodput_two_streams_gbps=9.9,
    burst_bytes=2 << 20,
    burst_warm_ms=1.8,
    burst_after_idle_ms=1.9,
)
ROUND_TRIPS = RoundTrips(sent=200, lost=0, median_ms=0.1, worst_ms=0.4)


def report(
    *,
    here: Interface = CABLE,
    there: Interface = PEER_CABLE,
    local: Network | None = None,
    to_peer: dict[str, Any] | None = None,
    from_peer: dict[str, Any] | None = None,
    round_trips: RoundTrips | None = ROUND_TRIPS,
    limits_here: dict[str, Any] | None = None,
    limits_there: dict[str, Any] | None = None,
    **peer: Any,
) -> Report:
    """`to_peer` and the like change single measurements; `peer` whatever else `PeerHalf` has."""
    own = local or network(here)
    path = PathMeasures(
        round_trips=round_trips,
        to_peer=msgspec.structs.replace(WAY, **(to_peer or {})),
        from_peer=msgspec.structs.replace(WAY, **(from_peer or {})),
    )
    half = PeerHalf(
        **{
            "node_id": "b" * 32,
            "name": "studio",
            "facts": HostFacts(network=network(there), limits=limits(**(limits_there or {}))),
            "local_interface": here.name,
            "peer_interface": there.name,
            "path": path,
            **peer,
        }
    )
    return Report(
        measured_at=1.0,
        took_s=9.0,
        here=HostFacts(network=own, limits=limits(**(limits_here or {}))),
        cable=direct_cable(own),
        peer=half,
    )
