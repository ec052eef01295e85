"""What one handoff took, as both computers measured it: records, no clocks and no I/O.

A chunk's layers travel and are kept packed: nobody needs them one by one until somebody looks.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from engine.wire.client import LayerArrival

# Layer, bytes; when it was queued, its first and its last byte came.
_LAYER = struct.Struct("<HQddd")

PACKED_LAYER_BYTES = _LAYER.size


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTimes:
    """One layer of a chunk, in seconds of `time.monotonic`: queued by the worker, its first and its last byte here.

    `queued_s` is None where the worker's clock was not known yet.
    """

    layer: int
    n_bytes: int
    queued_s: float | None
    first_byte_s: float
    last_byte_s: float


def pack_layers(layers: Iterable[LayerArrival]) -> bytes:
    return b"".join(
        _LAYER.pack(
            layer.layer,
            layer.payload_bytes,
            math.nan if layer.queued_us is None else layer.queued_us / 1e6,
            layer.first_byte_us / 1e6,
            layer.last_byte_us / 1e6,
        )
        for layer in layers
    )


def unpack_layers(packed: bytes) -> list[LayerTimes]:
    return [
        LayerTimes(
            layer=layer,
            n_bytes=n_bytes,
            queued_s=None if math.isnan(queued_s) else queued_s,
            first_byte_s=first_byte_s,
            last_byte_s=last_byte_s,
        )
        for layer, n_bytes, queued_s, first_byte_s, last_byte_s in _LAYER.iter_unpack(packed)
    ]


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
    receive_ms: float
    wire_bytes: int
    codec: str
    codec_reason: str

    @property
    def hidden_ms(self) -> float:
        """How much of the receiving took no time of its own, because the worker was still computing."""
        return max(0.0, self.receive_ms - self.tail_ms)
