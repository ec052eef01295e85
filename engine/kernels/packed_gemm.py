"""y = x W^T for many rows of x and a packed W: the prefill form on a CPU with 8-bit dot products (AVX-512 VNNI).

Rows of x are rounded to 8 bits by the groups that W has scales for. Within a group the product is then one of integers,
exact, and one instruction takes four of its terms, twice what bfloat16's takes. The codes are the decode form's own: a
model needs no second copy of its weights. A block of 32 rows of W is unpacked once into a core's cache and meets all
rows of x there. As in the decode form, normalisation, bias, activation and addition happen in the same call.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels import jit
from engine.kernels.jit import LANES
from engine.kernels.packed import BLOCK_ROWS, CodeBits, PackedMatrix, unpack
from engine.kernels.packed_gemv import Ending, Normed, activate, finish_reference

# Rows of x whose sums are in registers together.
TILE_ROWS = 4

# The largest code of x.
_LARGEST = 127

# What makes a signed code an unsigned one.
_SIGN = 128

# Columns that one dot product instruction takes.
_QUAD = 4

# Pieces of work a thread should get at least, so that none waits long for another, and the fewest rows of x in one.
_ITEMS_PER_THREAD = 8
_ITEM_ROWS = 64


def available() -> bool:
    """Whether the kernel can be used here."""
    return jit.has_cpu_feature("avx512vnni")


class Gemm:
    """One packed matrix with all that is done around its product; as `Gemv`, for many rows. Needs `available()`."""

    def __init__(
        self,
        matrix: PackedMatrix,
        *,
        normed: Normed | None = None,
        bias: Tensor | None = None,
        ending: Ending = Ending.STORE,
    ) -> None:
        self.matrix = matrix
        self.width = matrix.n_blocks * BLOCK_ROWS // (2 if ending.gated else 1)
        self._normed = normed
        self._bias = bias
        self._n_units = matrix.n_blocks // (2 if ending.gated else 1)
        start = _start(matrix)
        self._round_kind = (matrix.group, start, matrix.minima is not None, normed is not None)
        self._kind = (
            matrix.bits,
            matrix.group,
            start != 0,
            matrix.minima is not None,
            bias is not None,
            ending,
        )

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """x float32 [T, K] -> float32 [T, width], contiguous both; with `Ending.ADD` added to `out`, required then."""
        matrix, normed, bias = self.matrix, self._normed, self._bias
        n_rows, n_cols = x.shape
        n_groups = n_cols // matrix.group
        if out is None:
            out = torch.empty(n_rows, self.width)
        codes = torch.empty(n_rows, n_cols, dtype=torch.int8)
        scales = torch.empty(3, n_rows, n_groups)
        threads = torch.get_num_threads()
        _round_kernel(*self._round_kind)(
            x.data_ptr(),
            normed.weight.data_ptr() if normed is not None else 0,
            jit.float_bits(normed.eps) if normed is not None else 0,
            codes.data_ptr(),
            *(part.data_ptr() for part in scales),
            n_rows,
            n_cols,
            threads,
        )
        parts = max(1, min(-(-threads * _ITEMS_PER_THREAD // self._n_units), n_rows // _ITEM_ROWS))
        scratch_bytes = 2 * BLOCK_ROWS * (n_cols + 8 * n_groups)
        scratch = torch.empty(threads * scratch_bytes, dtype=torch.uint8)
        _kernel(*self._kind)(
            codes.data_ptr(),
            *(part.data_ptr() for part in scales),
            matrix.codes.data_ptr(),
            matrix.scales.data_ptr(),
            matrix.minima.data_ptr() if matrix.minima is not None else 0,
            bias.data_ptr() if bias is not None else 0,
            out.data_ptr(),
            scratch.data_ptr(),
            scratch_bytes,
            jit.float_bits(matrix.norm),
            n_rows,
            n_cols,
            self._n_units,
            parts,
            self.width,
            threads,
        )
        return out


def gemm_reference(
    x: Tensor,
    matrix: PackedMatrix,
    *,
    normed: Normed | None = None,
    bias: Tensor | None = None,
    ending: Ending = Ending.STORE,
    out: Tensor | None = None,
) -> Tensor:
    """What `Gemm` gives, in plain torch."""
    if normed is not None:
        x = F.rms_norm(x, (x.shape[1],), normed.weight, normed.eps)
    groups = x.unflatten(1, (-1, matrix.group))
    scale = groups.abs().amax(-1, keepdim=True) / _LARGEST
    x = ((groups / scale.clamp_min(1e-30)).round() * scale).flatten(1)
    return finish_reference(x @ unpack(matrix).t(), bias=bias, ending=ending, out=out)


def _start(matrix: PackedMatrix) -> int:
    """What is added to a code, as the kernel sees it, before it is multiplied: its codes are never negative."""
    offset = 0 if matrix.minima is not None else matrix.offset
    return offset - _SIGN if matrix.bits is CodeBits.B8 else offset


@jit.kept
def _round_kernel(group: int, start: int, has_minima: bool, normed: bool) -> jit.Kernel:
    """Rounds rows of x: codes int8 [T, K]; by row and group a scale, the sum of what is left after rounding, and what
    the integer product begins with."""
    k = jit.Builder(("x", "norm_weight", "norm_eps", "codes", "scales", "sums", "starts", "n_rows", "n_cols"))
    b, c = k.b, k.c
    n_groups = b.udiv(k.field("n_cols"), c(group))
    vectors = range(0, group, LANES)

    def row(index: Any, _: list[Any]) -> list[Any]:
        x = b.add(k.field("x"), b.mul(index, b.mul(k.field("n_cols"), c(4))))
        codes = b.add(k.field("codes"), b.mul(index, k.field("n_cols")))
        by_group = b.mul(index, b.mul(n_groups, c(4)))
        inverse_rms = k.inverse_rms(x, k.field("n_cols"), k.field_float("norm_eps")) if normed else None

        def one_group(number: Any, _: list[Any]) -> list[Any]:
            column = b.mul(number, c(group))
            values = []
            for first in vectors:
                at = b.mul(b.add(column, c(first)), c(4))
                value = k.load(b.add(x, at), k.vf32)
                if normed:
                    weight = k.load(b.add(k.field("norm_weight"), at), k.vf32)
                    value = b.fmul(b.fmul(value, inverse_rms), weight)
                values.append(value)
            peak = k.absolute(values[0])
            for value in values[1:]:
                peak = k.larger_lanes(peak, k.absolute(value))
            peak = k.max_lanes(peak)
            none = b.fcmp_ordered("==", peak, k.ir.Constant(k.f32, 0.0))
            inverse = b.fdiv(k.ir.Constant(k.f32, float(_LARGEST)), peak)
            inverse = k.splat(b.select(none, k.ir.Constant(k.f32, 0.0), inverse))
            scale = b.fmul(peak, k.ir.Constant(k.f32, 1 / _LARGEST))
            total = None
            for first, value in zip(vectors, values, strict=True):
                code = k.nearest(b.fmul(value, inverse))
                total = code if total is None else b.fadd(total, code)
                k.store(b.trunc(b.fptosi(code, k.vi32), k.vi8), b.add(codes, b.add(column, c(first))))
            at = b.add(by_group, b.mul(number, c(4)))
            k.store(scale, b.add(k.field("scales"), at))
            if has_minima or start:
                total = k.sum_lanes(total)
            if has_minima:
                k.store(b.fmul(total, scale), b.add(k.field("sums"), at))
            if start:
                begin = b.mul(b.fptosi(total, k.i32), k.ir.Constant(k.i32, start))
                k.store(begin, b.add(k.field("starts"), at))
            return []

        k.loop(c(0), n_groups, [], one_group)
        return []

    k.loop(*k.share(k.field("n_rows")), [], row)
    return k.compile()


_FIELDS = (
    "x_codes",
    "x_scales",
    "x_sums",
    "x_starts",
    "codes",
    "scales",
    "minima",
    "bias",
    "out",
    "scratch",
    "scratch_bytes",
    "scale",
    "n_rows",
    "n_cols",
    "n_units",
    "parts",
    "width",
)

_HALVES = range(BLOCK_ROWS // LANES)


@jit.kept
def _kernel(
    bits: CodeBits, group: int, has_starts: bool, has_minima: bool, has_bias: bool, ending: Ending
) -> jit.Kernel:
    """The kernel for one kind of packed matrix."""
    k = jit.Builder(_FIELDS)
    b, c = k.b, k.c
    n_groups = b.udiv(k.field("n_cols"), c(group))
    x_group_bytes = b.mul(n_groups, c(4))
    n_in_unit = 2 if ending.gated else 1
    quads = range(group // _QUAD)

    # Scratch of a thread, by block of the unit: codes [K/4, 32 rows, 4], scales and minima float32 [K/group, 32].
    own = k.thread_slice("scratch", k.field("scratch_bytes"))
    codes_bytes = b.mul(k.field("n_cols"), c(BLOCK_ROWS))
    scales_bytes = b.mul(n_groups, c(4 * BLOCK_ROWS))
    block_bytes = b.add(codes_bytes, b.mul(scales_bytes, c(2)))

    def unpack_block(block: Any, target: Any) -> None:
        first_group = b.mul(block, n_groups)
        norm = k.splat(k.field_float("scale"))

        def one_group(index: Any, _: list[Any]) -> list[Any]:
            place = b.add(first_group, index)
            source = b.add(k.field("codes"), b.mul(place, c(bits.group_bytes(group))))
            columns = _columns(k, bits, group, source)
            to = b.add(target, b.mul(index, c(group * BLOCK_ROWS)))
            for quad in quads:
                four = columns[quad * _QUAD : (quad + 1) * _QUAD]
                pairs = [k.join(four[0], four[1]), k.join(four[2], four[3])]
                for half in _HALVES:
                    lanes = [
                        BLOCK_ROWS * column + LANES * half + row
                        for row in range(LANES)
                        for column in range(_QUAD)
                    ]
                    k.store(
                        k.shuffle(pairs[0], pairs[1], lanes),
                        b.add(to, c((quad * len(_HALVES) + half) * 4 * LANES)),
                    )
            for name, base in (("scales", codes_bytes), ("minima", b.add(codes_bytes, scales_bytes))):
                if name == "scales" or has_minima:
                    halves = k.load(
                        b.add(k.field(name), b.mul(place, c(2 * BLOCK_ROWS))), k.vector(k.f16, BLOCK_ROWS)
                    )
                    values = b.fpext(halves, k.vector(k.f32, BLOCK_ROWS))
                    to = b.add(b.add(target, base), b.mul(index, c(4 * BLOCK_ROWS)))
                    for half in _HALVES:
                        part = k.shuffle(values, values, [LANES * half + lane for lane in range(LANES)])
                        k.store(b.fmul(part, norm), b.add(to, c(4 * LANES * half)))
            return []

        k.loop(c(0), n_groups, [], one_group)

    def dot(block: Any, first_row: Any, rows: int) -> list[list[Any]]:
        """Products of `rows` rows of x with the unpacked block: by row, two vectors of 16 rows of W."""
        x_codes = b.add(k.field("x_codes"), b.mul(first_row, k.field("n_cols")))
        x_by_group = b.mul(first_row, x_group_bytes)

        def one_group(index: Any, totals: list[Any]) -> list[Any]:
            column = b.mul(index, c(group))
            weights = b.add(block, b.mul(index, c(group * BLOCK_ROWS)))
            row_codes = [
                b.add(x_codes, b.add(column, b.mul(k.field("n_cols"), c(row)))) for row in range(rows)
            ]
            row_place = [
                b.add(x_by_group, b.add(b.mul(index, c(4)), b.mul(x_group_bytes, c(row))))
                for row in range(rows)
            ]

            def of_row(name: str, row: int, kind: Any) -> Any:
                return k.splat(k.load(b.add(k.field(name), row_place[row]), kind))

            starts = [of_row("x_starts", row, k.i32) if has_starts else k.ints(0) for row in range(rows)]

            # A loop, as LLVM would hoist the loads of an unrolled one until they spill the sums.
            def one_quad(quad: Any, dots: list[Any]) -> list[Any]:
                at = b.add(weights, b.mul(quad, c(_QUAD * BLOCK_ROWS)))
                weight = [k.load(at, k.vi32, 4 * LANES * half) for half in _HALVES]
                following = []
                for row in range(rows):
                    x = k.splat(k.load(b.add(row_codes[row], b.mul(quad, c(_QUAD))), k.i32))
                    for half in _HALVES:
                        following.append(k.dot_quads(dots[row * len(_HALVES) + half], weight[half], x))
                return following

            dots = k.loop(c(0), c(group // _QUAD), [start for start in starts for _ in _HALVES], one_quad)
            by_block = b.add(b.add(block, codes_bytes), b.mul(index, c(4 * BLOCK_ROWS)))
            scales = [k.load(by_block, k.vf32, 4 * LANES * half) for half in _HALVES]
            following = []
            for row in range(rows):
                x_scale = of_row("x_scales", row, k.f32)
                for half in _HALVES:
                    total = totals[row * len(_HALVES) + half]
                    product = b.sitofp(dots[row * len(_HALVES) + half], k.vf32)
                    following.append(k.fma(product, b.fmul(scales[half], x_scale), total))
            if has_minima:
                at_minima = b.add(by_block, scales_bytes)
                minima = [k.load(at_minima, k.vf32, 4 * LANES * half) for half in _HALVES]
                for row in range(rows):
                    x_sum = of_row("x_sums", row, k.f32)
                    for half in _HALVES:
                        place = row * len(_HALVES) + half
                        following[place] = k.fma(minima[half], x_sum, following[place])
            return following

        totals = k.loop(c(0), n_groups, [k.floats(0)] * (rows * len(_HALVES)), one_group)
        return [totals[row * len(_HALVES) :][: len(_HALVES)] for row in range(rows)]

    def tile(unit: Any, first_row: Any, rows: int) -> None:
        out = b.add(
            k.field("out"),
            b.mul(b.add(b.mul(first_row, k.field("width")), b.mul(unit, c(BLOCK_ROWS))), c(4)),
        )

        def out_address(row: int, half: int) -> Any:
            return b.add(out, b.add(b.mul(k.field("width"), c(4 * row)), c(4 * LANES * half)))

        products = dot(own, first_row, rows)
        if ending.gated:
            # The gate waits in the result's place: both products at once would not fit the registers.
            for row in range(rows):
                for half in _HALVES:
                    k.store(activate(k, ending, products[row][half]), out_address(row, half))
            products = dot(b.add(own, block_bytes), first_row, rows)
        for row in range(rows):
            for half in _HALVES:
                value = products[row][half]
                if has_bias:
                    at = b.add(b.mul(unit, c(4 * BLOCK_ROWS)), c(4 * LANES * half))
                    value = b.fadd(value, k.load(b.add(k.field("bias"), at), k.vf32))
                if ending is Ending.ADD:
                    value = b.fadd(k.load(out_address(row, half), k.vf32), value)
                if ending.gated:
                    value = b.fmul(k.load(out_address(row, half), k.vf32), value)
                k.store(value, out_address(row, half))

    def item(index: Any, _: list[Any]) -> list[Any]:
        unit = b.udiv(index, k.field("parts"))
        part = b.urem(index, k.field("parts"))
        for number in range(n_in_unit):
            block = b.add(b.mul(unit, c(n_in_unit)), c(number))
            unpack_block(block, b.add(own, b.mul(block_bytes, c(number))))
        first = b.udiv(b.mul(part, k.field("n_rows")), k.field("parts"))
        end = b.udiv(b.mul(b.add(part, c(1)), k.field("n_rows")), k.field("parts"))
        n_tiles = b.udiv(b.sub(end, first), c(TILE_ROWS))
        after_tiles = b.add(first, b.mul(n_tiles, c(TILE_ROWS)))

        def full_tile(number: Any, _: list[Any]) -> list[Any]:
            tile(unit, b.add(first, b.mul(number, c(TILE_ROWS))), TILE_ROWS)
            return []

        def single_row(row: Any, _: list[Any]) -> list[Any]:
            tile(unit, row, 1)
            return []

        k.loop(c(0), n_tiles, [], full_tile)
        k.loop(after_tiles, end, [], single_row)
        return []

    k.loop(*k.share(b.mul(k.field("n_units"), k.field("parts"))), [], item)
    return k.compile()


def _columns(k: jit.Builder, bits: CodeBits, group: int, codes: Any) -> list[Any]:
    """Every column of the group at `codes`: the codes of 32 rows as unsigned bytes."""
    b = k.b
    v32i8 = k.vector(k.i8, BLOCK_ROWS)

    def bytes_of(value: int) -> Any:
        return k.ir.Constant(v32i8, [value] * BLOCK_ROWS)

    if bits is CodeBits.B8:
        return [b.xor(k.load(codes, v32i8, column * BLOCK_ROWS), bytes_of(_SIGN)) for column in range(group)]
    lower, upper = [], []
    for pair in range(group // 2):
        at = pair * bits.pair_bytes
        both = k.load(codes, v32i8, at)
        halves = [b.and_(both, bytes_of(15)), b.lshr(both, bytes_of(4))]
        if bits is CodeBits.B5:
            for place in range(2):
                fifth = b.bitcast(
                    k.load(codes, k.i32, at + BLOCK_ROWS + 4 * place), k.vector(k.ir.IntType(1), BLOCK_ROWS)
                )
                halves[place] = b.select(fifth, b.or_(halves[place], bytes_of(16)), halves[place])
        lower.append(halves[0])
        upper.append(halves[1])
    return lower + upper
