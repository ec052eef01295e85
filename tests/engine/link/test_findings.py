"""What follows from a probe: one measurement is changed at a time, and one finding has to come of it."""

from __future__ import annotations

import msgspec
import pytest

from engine.link.findings import findings
from engine.link.interfaces import Counters, Kind
from engine.link.probe_path import RoundTrips
from engine.link.report import Finding, Report, Severity
from tests.engine.link.networks import interface, network
from tests.engine.link.reports import CABLE, PEER_CABLE, report


def codes(of: Report) -> list[str]:
    return [finding.code for finding in findings(of)]


def only(of: Report) -> Finding:
    found = findings(of)
    assert len(found) == 1, [each.code for each in found]
    return found[0]


def test_a_sound_link_has_nothing_to_say() -> None:
    assert findings(report()) == ()


def test_packets_that_vanish() -> None:
    """9,000 here, and a path that carries 8,000."""
    found = only(report(to_peer={"path_mtu": 8000}))
    assert (found.code, found.severity) == ("mtu_black_hole", Severity.BROKEN)
    assert "to studio" in found.what and "8000" in found.what and "9000" in found.what
    assert "set the MTU to 8000" in found.fix
    assert "from studio" in only(report(from_peer={"path_mtu": 8000})).what


def test_errors_that_the_probe_itself_made_are_not_told() -> None:
    counted = Counters(receive_errors=60, receive_dropped=60)
    assert codes(report(to_peer={"path_mtu": 8000}, counted_there=counted)) == ["mtu_black_hole"]


def test_what_some_systems_cannot_send_is_not_taken_for_lost() -> None:
    big = msgspec.structs.replace(CABLE, mtu=16000)
    there = msgspec.structs.replace(PEER_CABLE, mtu=16000)
    ways = {"path_mtu": 9244}
    assert codes(report(here=big, there=there, to_peer=ways, from_peer=ways)) == []


def test_packets_of_the_usual_size_on_a_fast_cable() -> None:
    ends = [msgspec.structs.replace(each, mtu=1500) for each in (CABLE, PEER_CABLE)]
    way = {"path_mtu": 1500, "goodput_gbps": 9.3, "goodput_two_streams_gbps": 9.4}
    found = only(report(here=ends[0], there=ends[1], to_peer=way, from_peer=way))
    assert found.code == "small_mtu"
    # 0.9907 less 0.9415 of 10 Gbit/s
    assert "0.49 Gbit/s" in found.why and "link tune --apply" in found.fix and found.is_tunable


def test_packets_of_the_usual_size_on_a_gigabit_are_not_the_trouble() -> None:
    ends = [msgspec.structs.replace(each, mtu=1500, speed_mbps=1000) for each in (CABLE, PEER_CABLE)]
    way = {"path_mtu": 1500, "goodput_gbps": 0.93, "goodput_two_streams_gbps": 0.94}
    found = only(report(here=ends[0], there=ends[1], to_peer=way, from_peer=way))
    assert found.code == "slow_port" and "8.0 s" in found.why and not found.is_tunable


def test_different_mtus() -> None:
    there = msgspec.structs.replace(PEER_CABLE, mtu=1500)
    way = {"path_mtu": 1500, "goodput_gbps": 9.3, "goodput_two_streams_gbps": 9.4}
    found = codes(report(there=there, to_peer=way, from_peer=way))
    assert set(found) == {"mtu_black_hole", "small_mtu", "unequal_mtu"}


def test_less_than_was_negotiated() -> None:
    way = {"goodput_gbps": 4.0, "goodput_two_streams_gbps": 4.1}
    found = findings(report(to_peer=way, from_peer=way))
    assert [each.code for each in found] == ["slow_link", "slow_link"]
    assert "4.10 Gbit/s of the 9.90" in found[0].what and "2.0 s instead of 0.8 s" in found[0].why


def test_the_slower_end_sets_what_may_be_expected() -> None:
    slower = msgspec.structs.replace(PEER_CABLE, speed_mbps=5000)
    way = {"goodput_gbps": 4.8, "goodput_two_streams_gbps": 4.9}
    assert codes(report(there=slower, to_peer=way, from_peer=way)) == []


def test_one_way_slower_than_the_other() -> None:
    found = findings(report(from_peer={"goodput_gbps": 1.7, "goodput_two_streams_gbps": 1.7}))
    assert [each.code for each in found] == ["slow_link", "one_way_slower"]
    assert "1.70 come from there" in found[1].what


def test_a_second_stream_that_helps() -> None:
    assert codes(report(to_peer={"goodput_gbps": 5.0})) == ["streams_help"]


@pytest.mark.parametrize("whose", ["limits_here", "limits_there"])
def test_small_buffers(whose: str) -> None:
    found = only(report(**{whose: {"receive_granted": 212992, "receive_auto_max": 2 << 20}}))
    assert found.code == "small_buffers"
    assert ("studio" in found.what) == (whose == "limits_there")
    # 2 MiB at 9.8 Gbit/s
    assert "2.0 MiB are 1.7 ms at 9.8 Gbit/s" in found.why


def test_slow_start_after_idle_that_costs_time() -> None:
    found = only(report(limits_here={"slow_start_after_idle": True}, to_peer={"burst_after_idle_ms": 12.3}))
    assert (found.code, found.severity) == ("slow_start_after_idle", Severity.SLOW)
    assert "10.5 ms" in found.why


def test_slow_start_after_idle_that_costs_nothing_is_a_note() -> None:
    assert only(report(limits_there={"slow_start_after_idle": True})).severity is Severity.NOTE


def test_slow_start_where_the_system_does_not_tell() -> None:
    found = only(report(limits_there={"slow_start_after_idle": None}, from_peer={"burst_after_idle_ms": 9.0}))
    assert found.code == "slow_start_after_idle" and found.fix == ""
    assert codes(report(limits_there={"slow_start_after_idle": None})) == []


def test_errors_counted() -> None:
    found = only(report(counted_here=Counters(receive_errors=12)))
    assert (found.code, found.severity) == ("packet_errors", Severity.SLOW)
    assert "12 faulty" in found.what and "r8127" in found.fix
    assert only(report(counted_there=Counters(send_dropped=3))).severity is Severity.NOTE


def test_long_and_lost_round_trips() -> None:
    slow = RoundTrips(sent=200, lost=0, median_ms=0.2, worst_ms=45.0)
    assert "45.0 at worst" in only(report(round_trips=slow)).what
    lossy = RoundTrips(sent=200, lost=9, median_ms=0.2, worst_ms=0.5)
    assert only(report(round_trips=lossy)).code == "lost_packets"


def test_no_datagram_at_all() -> None:
    way = {"path_mtu": None}
    assert codes(report(to_peer=way, from_peer=way, round_trips=None)) == ["no_datagrams", "no_datagrams"]


def test_internet_sharing_on_the_port() -> None:
    found = only(report(limits_there={"shared_interfaces": ("en5",)}))
    assert (found.code, found.severity) == ("internet_sharing", Severity.BROKEN)
    assert codes(report(limits_there={"shared_interfaces": ("en9",)})) == []


def test_addresses_that_collide() -> None:
    found = only(report(local=network(CABLE, routes={"10.0.0.0/8": "vpn0"})))
    assert (found.code, found.severity) == ("address_collision", Severity.BROKEN)
    assert "vpn0" in found.what and "10.71.17.0/24" in found.what


def test_the_same_address_at_both_ends() -> None:
    assert codes(report(there=interface("en5", "10.71.17.1/24", mtu=9000))) == ["same_address"]


def test_a_connection_beside_the_cable() -> None:
    wifi = interface("wlan0", "192.168.1.2/24", kind=Kind.WIFI, mtu=9000, speed_mbps=None)
    found = findings(report(here=wifi, local=network(wifi, CABLE)))
    assert [each.code for each in found] == ["not_over_the_cable"]
    assert "wlan0" in found[0].what and "eth1" in found[0].what


def test_this_computer_alone() -> None:
    alone = msgspec.structs.replace(report(), peer=None)
    assert codes(alone) == []
    bare = interface("eth1", mtu=9000)
    assert codes(msgspec.structs.replace(report(here=bare), peer=None)) == ["no_address"]
    wifi = network(interface("wlan0", kind=Kind.WIFI))
    assert codes(msgspec.structs.replace(report(local=wifi), peer=None)) == ["no_cable"]


def test_what_matters_most_comes_first() -> None:
    found = findings(
        report(
            to_peer={"path_mtu": 8000, "goodput_gbps": 4.0, "goodput_two_streams_gbps": 6.0},
            limits_here={"slow_start_after_idle": True},
        )
    )
    assert [each.severity for each in found] == sorted(
        (each.severity for each in found), key=list(Severity).index
    )
    assert found[0].code == "mtu_black_hole"
