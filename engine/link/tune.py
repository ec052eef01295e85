"""What `baton link tune` would change on this computer: the plan as data, and the steps that each change is made of.

A plan names changes of a few kinds and nothing that could be run. The steps of a change follow from it and from what
was there before, the same for whoever shows them, does them or undoes them.
"""

from __future__ import annotations

import hashlib
import ipaddress
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import msgspec

from engine.errors import UserError
from engine.link.interfaces import Interface, IPv4Net, Kind, Network, taken_networks
from engine.wire.limits import SOCKET_BUFFER_BYTES

# What NICs and switches call jumbo frames, and the most that they are set to.
WANTED_MTU = 9000
_USUAL_MTU = 1500
MIN_MTU = 1280
MAX_MTU = 9216

PREFIX = 24

# Names of what is ours; nothing of another name is ever touched.
NETWORK_MANAGER_PROFILE = "baton-link"
MACOS_SERVICE = "Baton Link"
FIREWALL_RULE = "Baton-Link"
_SYSCTL_FILE = "sysctl.d/90-baton-link.conf"
_NETWORKD_FILE = "systemd/network/05-baton-link.network"

_MIB = 1 << 20

# Home routers, VPNs and containers have their networks elsewhere as a rule; both computers look in this order.
_CANDIDATES = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        *(f"10.71.{third}.0/24" for third in range(17, 33)),
        *(f"172.29.{third}.0/24" for third in range(171, 187)),
        *(f"192.168.{third}.0/24" for third in range(171, 187)),
    )
)


@dataclass(frozen=True, kw_only=True)
class Range:
    """What the numbers of a system setting may be; `n` of them."""

    n: int
    minimum: int
    maximum: int


# The only system settings that are ever changed.
SYSCTLS = {
    "net.core.rmem_max": Range(n=1, minimum=_MIB, maximum=256 * _MIB),
    "net.core.wmem_max": Range(n=1, minimum=_MIB, maximum=256 * _MIB),
    "net.ipv4.tcp_rmem": Range(n=3, minimum=4096, maximum=256 * _MIB),
    "net.ipv4.tcp_wmem": Range(n=3, minimum=4096, maximum=256 * _MIB),
    "net.ipv4.tcp_slow_start_after_idle": Range(n=1, minimum=0, maximum=0),
    "net.ipv4.tcp_mtu_probing": Range(n=1, minimum=1, maximum=1),
    "kern.ipc.maxsockbuf": Range(n=1, minimum=_MIB, maximum=256 * _MIB),
}

_SIZES = (
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "kern.ipc.maxsockbuf",
)


class Way(Enum):
    """Who sets an interface up on this computer."""

    NETWORK_MANAGER = "networkmanager"
    NETWORKD = "systemd-networkd"
    IP = "ip"
    NETWORKSETUP = "networksetup"
    POWERSHELL = "powershell"


_Interface = Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f/]{1,64}\Z")]
_Port = Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f]{0,128}\Z")]
_Guid = Annotated[str, msgspec.Meta(pattern=r"^(\{[0-9A-Fa-f-]{36}\})?\Z")]
_Host = Annotated[str, msgspec.Meta(pattern=r"^\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\Z")]
_Mtu = Annotated[int, msgspec.Meta(ge=MIN_MTU, le=MAX_MTU)]
_Values = Annotated[tuple[int, ...], msgspec.Meta(min_length=1, max_length=3)]


class Profile(msgspec.Struct, frozen=True, kw_only=True, tag="profile", forbid_unknown_fields=True):
    """An IPv4 address in a /24 of its own and an MTU, for one interface; `port` and `guid` are as it has them."""

    interface: _Interface
    host: _Host
    mtu: _Mtu
    way: Way
    port: _Port = ""
    guid: _Guid = ""


class Sysctls(msgspec.Struct, frozen=True, kw_only=True, tag="sysctls", forbid_unknown_fields=True):
    """System settings, by name."""

    values: Annotated[dict[str, _Values], msgspec.Meta(min_length=1, max_length=len(SYSCTLS))]


class Firewall(msgspec.Struct, frozen=True, kw_only=True, tag="firewall", forbid_unknown_fields=True):
    """Let one address reach this computer (Windows alone keeps everybody out by itself)."""

    peer_host: _Host


Change = Profile | Sysctls | Firewall


class Before(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was there before a change, as far as undoing it needs that.

    `profile` is NetworkManager's id of what was active on the interface, and `addresses` what the interface had where
    that was none of NetworkManager's; `jumbo` is Windows' setting of the adapter.
    """

    mtu: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 0
    is_up: bool = True
    has_address: bool = False
    profile: Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Fa-f-]{0,64}\Z")] = ""
    addresses: Annotated[
        tuple[Annotated[str, msgspec.Meta(pattern=r"^[0-9.]{7,15}/\d{1,2}\Z")], ...],
        msgspec.Meta(max_length=64),
    ] = ()
    dhcp: bool = False
    jumbo: Annotated[str, msgspec.Meta(pattern=r"^\d{0,6}\Z")] = ""
    values: dict[str, _Values] = {}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A command of the system's, word by word."""

    words: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(f'"{word}"' if " " in word or not word else word for word in self.words)


@dataclass(frozen=True, kw_only=True)
class Write:
    """A file of our own, whole."""

    path: Path
    content: str

    @property
    def text(self) -> str:
        lines = "".join(f"\n    {line}" for line in self.content.splitlines())
        return f"write {self.path}:{lines}"


@dataclass(frozen=True, kw_only=True)
class Remove:
    """Take a file of our own away."""

    path: Path

    @property
    def text(self) -> str:
        return f"remove {self.path}"


@dataclass(frozen=True, kw_only=True)
class Set:
    """A system setting of Linux, at once."""

    path: Path
    values: tuple[int, ...]

    @property
    def text(self) -> str:
        return f"write {' '.join(map(str, self.values))} to {self.path}"


Operation = Run | Write | Remove | Set


@dataclass(frozen=True, kw_only=True)
class Step:
    """One operation and the one that undoes it; some are there for one of the two alone.

    Where `there` is given and says nothing, there is nothing to undo.
    """

    do: Operation | None = None
    undo: Operation | None = None
    there: Run | None = None


@dataclass(frozen=True, kw_only=True)
class Roots:
    """Where the system keeps what is changed, and where the journal is kept that undoes it."""

    etc: Path
    proc_sys: Path
    state: Path

    @property
    def sysctl_file(self) -> Path:
        return self.etc / _SYSCTL_FILE

    @property
    def networkd_file(self) -> Path:
        return self.etc / _NETWORKD_FILE


def system_roots() -> Roots:
    if sys.platform == "darwin":
        state = Path("/Library/Application Support/Baton")
    elif sys.platform == "win32":
        state = Path(r"C:\ProgramData\Baton")
    else:
        state = Path("/var/lib/baton")
    return Roots(etc=Path("/etc"), proc_sys=Path("/proc/sys"), state=state)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`notes` are what a person should know before agreeing; `changes` may be none."""

    interface: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Situation:
    """All that a plan depends on. `settings` are the present numbers of SYSCTLS, of those that this system has.

    `wanted_mtu` is a person's wish. `max_path_mtu` is the largest packet that passes the cable, where a probe has
    found larger ones to be lost.
    """

    network: Network
    interface: str
    way: Way
    node_id: str
    settings: dict[str, tuple[int, ...]]
    peer: Network | None = None
    peer_interface: str = ""
    peer_id: str = ""
    wanted_mtu: int | None = None
    max_path_mtu: int | None = None


def make_plan(situation: Situation) -> Plan:
    """The changes that are still needed, in order. Raises UserError where the interface cannot be tuned."""
    interface = situation.network.named(situation.interface)
    if interface is None:
        raise UserError(f"there is no interface {situation.interface}: `baton link probe` lists them")
    check_interface(situation.network, interface)
    changes: list[Change] = []
    notes = []
    host, mtu = _host(situation, interface), _mtu(situation, interface)
    if host not in _private_hosts(interface) or mtu != interface.mtu:
        changes.append(
            Profile(
                interface=interface.name,
                host=host,
                mtu=mtu,
                way=situation.way,
                port=interface.port,
                guid=interface.guid,
            )
        )
        if situation.way is Way.IP:
            notes.append(
                "neither NetworkManager nor systemd-networkd looks after this interface, so its address and MTU last "
                "until the computer restarts; run this again then"
            )
        if situation.peer is None:
            notes.append(
                "the other computer's routes are not known: pair and connect it first, and addresses are picked that "
                "suit both"
            )
    values = {
        name: wanted
        for name, now in situation.settings.items()
        if (wanted := _wanted_values(name, now)) != now
    }
    if values:
        changes.append(Sysctls(values=values))
        if situation.way is Way.NETWORKSETUP:
            notes.append("macOS forgets kern.ipc.maxsockbuf when it restarts; run this again then")
    if situation.way is Way.POWERSHELL and situation.peer_id and changes:
        changes.append(Firewall(peer_host=_peer_host(situation, IPv4Net(f"{host}/{PREFIX}", strict=False))))
    return Plan(interface=interface.name, changes=tuple(changes), notes=tuple(notes))


def check_interface(network: Network, interface: Interface) -> None:
    """Raises UserError for an interface that must be left alone."""
    if interface.kind in (Kind.LOOPBACK, Kind.WIFI, Kind.TUNNEL):
        raise UserError(f"{interface.name} is no cable ({interface.kind.value}), and is left alone")
    if network.has_default_route(interface):
        raise UserError(
            f"{interface.name} carries this computer's Internet connection, and is left alone: join the two computers "
            "by a cable of their own"
        )


def check_host(network: Network, interface: Interface, host: str) -> None:
    """Raises UserError for an address that this computer must not take."""
    subnet = private_subnet(host)
    for taken in taken_networks([network], but=[interface.name]):
        if taken.overlaps(subnet):
            raise UserError(f"{subnet} is in use on this computer already ({taken})")


def private_subnet(host: str) -> IPv4Net:
    """The network of one computer's address on the cable. Raises UserError for any other address."""
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError:
        raise UserError(f"{host} is no address") from None
    subnet = IPv4Net(f"{host}/{PREFIX}", strict=False)
    if not _is_private(subnet):
        raise UserError(f"{host} is not in a private network")
    if address in (subnet.network_address, subnet.broadcast_address):
        raise UserError(f"{host} stands for the whole network {subnet}")
    return subnet


_PRIVATE = tuple(ipaddress.IPv4Network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))


def check_values(name: str, values: Sequence[int], now: Sequence[int]) -> None:
    """Raises UserError for a setting that is not ours to change, or not to that."""
    allowed = SYSCTLS.get(name)
    if allowed is None:
        raise UserError(f"{name} is no setting that Baton changes")
    if len(values) != allowed.n or not all(allowed.minimum <= value <= allowed.maximum for value in values):
        raise UserError(f"{name} cannot be set to {' '.join(map(str, values))}")
    if not now:
        raise UserError(f"this computer has no setting {name}")
    if name in _SIZES and any(value < old for value, old in zip(values, now, strict=False)):
        raise UserError(f"{name} is larger than that already")


def steps_of(change: Change, before: Before, roots: Roots) -> list[Step]:
    """What a change is made of, given what was there before."""
    from engine.link import tune_linux, tune_macos, tune_windows

    match change:
        case Profile(way=Way.NETWORKSETUP):
            return tune_macos.profile_steps(change, before)
        case Profile(way=Way.POWERSHELL):
            return tune_windows.profile_steps(change, before)
        case Profile():
            return tune_linux.profile_steps(change, before, roots)
        case Firewall():
            return tune_windows.firewall_steps(change)
        case Sysctls() if "kern.ipc.maxsockbuf" in change.values:
            return tune_macos.sysctl_steps(change, before)
        case Sysctls():
            return tune_linux.sysctl_steps(change, before, roots)


def _wanted_values(name: str, now: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes are only ever raised, and of TCP's three only the last."""
    if name == "net.ipv4.tcp_slow_start_after_idle":
        return (0,)
    if name == "net.ipv4.tcp_mtu_probing":
        return (max(1, *now),)
    return (*now[:-1], max(now[-1], SOCKET_BUFFER_BYTES))


def _mtu(situation: Situation, interface: Interface) -> int:
    """As large as both ends can. What somebody has raised is left, unless larger packets are lost than that."""
    peer = situation.peer.named(situation.peer_interface) if situation.peer is not None else None
    limits = [each.max_mtu for each in (interface, peer) if each is not None and each.max_mtu]
    if situation.max_path_mtu is not None:
        return max(MIN_MTU, min([situation.max_path_mtu, *limits]))
    if situation.wanted_mtu is None and _USUAL_MTU < interface.mtu <= MAX_MTU:
        return interface.mtu
    return max(MIN_MTU, min([situation.wanted_mtu or WANTED_MTU, *limits]))


def _is_private(network: IPv4Net) -> bool:
    return any(network.subnet_of(private) for private in _PRIVATE)


def _private_hosts(interface: Interface) -> list[str]:
    return [
        address.host
        for address in interface.addresses
        if (network := address.network) and _is_private(network)
    ]


def _host(situation: Situation, interface: Interface) -> str:
    """An address that it has where that will do; else one of its own in a /24 that nothing on either computer uses."""
    peer_networks = _peer_networks(situation)
    elsewhere = taken_networks([situation.network], but=[interface.name])
    for present in _private_hosts(interface):
        own = IPv4Net(f"{present}/{PREFIX}", strict=False)
        is_shared = not peer_networks or any(own.overlaps(theirs) for theirs in peer_networks)
        if is_shared and not any(own.overlaps(taken) for taken in elsewhere):
            return present
    subnet = _free_subnet(situation, elsewhere, peer_networks)
    taken = {address.host for each in _peer_cables(situation) for address in each.addresses}
    return _own_host(subnet, situation.node_id, situation.peer_id, taken)


def _peer_cables(situation: Situation) -> list[Interface]:
    peer = situation.peer.named(situation.peer_interface) if situation.peer is not None else None
    return [peer] if peer is not None else []


def _peer_networks(situation: Situation) -> list[IPv4Net]:
    """Of the private addresses that the other end of the cable has."""
    return [network for each in _peer_cables(situation) for network in each.networks if _is_private(network)]


def _free_subnet(situation: Situation, here: Sequence[IPv4Net], peer_networks: Iterable[IPv4Net]) -> IPv4Net:
    for theirs in peer_networks:
        if theirs.prefixlen == PREFIX and not any(theirs.overlaps(taken) for taken in here):
            return theirs
    there = taken_networks([situation.peer], but=[situation.peer_interface]) if situation.peer else []
    for candidate in _CANDIDATES:
        if not any(candidate.overlaps(taken) for taken in (*here, *there)):
            return candidate
    raise UserError(
        "every private network that Baton would take is in use on one of the two computers: give both ends of the "
        "cable addresses by hand"
    )


def _own_host(subnet: IPv4Net, node_id: str, peer_id: str, taken: set[str]) -> str:
    """An address that follows from who this is, and is not the other's."""
    part = _host_part(node_id)
    if peer_id and part == _host_part(peer_id) and node_id > peer_id:
        part = part % 254 + 1
    while str(subnet.network_address + part) in taken:
        part = part % 254 + 1
    return str(subnet.network_address + part)


def _peer_host(situation: Situation, subnet: IPv4Net) -> str:
    """The address that the other end has, or will take."""
    for each in _peer_cables(situation):
        for address in each.addresses:
            if ":" not in address.host and ipaddress.IPv4Address(address.host) in subnet:
                return address.host
    return _own_host(subnet, situation.peer_id, situation.node_id, set())


def _host_part(node_id: str) -> int:
    """1 to 254."""
    return int.from_bytes(hashlib.sha256(node_id.encode()).digest()[:4], "big") % 254 + 1
