"""y = x W^T for a few rows of x and a packed W: the decode form on a CPU, its layout, and its plain reference.

A packed matrix keeps each weight as an integer code of 4, 5 or 8 bits and a scale (and perhaps a minimum) for each
group of 16 or 32 weights of a row, just as the model file had them: no code is rounded again. The kernel turns codes
into float32 in registers and multiplies with float32 activations, so its only error is float32's. It is bound by
memory, not by arithmetic, up to about four rows. Measured on a 2-core AVX-512 machine: 31, 35 and 45 thousand million
weights a second for 8, 5 and 4 bits, against 15 (8 bits) and 36 (4 bits) of torch's own packed products.

The layout serves that: rows of W in blocks of 32, so that one load brings the same column of 32 rows and the row sums
need no shuffling; within a block, column after column.
"""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.kernels import jit

BLOCK_ROWS = 32

# Rows of x per kernel call: with 4 the accumulators fill the registers, more would spill.
MAX_ROWS = 4


class CodeBits(enum.IntEnum):
    """Width of a code as stored."""

    B4 = 4
    B5 = 5
    B8 = 8


@dataclass(frozen=True, kw_only=True)
class PackedMatrix:
    """W [N, K]: weight = norm * scale * (code + offset), or norm * (scale * code + minimum) where there are minima.

    `codes` uint8 (int8 for 8 bits), [N/32, K, 32] for 8 bits, [N/32, K/2, 32] for 4 (low half: even column), and
    [N/32, K/2, 40] for 5, where 8 bytes of fifth bits follow each pair of columns. `scales` and `minima` float16
    [N/32, K/group, 32]; `minima` is None where there are none. `norm` brings the scales into float16's good range.
    N is padded to a multiple of 32; `n_rows` is the true one.
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
    def n_bytes(self) -> int:
        """Bytes that one product reads."""
        minima = self.minima.nbytes if self.minima is not None else 0
        return self.codes.nbytes + self.scales.nbytes + minima


def pack(
    codes: Tensor, scales: Tensor, minima: Tensor | None, *, bits: CodeBits, group: int, offset: int = 0
) -> PackedMatrix:
    """Pack `codes` [N, K] (int8 for 8 bits, else uint8), `scales` and `minima` float32 [N, K/group].

    K must be a multiple of `group` and even; codes must fit their bits (not checked).
    """
    n_rows, n_cols = codes.shape
    padding = -n_rows % BLOCK_ROWS
    if padding:
        codes = torch.nn.functional.pad(codes, (0, 0, 0, padding))
        scales = torch.nn.functional.pad(scales, (0, 0, 0, padding))
        minima = torch.nn.functional.pad(minima, (0, 0, 0, padding)) if minima is not None else None
    norm = max(float(scales.abs().max()), float(minima.abs().max()) if minima is not None else 0.0) or 1.0
    return PackedMatrix(
        bits=bits,
        group=group,
        offset=offset,
        codes=_pack_codes(codes, bits),
        scales=_by_blocks(scales / norm).half(),
        minima=_by_blocks(minima / norm).half() if minima is not None else None,
        norm=norm,
        n_rows=n_rows,
        n_cols=n_cols,
    )


def _by_blocks(matrix: Tensor) -> Tensor:
    """[N, C] -> [N/32, C, 32], contiguous."""
    n_rows, n_cols = matrix.shape
    return matrix.view(n_rows // BLOCK_ROWS, BLOCK_ROWS, n_cols).transpose(1, 2).contiguous()


def _pack_codes(codes: Tensor, bits: CodeBits) -> Tensor:
    blocks = _by_blocks(codes)
    if bits is CodeBits.B8:
        return blocks
    even, odd = blocks[:, 0::2], blocks[:, 1::2]
    halves = (even & 15) | (odd << 4)
    if bits is CodeBits.B4:
        return halves
    packed = torch.empty(*halves.shape[:2], BLOCK_ROWS + 8, dtype=torch.uint8)
    packed[..., :BLOCK_ROWS] = halves
    weights = (1 << torch.arange(8, dtype=torch.int16)).to(torch.uint8)
    for place, column in enumerate((even, odd)):
        fifth = (column >> 4).view(*halves.shape[:2], 4, 8)
        start = BLOCK_ROWS + 4 * place
        packed[..., start : start + 4] = (fifth * weights).sum(-1, dtype=torch.uint8)
    return packed


def unpack(matrix: PackedMatrix) -> Tensor:
    """The weights in float32 [N, K]."""
    packed = matrix.codes
    if matrix.bits is CodeBits.B8:
        codes = packed.float()
    else:
        halves = packed[..., :BLOCK_ROWS]
        codes = torch.stack((halves & 15, halves >> 4), dim=2).flatten(1, 2).float()
        if matrix.bits is CodeBits.B5:
            shifts = torch.arange(8, dtype=torch.uint8)
            fifth = (packed[..., BLOCK_ROWS:].unsqueeze(-1) >> shifts) & 1
            codes += 16.0 * fifth.reshape(*packed.shape[:2], 2, BLOCK_ROWS).flatten(1, 2).float()
    repeats = matrix.group
    scales = matrix.scales.float().repeat_interleave(repeats, 1)
    if matrix.minima is None:
        weights = (codes + matrix.offset) * scales
    else:
        weights = codes * scales + matrix.minima.float().repeat_interleave(repeats, 1)
    return (weights * matrix.norm).transpose(1, 2).flatten(0, 1)[: matrix.n_rows]


def gemv_reference(x: Tensor, matrix: PackedMatrix) -> Tensor:
    """x [M, K] float32 -> [M, N] float32, in plain torch."""
    return x @ unpack(matrix).t()


def gemv(x: Tensor, matrix: PackedMatrix) -> Tensor:
    """x [M, K] float32 -> [M, N] float32. Each row's numbers do not depend on how many rows there are."""
    if not jit.available():
        return gemv_reference(x, matrix)
    n_padded = matrix.codes.shape[0] * BLOCK_ROWS
    x = x.contiguous()
    out = torch.empty(x.shape[0], n_padded, dtype=torch.float32)
    threads = torch.get_num_threads()
    n_groups = matrix.n_cols // matrix.group
    # Each thread keeps its own sums of x by group, which is cheaper than handing them over.
    sums = torch.empty(threads * MAX_ROWS * n_groups, dtype=torch.float32)
    for first in range(0, x.shape[0], MAX_ROWS):
        rows = min(MAX_ROWS, x.shape[0] - first)
        kernel = _kernel(matrix.bits, rows, matrix.group, matrix.offset, matrix.minima is not None)
        kernel(
            x.data_ptr() + 4 * first * matrix.n_cols,
            matrix.codes.data_ptr(),
            matrix.scales.data_ptr(),
            matrix.minima.data_ptr() if matrix.minima is not None else 0,
            out.data_ptr() + 4 * first * n_padded,
            sums.data_ptr(),
            matrix.n_cols,
            matrix.codes.shape[0],
            n_padded,
            threads,
        )
    if matrix.norm != 1.0:
        out *= matrix.norm
    return out[:, : matrix.n_rows]


_FIELDS = ("x", "codes", "scales", "minima", "out", "sums", "n_cols", "n_blocks", "n_padded")


@functools.cache
def _kernel(bits: CodeBits, rows: int, group: int, offset: int, has_minima: bool) -> jit.Kernel:
    """The kernel for `rows` rows of x and one kind of packed matrix."""
    k = jit.Builder(_FIELDS)
    b, c = k.b, k.c
    n_groups = b.udiv(k.field("n_cols"), c(group))
    needs_sums = has_minima or offset != 0
    column_bytes = {CodeBits.B8: 2 * BLOCK_ROWS, CodeBits.B4: BLOCK_ROWS, CodeBits.B5: BLOCK_ROWS + 8}[bits]
    group_bytes = column_bytes * group // 2
    scale_bytes = 2 * BLOCK_ROWS
    halves = range(BLOCK_ROWS // jit.LANES)
    sums = k.thread_slice("sums", b.mul(n_groups, c(4 * rows)))

    def x_address(row: int, column: Any) -> Any:
        return b.add(k.field("x"), b.mul(c(4), b.add(b.mul(k.field("n_cols"), c(row)), column)))

    def sum_address(row: int, index: Any) -> Any:
        return b.add(sums, b.mul(c(4), b.add(b.mul(n_groups, c(row)), index)))

    def sum_group(index: Any, _: list[Any]) -> list[Any]:
        for row in range(rows):
            address = x_address(row, b.mul(index, c(group)))
            total = k.load(address, k.vf32)
            for lane in range(jit.LANES, group, jit.LANES):
                total = b.fadd(total, k.load(address, k.vf32, 4 * lane))
            k.store(k.sum_lanes(total), sum_address(row, index))
        return []

    def weights(address: Any, column: int) -> list[Any]:
        """Two vectors of float32 codes: 32 rows of one column of the group at `address`."""
        if bits is CodeBits.B8:
            at = column * BLOCK_ROWS
            codes = [b.sext(k.load(address, k.vi8, at + jit.LANES * half), k.vi32) for half in halves]
            return [b.sitofp(code, k.vf32) for code in codes]
        pair, odd = divmod(column, 2)
        vectors = []
        for half in halves:
            code = b.zext(k.load(address, k.vi8, pair * column_bytes + jit.LANES * half), k.vi32)
            code = b.lshr(code, k.ints(4)) if odd else b.and_(code, k.ints(15))
            if bits is CodeBits.B5:
                fifth = k.load(address, k.i16, pair * column_bytes + BLOCK_ROWS + 4 * odd + 2 * half)
                code = b.select(b.bitcast(fifth, k.mask), b.or_(code, k.ints(16)), code)
            vectors.append(b.sitofp(code, k.vf32))
        return vectors

    def block(block_index: Any, _: list[Any]) -> list[Any]:
        first_group = b.mul(block_index, n_groups)

        def one_group(index: Any, totals: list[Any]) -> list[Any]:
            place = b.add(first_group, index)
            codes = b.add(k.field("codes"), b.mul(place, c(group_bytes)))
            # Even and odd columns add up apart: twice the chains hide the latency of the multiply-add.
            partial = [[[k.floats(0)] * len(halves) for _ in range(rows)] for _ in range(2)]
            for column in range(group):
                vectors = weights(codes, column)
                for row in range(rows):
                    x = k.splat(k.load(x_address(row, b.mul(index, c(group))), k.f32, 4 * column))
                    sums_of = partial[column % 2][row]
                    for half in halves:
                        sums_of[half] = k.fma(vectors[half], x, sums_of[half])

            def spread(name: str, half: int) -> Any:
                address = b.add(k.field(name), b.mul(place, c(scale_bytes)))
                return b.fpext(k.load(address, k.vf16, 2 * jit.LANES * half), k.vf32)

            scales = [spread("scales", half) for half in halves]
            minima = [spread("minima", half) for half in halves] if has_minima else []
            following = []
            for row in range(rows):
                x_sum = k.splat(k.load(sum_address(row, index), k.f32)) if needs_sums else None
                for half in halves:
                    dot = b.fadd(partial[0][row][half], partial[1][row][half])
                    if offset and not has_minima:
                        dot = k.fma(x_sum, k.floats(offset), dot)
                    total = k.fma(dot, scales[half], totals[row * len(halves) + half])
                    if has_minima:
                        total = k.fma(x_sum, minima[half], total)
                    following.append(total)
            return following

        totals = k.loop(c(0), n_groups, [k.floats(0)] * (rows * len(halves)), one_group)
        for row in range(rows):
            for half in halves:
                column = b.add(b.mul(block_index, c(BLOCK_ROWS)), c(jit.LANES * half))
                at = b.add(b.mul(k.field("n_padded"), c(row)), column)
                k.store(totals[row * len(halves) + half], b.add(k.field("out"), b.mul(at, c(4))))
        return []

    if needs_sums:
        k.loop(c(0), n_groups, [], sum_group)
    k.loop(*k.share(k.field("n_blocks")), [], block)
    return k.compile()
