"""Finds other nodes: by multicast DNS on every suitable interface, by addresses that were typed in, by the last ones of
paired peers, and by asking the few computers on a direct cable.

Each interface has its own zeroconf for each family, and says there only what is reachable there, under a name of its
own. So an interface that fails takes no other with it, caches of different interfaces never mix, and a link-local
address comes from the cable whose zone it is given. What is found is a hint: only a connection tells who is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import platform
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from zeroconf import DNSAddress, DNSRecord, DNSText, IPVersion, ServiceStateChange, Zeroconf  # type: ignore[attr-defined]
from zeroconf import Error as ZeroconfError
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from engine.config import NODE_PORT, join_address, split_address
from engine.errors import InvalidRequest, ProtocolError
from engine.node.finding.announcement import MAX_HOSTS, SERVICE_TYPE, Announcement, clean_name, new_instance
from engine.node.finding.direct_query import ask, text_entries
from engine.node.finding.interface_events import InterfaceEvents
from engine.node.finding.segments import Segment, neighbours, segments

log = logging.getLogger(__name__)

# Records of a node that was killed are forgotten after this; it is the rate at which they are asked for again, too.
_TTL_S = 120

# What an announcement lacks is asked for as long.
_RESOLVE_TIMEOUT_MS = 1500

# Interfaces that could not be opened, addresses that were typed in, and cables nobody was heard on, are tried again.
_TRY_AGAIN_S = 30.0

# Changes within this are told as one: nobody on the network can make this computer busy with telling.
_TELL_AFTER_S = 0.05

# Bounds on what strangers can have kept here, and on whom is asked in one round. Of all that is said by multicast,
# zeroconf keeps 10,000 records for each interface and family, those that last longest.
MAX_SIGHTINGS = 256
MAX_MANUAL = 16
_MAX_ADDRESSES = 8
_MAX_ASKED = 16
_MAX_TASKS = 32

# The longest name of a computer, with its port.
_MAX_ADDRESS_LETTERS = 262

_IPV4, _IPV6 = 4, 6

# RFC 1035 and 3596: the numbers of address and text records, and of the internet.
_TYPE_A, _TYPE_AAAA, _TYPE_TXT, _CLASS_IN = 1, 28, 16, 1


class Remembered(Protocol):
    """A paired peer, as far as it matters here; `addresses` as HOST:PORT."""

    @property
    def node_id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def addresses(self) -> Sequence[str]: ...


@dataclass(frozen=True, kw_only=True)
class Found:
    """Somebody who may be there. `addresses` are HOST:PORT of the node's port, best first.

    `node_id` is None where only an address was typed in, at which nobody has said who he is. `has_twin`: another
    computer has the same node id. `by` says how it is known: multicast, asked, manual, remembered.
    """

    node_id: str | None
    name: str
    addresses: tuple[str, ...]
    by: tuple[str, ...]
    instance: str | None = None
    version: str | None = None
    pairing_port: int | None = None
    has_twin: bool = False

    @property
    def pairing_addresses(self) -> tuple[str, ...]:
        """Where it takes a code, best first; none while it shows none."""
        if self.pairing_port is None:
            return ()
        return tuple(join_address(_split_host(address), self.pairing_port) for address in self.addresses)


@dataclass(frozen=True, kw_only=True)
class _Sighting:
    """One announcement at one place. `place` is the channel's interface and family, or the address that was asked."""

    place: tuple[str, int]
    announcement: Announcement
    hosts: tuple[str, ...]
    by: str


class Discovery:
    """A part of the node. `found` is ready at any time; `on_change` is called when it, or the snapshot, is another.

    `instance` is this start's, drawn here where none is given. `port` is where the node listens once this is started.
    `remembered` are the paired peers. `look` is where the interfaces come from.
    """

    def __init__(
        self,
        *,
        node_id: str,
        name: str | None = None,
        instance: str | None = None,
        version: str,
        port: Callable[[], int] = lambda: NODE_PORT,
        on_change: Callable[[], None],
        remembered: Callable[[], Iterable[Remembered]] = tuple,
        look: Callable[[], list[Segment]] = segments,
    ) -> None:
        self._announcement = Announcement(
            node_id=node_id,
            instance=instance or new_instance(),
            name=clean_name(name or platform.node()),
            version=version,
            port=NODE_PORT,
        )
        self._port = port
        self._on_change = on_change
        self._remembered = remembered
        self._look = look
        self._events = InterfaceEvents(self._wake)
        self._segments: list[Segment] = []
        self._channels: dict[tuple[str, int], _Channel] = {}
        self._sightings: dict[tuple[tuple[str, int], str], _Sighting] = {}
        self._manual: list[str] = []
        self._awake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._told: dict[str, Any] = {}
        self._telling: asyncio.TimerHandle | None = None

    @property
    def instance(self) -> str:
        return self._announcement.instance

    @property
    def own_host(self) -> str | None:
        """This computer's IPv4 address on its best network."""
        return next(iter(self.own_hosts), None)

    @property
    def own_hosts(self) -> list[str]:
        """This computer's IPv4 addresses, that of its best network first."""
        return list(dict.fromkeys(str(own.ip) for segment in self._segments for own in segment.addresses))

    def addresses_of(self, node_id: str) -> list[str]:
        """Where to call a paired node, best first; then addresses at which nobody has said who he is."""
        found = self.found()
        known = [one.addresses for one in found if one.node_id == node_id]
        unknown = [one.addresses for one in found if one.node_id is None]
        return list(dict.fromkeys(address for addresses in known + unknown for address in addresses))

    async def start(self) -> None:
        self._announcement = replace(self._announcement, port=self._port())
        # It warns of what is expected here: interfaces that come and go. What matters is told as a fault.
        logging.getLogger("zeroconf").setLevel(logging.CRITICAL)
        self._events.start()
        await self._follow()
        self._begin(self._run())

    async def close(self) -> None:
        """Say goodbye on every interface."""
        self._events.close()
        if self._telling is not None:
            self._telling.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))
        self._channels.clear()

    def found(self) -> tuple[Found, ...]:
        """Everybody but this node, by name."""
        grouped: dict[tuple[str, str], list[_Sighting]] = {}
        for sighting in self._sightings.values():
            shown = sighting.announcement
            if shown.node_id != self._announcement.node_id:
                grouped.setdefault((shown.node_id, shown.instance), []).append(sighting)
        instances: dict[str, int] = {}
        for node_id, _ in grouped:
            instances[node_id] = instances.get(node_id, 0) + 1
        everybody = [
            self._gather(sightings, has_twin=instances[node_id] > 1)
            for (node_id, _), sightings in grouped.items()
        ]
        everybody = self._with_remembered(everybody)
        reached = {address for one in everybody for address in one.addresses}
        everybody += [
            Found(node_id=None, name=address, addresses=(address,), by=("manual",))
            for address in self._manual
            if address not in reached
        ]
        return tuple(sorted(everybody, key=lambda one: (one.name, one.node_id or "", one.instance or "")))

    def twins(self) -> tuple[Found, ...]:
        """Other computers that show this node's own id: one is a copy of the other, keys and all."""
        own_hosts = {str(own.ip) for segment in self._segments for own in segment.addresses} | {
            f"{host}%{segment.zone}" for segment in self._segments for host in segment.link_local
        }
        grouped: dict[str, list[_Sighting]] = {}
        for sighting in self._sightings.values():
            shown = sighting.announcement
            if (
                shown.node_id == self._announcement.node_id
                and shown.instance != self._announcement.instance
                and not own_hosts.intersection(sighting.hosts)
            ):
                grouped.setdefault(shown.instance, []).append(sighting)
        return tuple(self._gather(sightings, has_twin=True) for sightings in grouped.values())

    def snapshot(self) -> dict[str, Any]:
        return {
            "name": self._announcement.name,
            "addresses": self.own_hosts,
            "interfaces": [
                {
                    "name": channel.segment.name,
                    "family": f"IPv{channel.family}",
                    "fault": channel.fault,
                }
                for channel in self._channels.values()
            ],
            "found": [_plain(one) for one in self.found()],
            "twins": [_plain(one) for one in self.twins()],
            "manual": list(self._manual),
        }

    def add_manual(self, text: str) -> str:
        """Look at HOST[:PORT] as well, from now on; returns it with its port. Raises InvalidRequest."""
        address = _manual_address(text)
        if address not in self._manual:
            if len(self._manual) >= MAX_MANUAL:
                raise InvalidRequest(f"{MAX_MANUAL} addresses are known already: remove one first")
            self._manual.append(address)
            self._wake()
            self._tell()
        return address

    def remove_manual(self, text: str) -> None:
        """Raises InvalidRequest where it was not added."""
        address = _manual_address(text)
        if address not in self._manual:
            known = ", ".join(self._manual) or "none"
            raise InvalidRequest(f"{address} was not added by hand; added were: {known}")
        self._manual.remove(address)
        self._forget((_split_host(address), 0))

    async def set_pairing_port(self, port: int | None) -> None:
        """Announce that a code is shown, and where; None once it is not any more."""
        await self._announce(pairing_port=port)

    async def set_name(self, name: str) -> None:
        await self._announce(name=clean_name(name))

    async def _announce(self, **changes: Any) -> None:
        self._announcement = replace(
            self._announcement, n_changes=self._announcement.n_changes + 1, **changes
        )
        await asyncio.gather(*(channel.announce(self._announcement) for channel in self._channels.values()))
        self._tell()

    def _wake(self) -> None:
        self._awake.set()

    def _begin(self, job: Any) -> None:
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        is_followed = True
        while True:
            with _mistakes_logged():
                await self._ask_directly()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._awake.wait(), _TRY_AGAIN_S)
            has_fault = any(channel.fault for channel in self._channels.values())
            if self._awake.is_set() or has_fault or not is_followed:
                self._awake.clear()
                is_followed = False
                with _mistakes_logged():
                    await self._follow()
                    is_followed = True

    async def _follow(self) -> None:
        """Have a channel on each interface there is, and none on those that are gone or have other addresses."""
        try:
            self._segments = await asyncio.to_thread(self._look)
        except OSError as error:  # an interface that goes away while it is looked at; its event comes later
            log.info("the network interfaces cannot be listed: %s", error)
        wanted = {
            (segment.name, family): segment
            for segment in self._segments
            for family, has_one in ((_IPV4, segment.addresses), (_IPV6, segment.link_local))
            if has_one
        }
        gone = [
            self._channels.pop(place)
            for place, channel in list(self._channels.items())
            if channel.fault or place not in wanted or not channel.fits(wanted[place])
        ]
        for channel in gone:
            self._forget(channel.place)
        new = [
            _Channel(wanted[place], place[1], self._heard) for place in wanted if place not in self._channels
        ]
        for channel in new:
            self._channels[channel.place] = channel
        # One after the other: what follows a goodbye goes by the same name, and has to come later.
        await asyncio.gather(*(channel.close() for channel in gone))
        announcement = self._announcement
        await asyncio.gather(*(channel.open(announcement) for channel in new))
        if self._announcement is not announcement:
            await asyncio.gather(*(channel.announce(self._announcement) for channel in new))
        self._tell()

    def _heard(
        self, channel: _Channel, name: str, announcement: Announcement | None, hosts: tuple[str, ...]
    ) -> None:
        """Somebody announced himself on a channel, or took it back (None)."""
        key = (channel.place, name)
        if announcement is None or not hosts:
            if self._sightings.pop(key, None):
                self._tell()
            return
        self._see(key, _Sighting(place=channel.place, announcement=announcement, hosts=hosts, by="multicast"))

    def _see(self, key: tuple[tuple[str, int], str], sighting: _Sighting) -> None:
        is_full = key not in self._sightings and len(self._sightings) >= MAX_SIGHTINGS
        if is_full and not self._make_room_for(sighting):
            return
        if self._sightings.get(key) == sighting:
            return
        shown = sighting.announcement
        for other_key, other in self._sightings.items():
            if other.announcement.node_id != shown.node_id or other.announcement.instance == shown.instance:
                continue
            if len(self._tasks) < _MAX_TASKS:
                self._begin(self._check_that_it_lives(other_key, other))
        self._sightings.pop(key, None)  # the newest stands last, and is what is shown
        self._sightings[key] = sighting
        self._tell()

    def _make_room_for(self, sighting: _Sighting) -> bool:
        """Whether a stranger gave way: to a paired peer, and to whom a person wanted asked. Strangers wait for room."""
        paired = {peer.node_id for peer in self._remembered()}

        def is_wanted(one: _Sighting) -> bool:
            return one.by == "asked" or one.announcement.node_id in paired

        stranger = next((key for key, one in self._sightings.items() if not is_wanted(one)), None)
        if stranger is None or not is_wanted(sighting):
            return False
        del self._sightings[stranger]
        return True

    async def _check_that_it_lives(self, key: tuple[tuple[str, int], str], sighting: _Sighting) -> None:
        """Of two instances with one id, the older may have ended without a goodbye: it does not answer then."""
        for host in sighting.hosts:
            if any(answer.instance == sighting.announcement.instance for answer in await ask(host)):
                return
        if self._sightings.get(key) is sighting:
            del self._sightings[key]
            self._tell()

    def _forget(self, place: tuple[str, int]) -> None:
        for key in [key for key in self._sightings if key[0] == place]:
            del self._sightings[key]
        self._tell()

    async def _ask_directly(self) -> None:
        """Ask those who were typed in, and on cables where nobody is heard, whoever can be there."""
        hosts = [_split_host(address) for address in self._manual]
        heard_on = {sighting.place[0] for sighting in self._sightings.values()}
        quiet = [
            segment
            for segment in self._segments
            if not segment.has_default_route and not segment.is_wireless and segment.name not in heard_on
        ]
        if quiet:
            known = await asyncio.to_thread(neighbours)
            for segment in quiet:
                hosts += segment.opposite_hosts()
                hosts += [host for name, host in known if name == segment.name and segment.holds(host)]
        asked = list(dict.fromkeys(hosts))[:_MAX_ASKED]
        for sighting in list(self._sightings.values()):
            if sighting.by == "asked" and sighting.place[0] not in asked:
                self._forget(sighting.place)
        await asyncio.gather(*(self._ask(host) for host in asked))

    async def _ask(self, host: str) -> None:
        place = (host, 0)
        answers = [answer for answer in await ask(host) if answer.instance != self._announcement.instance]
        if not answers:
            self._forget(place)
        for answer in answers:
            sighting = _Sighting(place=place, announcement=answer, hosts=(host,), by="asked")
            self._see((place, answer.instance), sighting)

    def _gather(self, sightings: list[_Sighting], *, has_twin: bool) -> Found:
        shown = sightings[-1].announcement
        hosts = {host: self._rank(host) for sighting in sightings for host in sighting.hosts}
        best_first = sorted(hosts, key=lambda host: (hosts[host], host))[:_MAX_ADDRESSES]
        return Found(
            node_id=shown.node_id,
            instance=shown.instance,
            name=shown.name,
            version=shown.version,
            pairing_port=shown.pairing_port,
            addresses=tuple(join_address(host, shown.port) for host in best_first),
            by=tuple(sorted({sighting.by for sighting in sightings})),
            has_twin=has_twin,
        )

    def _with_remembered(self, everybody: list[Found]) -> list[Found]:
        """Paired peers' addresses stand after those that were heard just now."""
        for peer in self._remembered():
            here = [one for one in everybody if one.node_id == peer.node_id]
            for one in here:
                addresses = tuple(dict.fromkeys((*one.addresses, *peer.addresses)))
                everybody[everybody.index(one)] = replace(
                    one, addresses=addresses, by=(*one.by, "remembered")
                )
            if not here and peer.addresses:
                everybody.append(
                    Found(
                        node_id=peer.node_id,
                        name=peer.name,
                        addresses=tuple(peer.addresses),
                        by=("remembered",),
                    )
                )
        return everybody

    def _rank(self, host: str) -> tuple[int, int]:
        """Sorts hosts the best first: by the segment they are on, then IPv4 before link-local ones."""
        bare, _, zone = host.partition("%")
        try:
            address = ipaddress.ip_address(bare)
        except ValueError:
            return (len(self._segments), 0)
        for number, segment in enumerate(self._segments):
            if zone == segment.zone if address.version == _IPV6 else segment.holds(bare):
                return (number, int(address.version == _IPV6) + 2 * int(bare.startswith("169.254.")))
        return (len(self._segments), 0)

    def _tell(self) -> None:
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(_TELL_AFTER_S, self._tell_now)

    def _tell_now(self) -> None:
        self._telling = None
        if (now := self.snapshot()) != self._told:
            self._told = now
            self._on_change()


class _Channel:
    """One interface and one family: announces there what is reachable there, and hears who else is.

    `fault` says why it does not, and is empty where it does.
    """

    def __init__(
        self,
        segment: Segment,
        family: int,
        on_heard: Callable[[_Channel, str, Announcement | None, tuple[str, ...]], None],
    ) -> None:
        self.segment = segment
        self.family = family
        self.fault = ""
        self._on_heard = on_heard
        self._zeroconf: AsyncZeroconf | None = None
        self._broadcast: asyncio.Future[Any] | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._resolving: set[asyncio.Task[None]] = set()

    @property
    def place(self) -> tuple[str, int]:
        return (self.segment.name, self.family)

    def fits(self, segment: Segment) -> bool:
        """Whether the interface is as it was when this was opened; its rank may have changed."""
        return (
            self._addresses(segment) == self._addresses(self.segment) and segment.index == self.segment.index
        )

    async def open(self, announcement: Announcement) -> None:
        try:
            await self._open(announcement)
        except (OSError, RuntimeError, ZeroconfError) as error:
            self.fault = (
                f"it cannot be opened ({getattr(error, 'strerror', None) or error or type(error).__name__})"
            )

    async def _open(self, announcement: Announcement) -> None:
        # By address: the number of an interface would bind its first IPv6 address, and zones come with link-local ones.
        own = self._addresses(self.segment)[0]
        self._try_to_bind(own)
        zeroconf = AsyncZeroconf(
            interfaces=[own], ip_version=IPVersion.V4Only if self.family == _IPV4 else IPVersion.V6Only
        )
        self._zeroconf = zeroconf
        await zeroconf.zeroconf.async_wait_for_start()
        if not zeroconf.zeroconf.engine.senders:
            self.fault = "it takes no multicast now"
            return
        await self.announce(announcement)
        self._browser = AsyncServiceBrowser(zeroconf.zeroconf, SERVICE_TYPE, handlers=[self._on_record])

    async def announce(self, announcement: Announcement) -> None:
        if self._zeroconf is None or self.fault:
            return
        name = f"{announcement.instance}-{self.segment.index}-{self.family}"
        hosts = tuple(self._addresses(self.segment)[:MAX_HOSTS])
        info = AsyncServiceInfo(
            SERVICE_TYPE,
            f"{name}.{SERVICE_TYPE}",
            port=announcement.port,
            server=f"{name}.local.",
            properties=dict(replace(announcement, hosts=hosts).properties()),
            parsed_addresses=list(hosts),
            host_ttl=_TTL_S,
            other_ttl=_TTL_S,
        )
        if self._broadcast is None:
            # the name is random: nobody needs to be asked whether it is taken
            broadcast = await self._zeroconf.async_register_service(info, cooperating_responders=True)
        else:
            self._broadcast.cancel()  # it would repeat what is not so any more
            broadcast = await self._zeroconf.async_update_service(info)
        self._broadcast = asyncio.ensure_future(broadcast)

    async def close(self) -> None:
        for task in self._resolving:
            task.cancel()
        await asyncio.gather(*self._resolving, return_exceptions=True)
        if self._zeroconf is not None:
            if self._browser is not None:
                await self._browser.async_cancel()
            await self._zeroconf.async_close()

    def _try_to_bind(self, host: str) -> None:
        """Raises OSError, for example for an address that is still being checked: zeroconf would leave sockets open."""
        family = socket.AF_INET if self.family == _IPV4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0) if self.family == _IPV4 else (host, 0, 0, self.segment.index))

    def _addresses(self, segment: Segment) -> list[str]:
        if self.family == _IPV4:
            return [str(own.ip) for own in segment.addresses]
        return list(segment.link_local)

    def _on_record(
        self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        if state_change is ServiceStateChange.Removed:
            self._on_heard(self, name, None, ())
        elif len(self._resolving) < MAX_SIGHTINGS:
            task = asyncio.get_running_loop().create_task(self._resolve(zeroconf, name))
            self._resolving.add(task)
            task.add_done_callback(self._resolving.discard)

    async def _resolve(self, zeroconf: Zeroconf, name: str) -> None:
        info = AsyncServiceInfo(SERVICE_TYPE, name)
        if not await info.async_request(zeroconf, _RESOLVE_TIMEOUT_MS):
            return
        texts = zeroconf.cache.get_all_by_details(name, _TYPE_TXT, _CLASS_IN)
        newest = max(texts, key=_newness, default=None)
        try:
            entries = text_entries(newest.text) if isinstance(newest, DNSText) else {}
            announcement = Announcement.parse(entries, info.port)
        except ProtocolError as error:
            log.debug("%s on %s: %s", name, self.segment.name, error)
            self._on_heard(self, name, None, ())
            return
        self._on_heard(self, name, announcement, self._hosts(zeroconf, info.server or "", announcement.hosts))

    def _hosts(self, zeroconf: Zeroconf, server: str, listed: tuple[str, ...]) -> tuple[str, ...]:
        """The addresses that are reached on this interface; Linux lets each channel hear all the others, too."""
        kind = _TYPE_A if self.family == _IPV4 else _TYPE_AAAA
        scopes = {
            str(ipaddress.ip_address(record.address)): record.scope_id
            for record in zeroconf.cache.get_all_by_details(server, kind, _CLASS_IN)
            if isinstance(record, DNSAddress)
        }
        known = [host for host in listed if host in scopes]
        if self.family == _IPV4:
            return tuple(host for host in known if self.segment.holds(host))
        return tuple(f"{host}%{self.segment.zone}" for host in known if scopes[host] == self.segment.index)


@contextlib.contextmanager
def _mistakes_logged() -> Iterator[None]:
    """A look that goes wrong in a way that nobody has thought of is not the last one."""
    try:
        yield
    except Exception:
        log.exception("looking for other computers went wrong, and is done again")


def _newness(record: DNSRecord) -> tuple[bool, float]:
    """Orders records of one name: what a newer one flushed has a second to live, and counts from that moment."""
    return record.ttl > 1, float(record.created)


def _manual_address(text: str) -> str:
    """HOST:PORT of what a person typed, who may leave the port away; raises UserError."""
    text = text.strip()
    if len(text) > _MAX_ADDRESS_LETTERS:
        raise InvalidRequest(f"{text[:40]}…: this is longer than any address; type HOST or HOST:PORT")
    has_port = not text.endswith("]") if text.startswith("[") else text.count(":") == 1
    if not has_port:
        text = join_address(text.removeprefix("[").removesuffix("]"), NODE_PORT)
    host, port = split_address(text)
    if port == 0:
        raise InvalidRequest(f"{text}: a port of another computer is never 0")
    return join_address(host, port)


def _plain(one: Found) -> dict[str, Any]:
    return {
        "node_id": one.node_id,
        "instance": one.instance,
        "name": one.name,
        "version": one.version,
        "addresses": list(one.addresses),
        "pairing_addresses": list(one.pairing_addresses),
        "by": list(one.by),
        "has_twin": one.has_twin,
    }


def _split_host(address: str) -> str:
    return split_address(address)[0]
