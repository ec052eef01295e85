"""The plan: what is still to be changed, and an address that suits both computers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.errors import UserError
from engine.link.interfaces import Kind, Network
from engine.link.tune import (
    SYSCTLS,
    Firewall,
    Profile,
    Situation,
    Sysctls,
    Way,
    check_host,
    check_values,
    make_plan,
)
from tests.engine.link.networks import interface, network

MIB = 1 << 20
UNTUNED = {
    "net.core.rmem_max": (212992,),
    "net.core.wmem_max": (212992,),
    "net.ipv4.tcp_rmem": (4096, 131072, 6291456),
    "net.ipv4.tcp_wmem": (4096, 16384, 4194304),
    "net.ipv4.tcp_slow_start_after_idle": (1,),
    "net.ipv4.tcp_mtu_probing": (0,),
}
TUNED = {
    "net.core.rmem_max": (32 * MIB,),
    "net.core.wmem_max": (64 * MIB,),
    "net.ipv4.tcp_rmem": (4096, 131072, 32 * MIB),
    "net.ipv4.tcp_wmem": (4096, 16384, 32 * MIB),
    "net.ipv4.tcp_slow_start_after_idle": (0,),
    "net.ipv4.tcp_mtu_probing": (2,),
}
HOME = interface("eth0", "192.168.1.2/24")
BARE = network(interface("eth1", max_mtu=9194), HOME, routes={"0.0.0.0/0": "eth0"})
PEER_BARE = network(interface("en5", max_mtu=9000), routes={})

A, B = "a" * 32, "b" * 32


def situation(found: Network = BARE, **rest: Any) -> Situation:
    settings: dict[str, Any] = {
        "network": found,
        "interface": "eth1",
        "way": Way.IP,
        "node_id": A,
        "settings": UNTUNED,
        **rest,
    }
    return Situation(**settings)


def of_peer(found: Network = PEER_BARE, **rest: Any) -> dict[str, Any]:
    return {"peer": found, "peer_interface": "en5", "peer_id": B, **rest}


def profile(asked: Situation) -> Profile:
    change = make_plan(asked).changes[0]
    assert isinstance(change, Profile)
    return change


def test_all_that_an_untuned_computer_needs() -> None:
    plan = make_plan(situation(**of_peer()))
    address, settings = plan.changes
    assert isinstance(address, Profile) and isinstance(settings, Sysctls)
    assert (address.interface, address.mtu, address.host.rpartition(".")[0]) == ("eth1", 9000, "10.71.17")
    assert settings.values == {
        "net.core.rmem_max": (32 * MIB,),
        "net.core.wmem_max": (32 * MIB,),
        "net.ipv4.tcp_rmem": (4096, 131072, 32 * MIB),
        "net.ipv4.tcp_wmem": (4096, 16384, 32 * MIB),
        "net.ipv4.tcp_slow_start_after_idle": (0,),
        "net.ipv4.tcp_mtu_probing": (1,),
    }
    assert any("restarts" in note for note in plan.notes)


def test_a_tuned_computer_needs_nothing() -> None:
    tuned = network(interface("eth1", "10.71.17.3/24", mtu=9000), HOME)
    assert make_plan(situation(tuned, settings=TUNED)).changes == ()
    assert make_plan(situation(tuned, settings={})).changes == ()


def test_what_a_plan_changes_is_not_planned_again() -> None:
    asked = situation(**of_peer())
    address, settings = make_plan(asked).changes
    assert isinstance(address, Profile) and isinstance(settings, Sysctls)
    after = network(interface("eth1", f"{address.host}/24", mtu=address.mtu), HOME)
    again = situation(after, settings={**UNTUNED, **settings.values}, **of_peer())
    assert make_plan(again).changes == ()


def test_both_computers_choose_one_network_and_two_addresses() -> None:
    here = profile(situation(**of_peer()))
    there = profile(
        situation(PEER_BARE, interface="en5", node_id=B, peer=BARE, peer_interface="eth1", peer_id=A)
    )
    assert here.host.rpartition(".")[0] == there.host.rpartition(".")[0]
    assert here.host != there.host


def test_two_ids_that_lead_to_one_address_are_kept_apart() -> None:
    """A thousand of them, of which some surely meet."""
    hosts = set()
    for number in range(1000):
        other = f"{number:032x}"
        here = profile(situation(**of_peer(peer_id=other)))
        there = profile(
            situation(PEER_BARE, interface="en5", node_id=other, peer=BARE, peer_interface="eth1", peer_id=A)
        )
        assert here.host != there.host
        assert 1 <= int(there.host.rpartition(".")[2]) <= 254
        hosts.add(here.host)
    assert len(hosts) == 2  # the second is where they met


def test_the_network_collides_with_no_route_of_either_computer() -> None:
    here = network(interface("eth1"), HOME, routes={"10.0.0.0/8": "vpn0", "0.0.0.0/0": "eth0"})
    there = network(interface("en5"), routes={"172.29.171.0/24": "utun0", "172.29.172.0/23": "utun0"})
    assert profile(situation(here, **of_peer(there))).host.startswith("172.29.174.")


def test_where_nothing_is_free_nothing_is_done() -> None:
    full = network(interface("eth1"), routes={"10.0.0.0/8": "a", "172.16.0.0/12": "b", "192.168.0.0/16": "c"})
    with pytest.raises(UserError, match="by hand"):
        make_plan(situation(full))


def test_the_other_end_was_first() -> None:
    """Its network is taken, and its address is not."""
    mine = profile(situation(**of_peer())).host
    subnet = "172.30.9"
    taken = f"{subnet}.{mine.rpartition('.')[2]}"
    there = network(interface("en5", f"{taken}/24"))
    host = profile(situation(**of_peer(there))).host
    assert host.startswith(f"{subnet}.") and host != taken


def test_an_address_that_somebody_gave_is_kept() -> None:
    given = network(interface("eth1", "192.168.50.1/24", mtu=1500), HOME)
    assert profile(situation(given)).host == "192.168.50.1"
    there = network(interface("en5", "192.168.50.2/24", mtu=9000))
    assert profile(situation(given, **of_peer(there))).host == "192.168.50.1"


def test_an_address_that_collides_is_not_kept() -> None:
    given = network(interface("eth1", "192.168.1.77/24", mtu=9000), HOME)
    found = profile(situation(given))
    assert found.host.startswith("10.71.17.")
    both = interface("eth1", "192.168.1.77/24", f"{found.host}/24", mtu=9000)
    assert not any(isinstance(each, Profile) for each in make_plan(situation(network(both, HOME))).changes)


@pytest.mark.parametrize(
    ("rest", "mtu"),
    [
        ({}, 9000),
        (of_peer(network(interface("en5", max_mtu=4000))), 4000),
        ({"wanted_mtu": 4000}, 4000),
        ({"wanted_mtu": 9216}, 9194),
        ({"max_path_mtu": 8000}, 8000),
    ],
    ids=["what is usual", "the other end's limit", "as asked", "this end's limit", "what the cable carries"],
)
def test_how_large_packets_become(rest: dict[str, Any], mtu: int) -> None:
    assert profile(situation(**rest)).mtu == mtu


def test_an_mtu_that_somebody_raised_is_left_unless_packets_are_lost() -> None:
    raised = network(interface("eth1", "10.71.17.3/24", mtu=8000), HOME)
    assert make_plan(situation(raised, settings={})).changes == ()
    assert profile(situation(raised, settings={}, max_path_mtu=4000)).mtu == 4000
    assert profile(situation(raised, settings={}, wanted_mtu=1500)).mtu == 1500


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (network(interface("eth1"), routes={"0.0.0.0/0": "eth1"}), "left alone"),
        (network(interface("eth1", kind=Kind.WIFI)), "no cable"),
        (network(interface("eth1", kind=Kind.TUNNEL)), "no cable"),
        (network(interface("eth1", kind=Kind.LOOPBACK)), "no cable"),
        (network(HOME), "no interface eth1"),
    ],
)
def test_interfaces_that_are_left_alone(found: Network, why: str) -> None:
    with pytest.raises(UserError, match=why):
        make_plan(situation(found))


def test_macos_and_windows() -> None:
    mac = make_plan(
        situation(way=Way.NETWORKSETUP, settings={"kern.ipc.maxsockbuf": (8 * MIB,)}, **of_peer())
    )
    assert mac.changes[1] == Sysctls(values={"kern.ipc.maxsockbuf": (32 * MIB,)})
    windows = make_plan(situation(way=Way.POWERSHELL, settings={}, **of_peer()))
    there = profile(
        situation(PEER_BARE, interface="en5", node_id=B, peer=BARE, peer_interface="eth1", peer_id=A)
    )
    assert windows.changes[1] == Firewall(peer_host=there.host)


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("8.8.8.8", "private"),
        ("172.32.0.1", "private"),
        ("10.71.17.0", "whole network"),
        ("10.71.17.255", "whole network"),
        ("192.168.1.9", "in use"),
        ("999.1.1.1", "no address"),
    ],
)
def test_addresses_that_are_refused(host: str, why: str) -> None:
    cable = BARE.named("eth1")
    assert cable is not None
    with pytest.raises(UserError, match=why):
        check_host(BARE, cable, host)


@pytest.mark.parametrize(
    ("name", "values", "now"),
    [
        ("kernel.core_pattern", (1,), (0,)),
        ("net.ipv4.ip_forward", (1,), (0,)),
        ("net.core.rmem_max", (1 << 40,), (212992,)),
        ("net.core.rmem_max", (2 * MIB,), (4 * MIB,)),
        ("net.core.rmem_max", (2 * MIB, 2 * MIB), (212992,)),
        ("net.core.rmem_max", (2 * MIB,), ()),
        ("net.ipv4.tcp_rmem", (4096, 131072, 0), (4096, 131072, 6291456)),
        ("net.ipv4.tcp_slow_start_after_idle", (1,), (0,)),
    ],
    ids=["another's", "forwarding", "too much", "less than now", "too many", "not there", "no buffer", "on"],
)
def test_settings_that_are_refused(name: str, values: tuple[int, ...], now: tuple[int, ...]) -> None:
    with pytest.raises(UserError):
        check_values(name, values, now)


def test_every_setting_that_is_planned_is_allowed() -> None:
    settings = make_plan(situation()).changes[1]
    assert isinstance(settings, Sysctls)
    for name, values in settings.values.items():
        assert name in SYSCTLS
        check_values(name, values, UNTUNED[name])


@pytest.mark.parametrize(
    "change",
    [
        {"type": "profile", "interface": "../../etc", "host": "10.71.17.1", "mtu": 9000, "way": "ip"},
        {"type": "profile", "interface": "eth1", "host": "10.71.17.1;reboot", "mtu": 9000, "way": "ip"},
        {"type": "profile", "interface": "eth1", "host": "10.71.17.1", "mtu": 100, "way": "ip"},
        {"type": "profile", "interface": "eth1", "host": "10.71.17.1", "mtu": 90000, "way": "ip"},
        {"type": "profile", "interface": "eth1", "host": "10.71.17.1", "mtu": 9000, "way": "shell"},
        {
            "type": "profile",
            "interface": "eth1",
            "host": "10.71.17.1",
            "mtu": 9000,
            "way": "powershell",
            "guid": "'; Remove-Item C:\\ #",
        },
        {"type": "sysctls", "values": {}},
        {"type": "run", "words": ["reboot"]},
        {"type": "firewall", "peer_host": "any"},
        {"type": "firewall", "peer_host": "10.0.0.1", "port": 22},
    ],
)
def test_changes_that_are_none_of_ours_are_not_read(change: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(change, Profile | Sysctls | Firewall)
