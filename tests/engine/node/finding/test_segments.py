"""Which interfaces may have a neighbour, and which of them is best."""

from __future__ import annotations

import ipaddress
import random
from collections import namedtuple
from pathlib import Path

import pytest

from engine.errors import HostError
from engine.link.interfaces import Interface, Kind, Network, Route
from engine.node.finding import segments as module
from engine.node.finding.segments import Segment, neighbours, segments

Adapter = namedtuple("Adapter", "name nice_name index ips")
Ip = namedtuple("Ip", "ip network_prefix")
State = namedtuple("State", "isup speed flags")

RUNNING = "up,broadcast,running,multicast"

MAC = Network(
    interfaces=(
        Interface(name="en0", kind=Kind.WIFI, is_up=True, mtu=1500),
        Interface(name="en7", kind=Kind.ETHERNET, is_up=True, mtu=9000),
    ),
    routes=(Route(destination="0.0.0.0/0", interface="en0", gateway="192.168.1.1"),),
)


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
    monkeypatch.setattr(module, "read_network", lambda: MAC)


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


def test_on_a_mac_the_cable_is_told_from_radio_by_the_systems_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {name: State(True, 1000, RUNNING) for name in ("en0", "en7")}
    system(monkeypatch, "darwin", [adapter("en0"), adapter("en7")], states)
    cable, radio = segments()
    assert (cable.name, cable.is_wireless, cable.has_default_route) == ("en7", False, False)
    assert (radio.name, radio.is_wireless, radio.has_default_route) == ("en0", True, True)

    def fail() -> Network:
        raise HostError("`networksetup` failed")

    monkeypatch.setattr(module, "read_network", fail)
    assert [found.name for found in segments()] == ["en0", "en7"]


ARP_OF_MACOS = """\
? (10.0.0.2) at a4:83:e7:0:1b:2c on en7 ifscope [ethernet]
? (10.0.0.3) at (incomplete) on en7 ifscope [ethernet]
? (192.168.1.1) at 0:11:22:33:44:55 on en0 ifscope [ethernet]
"""

ARP_OF_LINUX = """\
IP address       HW type     Flags       HW address            Mask     Device
10.0.0.2         0x1         0x2         a4:83:e7:00:1b:2c     *        enP7s7
10.0.0.3         0x1         0x0         00:00:00:00:00:00     *        enP7s7
"""


def test_neighbours_are_those_with_a_hardware_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "arp").write_text(ARP_OF_LINUX)
    monkeypatch.setattr(module, "_PROC_NET", tmp_path)
    monkeypatch.setattr(module.sys, "platform", "linux")
    assert neighbours() == [("enP7s7", "10.0.0.2")]
    monkeypatch.setattr(module.sys, "platform", "darwin")
    assert neighbours(lambda words: ARP_OF_MACOS) == [("en7", "10.0.0.2"), ("en0", "192.168.1.1")]
    monkeypatch.setattr(module, "_PROC_NET", tmp_path / "none")
    monkeypatch.setattr(module.sys, "platform", "win32")
    assert neighbours() == []
