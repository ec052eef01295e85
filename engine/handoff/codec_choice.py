"""Which codec a handoff takes: what the user set, or the one by which rows are expected to come faster. No clocks.

What is measured is how fast rows came while a frame of them was on its way, whatever the worker computed between two
frames. It belongs to one link and is forgotten with it: the next cable may be another.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from engine.wire.blocks import LosslessSpeed
from engine.wire.codec import PayloadCodec


class CodecPolicy(enum.StrEnum):
    """What the user set. `auto` chooses between the two that change nothing, `raw` and `lossless`."""

    AUTO = "auto"
    RAW = "raw"
    LOSSLESS = "lossless"
    INT8 = "int8"


@dataclass(frozen=True, kw_only=True)
class CodecChoice:
    """The codec of one handoff, and why, in words."""

    codec: PayloadCodec
    reason: str


# Packed rows have to come faster by this factor: they also take the processor's time at both ends.
_LEAST_GAIN = 1.1

# So many handoffs in a row are packed before one is sent raw, which tells whether the link is still as slow.
_PACKED_IN_A_ROW = 15

# How much the newest handoff counts against all before it.
_NEWEST_SHARE = 0.3

# What was seen of packed rows holds for a link of about the speed it was seen at.
_SAME_SPEED = 1.25


class CodecChooser:
    """One link's. `speed` measures packing here, and is asked once, when first needed."""

    def __init__(self, policy: CodecPolicy, *, speed: Callable[[], LosslessSpeed]) -> None:
        self._policy = policy
        self._measure = speed
        self._speed: LosslessSpeed | None = None
        self._raw: float | None = None
        self._packed: float | None = None
        self._packed_at = 0.0
        self._in_a_row = 0

    def choose(self, agreed: tuple[str, ...]) -> CodecChoice:
        """For the next handoff, by one of the codecs that both ends know."""
        if self._policy is not CodecPolicy.AUTO:
            if self._policy in agreed:
                return CodecChoice(
                    codec=PayloadCodec.labelled(self._policy), reason=f"--codec {self._policy} was set"
                )
            return _raw(f"--codec {self._policy} was set, which the worker does not know: update Baton there")
        if PayloadCodec.LOSSLESS.label not in agreed:
            return _raw("the worker knows no other: update Baton there")
        choice = self._sooner()
        self._in_a_row = 0 if choice.codec is PayloadCodec.RAW else self._in_a_row + 1
        return choice

    def observe(self, codec: PayloadCodec, *, timed_bytes: int, timed_us: int) -> None:
        """In a handoff by that codec `timed_bytes` of rows came while their frames took `timed_us`."""
        if timed_bytes <= 0 or timed_us <= 0:
            return
        bytes_per_s = 1e6 * timed_bytes / timed_us
        if codec is PayloadCodec.RAW:
            self._raw = _newer(self._raw, bytes_per_s)
        elif codec is PayloadCodec.LOSSLESS and self._raw is not None:
            self._packed = _newer(self._packed if self._knows_packed(self._raw) else None, bytes_per_s)
            self._packed_at = self._raw

    def _sooner(self) -> CodecChoice:
        raw = self._raw
        if raw is None:
            return _raw("the link has not been measured yet")
        if self._in_a_row >= _PACKED_IN_A_ROW:
            return _raw("to measure the link anew")
        packed, how = self._packed, "measured"
        if packed is None or not self._knows_packed(raw):
            speed = self._speed = self._speed or self._measure()
            # As if nothing were sent while a block is packed: both take the processor's time.
            packed, how = 1 / (speed.ratio / raw + 1 / speed.bytes_per_s), "expected"
        reason = f"{packed / 1e9:.2f} GB/s {how} with lossless, {raw / 1e9:.2f} GB/s measured raw"
        if packed > _LEAST_GAIN * raw:
            return CodecChoice(codec=PayloadCodec.LOSSLESS, reason=reason)
        return _raw(reason)

    def _knows_packed(self, raw: float) -> bool:
        return raw / _SAME_SPEED < self._packed_at < raw * _SAME_SPEED


def _newer(before: float | None, newest: float) -> float:
    return newest if before is None else before + _NEWEST_SHARE * (newest - before)


def _raw(reason: str) -> CodecChoice:
    return CodecChoice(codec=PayloadCodec.RAW, reason=reason)
