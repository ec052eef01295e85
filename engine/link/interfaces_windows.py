"""Reads interfaces and routes on Windows: one PowerShell command that prints JSON. Counters come from psutil."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from engine.errors import HostError
from engine.link.commands import Runner
from engine.link.interfaces import Address, Counters, Interface, Kind, Network, Route, is_destination
from engine.link.interfaces_counters import read_counters

# Properties that are numbers inside are asked for as text: their numbers are nobody's to know.
_SCRIPT = """
[Console]::OutputEncoding = [Text.Encoding]::UTF8
@{
  adapters = @(Get-NetAdapter | ForEach-Object { @{ name = $_.Name; port = $_.InterfaceDescription;
    index = $_.InterfaceIndex; status = "$($_.Status)"; bits_per_second = $_.TransmitLinkSpeed;
    mac = "$($_.MacAddress)"; guid = "$($_.InterfaceGuid)"; medium = "$($_.PhysicalMediaType)";
    virtual = [bool]$_.Virtual } })
  interfaces = @(Get-NetIPInterface -AddressFamily IPv4 | ForEach-Object { @{ index = $_.InterfaceIndex;
    mtu = $_.NlMtu } })
  addresses = @(Get-NetIPAddress | ForEach-Object { @{ index = $_.InterfaceIndex; host = "$($_.IPAddress)";
    prefix = $_.PrefixLength } })
  routes = @(Get-NetRoute | ForEach-Object { @{ index = $_.InterfaceIndex; to = "$($_.DestinationPrefix)";
    gateway = "$($_.NextHop)" } })
} | ConvertTo-Json -Depth 4 -Compress
"""

# Not routes to anywhere: multicast, broadcast, and the system's own.
_NOT_ROUTES = ("224.0.0.0/4", "255.255.255.255/32", "ff00::/8")


def read(run: Runner, counters: Callable[[], Mapping[str, Counters]] = read_counters) -> Network:
    """Raises HostError."""
    text = run(["powershell", "-NoProfile", "-NonInteractive", "-Command", _SCRIPT])
    try:
        found = json.loads(text)
        return _network(found, counters())
    except (ValueError, KeyError, TypeError) as error:
        raise HostError("PowerShell gave no list of network adapters that can be read") from error


def _network(found: dict[str, list[dict[str, Any]]], counted: Mapping[str, Counters]) -> Network:
    mtus = {each["index"]: each["mtu"] for each in found["interfaces"]}
    names = {each["index"]: each["name"] for each in found["adapters"]}
    addresses: dict[int, list[Address]] = {}
    for each in found["addresses"]:
        host, _, zone = each["host"].partition("%")
        addresses.setdefault(each["index"], []).append(Address(host=host, prefix=each["prefix"], zone=zone))
    return Network(
        interfaces=tuple(
            Interface(
                name=each["name"],
                kind=_kind(each),
                is_up=each["status"] == "Up",
                mtu=mtus.get(each["index"], 0),
                speed_mbps=(each["bits_per_second"] or 0) // 1_000_000 or None,
                mac=each["mac"].replace("-", ":").lower(),
                port=each["port"],
                guid=each["guid"],
                addresses=tuple(addresses.get(each["index"], ())),
                counters=counted.get(each["name"], Counters()),
            )
            for each in found["adapters"]
        ),
        routes=tuple(
            Route(destination=each["to"], interface=names[each["index"]], gateway=each["gateway"])
            for each in found["routes"]
            if each["index"] in names and each["to"] not in _NOT_ROUTES and is_destination(each["to"])
        ),
    )


def _kind(adapter: dict[str, Any]) -> Kind:
    if "802.11" in adapter["medium"] or "Wireless" in adapter["medium"]:
        return Kind.WIFI
    if "Thunderbolt" in adapter["port"] or "USB4" in adapter["port"]:
        return Kind.THUNDERBOLT
    if any(word in adapter["port"] for word in ("WireGuard", "Wintun", "TAP-", "VPN", "Tunnel")):
        return Kind.TUNNEL
    return Kind.VIRTUAL if adapter["virtual"] or adapter["medium"] != "802.3" else Kind.ETHERNET
