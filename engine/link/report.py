"""What a probe found, as data: what the two computers say of themselves, what was measured, and what follows."""

from __future__ import annotations

from enum import Enum

import msgspec

from engine.link.interfaces import Cable, Counters, Interface, Network
from engine.link.limits import HostLimits
from engine.link.probe_path import PathMeasures


class Severity(Enum):
    """How much a finding matters."""

    BROKEN = "broken"  # something does not work, or will hang
    SLOW = "slow"  # handoffs take noticeably longer than they need
    NOTE = "note"  # worth knowing


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """`code` is for programs, the sentences are for people; `fix` is empty where there is nothing to do.

    `is_tunable`: the link's tuning on both computers mends it.
    """

    code: str
    severity: Severity
    what: str
    why: str
    fix: str = ""
    is_tunable: bool = False


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What one computer says of itself."""

    network: Network
    limits: HostLimits


class PeerHalf(msgspec.Struct, frozen=True, kw_only=True):
    """The other computer, and the interfaces at both ends of the connection to it ("" where neither says).

    The counters are what both ends counted while the link was measured.
    """

    node_id: str
    name: str
    facts: HostFacts
    local_interface: str
    peer_interface: str
    path: PathMeasures | None = None
    counted_here: Counters = Counters()
    counted_there: Counters = Counters()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One probe. `missing` says what could not be probed, and what to do about it; times are of the wall clock."""

    measured_at: float
    took_s: float
    here: HostFacts
    cable: Cable
    peer: PeerHalf | None = None
    missing: str = ""
    findings: tuple[Finding, ...] = ()

    @property
    def local_interface(self) -> Interface | None:
        """The interface that matters here: of the connection, else the direct cable."""
        name = self.peer.local_interface if self.peer is not None else self.cable.interface
        return self.here.network.named(name)

    @property
    def peer_interface(self) -> Interface | None:
        return self.peer.facts.network.named(self.peer.peer_interface) if self.peer is not None else None
