"""What the way to the worker tells the engine loop: plain messages, one a piece of news. No sockets, no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ClientStatus:
    """Whether the worker can be asked now, and where it is (`peer`); if not, `note` says why in a sentence."""

    ready: bool
    note: str = ""
    peer: str = ""


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """The worker begins; `reused_tokens` positions were in its own cache."""

    request_id: int
    reused_tokens: int


@dataclass(frozen=True, kw_only=True)
class Committed:
    """Positions [first, stop) are in memory whole; with `final`, that is all that was asked for.

    `payload_bytes` are of everything committed for the request by now. The worker's compute of this chunk took
    `compute_ms` and ended at `computed_s` of `time.monotonic`, None where its clock is not known yet. `layers` is how
    its layers came, as `handoff.telemetry.pack_layers` has them.
    """

    request_id: int
    first: int
    stop: int
    final: bool
    payload_bytes: int
    compute_ms: float
    computed_s: float | None
    layers: bytes


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The worker is done, and the courier will write no more.

    `overlap` is the share of bytes received before the worker's compute ended, `tail_ms` the time from there to the
    acknowledgement of the final commit. `compute_ms` is the worker's, `receive_ms` is the time from the first frame
    that was whole to the last.
    """

    request_id: int
    payload_bytes: int
    overlap: float
    tail_ms: float
    compute_ms: float = 0.0
    receive_ms: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Failed:
    """No more commits will come, for the reason given; `Released` follows.

    `code` is a `handoff.failure.FailureCode` or a `wire.messages.Code`, as text.
    """

    request_id: int
    code: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Released:
    """After a failure or a cancel: the courier will write no more."""

    request_id: int


@dataclass(frozen=True, kw_only=True)
class LinkChanged:
    """The link came up, went down, or stays down for another reason, whose code is given."""

    status: ClientStatus
    code: str = ""


ClientEvent = Accepted | Committed | Finished | Failed | Released
