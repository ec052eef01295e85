"""Reads interfaces and routes on Linux: from `ip`'s JSON and from /sys/class/net."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.errors import HostError
from engine.link.commands import Runner
from engine.link.interfaces import Address, Counters, Interface, Kind, Network, Route, is_destination

SYS_NET = Path("/sys/class/net")

_TUNNELS = {"wireguard", "tun", "gre", "gretap", "ipip", "sit", "vti", "vxlan", "ip6tnl", "geneve", "l2tp"}

# Point-to-point links without a hardware address, as the kernel numbers them: ppp, tunnels, and none at all.
_TUNNEL_TYPES = {"512", "768", "769", "776", "65534"}


def read(run: Runner, sys_net: Path = SYS_NET) -> Network:
    """Raises HostError."""
    links = _json(run(["ip", "-json", "-details", "-statistics", "address", "show"]))
    routes = [
        *((route, "0.0.0.0/0") for route in _json(run(["ip", "-json", "-4", "route", "show"]))),
        *((route, "::/0") for route in _json(run(["ip", "-json", "-6", "route", "show"]))),
    ]
    return Network(
        interfaces=tuple(_interface(link, sys_net / link["ifname"]) for link in links if "ifname" in link),
        routes=tuple(
            Route(destination=destination, interface=route["dev"], gateway=route.get("gateway", ""))
            for route, default in routes
            if "dev" in route and is_destination(destination := _destination(route, default))
        ),
    )


def _json(text: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(text or "[]")
    except ValueError as error:
        raise HostError("`ip` gave nothing that can be read: iproute2 4.14 or newer is needed") from error
    return [item for item in found if isinstance(item, dict)]


def _interface(link: dict[str, Any], files: Path) -> Interface:
    stats = link.get("stats64", {})
    received, sent = stats.get("rx", {}), stats.get("tx", {})
    return Interface(
        name=link["ifname"],
        kind=_kind(link, files),
        is_up="UP" in link.get("flags", ()) and "LOWER_UP" in link.get("flags", ()),
        mtu=link.get("mtu", 0),
        max_mtu=link.get("max_mtu") or None,
        speed_mbps=_speed(files),
        mac=link.get("address", ""),
        driver=_driver(files),
        addresses=tuple(
            _address(found, link["ifname"]) for found in link.get("addr_info", ()) if "local" in found
        ),
        counters=Counters(
            receive_errors=received.get("errors", 0),
            send_errors=sent.get("errors", 0),
            receive_dropped=received.get("dropped", 0),
            send_dropped=sent.get("dropped", 0),
        ),
    )


def _kind(link: dict[str, Any], files: Path) -> Kind:
    if "LOOPBACK" in link.get("flags", ()):
        return Kind.LOOPBACK
    made_as = link.get("linkinfo", {}).get("info_kind", "")
    if made_as in _TUNNELS or _first_line(files / "type") in _TUNNEL_TYPES:
        return Kind.TUNNEL
    if (files / "wireless").exists() or (files / "phy80211").exists():
        return Kind.WIFI
    if "thunderbolt" in _driver(files):
        return Kind.THUNDERBOLT
    return Kind.ETHERNET if (files / "device").exists() and not made_as else Kind.VIRTUAL


def _speed(files: Path) -> int | None:
    """In Mbit/s. Drivers that know none say -1, or that the file cannot be read."""
    text = _first_line(files / "speed")
    return int(text) if text.isdigit() and int(text) > 0 else None


def _driver(files: Path) -> str:
    try:
        return (files / "device" / "driver").readlink().name
    except OSError:
        return ""


def _first_line(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _address(found: dict[str, Any], interface: str) -> Address:
    is_link_local = found.get("family") == "inet6" and found.get("scope") == "link"
    return Address(
        host=found["local"], prefix=found.get("prefixlen", 0), zone=interface if is_link_local else ""
    )


def _destination(route: dict[str, Any], default: str) -> str:
    destination: str = route.get("dst", "default")
    if destination == "default":
        return default
    if "/" in destination:
        return destination
    return f"{destination}/{128 if ':' in destination else 32}"
