"""How each quantised type packs its blocks: raw bytes to integer codes, scales and minimums.

Every type here is the same thing in another wrapping: value = scale * code + minimum, with a scale (and perhaps a
minimum) for each group of codes. Each function takes the raw bytes of whole blocks, [n, type_size] uint8. Nothing
here knows of tensors' shapes, of chunks or of the type that values are wanted in.

Bytes are handled eight (or four) at a time as one integer where an operation keeps to its byte: masks are applied
after each shift, so what a shift drags over from the neighbouring byte is gone. Torch copies rows of a few bytes
slowly; where runs of 16 bytes change places they travel as one 16-byte element each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.gguf.types import GGMLType

Scales = tuple[Tensor, Tensor | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How to unpack blocks of one type: value[i] = scale[i // group] * q[i] + minimum[i // group].

    `codes`: raw blocks to q [n, block_size] of type `q`, in the order of the elements. `scales`: raw blocks to scale
    and minimum, float32 [n, block_size / group] each; no minimum (None) where the type has none.
    """

    q: torch.dtype
    codes: Callable[[Tensor], Tensor]
    scales: Callable[[Tensor], Scales]
    group: int


# A byte in each of the eight bytes of an int64.
_EACH = 0x0101010101010101

# The 16 values of the non-linear 4-bit types.
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# Twice the values of a 4-bit float with 2 exponent bits and 1 mantissa bit; the block's scale is halved in turn.
FP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _half(raw: Tensor, byte: int) -> Tensor:
    """The float16 at `byte` of each block, as float32 [n, 1]."""
    return raw.view(torch.float16)[:, byte // 2 : byte // 2 + 1].float()


def _interleaved(parts: list[Tensor], run: int) -> Tensor:
    """Take `run` bytes of each part in turn, until all are used up: parts of m bytes to uint8 [m / run, parts * run].

    `parts` are contiguous and of equal size.
    """
    # 16-byte elements: CPUs alone know complex128 everywhere
    wide = torch.complex128 if parts[0].device.type == "cpu" else torch.int64
    runs = [part.view(torch.uint8).view(-1, run).view(wide) for part in parts]
    return torch.stack(runs, dim=1).view(torch.uint8).view(-1, len(parts) * run)


def _nibbles(packed: Tensor, run: int) -> Tensor:
    """Split bytes [n, m] into nibbles [n, 2m]: of each `run` bytes, all the low ones, then all the high ones."""
    n, m = packed.shape
    packed = packed.contiguous()
    return _interleaved([packed & 0x0F, packed >> 4], run).view(n, 2 * m)


def _fields(packed: Tensor, *, bits: int) -> Tensor:
    """Split bytes [n, m] into fields of 1 or 2 bits: of each 32 bytes all lowest fields, then the next, and so on.

    Returns uint8 [n, m * 8 / bits].
    """
    n, m = packed.shape
    packed = packed.contiguous()
    mask = (1 << bits) - 1
    fields = [(packed >> shift).bitwise_and_(mask) for shift in range(0, 8, bits)]
    return _interleaved(fields, 32).view(n, m * 8 // bits)


def _fifth_bits(packed: Tensor) -> Tensor:
    """Spread 32 bits a block, [n, 4] bytes, to bytes [n, 32] that are 16 where the bit is set and 0 elsewhere."""
    spread = packed.contiguous().long()
    spread = spread.bitwise_or_(spread << 28).bitwise_and_(0x0000000F_0000000F)
    # each int32 now holds four bits: bit i moves to bit 4 of byte i
    return spread.view(torch.int32).mul_(0x02040810).bitwise_and_(0x10101010).view(torch.uint8)


def _six_bit_scales(raw: Tensor) -> Scales:
    """Scales and minimums of Q4_K and Q5_K: 8 each, of 6 bits, in the 12 bytes after their two factors."""
    low_scales, low_minimums, high = raw[:, 4:16].contiguous().view(torch.int32).unbind(1)
    unpacked = torch.stack(
        (
            low_scales & 0x3F3F3F3F,
            (high & 0x0F0F0F0F) | ((low_scales >> 2) & 0x30303030),
            low_minimums & 0x3F3F3F3F,
            ((high >> 4) & 0x0F0F0F0F) | ((low_minimums >> 2) & 0x30303030),
        ),
        dim=1,
    )
    values = unpacked.view(torch.uint8).float()
    return values[:, :8] * _half(raw, 0), values[:, 8:] * -_half(raw, 2)


def _one_scale(raw: Tensor) -> Scales:
    return _half(raw, 0), None


def _scale_and_minimum(raw: Tensor) -> Scales:
    return _half(raw, 0), _half(raw, 2)


def _q4_0_scales(raw: Tensor) -> Scales:
    # the codes stay 0..15, so that all 4-bit types look alike to a packer; the offset is exact in float32
    scale = _half(raw, 0)
    return scale, scale * -8.0


def _q5_0_codes(raw: Tensor) -> Tensor:
    return _nibbles(raw[:, 6:], 16).add_(_fifth_bits(raw[:, 2:6])).view(torch.int8).sub_(16)


def _q5_1_codes(raw: Tensor) -> Tensor:
    return _nibbles(raw[:, 8:], 16).add_(_fifth_bits(raw[:, 4:8]))


def _q2_k_scales(raw: Tensor) -> Scales:
    packed = raw[:, :16]
    return (packed & 0x0F).float() * _half(raw, 80), (packed >> 4).float() * -_half(raw, 82)


def _q3_k_codes(raw: Tensor) -> Tensor:
    # two low bits, and a mask whose set bits say "do not subtract 4"
    low, high = _fields(raw[:, 32:96], bits=2), _fields(raw[:, :32], bits=1)
    return low.add_(high, alpha=4).view(torch.int8).sub_(4)


def _q3_k_scales(raw: Tensor) -> Scales:
    low, high = raw[:, 96:104], raw[:, 104:108]
    scale = torch.cat((low & 0x0F, low >> 4), dim=1)
    scale += torch.cat([(high >> shift) & 3 for shift in (0, 2, 4, 6)], dim=1) << 4
    return (scale.float() - 32.0) * _half(raw, 108), None


def _q5_k_codes(raw: Tensor) -> Tensor:
    return _nibbles(raw[:, 48:], 32).add_(_fields(raw[:, 16:48], bits=1), alpha=16)


def _q6_k_codes(raw: Tensor) -> Tensor:
    low, high = _nibbles(raw[:, :128], 64), _fields(raw[:, 128:192], bits=2)
    return low.add_(high, alpha=16).view(torch.int8).sub_(32)


def _q6_k_scales(raw: Tensor) -> Scales:
    return raw[:, 192:208].view(torch.int8).float() * _half(raw, 208), None


def _iq4_xs_scales(raw: Tensor) -> Scales:
    low = raw[:, 4:8]
    shifts = torch.arange(0, 16, 2, dtype=torch.int32, device=raw.device)
    high = (raw[:, 2:4].contiguous().view(torch.int16).int() >> shifts).bitwise_and_(3)
    scale = torch.stack((low & 0x0F, low >> 4), dim=2).view(-1, 8).int().add_(high, alpha=16)
    return (scale.float() - 32.0) * _half(raw, 0), None


def _mxfp4_scales(raw: Tensor) -> Scales:
    exponent = raw[:, :1].int()
    # 2 ** (exponent - 128) by its bits; below 2 the float is subnormal
    bits = torch.where(exponent < 2, 0x00200000 << exponent.clamp(max=1), (exponent - 1) << 23)
    return bits.view(torch.float32), None


_PAIR_TABLES: dict[tuple[tuple[int, ...], torch.device], Tensor] = {}


def _pair_table(values: tuple[int, ...], device: torch.device) -> Tensor:
    """For every two bytes: the values of their low nibbles, then of their high ones, as four bytes; int32 [65536]."""
    table = _PAIR_TABLES.get((values, device))
    if table is None:
        byte = torch.tensor(values, dtype=torch.int8)
        pair = torch.arange(1 << 16)
        nibbles = torch.stack([pair & 15, (pair >> 8) & 15, (pair >> 4) & 15, pair >> 12], dim=1)
        table = _PAIR_TABLES[values, device] = byte[nibbles].view(torch.int32).view(-1).to(device)
    return table


def _looked_up(packed: Tensor, values: tuple[int, ...]) -> Tensor:
    """The values that nibbles stand for: bytes [n, m] to int8 [n, 2m], in runs of 16 as `_nibbles` has them."""
    n, m = packed.shape
    pairs = packed.contiguous().view(torch.int16).int().bitwise_and_(0xFFFF)
    found = torch.index_select(_pair_table(values, packed.device), 0, pairs.view(-1))
    # [runs, 8 pairs, low or high] to [runs, low or high, 8 pairs], each a pair of int8
    return found.view(torch.int16).view(-1, 8, 2).transpose(1, 2).contiguous().view(torch.int8).view(n, 2 * m)


LAYOUTS: dict[GGMLType, Layout] = {
    GGMLType.Q4_0: Layout(
        q=torch.uint8, codes=lambda raw: _nibbles(raw[:, 2:], 16), scales=_q4_0_scales, group=32
    ),
    GGMLType.Q4_1: Layout(
        q=torch.uint8, codes=lambda raw: _nibbles(raw[:, 4:], 16), scales=_scale_and_minimum, group=32
    ),
    GGMLType.Q5_0: Layout(q=torch.int8, codes=_q5_0_codes, scales=_one_scale, group=32),
    GGMLType.Q5_1: Layout(q=torch.uint8, codes=_q5_1_codes, scales=_scale_and_minimum, group=32),
    GGMLType.Q8_0: Layout(
        q=torch.int8, codes=lambda raw: raw[:, 2:].view(torch.int8), scales=_one_scale, group=32
    ),
    GGMLType.Q2_K: Layout(
        q=torch.uint8, codes=lambda raw: _fields(raw[:, 16:80], bits=2), scales=_q2_k_scales, group=16
    ),
    GGMLType.Q3_K: Layout(q=torch.int8, codes=_q3_k_codes, scales=_q3_k_scales, group=16),
    GGMLType.Q4_K: Layout(
        q=torch.uint8, codes=lambda raw: _nibbles(raw[:, 16:], 32), scales=_six_bit_scales, group=32
    ),
    GGMLType.Q5_K: Layout(q=torch.uint8, codes=_q5_k_codes, scales=_six_bit_scales, group=32),
    GGMLType.Q6_K: Layout(q=torch.int8, codes=_q6_k_codes, scales=_q6_k_scales, group=16),
    GGMLType.IQ4_NL: Layout(
        q=torch.int8, codes=lambda raw: _looked_up(raw[:, 2:], IQ4_VALUES), scales=_one_scale, group=32
    ),
    GGMLType.IQ4_XS: Layout(
        q=torch.int8, codes=lambda raw: _looked_up(raw[:, 8:], IQ4_VALUES), scales=_iq4_xs_scales, group=32
    ),
    GGMLType.MXFP4: Layout(
        q=torch.int8, codes=lambda raw: _looked_up(raw[:, 1:], FP4_VALUES), scales=_mxfp4_scales, group=32
    ),
}
