"""y = x W^T for a few rows of x and a packed W: the decode form on a CPU, with what comes before and after it.

The kernel turns codes into float32 in registers and multiplies with float32 activations, so its only error is
float32's. It is bound by memory, not by arithmetic, up to about four rows. Measured on a 2-core AVX-512 machine: 31,
35 and 45 thousand million weights a second for 8, 5 and 4 bits, where torch's own packed products give 15 (8 bits) and
36 (4 bits). A torch operation costs more than it computes when there is one row; so a normalisation of x, a bias, the
gate's activation and the addition to the residual are done in the same call.
"""

from __future__ import annotations

import enum
import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels import jit
from engine.kernels.packed import BLOCK_ROWS, CodeBits, PackedMatrix, unpack

# Rows of x per kernel call: with 4 the accumulators fill the registers, more would spill.
MAX_ROWS = 4


class Ending(enum.Enum):
    """What becomes of the product. Gated endings take a matrix whose blocks of 32 rows alternate, gate then up, and
    give act(gate) * up, half as wide."""

    STORE = "store"
    ADD = "add"
    SILU = "silu"
    GELU = "gelu"

    @property
    def gated(self) -> bool:
        return self in (Ending.SILU, Ending.GELU)


@dataclass(frozen=True, kw_only=True)
class Normed:
    """RMS normalisation of x before the product: `weight` float32 [K]."""

    weight: Tensor
    eps: float


class Gemv:
    """One packed matrix with all that is done around its product. Needs `jit.available()`.

    `bias` float32, padded to the matrix's blocks, goes with STORE and ADD. A row's numbers do not depend on how many
    rows there are. Not for several threads at once.
    """

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
        self._kept = (normed, bias)
        self._kind = (
            matrix.bits,
            matrix.group,
            matrix.offset,
            matrix.minima is not None,
            normed is not None,
            bias is not None,
            ending,
        )
        self._row_bytes = 4 * matrix.n_cols
        fixed = {
            "codes": matrix.codes.data_ptr(),
            "scales": matrix.scales.data_ptr(),
            "minima": matrix.minima.data_ptr() if matrix.minima is not None else 0,
            "norm_weight": normed.weight.data_ptr() if normed is not None else 0,
            "norm_eps": jit.float_bits(normed.eps) if normed is not None else 0,
            "bias": bias.data_ptr() if bias is not None else 0,
            "scale": jit.float_bits(matrix.norm),
            "n_cols": matrix.n_cols,
            "n_blocks": matrix.n_blocks,
            "width": self.width,
        }
        self._fields = array("q", (fixed.get(name, 0) for name in _FIELDS))
        self._address = self._fields.buffer_info()[0]
        self._runs: dict[int, Callable[[int, int], None]] = {}

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """x float32 [M, K] -> float32 [M, width], contiguous both; with `Ending.ADD` added to `out`, required then."""
        n_rows = x.shape[0]
        if out is None:
            out = torch.empty(n_rows, self.width)
        threads = torch.get_num_threads()
        fields = self._fields
        # Each thread keeps its own normalised x and sums of x by group: cheaper than sharing them.
        fields[_SCRATCH] = _scratch(threads * MAX_ROWS * 2 * self.matrix.n_cols).data_ptr()
        x_address, out_address = x.data_ptr(), out.data_ptr()
        for first in range(0, n_rows, MAX_ROWS):
            rows = min(MAX_ROWS, n_rows - first)
            fields[_X] = x_address + first * self._row_bytes
            fields[_OUT] = out_address + first * 4 * self.width
            run = self._runs.get(rows)
            if run is None:
                run = self._runs[rows] = _kernel(*self._kind, rows).run
            run(self._address, threads)
        return out


_scratch_memory = threading.local()


def _scratch(n_floats: int) -> Tensor:
    """Memory for one call, kept by the calling thread for the next."""
    kept: Tensor | None = getattr(_scratch_memory, "kept", None)
    if kept is None or kept.numel() < n_floats:
        kept = _scratch_memory.kept = torch.empty(2 * n_floats)
    return kept


def gemv_reference(
    x: Tensor,
    matrix: PackedMatrix,
    *,
    normed: Normed | None = None,
    bias: Tensor | None = None,
    ending: Ending = Ending.STORE,
    out: Tensor | None = None,
) -> Tensor:
    """What `Gemv` gives, in plain torch."""
    if normed is not None:
        x = F.rms_norm(x, (x.shape[1],), normed.weight, normed.eps)
    return finish_reference(x @ unpack(matrix).t(), bias=bias, ending=ending, out=out)


def finish_reference(y: Tensor, *, bias: Tensor | None, ending: Ending, out: Tensor | None) -> Tensor:
    """What becomes of the product y, in plain torch."""
    if bias is not None:
        y = y + bias
    if ending.gated:
        gate, up = y.unflatten(1, (-1, 2, BLOCK_ROWS)).unbind(2)
        act = F.silu(gate) if ending is Ending.SILU else F.gelu(gate, approximate="tanh")
        return (act * up).flatten(1)
    if out is None:
        return y
    out[:, : y.shape[1]] += y
    return out


_FIELDS = (
    "x",
    "codes",
    "scales",
    "minima",
    "out",
    "scratch",
    "norm_weight",
    "norm_eps",
    "bias",
    "scale",
    "n_cols",
    "n_blocks",
    "width",
)

_X, _OUT, _SCRATCH = (_FIELDS.index(name) for name in ("x", "out", "scratch"))

_HALVES = range(BLOCK_ROWS // jit.LANES)


@jit.kept
def _kernel(
    bits: CodeBits,
    group: int,
    offset: int,
    has_minima: bool,
    normed: bool,
    has_bias: bool,
    ending: Ending,
    rows: int,
) -> jit.Kernel:
    """The kernel for `rows` rows of x and one kind of packed matrix."""
    k = jit.Builder(_FIELDS)
    b, c = k.b, k.c
    n_groups = b.udiv(k.field("n_cols"), c(group))
    own = k.thread_slice("scratch", b.mul(b.add(k.field("n_cols"), n_groups), c(4 * rows)))
    sums = b.add(own, b.mul(k.field("n_cols"), c(4 * rows)))
    x_base = k.field("x")
    if normed:
        _normalise(k, rows, own)
        x_base = own

    def x_address(row: int, column: Any) -> Any:
        return b.add(x_base, b.mul(c(4), b.add(b.mul(k.field("n_cols"), c(row)), column)))

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

    def dot_block(block_index: Any) -> list[list[Any]]:
        """Products of one block: by row of x, two vectors of 16 rows of W."""
        first_group = b.mul(block_index, n_groups)

        def one_group(index: Any, totals: list[Any]) -> list[Any]:
            place = b.add(first_group, index)
            codes = b.add(k.field("codes"), b.mul(place, c(bits.group_bytes(group))))
            # Even and odd columns add up apart: twice the chains hide the latency of the multiply-add.
            partial = [[[k.floats(0) for _ in _HALVES] for _ in range(rows)] for _ in range(2)]
            for turn, (column, vectors) in enumerate(_columns(k, bits, group, codes)):
                for row in range(rows):
                    x = k.splat(k.load(x_address(row, b.mul(index, c(group))), k.f32, 4 * column))
                    for half in _HALVES:
                        chain = partial[turn % 2][row]
                        chain[half] = k.fma(vectors[half], x, chain[half])
            at = b.mul(place, c(2 * BLOCK_ROWS))
            scales = _halves_of(k, b.add(k.field("scales"), at))
            minima = _halves_of(k, b.add(k.field("minima"), at)) if has_minima else []
            following = []
            for row in range(rows):
                x_sum = k.splat(k.load(sum_address(row, index), k.f32)) if offset or has_minima else None
                for half in _HALVES:
                    dot = b.fadd(partial[0][row][half], partial[1][row][half])
                    if offset and not has_minima:
                        dot = k.fma(x_sum, k.floats(offset), dot)
                    total = k.fma(dot, scales[half], totals[row * len(_HALVES) + half])
                    if has_minima:
                        total = k.fma(x_sum, minima[half], total)
                    following.append(total)
            return following

        totals = k.loop(c(0), n_groups, [k.floats(0)] * (rows * len(_HALVES)), one_group)
        scale = k.splat(k.field_float("scale"))
        return [[b.fmul(totals[row * len(_HALVES) + half], scale) for half in _HALVES] for row in range(rows)]

    def out_address(row: int, column: Any) -> Any:
        return b.add(k.field("out"), b.mul(b.add(b.mul(k.field("width"), c(row)), column), c(4)))

    def plain_block(index: Any, _: list[Any]) -> list[Any]:
        products = dot_block(index)
        for row in range(rows):
            for half in _HALVES:
                column = b.add(b.mul(index, c(BLOCK_ROWS)), c(jit.LANES * half))
                value = products[row][half]
                if has_bias:
                    value = b.fadd(value, k.load(b.add(k.field("bias"), b.mul(column, c(4))), k.vf32))
                if ending is Ending.ADD:
                    value = b.fadd(k.load(out_address(row, column), k.vf32), value)
                k.store(value, out_address(row, column))
        return []

    def gated_pair(index: Any, _: list[Any]) -> list[Any]:
        gate = dot_block(b.mul(index, c(2)))
        up = dot_block(b.add(b.mul(index, c(2)), c(1)))
        for row in range(rows):
            for half in _HALVES:
                column = b.add(b.mul(index, c(BLOCK_ROWS)), c(jit.LANES * half))
                value = b.fmul(activate(k, ending, gate[row][half]), up[row][half])
                k.store(value, out_address(row, column))
        return []

    if offset or has_minima:
        k.loop(c(0), n_groups, [], sum_group)
    if ending.gated:
        k.loop(*k.share(b.udiv(k.field("n_blocks"), c(2))), [], gated_pair)
    else:
        k.loop(*k.share(k.field("n_blocks")), [], plain_block)
    return k.compile()


def _columns(k: jit.Builder, bits: CodeBits, group: int, codes: Any) -> list[tuple[int, list[Any]]]:
    """Every column of the group at `codes`, with the float32 codes of its 32 rows as two vectors."""
    b = k.b
    columns = []
    if bits is CodeBits.B8:
        for column in range(group):
            loaded = [k.load(codes, k.vi8, column * BLOCK_ROWS + jit.LANES * half) for half in _HALVES]
            columns.append((column, [b.sitofp(b.sext(code, k.vi32), k.vf32) for code in loaded]))
        return columns
    for pair in range(group // 2):
        at = pair * bits.pair_bytes
        loaded = [b.zext(k.load(codes, k.vi8, at + jit.LANES * half), k.vi32) for half in _HALVES]
        for upper in range(2):
            vectors = []
            for half in _HALVES:
                code = b.lshr(loaded[half], k.ints(4)) if upper else b.and_(loaded[half], k.ints(15))
                if bits is CodeBits.B5:
                    fifth = k.load(codes, k.i16, at + BLOCK_ROWS + 4 * upper + 2 * half)
                    code = b.select(b.bitcast(fifth, k.mask), b.or_(code, k.ints(16)), code)
                vectors.append(b.sitofp(code, k.vf32))
            columns.append((pair + upper * (group // 2), vectors))
    return columns


def _halves_of(k: jit.Builder, address: Any) -> list[Any]:
    """32 float16 at `address` as two vectors of float32."""
    return [k.b.fpext(k.load(address, k.vf16, 2 * jit.LANES * half), k.vf32) for half in _HALVES]


def _normalise(k: jit.Builder, rows: int, target: Any) -> None:
    """Write the RMS-normalised rows of x to `target`, every thread for itself."""
    b, c = k.b, k.c
    n_vectors = b.udiv(k.field("n_cols"), c(jit.LANES))
    for row in range(rows):
        start = b.mul(k.field("n_cols"), c(4 * row))
        inverse = k.inverse_rms(b.add(k.field("x"), start), k.field("n_cols"), k.field_float("norm_eps"))

        def scale(index: Any, _: list[Any], start: Any = start, inverse: Any = inverse) -> list[Any]:
            at = b.mul(index, c(4 * jit.LANES))
            x = b.fmul(k.load(b.add(k.field("x"), b.add(start, at)), k.vf32), inverse)
            weight = k.load(b.add(k.field("norm_weight"), at), k.vf32)
            k.store(b.fmul(x, weight), b.add(target, b.add(start, at)))
            return []

        k.loop(c(0), n_vectors, [], scale)


def activate(k: jit.Builder, ending: Ending, x: Any) -> Any:
    """SiLU, or GELU in its tanh form, which is x * sigmoid(2 u)."""
    b = k.b
    if ending is Ending.SILU:
        power = b.fneg(x)
    else:
        cubic = k.fma(b.fmul(b.fmul(x, x), x), k.floats(0.044715), x)
        power = b.fmul(cubic, k.floats(-2.0 * 0.7978845608028654))
    return b.fdiv(x, b.fadd(k.exp(power), k.floats(1.0)))
