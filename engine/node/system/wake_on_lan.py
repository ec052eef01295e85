"""Wakes a paired computer that sleeps: by the packet that network cards look for while all else is off.

What it takes is learnt while the other computer is awake: the hardware addresses of its ports, and over which port of
ours it was met. That is kept in a small file; lost, it is learnt again at the next meeting.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import psutil
from msgspec import Meta

from engine.errors import HostError, PeerError, UserError
from engine.files import write_whole
from engine.node.peering.offers import Handler, Method
from engine.node.peering.peer_link import PeerLink
from engine.node.trust.peers import Peer

log = logging.getLogger(__name__)

# Where such packets go by custom; nothing has to listen there.
WAKE_PORT = 9

# A computer has a few ports, and a user a few computers.
MAX_MACS = 8
_MAX_SLEEPERS = 64
_MAX_FILE_BYTES = 1 << 16

# Computers take 2 to 20 s from sleep to an answer, and a packet may be lost on the way.
TRIES = 9
TRY_EVERY_S = 5.0

_ALL_NODES = "ff02::1"

Mac = Annotated[str, Meta(pattern=r"^([0-9a-f]{2}:){5}[0-9a-f]{2}\Z")]


class Macs(msgspec.Struct, frozen=True, kw_only=True):
    """Hardware addresses of a computer's ports, that of the link with whoever asked first."""

    macs: Annotated[tuple[Mac, ...], Meta(max_length=MAX_MACS)] = ()


class _Sleeper(msgspec.Struct, frozen=True, kw_only=True):
    """What wakes one paired computer: its `macs`, and `port`, the name of the port of ours that leads to it."""

    macs: Annotated[tuple[Mac, ...], Meta(max_length=MAX_MACS)]
    port: Annotated[str, Meta(max_length=256)]


_Sleepers = Annotated[dict[str, _Sleeper], Meta(max_length=_MAX_SLEEPERS)]


@dataclass(frozen=True, kw_only=True)
class Port:
    """A network port of this computer that is up; `index` is the system's number for it, 0 where it has none."""

    name: str
    mac: str
    hosts: tuple[str, ...]
    networks: tuple[ipaddress.IPv4Interface, ...]
    index: int


def magic_packet(mac: str) -> bytes:
    """Six bytes of ones, and sixteen times the address."""
    return b"\xff" * 6 + bytes.fromhex(mac.replace(":", "")) * 16


def read_ports() -> list[Port]:
    """The ports of this computer that are up, but loopback."""
    states = psutil.net_if_stats()
    indices = {name: index for index, name in socket.if_nameindex()}
    ports = []
    for name, addresses in psutil.net_if_addrs().items():
        found: dict[int, list[Any]] = {}
        for address in addresses:
            found.setdefault(address.family, []).append(address)
        hosts = [
            address.address
            for family in (socket.AF_INET, socket.AF_INET6)
            for address in found.get(family, ())
        ]
        if name not in states or not states[name].isup or any(map(_is_loopback, hosts)):
            continue
        macs = [address.address.lower().replace("-", ":") for address in found.get(psutil.AF_LINK, ())]
        networks = []
        for address in found.get(socket.AF_INET, ()):
            with contextlib.suppress(ValueError):
                networks.append(ipaddress.IPv4Interface(f"{address.address}/{address.netmask or 32}"))
        ports.append(
            Port(
                name=name,
                mac=next(iter(macs), ""),
                hosts=tuple(hosts),
                networks=tuple(networks),
                index=indices.get(name, 0),
            )
        )
    return ports


def own_macs(ports: Sequence[Port], local_host: str) -> Macs:
    """The addresses of this computer's cards: that of the port with `local_host` first, and none that is made up."""
    link = [port for port in ports if _holds(port, local_host)]
    others = [port for port in ports if port not in link and not _is_made_up(port.mac)]
    macs = dict.fromkeys(port.mac for port in (*link, *others))
    valid = [mac for mac in macs if len(mac) == 17 and mac.strip("0:")]
    return Macs(macs=tuple(valid[:MAX_MACS]))


def send_packets(ports: Sequence[Port], macs: Sequence[str], *, wake_port: int = WAKE_PORT) -> int:
    """Send a packet for each of `macs` into every network of `ports`; how many went out. Raises OSError for none."""
    ways = [partial(_send_ipv4, network) for port in ports for network in port.networks]
    n_sent, fault = 0, OSError("no network port is up")
    for send in (*ways, *(partial(_send_ipv6, port) for port in ports)):
        try:
            n_sent += send(macs, wake_port)
        except OSError as error:
            fault = error
    if not n_sent:
        raise fault
    return n_sent


class WakeOnLan:
    """Learns what wakes paired computers, and wakes them. On one event loop.

    `named` finds a paired computer or raises; `is_awake` is whether there is a link with one, by its id; `call_it` has
    it called at once; `is_paired` is whether what is known of an id is still to be kept; `on_change` is called when the
    snapshot has changed.
    """

    def __init__(
        self,
        path: Path,
        *,
        named: Callable[[str], Peer],
        is_paired: Callable[[str], bool],
        is_awake: Callable[[str], bool],
        call_it: Callable[[], None],
        on_change: Callable[[], None],
        ports: Callable[[], list[Port]] = read_ports,
        send: Callable[[Sequence[Port], Sequence[str]], int] = send_packets,
        try_every_s: float = TRY_EVERY_S,
    ) -> None:
        self._path = path
        self._named = named
        self._is_paired = is_paired
        self._is_awake = is_awake
        self._call_it = call_it
        self._on_change = on_change
        self._ports = ports
        self._send = send
        self._try_every_s = try_every_s
        self._came: dict[str, asyncio.Event] = {}
        self._sleepers = self._load()

    def methods(self) -> dict[str, Method[Handler]]:
        return {"wake.macs": Method(self._tell_macs, None)}

    def snapshot(self) -> dict[str, Any]:
        """The ids of those that could be woken."""
        return {"can_wake": sorted(filter(self._is_paired, self._sleepers))}

    async def learn(self, link: PeerLink) -> None:
        """To be called with each link that comes: remember what will wake this peer."""
        node_id = link.peer.node_id
        if (event := self._came.get(node_id)) is not None:
            event.set()
        try:
            macs = msgspec.convert(await link.call("wake.macs"), Macs).macs
        except (PeerError, msgspec.ValidationError) as error:
            log.info("%s does not say what wakes it: %s", link.peer.name, error)
            return
        ports = await asyncio.to_thread(self._ports)
        port = next((port.name for port in ports if _holds(port, link.local_host)), "")
        sleeper = _Sleeper(macs=macs, port=port)
        if macs and self._sleepers.get(node_id) != sleeper:
            kept = {known: it for known, it in self._sleepers.items() if self._is_paired(known)}
            self._sleepers = {**kept, node_id: sleeper}
            self._on_change()
            await asyncio.to_thread(self._save, self._sleepers)

    async def wake(self, name: str) -> dict[str, Any]:
        """Wake the paired computer of that name or id, and wait for it; plain data on how that went.

        Raises UserError where nothing is known that would wake it, HostError where no packet could be sent.
        """
        peer = self._named(name)
        if self._is_awake(peer.node_id):
            return _outcome(peer, is_awake=True, note=f"{peer.name} is awake already")
        sleeper = self._sleepers.get(peer.node_id)
        if sleeper is None:
            raise UserError(
                f"it is not known what wakes {peer.name}: that is learnt while both are connected, so start it by hand "
                "once"
            )
        began_s = time.monotonic()
        n_sent = 0
        came = self._came.setdefault(peer.node_id, asyncio.Event())
        came.clear()
        for _ in range(TRIES):
            n_sent += await self._send_once(peer, sleeper)
            self._call_it()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._try_every_s):
                    await came.wait()
                after_s = time.monotonic() - began_s
                return _outcome(
                    peer, is_awake=True, n_sent=n_sent, note=f"{peer.name} is back after {after_s:.0f} s"
                )
        return _outcome(
            peer,
            is_awake=False,
            n_sent=n_sent,
            note=f"{peer.name} has not come back within {TRIES * self._try_every_s:.0f} s: it may be off and not "
            "asleep, its cable may be out, or waking by the network is turned off there (in the firmware's settings, "
            "or on a Mac under Energy)",
        )

    async def _send_once(self, peer: Peer, sleeper: _Sleeper) -> int:
        ports = await asyncio.to_thread(self._ports)
        # with the port of their link gone, any other may lead there
        ways = [port for port in ports if port.name == sleeper.port] or ports
        try:
            return await asyncio.to_thread(self._send, ways, sleeper.macs)
        except OSError as error:
            names = ", ".join(port.name for port in ways) or "any port"
            raise HostError(
                f"nothing could be sent to {peer.name} over {names} ({error.strerror or error}): is the cable in, and "
                "the port up?"
            ) from error

    async def _tell_macs(self, link: PeerLink, params: Any) -> Any:
        ports = await asyncio.to_thread(self._ports)
        return msgspec.to_builtins(own_macs(ports, link.local_host))

    def _load(self) -> dict[str, _Sleeper]:
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(_MAX_FILE_BYTES), type=_Sleepers)
        except (OSError, msgspec.MsgspecError):
            return {}

    def _save(self, sleepers: dict[str, _Sleeper]) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, msgspec.json.encode(sleepers))
        except OSError as error:
            log.warning("what wakes the other computer could not be kept: %s", error)


def _send_ipv4(network: ipaddress.IPv4Interface, macs: Sequence[str], wake_port: int) -> int:
    if network.network.prefixlen > 30:  # two computers at most, with no address for all
        return 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sender.bind((str(network.ip), 0))
        for mac in macs:
            sender.sendto(magic_packet(mac), (str(network.network.broadcast_address), wake_port))
    return len(macs)


def _send_ipv6(port: Port, macs: Sequence[str], wake_port: int) -> int:
    if not port.index or not any(":" in host for host in port.hosts):
        return 0
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, port.index)
        for mac in macs:
            sender.sendto(magic_packet(mac), (_ALL_NODES, wake_port, 0, port.index))
    return len(macs)


def _outcome(peer: Peer, *, is_awake: bool, note: str, n_sent: int = 0) -> dict[str, Any]:
    return {"node_id": peer.node_id, "name": peer.name, "awake": is_awake, "packets": n_sent, "note": note}


def _holds(port: Port, host: str) -> bool:
    return _bare(host) in map(_bare, port.hosts)


def _bare(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | str:
    """An address without its zone, and an IPv4 one as such."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return getattr(address, "ipv4_mapped", None) or address


def _is_loopback(host: str) -> bool:
    address = _bare(host)
    return not isinstance(address, str) and address.is_loopback


def _is_made_up(mac: str) -> bool:
    """Whether it is none of a card's own but a bridge's, a virtual machine's, or one that changes with each network."""
    return not mac or bool(int(mac[:2], 16) & 2)
