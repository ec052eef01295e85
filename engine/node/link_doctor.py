"""The node's link doctor: probes the link to a paired computer, answers that one's probes, and keeps the ceilings.

A probe's blocking work is done on threads; nothing here keeps the node's loop waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import psutil

from engine.errors import BatonError, HostError, PeerError, PeerLost, UserError
from engine.link.ceilings import Ceiling, Ceilings, ceiling_of, seen_from_there
from engine.link.elevate import run_helper
from engine.link.interfaces import Counters, Network, read_network
from engine.link.privileged import Order
from engine.link.probe import interface_holding, make_report, read_facts
from engine.link.probe_path import PathMeasures, Say, Target, measure
from engine.link.probe_ports import ProbePorts
from engine.link.probe_wire import TOKEN_BYTES
from engine.link.report import HostFacts, PeerHalf, Report
from engine.link.tuning import PeerEnd, Preview, preview
from engine.node.finding.interface_events import InterfaceEvents
from engine.node.peering.offers import Handler, Method

if TYPE_CHECKING:
    from engine.node.peering.peer_link import PeerLink

log = logging.getLogger(__name__)

# Interfaces change in bursts: addresses, routes and speed come one after the other.
_SETTLE_S = 3.0

# A link that goes up and down is not probed each time.
_PROBE_AGAIN_AFTER_S = 60.0

_BUSY = "it probes the link itself at this moment: try again in 15 seconds"

_MEASURE_TIMEOUT_S = 25.0
_FACTS_TIMEOUT_S = 30.0  # PowerShell's

NO_PEER = (
    "no paired computer is connected, so only this computer was looked at: `baton pair` joins two computers, and "
    "`baton status` says whether the other one is there"
)


class _Ports(msgspec.Struct, frozen=True, kw_only=True):
    """Ports that the other computer has opened for a probe."""

    udp_port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    tcp_port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    token: Annotated[bytes, msgspec.Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]

    def target(self, link: PeerLink) -> Target:
        return Target(
            local_host=link.local_host,
            peer_host=link.remote_host,
            udp_port=self.udp_port,
            tcp_port=self.tcp_port,
            token=self.token,
        )


class _Opened(_Ports, frozen=True, kw_only=True):
    """Where this computer is to measure, and what the other one tells of itself."""

    facts: HostFacts
    interface: Annotated[str, msgspec.Meta(max_length=256)]


class _MeasureAsked(_Ports, frozen=True, kw_only=True):
    """The other computer wants this one to measure; `mtu` is that of the interface there."""

    mtu: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]


class _Answering:
    """Ports that are open for another computer's probe."""

    def __init__(self, ports: ProbePorts, interface: str, before: Counters) -> None:
        self.ports = ports
        self.interface = interface
        self.before = before


class LinkDoctor:
    """`links` gives the connections to paired computers that are there now; `node_id` is this computer's own."""

    def __init__(
        self,
        *,
        folder: Path,
        node_id: str,
        links: Callable[[], Sequence[PeerLink]],
        on_change: Callable[[], None],
    ) -> None:
        self._node_id = node_id
        self._links = links
        self._on_change = on_change
        self._ceilings = Ceilings(folder / "links.json")
        self._answering: dict[str, _Answering] = {}
        self._probing = asyncio.Lock()
        self._part = ""
        self._last: Report | None = None
        self._network: Network | None = None
        self._rechecking: asyncio.Task[None] | None = None
        self._has_changed = False
        self._rechecked_s = -_PROBE_AGAIN_AFTER_S
        self._outline: object = None
        self._events = InterfaceEvents(self.on_interfaces_changed)

    async def start(self) -> None:
        await self._read_network()
        self._outline = await asyncio.to_thread(_outline)
        self._events.start()

    async def close(self) -> None:
        self._events.close()
        if self._rechecking is not None:
            self._rechecking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._rechecking
        for peer_id in list(self._answering):
            await self._stop_answering(peer_id)

    def snapshot(self) -> dict[str, Any]:
        """The last report, the part that a running probe is at, and the ceiling of each connected computer."""
        found: dict[str, Any] = msgspec.to_builtins(
            {
                "probing": self._part or None,
                "report": self._last,
                "ceilings": {
                    link.peer.node_id: self.ceiling_for(link.peer.node_id) for link in self._links()
                },
            }
        )
        return found

    def ceiling_for(self, peer_id: str) -> Ceiling | None:
        """What the link to that computer was measured to carry; None where it was not, or has changed since."""
        return self._ceilings.of_peer(peer_id, self._network)

    def methods(self) -> dict[str, Method[Handler]]:
        return {
            "link.facts": Method(self._tell_facts, None),
            "link.open": Method(self._open, None),
            "link.close": Method(self._close, None),
            "link.measure": Method(self._measure_for_peer, _MeasureAsked),
            "link.probed": Method(self._hear_ceiling, Ceiling),
        }

    async def probe(self, say: Say = lambda part: None, *, peer_id: str = "") -> Report:
        """Probe the link to that paired computer, to the only one, or this computer alone where none is connected.

        `say` is called as each part begins. Raises BatonError.
        """
        if self._probing.locked():
            raise UserError("the link is being probed already: wait until that is done, 15 seconds at most")
        async with self._probing:
            try:
                return await self._probe(self._saying(say), peer_id)
            finally:
                self._part = ""
                self._on_change()

    async def preview_tuning(self, *, interface: str = "", mtu: int | None = None) -> Preview:
        """What tuning would do here, such that it suits the connected computer as well. Raises BatonError."""
        link = self._link_to("")
        peer = await _peer_end(link) if link is not None else None
        return await asyncio.to_thread(
            preview,
            self._node_id,
            peer=peer,
            local_host=link.local_host if link is not None else "",
            interface=interface,
            mtu=mtu,
            ceiling=self.ceiling_for(link.peer.node_id) if link is not None else None,
        )

    async def tune(
        self, action: Literal["apply", "undo"], *, interface: str = "", mtu: int | None = None
    ) -> list[str]:
        """Do it, once the person at this computer has allowed it in the system's own prompt. Raises BatonError."""
        changes = (
            (await self.preview_tuning(interface=interface, mtu=mtu)).plan.changes
            if action == "apply"
            else ()
        )
        if action == "apply" and not changes:
            return []
        lines: list[dict[str, Any]] = []
        await asyncio.to_thread(run_helper, Order(action=action, changes=changes), lines.append)
        return [str(text) for line in lines for text in line.values()]

    def on_interfaces_changed(self) -> None:
        """Probe again what is not as it was measured, once things have settled; called on the node's loop."""
        self._has_changed = True
        if self._rechecking is None or self._rechecking.done():
            self._rechecking = asyncio.create_task(self._recheck_until_quiet())

    async def _recheck_until_quiet(self) -> None:
        """What changes while it is looked at, or while the link is probed, is looked at after that."""
        while self._has_changed:
            await asyncio.sleep(_SETTLE_S)
            self._has_changed = False
            await self._recheck()

    async def _recheck(self) -> None:
        outline = await asyncio.to_thread(_outline)
        if outline == self._outline:
            return
        self._outline = outline
        try:
            await self._read_network()
            self._on_change()
            if self._probing.locked() or time.monotonic() < self._rechecked_s + _PROBE_AGAIN_AFTER_S:
                return
            for link in self._links():
                peer_id = link.peer.node_id
                was_known = self._ceilings.of_peer(peer_id) is not None
                # One of the two does it, and tells the other.
                if was_known and self.ceiling_for(peer_id) is None and self._node_id < peer_id:
                    self._rechecked_s = time.monotonic()
                    await self.probe(peer_id=peer_id)
        except BatonError as error:
            log.info("the link was not probed again: %s", error)

    async def _read_network(self) -> None:
        try:
            self._network = await asyncio.to_thread(read_network)
        except HostError as error:
            log.info("interfaces could not be read: %s", error)

    def _saying(self, say: Say) -> Say:
        """`say` and the snapshot, from whichever thread."""
        loop = asyncio.get_running_loop()

        def on_loop(part: str) -> None:
            self._part = part
            say(part)
            self._on_change()

        def from_anywhere(part: str) -> None:
            loop.call_soon_threadsafe(on_loop, part)

        return from_anywhere

    async def _probe(self, say: Say, peer_id: str) -> Report:
        began_s = time.time()
        say("interfaces of both computers")
        here = await asyncio.to_thread(read_facts)
        self._network = here.network
        link = self._link_to(peer_id)
        if link is None:
            self._last = make_report(here, began_s=began_s, missing=NO_PEER)
            return self._last
        peer, missing = await self._probe_peer(link, here, say)
        self._last = make_report(here, began_s=began_s, peer=peer, missing=missing)
        await self._keep(link)
        return self._last

    def _link_to(self, peer_id: str) -> PeerLink | None:
        links = self._links()
        if not peer_id:
            return links[0] if links else None
        for link in links:
            if link.peer.node_id == peer_id:
                return link
        raise UserError("that computer is not connected: `baton status` lists those that are")

    def _latest(self, link: PeerLink) -> PeerLink:
        """The link with the same computer: while one is measured for seconds, a newer one may take its place."""
        return next((each for each in self._links() if each.peer.node_id == link.peer.node_id), link)

    async def _probe_peer(self, link: PeerLink, here: HostFacts, say: Say) -> tuple[PeerHalf | None, str]:
        """The other computer's half, and what of it could not be measured."""
        try:
            opened = await link.call("link.open", gives=_Opened, timeout_s=_FACTS_TIMEOUT_S)
        except PeerError as error:
            return None, f"{link.peer.name} did not take part in the probe: {error}"
        local = interface_holding(here.network, link.local_host)
        half = PeerHalf(
            node_id=link.peer.node_id,
            name=link.peer.name,
            facts=opened.facts,
            local_interface=local,
            peer_interface=opened.interface,
        )
        try:
            try:
                path = await self._measure(
                    link,
                    opened.target(link),
                    local_mtu=_mtu(here.network, local),
                    peer_mtu=_mtu(opened.facts.network, opened.interface),
                    say=say,
                )
                after = (await asyncio.to_thread(read_network)).named(local)
            finally:
                latest = self._latest(link)
                counted = await latest.call("link.close", gives=Counters, timeout_s=_FACTS_TIMEOUT_S)
        except PeerError as error:
            return half, str(error)
        before = here.network.named(local)
        return msgspec.structs.replace(
            half,
            path=path,
            counted_here=after.counters.since(before.counters) if after and before else Counters(),
            counted_there=counted,
        ), ""

    async def _measure(
        self, link: PeerLink, target: Target, *, local_mtu: int, peer_mtu: int, say: Say
    ) -> PathMeasures:
        """By this computer, or else by the other one: what may not be called from here may yet call here.

        Raises PeerLost where neither gets through.
        """
        try:
            return await asyncio.to_thread(measure, target, local_mtu=local_mtu, peer_mtu=peer_mtu, say=say)
        except PeerLost as error:
            log.info("the other computer is asked to measure: %s", error)
            say("once more, from the other computer")
            try:
                return await self._have_measured(link, local_mtu)
            except PeerError:
                raise error from None

    async def _have_measured(self, link: PeerLink, mtu: int) -> PathMeasures:
        """Raises PeerError."""
        try:
            ports = await asyncio.to_thread(ProbePorts, link.local_host, link.remote_host)
        except OSError as error:
            raise PeerLost(f"no ports can be opened here ({error.strerror or error})") from error
        try:
            asked = _MeasureAsked(
                udp_port=ports.udp_port, tcp_port=ports.tcp_port, token=ports.token, mtu=mtu
            )
            measured = await self._latest(link).call(
                "link.measure", asked, gives=PathMeasures, timeout_s=_MEASURE_TIMEOUT_S
            )
        finally:
            await asyncio.to_thread(ports.close)
        return measured.seen_from_there()

    async def _measure_for_peer(self, link: PeerLink, asked: _MeasureAsked) -> PathMeasures:
        """Measure the way to the ports that the other computer has opened."""
        if self._probing.locked():
            raise UserError(_BUSY)
        async with self._probing:
            network = await asyncio.to_thread(read_network)
            local_mtu = _mtu(network, interface_holding(network, link.local_host))
            return await asyncio.to_thread(
                measure, asked.target(link), local_mtu=local_mtu, peer_mtu=asked.mtu, say=lambda part: None
            )

    async def _keep(self, link: PeerLink) -> None:
        """Keep what the last report says of the link, here and there."""
        report = self._last
        ceiling = ceiling_of(report) if report is not None else None
        if report is None or ceiling is None:
            return
        await asyncio.to_thread(self._ceilings.keep, ceiling)
        there = report.peer_interface
        if there is not None:
            seen = seen_from_there(ceiling, self._node_id, there)
            with contextlib.suppress(PeerError):
                await self._latest(link).call("link.probed", seen)

    async def _tell_facts(self, link: PeerLink, _: None) -> HostFacts:
        return await asyncio.to_thread(read_facts)

    async def _open(self, link: PeerLink, _: None) -> _Opened:
        """Open ports for the other computer's probe; an earlier probe's are closed."""
        if self._probing.locked():
            raise UserError(_BUSY)
        facts = await asyncio.to_thread(read_facts)
        await self._stop_answering(link.peer.node_id)
        if link.peer.node_id in self._answering:
            raise UserError(_BUSY)  # it has asked more than once at a time
        try:
            ports = ProbePorts(link.local_host, link.remote_host)
        except OSError as error:
            raise HostError(f"ports for a probe cannot be opened ({error.strerror or error})") from error
        interface = interface_holding(facts.network, link.local_host)
        found = facts.network.named(interface)
        self._answering[link.peer.node_id] = _Answering(
            ports, interface, found.counters if found else Counters()
        )
        return _Opened(
            facts=facts,
            interface=interface,
            udp_port=ports.udp_port,
            tcp_port=ports.tcp_port,
            token=ports.token,
        )

    async def _close(self, link: PeerLink, _: None) -> Counters:
        """Close the ports, and tell what was counted while they were open."""
        answering = await self._stop_answering(link.peer.node_id)
        if answering is None:
            return Counters()
        after = (await asyncio.to_thread(read_network)).named(answering.interface)
        return after.counters.since(answering.before) if after else Counters()

    async def _stop_answering(self, peer_id: str) -> _Answering | None:
        answering = self._answering.pop(peer_id, None)
        if answering is not None:
            await asyncio.to_thread(answering.ports.close)
        return answering

    async def _hear_ceiling(self, link: PeerLink, ceiling: Ceiling) -> None:
        """What the other computer has measured of the link between the two."""
        if ceiling.peer_id == link.peer.node_id:
            await asyncio.to_thread(self._ceilings.keep, ceiling)
            await self._read_network()
            self._on_change()


def _outline() -> object:
    """What a link depends on, quickly read: some systems do not tell of changes, and are looked at again and again."""
    return {name: (found.isup, found.mtu, found.speed) for name, found in psutil.net_if_stats().items()}


async def _peer_end(link: PeerLink) -> PeerEnd | None:
    """The other computer's end; None where it does not say, as older versions do not."""
    try:
        facts = await link.call("link.facts", gives=HostFacts, timeout_s=_FACTS_TIMEOUT_S)
    except PeerError as error:
        log.info("%s does not tell of its network: %s", link.peer.name, error)
        return None
    return PeerEnd(
        node_id=link.peer.node_id,
        network=facts.network,
        interface=interface_holding(facts.network, link.remote_host),
    )


def _mtu(network: Network, name: str) -> int:
    """Of an interface; the largest there is where it is not known."""
    interface = network.named(name)
    return interface.mtu if interface is not None else max(each.mtu for each in network.interfaces)
