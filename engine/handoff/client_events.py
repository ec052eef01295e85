"""What the way to the worker tells the engine loop: plain messages, one a piece of news. No sockets, no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LinkSetup:
    """A link's data connections, and each one's socket buffers: what was asked for, and what the system says it gives.

    Nothing is asked for (0) where the system's own sizing gets further.
    """

    data_streams: int
    receive_asked_bytes: int
    receive_granted_bytes: int
    send_asked_bytes: int
    send_granted_bytes: int


@dataclass(frozen=True, kw_only=True)
class ClientStatus:
    """Whether the worker can be asked now, where it is (`peer`) and by what link; if not, `note` says why."""

    ready: bool
    note: str = ""
    peer: str = ""
    setup: LinkSetup | None = None


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """The worker begins; `reused_tokens` positions were in its own cache."""

    request_id: int
    reused_tokens: int


@dataclass(frozen=True, kw_only=True)
class Committed:
    """Positions [first, stop) are in memory whole; with `final`, that is all that was asked for.

    `payload_bytes` are of everything committed for the request by now. Of a request that takes checkpoints, `place` is
    where windows and states landed that came with this chunk, None if none did. The worker's compute of this chunk took
    `compute_ms` and ended at `computed_s` of `time.monotonic`, None where its clock is not known yet. `layers` is how
    its layers came, as `handoff.telemetry.pack_layers` has them.
    """

    request_id: int
    first: int
    stop: int
    final: bool
    payload_bytes: int
    place: int | None = None
    compute_ms: float
    computed_s: float | None
    layers: bytes


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The worker is done, and the courier will write no more.

    `payload_bytes` of rows and states came as `wire_bytes`, by the codec named, for the reason given in words.
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
    wire_bytes: int = 0
    codec: str = ""
    codec_reason: str = ""


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
