"""What each link was measured to carry, kept in the data folder: one small file for all links of this computer."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import msgspec

from engine.files import write_whole
from engine.link.interfaces import Interface, Network
from engine.link.report import Report

# Pairs of interfaces that are remembered, the newest.
_MAX_CEILINGS = 64
_MAX_FILE_BYTES = 1 << 20

_Name = Annotated[str, msgspec.Meta(max_length=256)]
_Real = Annotated[float, msgspec.Meta(ge=0)]


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """The goodput of TCP in Gbit/s between an interface here and one of the other computer.

    `local_mtu` and `local_speed_mbps` are what the interface here was set to then: with others it is another link.
    """

    peer_id: _Name
    local_interface: _Name
    peer_interface: _Name
    send_gbps: _Real
    receive_gbps: _Real
    path_mtu: int | None
    round_trip_ms: _Real | None
    local_mtu: int
    local_speed_mbps: int | None
    measured_at: _Real

    @property
    def link(self) -> tuple[str, str, str]:
        return self.peer_id, self.local_interface, self.peer_interface

    def holds_for(self, interface: Interface | None) -> bool:
        """Whether the interface here is still as it was."""
        return (
            interface is not None
            and interface.is_up
            and (interface.mtu, interface.speed_mbps) == (self.local_mtu, self.local_speed_mbps)
        )


def ceiling_of(report: Report) -> Ceiling | None:
    """What a report says of the link; None where the path was not measured."""
    here, peer = report.local_interface, report.peer
    if here is None or peer is None or peer.path is None:
        return None
    out, back = peer.path.to_peer, peer.path.from_peer
    mtus = [way.path_mtu for way in (out, back) if way.path_mtu is not None]
    return Ceiling(
        peer_id=peer.node_id,
        local_interface=here.name,
        peer_interface=peer.peer_interface,
        send_gbps=max(out.goodput_gbps, out.goodput_two_streams_gbps),
        receive_gbps=max(back.goodput_gbps, back.goodput_two_streams_gbps),
        path_mtu=min(mtus, default=None),
        round_trip_ms=peer.path.round_trips.median_ms if peer.path.round_trips is not None else None,
        local_mtu=here.mtu,
        local_speed_mbps=here.speed_mbps,
        measured_at=report.measured_at,
    )


def seen_from_there(ceiling: Ceiling, node_id: str, there: Interface) -> Ceiling:
    """The same link as the other computer has it, whose interface is `there`; `node_id` is this one's."""
    return msgspec.structs.replace(
        ceiling,
        peer_id=node_id,
        local_interface=ceiling.peer_interface,
        peer_interface=ceiling.local_interface,
        send_gbps=ceiling.receive_gbps,
        receive_gbps=ceiling.send_gbps,
        local_mtu=there.mtu,
        local_speed_mbps=there.speed_mbps,
    )


class Ceilings:
    """The known ones, newest last; losing the file costs one more probe."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: list[Ceiling] = []
        with contextlib.suppress(OSError, msgspec.DecodeError), file.open("rb") as opened:
            self._known = msgspec.json.decode(opened.read(_MAX_FILE_BYTES), type=list[Ceiling])

    def keep(self, ceiling: Ceiling) -> None:
        """Known from now on; that it could not be written is nobody's trouble."""
        others = [known for known in self._known if known.link != ceiling.link]
        self._known = [*others, ceiling][-_MAX_CEILINGS:]
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._file, msgspec.json.encode(self._known))

    def of_peer(self, peer_id: str, network: Network | None = None) -> Ceiling | None:
        """The newest; with `network`, the newest of those whose interface here is still as it was."""
        for known in reversed(self._known):
            if known.peer_id == peer_id and (
                network is None or known.holds_for(network.named(known.local_interface))
            ):
                return known
        return None
