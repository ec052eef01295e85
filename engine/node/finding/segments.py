"""The networks that this computer is directly on: where other nodes may be heard, and which of them is best.

A segment is one interface that has addresses and may have a neighbour. Loopback, tunnels, and the bridges of containers
and virtual machines are none: nobody is behind them but this computer itself, or somebody who is no neighbour.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import ifaddr
import psutil

from engine.errors import HostError
from engine.link.commands import Runner, run_command
from engine.link.interfaces import Kind, read_network

# Interfaces that the systems make for themselves, and those of tunnels and virtual machines.
_NEVER = {
    "linux": r"lo|docker\d+|br-[0-9a-f]{12}|virbr.*|lxcbr.*|lxdbr.*|podman.*|cni.*|flannel.*|cali.*|vnet.*|"
    r"tun.*|tap.*|wg.*|tailscale.*|zt.*|ppp.*|sit.*|ip6tnl.*|gre.*|ifb.*|dummy.*",
    # bridge0 joins the Thunderbolt ports; from bridge100 on they are those of Internet Sharing and virtual machines
    "darwin": r"lo\d+|utun.*|ipsec.*|ppp.*|awdl.*|llw.*|ap\d+|anpi.*|gif.*|stf.*|p2p.*|vmenet.*|vmnet.*|bridge\d{3,}",
    "win32": r"(?i).*(loopback|vethernet|virtualbox|vmware|hyper-v|bluetooth|tailscale|wireguard|openvpn|tap-|"
    r"zerotier|wan miniport|teredo|isatap|wi-fi direct).*",
}

_SYS_NET = Path("/sys/class/net")
_PROC_NET = Path("/proc/net")

# A line of macOS's `arp -an` with a hardware address, and what Linux writes where there is none.
_ARP_LINE = re.compile(r"\((\d+(?:\.\d+){3})\) at (?:[0-9a-f]{1,2}:){5}[0-9a-f]{1,2} on (\S+)")
_NO_HARDWARE_ADDRESS = "00:00:00:00:00:00"

# How wireless interfaces are called where the system does not tell otherwise.
_WIRELESS = re.compile(r"(?i)wl.*|wi-?fi.*|wlan.*|.*wireless.*")

# A network with no more than so many addresses is a cable between two computers.
_POINT_TO_POINT_ADDRESSES = 4


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One interface. `addresses` are IPv4 with their networks, `link_local` IPv6 without zone.

    `has_default_route`: the way to the internet leads over it, so it is no direct cable. `speed_mbit` is 0 where the
    system does not know it.
    """

    name: str
    index: int
    addresses: tuple[ipaddress.IPv4Interface, ...] = ()
    link_local: tuple[str, ...] = ()
    speed_mbit: int = 0
    has_default_route: bool = False
    is_wireless: bool = False

    @property
    def zone(self) -> str:
        """What stands after the percent sign of a link-local address."""
        return str(self.index) if sys.platform == "win32" else self.name

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """Sorts the best first: cables before radio, direct ones before those that lead elsewhere, then by speed."""
        return (self.is_wireless, self.has_default_route, -self.speed_mbit)

    def holds(self, host: str) -> bool:
        """Whether an IPv4 address belongs to a network of this interface."""
        address = ipaddress.IPv4Address(host)
        return any(address in own.network for own in self.addresses)

    def opposite_hosts(self) -> list[str]:
        """The only other address there can be, of each network that has room for two computers alone."""
        return [
            str(host)
            for own in self.addresses
            if own.network.num_addresses <= _POINT_TO_POINT_ADDRESSES
            for host in own.network.hosts()
            if host != own.ip
        ]


def segments() -> list[Segment]:
    """All there are now, best first. Does not block for long, but asks the system: call it off the loop."""
    stats = psutil.net_if_stats()
    routed, wireless = _routed_and_wireless(list(stats))
    found = []
    for adapter in ifaddr.get_adapters():
        name = adapter.nice_name if sys.platform == "win32" else adapter.name
        state = stats.get(name)
        if adapter.index is None or state is None or not _is_suitable(name, state.isup, state.flags):
            continue
        addresses = tuple(
            ipaddress.IPv4Interface(f"{ip.ip}/{ip.network_prefix}")
            for ip in adapter.ips
            if isinstance(ip.ip, str)
        )
        link_local = tuple(
            ip.ip[0].partition("%")[0]
            for ip in adapter.ips
            if isinstance(ip.ip, tuple) and ipaddress.IPv6Address(ip.ip[0]).is_link_local
        )
        if addresses or link_local:
            found.append(
                Segment(
                    name=name,
                    index=adapter.index,
                    addresses=addresses,
                    link_local=link_local,
                    speed_mbit=state.speed,
                    has_default_route=name in routed,
                    is_wireless=name in wireless,
                )
            )
    return sorted(found, key=lambda segment: (segment.rank, segment.name))


def _is_suitable(name: str, is_up: bool, flags: str) -> bool:
    words = set(flags.split(","))
    # Windows tells no flags; where there are some, they know of a pulled cable, and of tunnels.
    is_running = "running" in words if flags else is_up
    if not is_running or words & {"loopback", "pointopoint"} or (flags and "multicast" not in words):
        return False
    if re.fullmatch(_NEVER.get(sys.platform, _NEVER["linux"]), name):
        return False
    return sys.platform != "linux" or not _is_inner_port(_SYS_NET / name)


def _is_inner_port(folder: Path) -> bool:
    """Whether Linux has put it into a bridge or a bond, which has the addresses then, or it is a bridge to nobody."""
    if (folder / "master").exists():
        return True
    ports = folder / "brif"
    return ports.is_dir() and not any(
        (folder.parent / port.name / "device").exists() for port in ports.iterdir()
    )


def _routed_and_wireless(names: list[str]) -> tuple[set[str], set[str]]:
    """Over which of them the way to everywhere leads, and which are radio, as far as the system tells quickly."""
    if sys.platform == "darwin":
        with contextlib.suppress(HostError):
            network = read_network()
            routed = {each.name for each in network.interfaces if network.has_default_route(each)}
            return routed, {each.name for each in network.interfaces if each.kind is Kind.WIFI}
    if sys.platform == "win32":
        return set(), {name for name in names if _WIRELESS.fullmatch(name)}
    wireless = {name for name in names if (_SYS_NET / name / "wireless").exists()}
    return {fields[0] for fields in _table("route") if fields[1] == fields[7] == "00000000"}, wireless


def neighbours(run: Runner = run_command) -> list[tuple[str, str]]:
    """Interface and IPv4 address of each computer that this one has spoken with lately, where the system tells."""
    if sys.platform == "darwin":
        with contextlib.suppress(HostError):
            return [(match[2], match[1]) for match in _ARP_LINE.finditer(run(["arp", "-an"]))]
    return [(fields[5], fields[0]) for fields in _table("arp") if fields[3] != _NO_HARDWARE_ADDRESS]


def _table(name: str) -> list[list[str]]:
    """Of Linux's /proc/net, the rows under the header."""
    try:
        lines = (_PROC_NET / name).read_text(encoding="utf-8", errors="replace").splitlines()[1:]
    except OSError:
        return []
    return [line.split() for line in lines]
