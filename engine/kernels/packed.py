"""Packed matrices: how quantised weights lie in memory for the decode kernels of a CPU. Packing and unpacking.

A packed matrix keeps each weight as an integer code of 4, 5 or 8 bits, and a scale (and perhaps a minimum) for each
group of 16 or 32 weights of a row, just as the model file had them: no code is rounded again.

The layout serves `packed_gemv`: rows in blocks of 32, so that one load brings the same column of 32 rows and the sums
of rows need no shuffling; within a block group after group, within a group column after column. Codes below 8 bits
pair column j of a group with column j + group/2, as the model file's own blocks do.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK_ROWS = 32


class CodeBits(enum.IntEnum):
    """Width of a code as stored."""

    B4 = 4
    B5 = 5
    B8 = 8

    def group_bytes(self, group: int) -> int:
        """Bytes of one group of columns in one block of rows."""
        if self is CodeBits.B8:
            return group * BLOCK_ROWS
        return group // 2 * self.pair_bytes

    @property
    def pair_bytes(self) -> int:
        """Bytes of two paired columns in one block: 32 bytes of half codes, then for 5 bits the fifth bits of the
        lower column (a bit a row) and of the upper."""
        return BLOCK_ROWS + (8 if self is CodeBits.B5 else 0)


@dataclass(frozen=True, kw_only=True)
class PackedMatrix:
    """W [N, K]: weight = norm * scale * (code + offset), or norm * (scale * code + minimum) where there are minima.

    `codes` uint8 (int8 for 8 bits) [N/32, K/group, bytes of a group]; `scales` and `minima` float16 [N/32, K/group,
    32], `minima` None where there are none. `norm` brings the scales into float16's good range. N is padded to a
    multiple of 32 with zero scales; `n_rows` is the true one.
    """

    bits: CodeBits
    group: int
    offset: int
    codes: Tensor
    scales: Tensor
    minima: Tensor | None
    norm: float
    n_rows: int
    n_cols: int

    @property
    def n_blocks(self) -> int:
        return self.codes.shape[0]

    @property
    def n_bytes(self) -> int:
        """Bytes that one product reads."""
        minima = self.minima.nbytes if self.minima is not None else 0
        return self.codes.nbytes + self.scales.nbytes + minima


def pack(
    codes: Tensor, scales: Tensor, minima: Tensor | None, *, bits: CodeBits, group: int, offset: int = 0
) -> PackedMatrix:
    """Pack `codes` [N, K] (int8 for 8 bits, else uint8), `scales` and `minima` float32 [N, K/group].

    K must be a multiple of `group`, and codes must fit their bits; neither is checked.
    """
    n_rows, n_cols = codes.shape
    padding = (0, 0, 0, -n_rows % BLOCK_ROWS)
    if padding[3]:
        codes, scales = F.pad(codes, padding), F.pad(scales, padding)
        minima = F.pad(minima, padding) if minima is not None else None
    largest = max(float(part.abs().max()) for part in (scales, minima) if part is not None)
    norm = largest if largest > 0 else 1.0
    return PackedMatrix(
        bits=bits,
        group=group,
        offset=offset,
        codes=_pack_codes(codes, bits, group),
        scales=_by_blocks(scales / norm).half(),
        minima=_by_blocks(minima / norm).half() if minima is not None else None,
        norm=norm,
        n_rows=n_rows,
        n_cols=n_cols,
    )


def unpack(matrix: PackedMatrix) -> Tensor:
    """The weights in float32 [N, K]."""
    packed, group = matrix.codes, matrix.group
    if matrix.bits is CodeBits.B8:
        codes = packed.unflatten(2, (group, BLOCK_ROWS)).float()
    else:
        pairs = packed.unflatten(2, (group // 2, matrix.bits.pair_bytes))
        halves = pairs[..., :BLOCK_ROWS]
        codes = torch.cat((halves & 15, halves >> 4), dim=2).float()
        if matrix.bits is CodeBits.B5:
            fifth = (pairs[..., BLOCK_ROWS:].unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8)) & 1
            lower, upper = fifth.flatten(3).chunk(2, dim=-1)
            codes += 16.0 * torch.cat((lower, upper), dim=2).float()
    scales = matrix.scales.float().unsqueeze(2)
    if matrix.minima is None:
        weights = (codes + matrix.offset) * scales
    else:
        weights = codes * scales + matrix.minima.float().unsqueeze(2)
    rows = (weights * matrix.norm).flatten(1, 2).transpose(1, 2).flatten(0, 1)
    return rows[: matrix.n_rows]


def _by_blocks(matrix: Tensor) -> Tensor:
    """[N, C] -> [N/32, C, 32], contiguous."""
    return matrix.unflatten(0, (-1, BLOCK_ROWS)).transpose(1, 2).contiguous()


def _pack_codes(codes: Tensor, bits: CodeBits, group: int) -> Tensor:
    blocks = _by_blocks(codes).unflatten(1, (-1, group))
    if bits is CodeBits.B8:
        return blocks.flatten(2)
    lower, upper = blocks.chunk(2, dim=2)
    halves = (lower & 15) | (upper << 4)
    if bits is CodeBits.B4:
        return halves.flatten(2)
    places = (1 << torch.arange(8, dtype=torch.int16)).to(torch.uint8)
    fifth = [
        ((part >> 4).unflatten(3, (4, 8)) * places).sum(-1, dtype=torch.uint8) for part in (lower, upper)
    ]
    return torch.cat((halves, *fifth), dim=3).flatten(2)
