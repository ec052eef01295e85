"""The half of a probe that asks, over loopback; and the search for the largest packet, over a made-up path."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.errors import PeerLost
from engine.link.probe_path import Target, find_mtu, measure, path_mtus
from engine.link.probe_ports import ProbePorts

HOST = "127.0.0.1"


def target_of(ports: ProbePorts) -> Target:
    return Target(
        local_host=HOST, peer_host=HOST, udp_port=ports.udp_port, tcp_port=ports.tcp_port, token=ports.token
    )


@pytest.mark.parametrize("limit", [576, 577, 1279, 1499, 1500, 4470, 8000, 8999, 9000, 9215, 15_999])
def test_the_largest_packet_is_found_to_the_byte_in_few_volleys(limit: int) -> None:
    volleys: list[Sequence[int]] = []

    def passes(sizes: Sequence[int]) -> set[int]:
        volleys.append(sizes)
        return {size for size in sizes if size <= limit}

    assert find_mtu(passes, highest=65536) == limit
    assert len(volleys) <= 5


def test_no_more_than_the_interface_sends_is_looked_for() -> None:
    tried: set[int] = set()

    def passes(sizes: Sequence[int]) -> set[int]:
        tried.update(sizes)
        return set(sizes)

    assert find_mtu(passes, highest=1400) == 1400
    assert max(tried) == 1400


def test_a_path_that_lets_nothing_through() -> None:
    assert find_mtu(lambda sizes: set(), highest=9000) is None


def test_a_packet_that_was_lost_by_chance_changes_nothing() -> None:
    """A smaller one that fails below a larger one that passes."""
    assert (
        find_mtu(lambda sizes: {size for size in sizes if size <= 8000 and size != 1500}, highest=9000)
        == 8000
    )


def test_everything_is_measured_over_loopback() -> None:
    ports = ProbePorts(HOST, HOST)
    parts: list[str] = []
    try:
        assert path_mtus(target_of(ports), local_mtu=9000, peer_mtu=1500) == (9000, 1500)
        found = measure(target_of(ports), local_mtu=9000, peer_mtu=9000, say=parts.append)
    finally:
        ports.close()
    assert parts == [
        "the largest packets that pass",
        "round trips",
        "speed to the other computer",
        "speed from the other computer",
        "bursts after a pause",
    ]
    assert found.round_trips is not None and found.round_trips.lost == 0
    assert 0 < found.round_trips.median_ms <= found.round_trips.worst_ms
    for way in (found.to_peer, found.from_peer):
        assert way.path_mtu == 9000
        assert way.goodput_gbps > 0.1 and way.goodput_two_streams_gbps > 0.1
        assert way.burst_warm_ms > 0 and way.burst_after_idle_ms > 0


def test_ports_that_are_closed_are_told_as_a_firewall_may_be() -> None:
    ports = ProbePorts(HOST, HOST)
    ports.close()
    with pytest.raises(PeerLost, match="firewall"):
        measure(target_of(ports), local_mtu=1500, peer_mtu=1500, say=lambda part: None)
