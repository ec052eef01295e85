"""What one handoff took, as both computers measured it: a record, no clocks and no I/O."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class HandoffRecord:
    """A finished handoff. Times in milliseconds; compute and tail by the worker's clock, receiving by ours.

    `overlap` is the share of bytes received before the worker's compute ended, `tail_ms` the time from there to the
    acknowledgement of the final commit, `receive_ms` the time from the first frame that was whole to the last.
    `payload_bytes` of rows and states came as `wire_bytes`, by the codec named, for the reason given in words.
    """

    request_id: int
    payload_bytes: int
    overlap: float
    tail_ms: float
    compute_ms: float
    chunk_compute_ms: tuple[float, ...]
    receive_ms: float
    wire_bytes: int
    codec: str
    codec_reason: str

    @property
    def hidden_ms(self) -> float:
        """How much of the receiving took no time of its own, because the worker was still computing."""
        return max(0.0, self.receive_ms - self.tail_ms)
