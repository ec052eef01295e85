"""What systems say of their interfaces and routes, read; and which interface is the direct cable."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from engine.errors import HostError
from engine.link import interfaces_linux, interfaces_macos, interfaces_windows
from engine.link.interfaces import (
    Address,
    Counters,
    Kind,
    Network,
    Route,
    direct_cable,
    overlapping_routes,
    read_network,
)
from tests.engine.link.networks import interface, network

SAID = Path(__file__).parent / "said"


def macos(words: Sequence[str]) -> str:
    if words[:2] == ["networksetup", "-listValidMTURange"]:
        if words[2] != "en0":
            raise HostError("not this one")
        return "Valid MTU Range: 1280-9000\n"
    files = {
        "networksetup -listallhardwareports": "hardware_ports.txt",
        "ifconfig -a": "ifconfig.txt",
        "netstat -rn -f inet": "netstat_inet.txt",
        "netstat -rn -f inet6": "netstat_inet6.txt",
    }
    return (SAID / files[" ".join(words)]).read_text()


def test_macos() -> None:
    found = interfaces_macos.read(macos, lambda: {"en0": Counters(receive_errors=3)})
    kinds = {each.name: each.kind for each in found.interfaces}
    assert kinds == {
        "lo0": Kind.LOOPBACK,
        "en0": Kind.ETHERNET,
        "en1": Kind.WIFI,
        "en2": Kind.THUNDERBOLT,
        "bridge0": Kind.THUNDERBOLT,
        "utun3": Kind.TUNNEL,
    }
    en0 = found.named("en0")
    assert en0 is not None
    assert (en0.mtu, en0.max_mtu, en0.speed_mbps, en0.port) == (9000, 9000, 10000, "Ethernet")
    assert (en0.mac, en0.counters.receive_errors, en0.is_up) == ("3c:a6:f6:01:02:03", 3, True)
    assert en0.addresses == (
        Address(host="10.71.17.44", prefix=24),
        Address(host="fe80::1c4b:9aff:fe22:1d50", prefix=64, zone="en0"),
    )
    assert [each.name for each in found.interfaces if not each.is_up] == ["en2", "bridge0"]
    destinations = {(route.destination, route.interface) for route in found.routes}
    assert {
        ("0.0.0.0/0", "en1"),
        ("10.71.17.0/24", "en0"),
        ("100.64.0.0/10", "utun3"),
        ("169.254.0.0/16", "en1"),
        ("192.168.1.1/32", "en1"),
        ("fe80::/64", "en0"),
        ("::/0", "utun0"),
    } <= destinations
    assert direct_cable(found).interface == "en0"


def test_windows() -> None:
    found = interfaces_windows.read(lambda words: (SAID / "windows.json").read_text(), dict)
    cable, wifi, virtual = found.interfaces
    assert (cable.name, cable.kind, cable.mtu, cable.speed_mbps) == ("Ethernet 2", Kind.ETHERNET, 1500, 10000)
    assert cable.guid == "{2F6E0D1C-9B1E-4E0B-9C8A-0D2C3B4A5968}"
    assert cable.addresses[0] == Address(host="fe80::51fa:22b:8c0d:1a2b", prefix=64, zone="7")
    assert (wifi.kind, virtual.kind, virtual.is_up) == (Kind.WIFI, Kind.VIRTUAL, False)
    assert Route(destination="0.0.0.0/0", interface="Wi-Fi", gateway="192.168.1.1") in found.routes
    assert all(not route.destination.startswith("224") for route in found.routes)
    assert direct_cable(found).interface == "Ethernet 2"


@pytest.mark.parametrize("said", ["", "Get-NetAdapter : Access denied", "{}", '{"interfaces": 3}'])
def test_a_powershell_that_says_nothing_of_use_is_told(said: str) -> None:
    with pytest.raises(HostError, match="PowerShell"):
        interfaces_windows.read(lambda words: said, dict)


def test_linux(tmp_path: Path) -> None:
    """A 10 Gbit/s card with a driver, Wi-Fi, Thunderbolt networking, a container's bridge and a VPN."""
    for name, files in {
        "enp7s0": {"speed": "10000", "type": "1"},
        "enp8s0": {"type": "1"},
        "wlan0": {"type": "1"},
        "thunderbolt0": {"speed": "20000", "type": "1"},
        "docker0": {"speed": "-1", "type": "1"},
        "tun0": {"type": "65534"},
    }.items():
        (tmp_path / name).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_text(f"{text}\n")
    for name, driver in {
        "enp7s0": "r8127",
        "enp8s0": "igc",
        "wlan0": "mt7925e",
        "thunderbolt0": "thunderbolt-net",
    }.items():
        (tmp_path / name / "device").mkdir()
        (tmp_path / name / "device" / "driver").symlink_to(f"/nowhere/{driver}")
    (tmp_path / "wlan0" / "phy80211").mkdir()

    up = ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"]
    links = [
        {"ifname": "lo", "flags": ["LOOPBACK", "UP", "LOWER_UP"], "mtu": 65536, "max_mtu": 0},
        {
            "ifname": "enp7s0",
            "flags": up,
            "mtu": 1500,
            "max_mtu": 9194,
            "address": "00:11:22:33:44:55",
            "addr_info": [
                {"family": "inet", "local": "10.0.0.2", "prefixlen": 24, "scope": "global"},
                {"family": "inet6", "local": "fe80::1", "prefixlen": 64, "scope": "link"},
            ],
            "stats64": {"rx": {"errors": 7, "dropped": 2}, "tx": {"errors": 1, "dropped": 0}},
        },
        {"ifname": "enp8s0", "flags": ["BROADCAST", "UP"], "mtu": 1500},
        {"ifname": "wlan0", "flags": up, "mtu": 1500},
        {"ifname": "thunderbolt0", "flags": up, "mtu": 1500},
        {"ifname": "docker0", "flags": up, "mtu": 1500, "linkinfo": {"info_kind": "bridge"}},
        {"ifname": "tun0", "flags": up, "mtu": 1400},
        {"ifname": "wg0", "flags": up, "mtu": 1420, "linkinfo": {"info_kind": "wireguard"}},
    ]
    routes = [
        {"dst": "default", "gateway": "192.168.1.1", "dev": "wlan0"},
        {"dst": "10.0.0.0/24", "dev": "enp7s0"},
        {"dst": "10.9.9.9", "dev": "wg0"},
        {"type": "unreachable", "dst": "10.66.0.0/16"},
        {"dst": "nonsense", "dev": "wg0"},
    ]

    def run(words: Sequence[str]) -> str:
        if "address" in words:
            return json.dumps(links)
        return json.dumps(routes if "-4" in words else [{"dst": "default", "dev": "wlan0"}])

    found = interfaces_linux.read(run, tmp_path)
    assert {each.name: each.kind for each in found.interfaces} == {
        "lo": Kind.LOOPBACK,
        "enp7s0": Kind.ETHERNET,
        "enp8s0": Kind.ETHERNET,
        "wlan0": Kind.WIFI,
        "thunderbolt0": Kind.THUNDERBOLT,
        "docker0": Kind.VIRTUAL,
        "tun0": Kind.TUNNEL,
        "wg0": Kind.TUNNEL,
    }
    card = found.named("enp7s0")
    assert card is not None and not found.named("enp8s0").is_up
    assert (card.speed_mbps, card.driver, card.max_mtu) == (10000, "r8127", 9194)
    assert card.counters == Counters(receive_errors=7, send_errors=1, receive_dropped=2, send_dropped=0)
    assert card.addresses[1].text == "fe80::1%enp7s0"
    assert found.named("docker0").speed_mbps is None
    assert [route.destination for route in found.routes] == [
        "0.0.0.0/0",
        "10.0.0.0/24",
        "10.9.9.9/32",
        "::/0",
    ]
    assert found.holding("fe80::1%enp7s0") == card and found.holding("fe80::1%wlan0") is None


@pytest.mark.skipif(sys.platform != "linux", reason="asks the `ip` of Linux")
def test_this_computer_is_read() -> None:
    loopback = read_network().holding("127.0.0.1")
    assert loopback is not None and loopback.kind is Kind.LOOPBACK and loopback.is_up


def test_an_ip_that_prints_no_json_is_told() -> None:
    with pytest.raises(HostError, match="iproute2"):
        interfaces_linux.read(lambda words: "1: lo: <LOOPBACK>")


def test_the_cable_is_the_fastest_port_without_the_default_route() -> None:
    found = network(
        interface("eth0", "192.168.1.2/24", speed_mbps=25000),
        interface("eth1", speed_mbps=2500),
        interface("eth2", speed_mbps=10000),
        interface("wlan0", kind=Kind.WIFI),
        interface("docker0", "172.17.0.1/16", kind=Kind.VIRTUAL),
        routes={"0.0.0.0/0": "eth0"},
    )
    cable = direct_cable(found)
    assert cable.interface == "eth2"
    assert "10 Gbit/s" in cable.reason and "eth1" in cable.reason


def test_a_connection_that_is_there_says_which_it_is() -> None:
    found = network(interface("eth1"), interface("veth0", "10.0.0.1/24", kind=Kind.VIRTUAL))
    assert direct_cable(found).interface == "eth1"
    assert direct_cable(found, in_use="veth0").interface == "veth0"


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (network(interface("wlan0", kind=Kind.WIFI)), "no Ethernet or Thunderbolt port"),
        (network(interface("eth0", is_up=False)), "eth0 is down"),
        (network(interface("eth0"), routes={"0.0.0.0/0": "eth0"}), "default route"),
        # what a VPN makes of a default route
        (network(interface("eth0"), routes={"128.0.0.0/1": "eth0"}), "default route"),
    ],
)
def test_why_there_is_no_cable(found: Network, why: str) -> None:
    cable = direct_cable(found)
    assert cable.interface == "" and why in cable.reason


def test_routes_that_lead_into_the_cables_network() -> None:
    cable = interface("eth1", "10.71.17.1/24")
    found = network(
        cable,
        interface("eth0", "192.168.1.2/24"),
        routes={"10.0.0.0/8": "vpn0", "0.0.0.0/0": "eth0", "fd00::/8": "vpn0", "10.71.18.0/24": "docker0"},
    )
    assert [(route.destination, route.interface) for route in overlapping_routes(found, cable)] == [
        ("10.0.0.0/8", "vpn0")
    ]


@pytest.mark.parametrize(
    "said",
    [
        {"interfaces": [], "routes": [{"destination": "nowhere", "interface": "eth0"}]},
        {"interfaces": [], "routes": [{"destination": "10.0.0.0/24", "interface": "e" * 300}]},
        {"interfaces": [], "routes": [{"destination": "10.0.0.0/24", "interface": "e"}] * 5000},
        {
            "routes": [],
            "interfaces": [
                {
                    "name": "eth0",
                    "kind": "ethernet",
                    "is_up": True,
                    "mtu": 1500,
                    "addresses": [{"host": "10.0.0.1", "prefix": 64}],
                }
            ],
        },
    ],
    ids=["no network", "a long name", "many routes", "no prefix of that address"],
)
def test_what_another_computer_says_is_checked(said: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(said, Network)
