"""Networks of made-up computers, for tests of what is decided about them."""

from __future__ import annotations

from engine.link.interfaces import Address, Interface, Kind, Network, Route
from engine.link.limits import HostLimits


def interface(name: str, *addresses: str, kind: Kind = Kind.ETHERNET, **rest: object) -> Interface:
    """Up, with an MTU of 1,500 and 10 Gbit/s, unless told otherwise."""
    settings: dict[str, object] = {"is_up": True, "mtu": 1500, "speed_mbps": 10000, **rest}
    return Interface(name=name, kind=kind, addresses=tuple(address(text) for text in addresses), **settings)


def address(text: str) -> Address:
    host, _, prefix = text.partition("/")
    bare, _, zone = host.partition("%")
    return Address(host=bare, prefix=int(prefix), zone=zone)


def network(*interfaces: Interface, routes: dict[str, str] | None = None) -> Network:
    """`routes` are destinations and their interfaces; those of the addresses come by themselves."""
    own = [
        Route(destination=str(target), interface=each.name) for each in interfaces for target in each.networks
    ]
    more = [Route(destination=to, interface=name) for to, name in (routes or {}).items()]
    return Network(interfaces=interfaces, routes=tuple([*own, *more]))


def limits(**rest: object) -> HostLimits:
    """A well-tuned computer's, unless told otherwise."""
    settings: dict[str, object] = {
        "receive_granted": 32 << 20,
        "send_granted": 32 << 20,
        "slow_start_after_idle": False,
        "mtu_probing": True,
        **rest,
    }
    return HostLimits(**settings)
