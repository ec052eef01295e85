"""Reads interfaces and routes on macOS: from `ifconfig`, `networksetup` and `netstat`. Counters come from psutil."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec

from engine.errors import HostError
from engine.link.commands import Runner
from engine.link.interfaces import Address, Counters, Interface, Kind, Network, Route, is_destination
from engine.link.interfaces_counters import read_counters

_HEADER = re.compile(r"^(\S+): flags=[0-9a-f]+<([A-Z0-9,_]*)> mtu (\d+)")
_MEDIA_SPEED = re.compile(r"\((\d+(?:\.\d+)?)(G?)base", re.IGNORECASE)
_TUNNEL_NAMES = ("utun", "ipsec", "ppp", "gif", "stf")


def read(run: Runner, counters: Callable[[], Mapping[str, Counters]] = read_counters) -> Network:
    """Raises HostError."""
    ports = hardware_ports(run(["networksetup", "-listallhardwareports"]))
    counted = counters()
    blocks = re.split(r"\n(?=\S)", run(["ifconfig", "-a"]).strip())
    found = [_interface(block, ports, counted) for block in blocks]
    return Network(
        interfaces=tuple(_with_max_mtu(interface, run) for interface in found if interface is not None),
        routes=tuple(
            [
                *_routes(run(["netstat", "-rn", "-f", "inet"]), "0.0.0.0/0"),
                *_routes(run(["netstat", "-rn", "-f", "inet6"]), "::/0"),
            ]
        ),
    )


def hardware_ports(text: str) -> dict[str, str]:
    """How people know each device: {"en0": "Ethernet"}."""
    return {device: port.strip() for port, device in re.findall(r"Hardware Port: (.+)\nDevice: (\S+)", text)}


def _interface(block: str, ports: Mapping[str, str], counted: Mapping[str, Counters]) -> Interface | None:
    header = _HEADER.match(block)
    if header is None:
        return None
    name, flags = header[1], header[2].split(",")
    port = ports.get(name, "")
    kind = _kind(name, flags, port)
    status = re.search(r"^\s+status: (\S+)", block, re.MULTILINE)
    media = re.search(r"^\s+media: (.+)$", block, re.MULTILINE)
    mac = re.search(r"^\s+ether (\S+)", block, re.MULTILINE)
    return Interface(
        name=name,
        kind=kind,
        is_up="UP" in flags and (status is None or status[1] == "active"),
        mtu=int(header[3]),
        speed_mbps=_speed(media[1]) if media else None,
        mac=mac[1] if mac else "",
        port=port,
        addresses=tuple([*_inet(block), *_inet6(block)]),
        counters=counted.get(name, Counters()),
    )


def _with_max_mtu(interface: Interface, run: Runner) -> Interface:
    """As networksetup says it, where it is asked: of ports that may be the cable."""
    if interface.kind not in (Kind.ETHERNET, Kind.THUNDERBOLT) or not interface.is_up:
        return interface
    try:
        found = re.search(r"(\d+)-(\d+)", run(["networksetup", "-listValidMTURange", interface.name]))
    except HostError:
        return interface
    return msgspec.structs.replace(interface, max_mtu=int(found[2])) if found else interface


def _kind(name: str, flags: list[str], port: str) -> Kind:
    if "LOOPBACK" in flags:
        return Kind.LOOPBACK
    if name.startswith(_TUNNEL_NAMES) or "POINTOPOINT" in flags:
        return Kind.TUNNEL
    if "Wi-Fi" in port or "AirPort" in port:
        return Kind.WIFI
    if "Thunderbolt" in port and "Ethernet" not in port:
        return Kind.THUNDERBOLT
    return Kind.ETHERNET if port else Kind.VIRTUAL


def _speed(media: str) -> int | None:
    """Of `autoselect (10Gbase-T <full-duplex>)`, in Mbit/s."""
    found = _MEDIA_SPEED.search(media)
    return int(float(found[1]) * (1000 if found[2] else 1)) if found else None


def _inet(block: str) -> list[Address]:
    return [
        Address(host=host, prefix=bin(int(mask, 16)).count("1"))
        for host, mask in re.findall(r"^\s+inet (\S+).* netmask (0x[0-9a-f]{8})", block, re.MULTILINE)
    ]


def _inet6(block: str) -> list[Address]:
    found = []
    for text, prefix in re.findall(r"^\s+inet6 (\S+) prefixlen (\d+)", block, re.MULTILINE):
        host, _, zone = text.partition("%")
        found.append(Address(host=host, prefix=int(prefix), zone=zone))
    return found


def _routes(text: str, default: str) -> list[Route]:
    """The lines below the header, whose columns say where the interface stands."""
    routes: list[Route] = []
    column = -1
    for line in text.splitlines():
        words = line.split()
        if words[:2] == ["Destination", "Gateway"]:
            column = words.index("Netif")
        elif (
            column > 0
            and len(words) > column
            and is_destination(destination := _destination(words[0], default))
        ):
            routes.append(Route(destination=destination, interface=words[column], gateway=words[1]))
    return routes


def _destination(text: str, default: str) -> str:
    """netstat leaves out zeros at the end: 169.254 is 169.254.0.0/16, and 10/8 is 10.0.0.0/8."""
    if text == "default":
        return default
    text = re.sub(r"%[^/]*", "", text)
    address, _, prefix = text.partition("/")
    if ":" in text:
        return f"{address}/{prefix or 128}"
    parts = address.split(".")
    return f"{'.'.join(parts + ['0'] * (4 - len(parts)))}/{prefix or 8 * len(parts)}"
