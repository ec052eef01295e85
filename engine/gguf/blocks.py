"""How each quantised type packs its blocks: raw bytes to integer codes, scales and minimums.

Every type here is the same thing in another wrapping: value = scale * code + minimum, with a scale (and
perhaps a minimum) for each group of codes. Each function takes the raw bytes of whole blocks, [n, type_size]
uint8, and returns codes [n, block_size] in the order of the elements, with scales and minimums [n, groups] in
float32. They know nothing of tensors' shapes, chunks or output types.

Bytes are handled eight (or four) at a time as one integer where the operation keeps to its byte: masks are
applied after each shift, so what a shift drags over from the neighbouring byte is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.gguf.types import GGMLType

# One mask byte in each of the eight bytes of an int64.
_EACH = 0x0101010101010101

# The 16 values of the non-linear 4-bit types.
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# Twice the values of a 4-bit float with 2 exponent bits and 1 mantissa bit; the block's scale is halved in turn.
FP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocks:
    """Unpacked blocks: value[i] = scale[i // group] * q[i] + minimum[i // group].

    `q`: uint8 or int8 [n, block_size]; `scale`: float32 [n, block_size / group]; `minimum`: the same shape,
    or None where the type has none.
    """

    q: Tensor
    scale: Tensor
    minimum: Tensor | None = None


def _half(raw: Tensor, byte: int) -> Tensor:
    """The float16 at `byte` of each block, as float32 [n, 1]."""
    return raw.view(torch.float16)[:, byte // 2 : byte // 2 + 1].float()


def _nibbles(packed: Tensor, run: int) -> Tensor:
    """Split bytes [n, m] into nibbles [n, 2m]: of each `run` bytes, all the low ones, then all the high ones."""
    n, m = packed.shape
    words = packed.contiguous().view(torch.int64).view(-1, run // 8)
    split = torch.empty(words.shape[0], 2, run // 8, dtype=torch.int64, device=packed.device)
    torch.bitwise_and(words, 0x0F * _EACH, out=split[:, 0])
    torch.bitwise_and(words >> 4, 0x0F * _EACH, out=split[:, 1])
    return split.view(torch.uint8).view(n, 2 * m)


def _fields(packed: Tensor, *, bits: int) -> Tensor:
    """Split bytes [n, m] into fields of 1 or 2 bits: of each 32 bytes all lowest fields, then the next, and
    so on.

    Returns uint8 [n, m * 8 / bits].
    """
    n, m = packed.shape
    words = packed.contiguous().view(torch.int64).view(-1, 1, 4)
    shifts = torch.arange(0, 8, bits, dtype=torch.int64, device=packed.device).view(1, -1, 1)
    fields = (words >> shifts).bitwise_and_(((1 << bits) - 1) * _EACH)
    return fields.view(torch.uint8).view(n, m * 8 // bits)


def _fifth_bits(packed: Tensor) -> Tensor:
    """Spread 32 bits a block, [n, 4] bytes, to bytes [n, 32] that are 16 where the bit is set and 0 elsewhere."""
    words = packed.contiguous().view(torch.int32)
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
    four = (words >> shifts).bitwise_and_(0xF)
    # bit i of four moves to bit 4 of byte i
    return four.mul_(0x02040810).bitwise_and_(0x10101010).view(torch.uint8)


def _six_bit_scales(packed: Tensor) -> Tensor:
    """The 8 scales and 8 minimums of Q4_K and Q5_K, of 6 bits each in 12 bytes: float32 [n, 16]."""
    words = packed.contiguous().view(torch.int32)
    low_scales, low_minimums, high = words.unbind(1)
    unpacked = torch.stack(
        (
            low_scales & 0x3F3F3F3F,
            (high & 0x0F0F0F0F) | ((low_scales >> 2) & 0x30303030),
            low_minimums & 0x3F3F3F3F,
            ((high >> 4) & 0x0F0F0F0F) | ((low_minimums >> 2) & 0x30303030),
        ),
        dim=1,
    )
    return unpacked.view(torch.uint8).float()


def _q4_0(raw: Tensor) -> Blocks:
    scale = _half(raw, 0)
    # the codes stay 0..15, so that all 4-bit types look alike to a packer; the offset is exact in float32
    return Blocks(q=_nibbles(raw[:, 2:], 16), scale=scale, minimum=scale * -8.0)


def _q4_1(raw: Tensor) -> Blocks:
    return Blocks(q=_nibbles(raw[:, 4:], 16), scale=_half(raw, 0), minimum=_half(raw, 2))


def _q5_0(raw: Tensor) -> Blocks:
    q = _nibbles(raw[:, 6:], 16).add_(_fifth_bits(raw[:, 2:6]))
    return Blocks(q=q.view(torch.int8).sub_(16), scale=_half(raw, 0))


def _q5_1(raw: Tensor) -> Blocks:
    q = _nibbles(raw[:, 8:], 16).add_(_fifth_bits(raw[:, 4:8]))
    return Blocks(q=q, scale=_half(raw, 0), minimum=_half(raw, 2))


def _q8_0(raw: Tensor) -> Blocks:
    return Blocks(q=raw[:, 2:].view(torch.int8), scale=_half(raw, 0))


def _q2_k(raw: Tensor) -> Blocks:
    nibbles = raw[:, :16]
    return Blocks(
        q=_fields(raw[:, 16:80], bits=2),
        scale=(nibbles & 0x0F).float() * _half(raw, 80),
        minimum=(nibbles >> 4).float() * -_half(raw, 82),
    )


def _q3_k(raw: Tensor) -> Blocks:
    # codes -4..3: two low bits, and a mask whose set bits say "do not subtract 4"
    q = _fields(raw[:, 32:96], bits=2).add_(_fields(raw[:, :32], bits=1), alpha=4)
    low, high = raw[:, 96:104], raw[:, 104:108]
    scale = torch.cat((low & 0x0F, low >> 4), dim=1)
    scale += torch.cat([(high >> shift) & 3 for shift in (0, 2, 4, 6)], dim=1) << 4
    return Blocks(q=q.view(torch.int8).sub_(4), scale=(scale.float() - 32.0) * _half(raw, 108))


def _q4_k(raw: Tensor) -> Blocks:
    scales = _six_bit_scales(raw[:, 4:16])
    return Blocks(
        q=_nibbles(raw[:, 16:], 32),
        scale=scales[:, :8] * _half(raw, 0),
        minimum=scales[:, 8:] * -_half(raw, 2),
    )


def _q5_k(raw: Tensor) -> Blocks:
    scales = _six_bit_scales(raw[:, 4:16])
    return Blocks(
        q=_nibbles(raw[:, 48:], 32).add_(_fields(raw[:, 16:48], bits=1), alpha=16),
        scale=scales[:, :8] * _half(raw, 0),
        minimum=scales[:, 8:] * -_half(raw, 2),
    )


def _q6_k(raw: Tensor) -> Blocks:
    q = _nibbles(raw[:, :128], 64).add_(_fields(raw[:, 128:192], bits=2), alpha=16)
    scale = raw[:, 192:208].view(torch.int8).float() * _half(raw, 208)
    return Blocks(q=q.view(torch.int8).sub_(32), scale=scale)


def _iq4_nl(raw: Tensor) -> Blocks:
    return Blocks(q=_looked_up(raw[:, 2:], IQ4_VALUES), scale=_half(raw, 0))


def _iq4_xs(raw: Tensor) -> Blocks:
    low, device = raw[:, 4:8], raw.device
    shifts = torch.arange(0, 16, 2, dtype=torch.int32, device=device)
    high = (raw[:, 2:4].contiguous().view(torch.int16).int() >> shifts).bitwise_and_(3)
    scale = torch.stack((low & 0x0F, low >> 4), dim=2).view(-1, 8).int().add_(high, alpha=16)
    return Blocks(
        q=_looked_up(raw[:, 8:], IQ4_VALUES),
        scale=(scale.float() - 32.0) * _half(raw, 0),
    )


def _mxfp4(raw: Tensor) -> Blocks:
    exponent = raw[:, :1].int()
    # 2 ** (exponent - 128) by its bits; below 2 the float is subnormal
    bits = torch.where(exponent < 2, 0x00200000 << exponent.clamp(max=1), (exponent - 1) << 23)
    return Blocks(q=_looked_up(raw[:, 1:], FP4_VALUES), scale=bits.view(torch.float32))


_PAIRS: dict[tuple[tuple[int, ...], torch.device], Tensor] = {}


def _pair_table(values: tuple[int, ...], device: torch.device) -> Tensor:
    """For every two bytes: the values of their low nibbles, then of their high ones, as four bytes; int32 [65536]."""
    table = _PAIRS.get((values, device))
    if table is None:
        byte = torch.tensor(values, dtype=torch.int8)
        pair = torch.arange(1 << 16)
        nibbles = torch.stack([pair & 15, (pair >> 8) & 15, (pair >> 4) & 15, pair >> 12], dim=1)
        table = _PAIRS[values, device] = byte[nibbles].view(torch.int32).view(-1).to(device)
    return table


def _looked_up(packed: Tensor, values: tuple[int, ...]) -> Tensor:
    """The values that nibbles stand for: bytes [n, m] to int8 [n, 2m], in runs of 16 as `_nibbles` has them."""
    n, m = packed.shape
    pairs = packed.contiguous().view(torch.int16).int().bitwise_and_(0xFFFF)
    found = torch.index_select(_pair_table(values, packed.device), 0, pairs.view(-1))
    # [runs, 8 pairs, low or high] to [runs, low or high, 8 pairs], each a pair of int8
    return found.view(torch.int16).view(-1, 8, 2).transpose(1, 2).contiguous().view(torch.int8).view(n, 2 * m)


UNPACKERS: dict[GGMLType, Callable[[Tensor], Blocks]] = {
    GGMLType.Q4_0: _q4_0,
    GGMLType.Q4_1: _q4_1,
    GGMLType.Q5_0: _q5_0,
    GGMLType.Q5_1: _q5_1,
    GGMLType.Q8_0: _q8_0,
    GGMLType.Q2_K: _q2_k,
    GGMLType.Q3_K: _q3_k,
    GGMLType.Q4_K: _q4_k,
    GGMLType.Q5_K: _q5_k,
    GGMLType.Q6_K: _q6_k,
    GGMLType.IQ4_NL: _iq4_nl,
    GGMLType.IQ4_XS: _iq4_xs,
    GGMLType.MXFP4: _mxfp4,
}

# Codes that share one scale.
GROUPS: dict[GGMLType, int] = {
    kind: 16 if kind in (GGMLType.Q2_K, GGMLType.Q3_K, GGMLType.Q6_K) else 32 for kind in UNPACKERS
}
