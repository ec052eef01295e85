"""Which interfaces may have a neighbour, and which of them is best."""

from __future__ import annotations

import ipaddress
import random
from collections import namedtuple
from pathlib import Path

import pytest

from engine.node import segments as module
from engine.node.segments import Segment, segments

Adapter = namedtuple("Adapter", "name nice_name index ips")
Ip = namedtuple("Ip", "ip network_prefix")
State = namedtuple("State", "isup speed flags")

RUNNING = "up,broadcast,running,multicast"


def segment(name: str, *networks: str, **fields: object) -> Segment:
    addresses = tuple(ipaddress.IPv4Interface(network) for network in networks)
    return Segment(name=name, index=1, addresses=addresses, **fields)  # type: ignore[arg-type]


def test_the_direct_cable_comes_first_and_radio_last() -> None:
    wanted = [
        segment("fast-cable", speed_mbit=10_000),
        segment("cable", speed_mbit=2500),
        segment("fast-lan", speed_mbit=10_000, has_default_route=True),
        segment("lan", speed_mbit=1000, has_default_route=True),
        segment("wlan", speed_mbit=2400, is_wireless=True, has_default_route=True),
    ]
    shuffled = list(wanted)
    random.Random(1).shuffle(shuffled)
    assert sorted(shuffled, key=lambda each: each.rank) == wanted


@pytest.mark.parametrize(
    ("network", "others"),
    [
        ("10.0.0.1/30", ["10.0.0.2"]),
        ("10.0.0.2/30", ["10.0.0.1"]),
        ("10.0.0.4/31", ["10.0.0.5"]),
        ("10.0.0.1/32", []),
        ("10.0.0.1/29", []),
    ],
)
def test_on_a_network_of_two_the_other_one_is_known(network: str, others: list[str]) -> None:
    assert segment("cable", network).opposite_hosts() == others


def system(
    monkeypatch: pytest.MonkeyPatch, platform: str, adapters: list[Adapter], states: dict[str, State]
) -> None:
    monkeypatch.setattr(module.sys, "platform", platform)
    monkeypatch.setattr(module.ifaddr, "get_adapters", lambda: adapters)
    monkeypatch.setattr(module.psutil, "net_if_stats", lambda: states)


def adapter(name: str, nice_name: str = "") -> Adapter:
    ips = [Ip("10.0.0.1", 24), Ip(("fe80::1", 0, 4), 64), Ip(("2001:db8::1", 0, 0), 64)]
    return Adapter(name, nice_name or name, 4, ips)


@pytest.mark.parametrize("platform", ["linux", "darwin"])
@pytest.mark.parametrize(
    "flags",
    [
        "up,broadcast,multicast",  # a pulled cable
        "up,pointopoint,running,multicast",
        "up,loopback,running,multicast",
        "up,broadcast,running",
    ],
)
def test_what_has_no_neighbour_by_its_flags(
    monkeypatch: pytest.MonkeyPatch, platform: str, flags: str
) -> None:
    system(monkeypatch, platform, [adapter("en7")], {"en7": State(True, 1000, flags)})
    assert segments() == []
    system(monkeypatch, platform, [adapter("en7")], {"en7": State(True, 1000, RUNNING)})
    (found,) = segments()
    assert (found.name, found.link_local, found.speed_mbit) == ("en7", ("fe80::1",), 1000)
    assert [str(own) for own in found.addresses] == ["10.0.0.1/24"]


@pytest.mark.parametrize(
    ("platform", "flags", "suitable", "others"),
    [
        (
            "linux",
            RUNNING,
            ["enP7s7", "eth0", "cable", "br0", "bond0"],
            ["docker0", "br-0123456789ab", "virbr0", "tailscale0", "wg0", "tun3"],
        ),
        (
            "darwin",
            RUNNING,
            ["en0", "en12", "bridge0"],
            ["utun4", "awdl0", "llw0", "ap1", "anpi0", "bridge100", "vmenet0"],
        ),
        (
            "win32",
            "",
            ["Ethernet", "Ethernet 2", "Wi-Fi"],
            ["vEthernet (WSL)", "Loopback Pseudo-Interface 1", "Bluetooth Network Connection", "Tailscale"],
        ),
    ],
)
def test_what_has_no_neighbour_by_its_name(
    monkeypatch: pytest.MonkeyPatch, platform: str, flags: str, suitable: list[str], others: list[str]
) -> None:
    everything = [*suitable, *others]
    adapters = [adapter(f"{{{name}}}" if platform == "win32" else name, name) for name in everything]
    system(monkeypatch, platform, adapters, {name: State(True, 1000, flags) for name in everything})
    assert sorted(found.name for found in segments()) == sorted(suitable)


def test_a_bridge_is_one_where_a_real_port_is_in_it(tmp_path: Path) -> None:
    """Linux: a home server's bridge has its cable in it, a bridge of containers only their ends."""
    for bridge, port in (("br0", "eth0"), ("lan", "veth0")):
        (tmp_path / bridge / "brif" / port).mkdir(parents=True)
        (tmp_path / port).mkdir()
        (tmp_path / port / "master").mkdir()
    (tmp_path / "eth0" / "device").mkdir()
    (tmp_path / "eth1").mkdir()
    inner = {name: module._is_inner_port(tmp_path / name) for name in ("br0", "lan", "eth0", "veth0", "eth1")}
    assert inner == {"br0": False, "lan": True, "eth0": True, "veth0": True, "eth1": False}
