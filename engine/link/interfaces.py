"""This computer's network interfaces and routes as data, and which interface is the direct cable.

What a system's tools say is read by `interfaces_linux.py`, `interfaces_macos.py` and `interfaces_windows.py`. What is
decided here knows data alone, so that it can be asked about the other computer's network as well.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterable
from enum import Enum
from typing import Annotated

import msgspec

from engine.link.commands import Runner, run_command

# Far more than any computer has; what the other one says is checked against them.
_MAX_INTERFACES = 256
_MAX_ROUTES = 4096

_Text = Annotated[str, msgspec.Meta(max_length=256)]
_Count = Annotated[int, msgspec.Meta(ge=0)]

IPv4Net = ipaddress.IPv4Network


class Kind(Enum):
    """What an interface is."""

    ETHERNET = "ethernet"
    THUNDERBOLT = "thunderbolt"
    WIFI = "wifi"
    VIRTUAL = "virtual"
    TUNNEL = "tunnel"
    LOOPBACK = "loopback"


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """An address with its prefix; `zone` is what an IPv6 link-local one needs behind its %."""

    host: _Text
    prefix: Annotated[int, msgspec.Meta(ge=0, le=128)]
    zone: _Text = ""

    def __post_init__(self) -> None:
        ipaddress.ip_interface(f"{self.host}/{self.prefix}")

    @property
    def text(self) -> str:
        """As a socket takes it."""
        return f"{self.host}%{self.zone}" if self.zone else self.host

    @property
    def network(self) -> IPv4Net | None:
        """The IPv4 network that it is in, or None for IPv6."""
        return None if ":" in self.host else IPv4Net(f"{self.host}/{self.prefix}", strict=False)


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Packets since the interface came up."""

    receive_errors: _Count = 0
    send_errors: _Count = 0
    receive_dropped: _Count = 0
    send_dropped: _Count = 0

    def since(self, before: Counters) -> Counters:
        """What came after `before`; a counter that was set back counts as nothing."""
        return Counters(
            receive_errors=max(0, self.receive_errors - before.receive_errors),
            send_errors=max(0, self.send_errors - before.send_errors),
            receive_dropped=max(0, self.receive_dropped - before.receive_dropped),
            send_dropped=max(0, self.send_dropped - before.send_dropped),
        )


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """`speed_mbps` is what was negotiated, None where the system does not say; `port` is how people know it.

    `guid` is what Windows knows it by for good; `name` may be changed there by its user.
    """

    name: _Text
    kind: Kind
    is_up: bool
    mtu: _Count
    max_mtu: _Count | None = None
    speed_mbps: _Count | None = None
    mac: _Text = ""
    port: _Text = ""
    driver: _Text = ""
    guid: _Text = ""
    addresses: Annotated[tuple[Address, ...], msgspec.Meta(max_length=128)] = ()
    counters: Counters = Counters()

    @property
    def networks(self) -> list[IPv4Net]:
        """The IPv4 networks of its addresses."""
        return [network for address in self.addresses if (network := address.network) is not None]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """`destination` with its prefix. A default route is 0.0.0.0/0, ::/0, or one of the halves that VPNs make of it."""

    destination: _Text
    interface: _Text
    gateway: _Text = ""

    def __post_init__(self) -> None:
        ipaddress.ip_network(self.destination, strict=False)

    @property
    def is_default(self) -> bool:
        return self.destination.endswith(("/0", "/1"))

    @property
    def network(self) -> IPv4Net | None:
        """Where it leads, or None for IPv6."""
        return None if ":" in self.destination else IPv4Net(self.destination, strict=False)


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """All interfaces and routes of one computer."""

    interfaces: Annotated[tuple[Interface, ...], msgspec.Meta(max_length=_MAX_INTERFACES)]
    routes: Annotated[tuple[Route, ...], msgspec.Meta(max_length=_MAX_ROUTES)]

    def named(self, name: str) -> Interface | None:
        return next((interface for interface in self.interfaces if interface.name == name), None)

    def holding(self, host: str) -> Interface | None:
        """The interface with that address, which may have a zone."""
        bare = host.partition("%")[0]
        zone = host.partition("%")[2]
        for interface in self.interfaces:
            for address in interface.addresses:
                if address.host == bare and (not zone or zone in (address.zone, interface.name)):
                    return interface
        return None

    def has_default_route(self, interface: Interface) -> bool:
        return any(route.is_default and route.interface == interface.name for route in self.routes)


class Cable(msgspec.Struct, frozen=True, kw_only=True):
    """The interface that is taken for the direct cable, or "" where none is, and why."""

    interface: str
    reason: str


def read_network(run: Runner = run_command) -> Network:
    """This computer's. Raises HostError where the system's tools do not say; takes some tens of milliseconds."""
    if sys.platform == "linux":
        from engine.link.interfaces_linux import read
    elif sys.platform == "darwin":
        from engine.link.interfaces_macos import read
    else:
        from engine.link.interfaces_windows import read
    return read(run)


def direct_cable(network: Network, *, in_use: str = "") -> Cable:
    """Which interface leads to the other computer and nowhere else; `in_use` carries its connection already."""
    used = network.named(in_use)
    if used is not None and _may_be_cable(network, used, kinds=(*_CABLES, Kind.VIRTUAL)):
        return Cable(interface=used.name, reason=f"the other computer is connected over {_described(used)}")
    found = [each for each in network.interfaces if _may_be_cable(network, each, kinds=_CABLES)]
    if found:
        best, *others = sorted(
            found, key=lambda each: (-(each.speed_mbps or 0), not each.networks, each.name)
        )
        reason = f"no default route leads over {_described(best)}"
        if others:
            names = ", ".join(_described(other) for other in others)
            reason += f", and it is the first of those that may be it (the others: {names})"
        return Cable(interface=best.name, reason=reason)
    return Cable(interface="", reason=_why_none(network))


def overlapping_routes(network: Network, interface: Interface) -> list[Route]:
    """Routes over other interfaces into the IPv4 networks of this one: packets may take either."""
    return [
        route
        for route in network.routes
        if route.interface != interface.name
        and not route.is_default
        and (target := route.network) is not None
        and any(target.overlaps(own) for own in interface.networks)
    ]


def is_destination(text: str) -> bool:
    """Whether a route can lead there; tools list other things as well."""
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def taken_networks(networks: Iterable[Network], *, but: Iterable[str] = ()) -> list[IPv4Net]:
    """Every IPv4 network that a route or an address leads to, without those of the interfaces named."""
    skipped = set(but)
    taken = []
    for network in networks:
        routes = [
            route.network
            for route in network.routes
            if route.interface not in skipped and not route.is_default
        ]
        taken += [target for target in routes if target is not None]
        for interface in network.interfaces:
            if interface.name not in skipped:
                taken += interface.networks
    return taken


_CABLES = (Kind.ETHERNET, Kind.THUNDERBOLT)


def _may_be_cable(network: Network, interface: Interface, *, kinds: tuple[Kind, ...]) -> bool:
    return interface.is_up and interface.kind in kinds and not network.has_default_route(interface)


def _described(interface: Interface) -> str:
    known_as = f"{interface.name} ({interface.port})" if interface.port else interface.name
    return f"{known_as}, {speed_text(interface.speed_mbps)}" if interface.speed_mbps else known_as


def _why_none(network: Network) -> str:
    ports = [each for each in network.interfaces if each.kind in _CABLES]
    if not ports:
        return "this computer has no Ethernet or Thunderbolt port"
    up = [each for each in ports if each.is_up]
    if not up:
        names = ", ".join(each.name for each in ports)
        return f"nothing is plugged in, or the other end is off: {names} is down"
    names = ", ".join(each.name for each in up)
    return f"{names} leads to the Internet as well: it has the default route"


def speed_text(mbps: int | float) -> str:
    """10000 as 10 Gbit/s."""
    return f"{mbps / 1000:g} Gbit/s" if mbps >= 1000 else f"{mbps:g} Mbit/s"
