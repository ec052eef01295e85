"""Why a handoff, or the link it needs, failed: a code for programs. The sentence for people travels beside it.

Where the worker itself says why, its own code counts (`wire.messages.Code`); these are for all else. Every code that
can reach a client of the endpoint is explained in docs/endpoint.md.
"""

from __future__ import annotations

import enum

from engine.errors import (
    BatonError,
    PeerIncompatible,
    PeerLost,
    PeerRefused,
    PeerUnreachable,
    PeerUntrusted,
    ProtocolError,
)
from engine.wire.compatibility import Incompatible
from engine.wire.messages import Code


class FailureCode(enum.StrEnum):
    """Found out on this computer."""

    PEER_LOST = "peer_lost"
    PEER_UNREACHABLE = "peer_unreachable"
    PEER_UNTRUSTED = "peer_untrusted"
    PEER_INCOMPATIBLE = "peer_incompatible"
    PEER_REFUSED = "peer_refused"
    STALLED = "stalled"
    LINK_CLOSED = "link_closed"
    CANNOT_LISTEN = "cannot_listen"
    COURIER_ENDED = "courier_ended"
    HOST_FAILED = "host_failed"
    INTERNAL = "internal"


class Going(PeerLost):
    """This computer ends the link itself; the message goes to the other one, and speaks of this one as `it`."""


# The first that fits counts.
_CODES: tuple[tuple[type[BatonError], FailureCode | Code], ...] = (
    (Going, FailureCode.LINK_CLOSED),
    (PeerLost, FailureCode.PEER_LOST),
    (PeerUnreachable, FailureCode.PEER_UNREACHABLE),
    (PeerUntrusted, FailureCode.PEER_UNTRUSTED),
    (PeerIncompatible, FailureCode.PEER_INCOMPATIBLE),
    (PeerRefused, FailureCode.PEER_REFUSED),
    (ProtocolError, Code.PROTOCOL),
    (BatonError, FailureCode.HOST_FAILED),
)


def failure_code(error: BaseException) -> FailureCode | Code:
    """The code of what ended a link; INTERNAL for a mistake of ours."""
    if isinstance(error, Incompatible):
        return error.code
    return next((code for kind, code in _CODES if isinstance(error, kind)), FailureCode.INTERNAL)
