"""Attention of one new row of each sequence on a CPU, from raw projections to mixed heads, in one call a layer.

For every row: normalise the query and key heads (where the family does), rotate them, write K and V to the cache, and
attend to what the row may see. torch needs some twelve calls for this, and at one row the calls cost more than the
work: 14 heads of 64 over 530 positions take 60 to 90 microseconds there.

The work is shared out by row, KV head and part of its group of query heads, so no thread waits for another. Scores of
16 positions are reduced together; softmax then runs over positions in lanes.
"""

from __future__ import annotations

import functools
import math
from array import array
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.cache.spec import CacheRow
from engine.kernels import jit
from engine.kernels.jit import LANES

# Float32 registers that sums may take; the rest hold K, V and weights.
_SUM_REGISTERS = 24

_CACHE_TYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True, kw_only=True)
class HeadNorms:
    """RMS norms of the query and the key heads: weights float32 [D]."""

    q_weight: Tensor
    k_weight: Tensor
    eps: float


class DecodeAttention:
    """The kernel for one model's heads. Use where `supports` says so."""

    def __init__(
        self, *, n_heads: int, n_kv_heads: int, head_dim: int, scale: float, dtype: torch.dtype, normed: bool
    ) -> None:
        threads = torch.get_num_threads()
        group = n_heads // n_kv_heads
        # As many parts as even out the threads, but no more: each part converts K and V anew.
        parts = next((n for n in range(1, group + 1) if n_kv_heads * n % threads == 0), group)
        self._n_heads, self._head_dim = n_heads, head_dim
        self._part_heads = -(-group // parts)
        self._threads = threads
        self._kernel = _kernel(
            n_heads, n_kv_heads, head_dim, self._part_heads, dtype, normed, jit.float_bits(scale)
        )

    @classmethod
    @functools.cache
    def of(
        cls, *, n_heads: int, n_kv_heads: int, head_dim: int, scale: float, dtype: torch.dtype, normed: bool
    ) -> DecodeAttention:
        """One kernel for all layers that look alike, in all models of the process: it keeps nothing between calls."""
        return cls(
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            scale=scale,
            dtype=dtype,
            normed=normed,
        )

    @staticmethod
    @functools.cache
    def supports(head_dim: int, dtype: torch.dtype) -> bool:
        return jit.available() and head_dim % LANES == 0 and dtype in _CACHE_TYPES

    def __call__(self, qkv: Tensor, rows: list[CacheRow], factors: Tensor, norms: HeadNorms | None) -> Tensor:
        """qkv float32 [M, (H + 2 Hk) D], rotary factors complex64 [M, 1, D/2] -> float32 [M, H D].

        Row m's K and V go to `rows[m]`; what is there of earlier positions is read. All operands contiguous.
        """
        seen = max(row.n_seen for row in rows)
        positions = -(-seen // LANES) * LANES
        per_thread = self._part_heads * (positions + self._head_dim + LANES * LANES)
        scratch = torch.empty(per_thread * self._threads, dtype=torch.float32)
        out = torch.empty(len(rows), self._n_heads * self._head_dim, dtype=torch.float32)
        places = array("q")
        for row in rows:
            places.extend((row.k_row, row.v_row, row.k_first, row.v_first, row.n_seen))
        self._kernel(
            qkv.data_ptr(),
            factors.data_ptr(),
            places.buffer_info()[0],
            out.data_ptr(),
            scratch.data_ptr(),
            per_thread,
            positions,
            norms.q_weight.data_ptr() if norms is not None else 0,
            norms.k_weight.data_ptr() if norms is not None else 0,
            jit.float_bits(norms.eps) if norms is not None else 0,
            len(rows),
            self._threads,
        )
        return out


_FIELDS = (
    "qkv",
    "factors",
    "places",
    "out",
    "scratch",
    "per_thread",
    "positions",
    "q_weight",
    "k_weight",
    "eps",
    "n_rows",
)


@jit.kept
def _kernel(
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    part_heads: int,
    dtype: torch.dtype,
    normed: bool,
    scale_bits: int,
) -> jit.Kernel:
    k = jit.Builder(_FIELDS)
    b, c = k.b, k.c
    group = n_heads // n_kv_heads
    parts = -(-group // part_heads)
    vectors = range(head_dim // LANES)
    width = (n_heads + 2 * n_kv_heads) * head_dim
    element = 4 if dtype is torch.float32 else 2
    row_bytes = n_kv_heads * head_dim * element
    scores = k.thread_slice("scratch", b.mul(k.field("per_thread"), c(4)))
    queries = b.add(scores, b.mul(k.field("positions"), c(4 * part_heads)))
    partials = b.add(queries, c(4 * part_heads * head_dim))
    scale = k.ir.Constant(k.i32, scale_bits).bitcast(k.f32)
    memory = _CacheElements(k, dtype)

    def head(address: Any, weight: str, factors: Any) -> list[Any]:
        """The head at `address`, normalised and rotated."""
        x = [k.load(address, k.vf32, 4 * LANES * v) for v in vectors]
        if normed:
            squares = k.floats(0)
            for vector in x:
                squares = k.fma(vector, vector, squares)
            mean = b.fdiv(k.sum_lanes(squares), k.ir.Constant(k.f32, float(head_dim)))
            root = k.intrinsic("llvm.sqrt.f32", k.f32, b.fadd(mean, k.field_float("eps")))
            inverse = k.splat(b.fdiv(k.ir.Constant(k.f32, 1.0), root))
            weights = [k.load(k.field(weight), k.vf32, 4 * LANES * v) for v in vectors]
            x = [b.fmul(b.fmul(value, inverse), w) for value, w in zip(x, weights, strict=True)]
        return [_rotate(k, x[v], k.load(factors, k.vf32, 4 * LANES * v)) for v in vectors]

    def item(index: Any, _: list[Any]) -> list[Any]:
        part = b.urem(index, c(parts))
        kv_head = b.urem(b.udiv(index, c(parts)), c(n_kv_heads))
        row = b.udiv(index, c(parts * n_kv_heads))
        place = b.add(k.field("places"), b.mul(row, c(8 * 5)))
        k_row, v_row, k_first, v_first, n_seen = (k.load(place, k.i64, 8 * i) for i in range(5))
        head_offset = b.mul(kv_head, c(head_dim * element))
        factors = b.add(k.field("factors"), b.mul(row, c(4 * head_dim)))
        qkv = b.add(k.field("qkv"), b.mul(row, c(4 * width)))

        # Every part writes the same K and V: cheaper than waiting for one that does.
        key_at = b.add(qkv, b.mul(b.add(kv_head, c(n_heads)), c(4 * head_dim)))
        for v, vector in enumerate(head(key_at, "k_weight", factors)):
            memory.store(vector, b.add(b.add(k_row, head_offset), c(LANES * element * v)))
        value_at = b.add(key_at, c(4 * n_kv_heads * head_dim))
        for v in vectors:
            vector = k.load(value_at, k.vf32, 4 * LANES * v)
            memory.store(vector, b.add(b.add(v_row, head_offset), c(LANES * element * v)))

        # The last part of a group may be short: it repeats its last head.
        first_head = b.mul(part, c(part_heads))
        heads = [
            b.add(b.mul(kv_head, c(group)), k.smaller(b.add(first_head, c(g)), c(group - 1)))
            for g in range(part_heads)
        ]
        for g, number in enumerate(heads):
            query = head(b.add(qkv, b.mul(number, c(4 * head_dim))), "q_weight", factors)
            for v in vectors:
                value = b.fmul(query[v], k.splat(scale))
                k.store(value, b.add(queries, c(4 * (g * head_dim + LANES * v))))

        def address(first: Any, position: Any) -> Any:
            """Of a position's K or V; the last one's for those beyond it."""
            position = k.smaller(position, b.sub(n_seen, c(1)))
            return b.add(b.add(first, head_offset), b.mul(position, c(row_bytes)))

        def score_at(g: int, position: Any) -> Any:
            place = b.add(b.mul(k.field("positions"), c(g)), position)
            return b.add(scores, b.mul(place, c(4)))

        def score_block(block: Any, largest: list[Any]) -> list[Any]:
            start = b.mul(block, c(LANES))

            def one_key(lane: Any, _: list[Any]) -> list[Any]:
                at = address(k_first, b.add(start, lane))
                key = [memory.load(at, LANES * element * v) for v in vectors]
                for g in range(part_heads):
                    query = [k.load(queries, k.vf32, 4 * (g * head_dim + LANES * v)) for v in vectors]
                    total = b.fmul(query[0], key[0])
                    for v in vectors[1:]:
                        total = k.fma(query[v], key[v], total)
                    where = b.add(b.mul(lane, c(4 * LANES)), c(4 * LANES * LANES * g))
                    k.store(total, b.add(partials, where))
                return []

            k.loop(c(0), c(LANES), [], one_key)
            lanes = k.ir.Constant(k.vi32, list(range(LANES)))
            position = b.add(k.splat(b.trunc(start, k.i32)), lanes)
            visible = b.icmp_signed("<", position, k.splat(b.trunc(n_seen, k.i32)))
            following = []
            for g in range(part_heads):
                rows = [k.load(partials, k.vf32, 4 * LANES * (LANES * g + i)) for i in range(LANES)]
                value = b.select(visible, _sum_each(k, rows), k.floats(-math.inf))
                k.store(value, score_at(g, start))
                following.append(k.intrinsic(f"llvm.maxnum.v{LANES}f32", k.vf32, largest[g], value))
            return following

        n_blocks = b.udiv(b.add(n_seen, c(LANES - 1)), c(LANES))
        largest = k.loop(c(0), n_blocks, [k.floats(-math.inf)] * part_heads, score_block)
        peaks = [k.splat(k.max_lanes(value)) for value in largest]

        def weigh_block(block: Any, sums: list[Any]) -> list[Any]:
            following = []
            for g in range(part_heads):
                at = score_at(g, b.mul(block, c(LANES)))
                score = k.load(at, k.vf32)
                weight = k.exp(b.fsub(score, peaks[g]))
                hidden = b.fcmp_ordered("==", score, k.floats(-math.inf))
                weight = b.select(hidden, k.floats(0), weight)
                k.store(weight, at)
                following.append(b.fadd(sums[g], weight))
            return following

        sums = k.loop(c(0), n_blocks, [k.floats(0)] * part_heads, weigh_block)
        inverses = [k.splat(b.fdiv(k.ir.Constant(k.f32, 1.0), k.sum_lanes(total))) for total in sums]
        at_once = max(1, _SUM_REGISTERS // len(vectors) // 2)
        for first in range(0, part_heads, at_once):
            mixed = range(first, min(first + at_once, part_heads))
            n_sums = len(mixed) * len(vectors)

            def add_pair(
                pair: Any, totals: list[Any], mixed: range = mixed, n_sums: int = n_sums
            ) -> list[Any]:
                # Even and odd positions add up apart, to hide the latency of the multiply-add.
                following = list(totals)
                for odd in range(2):
                    position = b.add(b.mul(pair, c(2)), c(odd))
                    at = address(v_first, position)
                    value = [memory.load(at, LANES * element * v) for v in vectors]
                    for place, g in enumerate(mixed):
                        weight = k.splat(k.load(score_at(g, position), k.f32))
                        for v in vectors:
                            slot = odd * n_sums + place * len(vectors) + v
                            following[slot] = k.fma(weight, value[v], following[slot])
                return following

            n_pairs = b.mul(n_blocks, c(LANES // 2))
            totals = k.loop(c(0), n_pairs, [k.floats(0)] * (2 * n_sums), add_pair)
            for place, g in enumerate(mixed):
                out = b.add(b.mul(row, c(n_heads)), heads[g])
                out = b.add(k.field("out"), b.mul(out, c(4 * head_dim)))
                for v in vectors:
                    slot = place * len(vectors) + v
                    value = b.fmul(b.fadd(totals[slot], totals[n_sums + slot]), inverses[g])
                    k.store(value, b.add(out, c(4 * LANES * v)))
        return []

    n_items = b.mul(k.field("n_rows"), c(n_kv_heads * parts))
    k.loop(*k.share(n_items), [], item)
    return k.compile()


class _CacheElements:
    """Loading and storing 16 cached values as float32."""

    def __init__(self, k: jit.Builder, dtype: torch.dtype) -> None:
        self._k = k
        self._dtype = dtype

    def load(self, address: Any, offset: int) -> Any:
        k = self._k
        if self._dtype is torch.float32:
            return k.load(address, k.vf32, offset)
        if self._dtype is torch.float16:
            return k.b.fpext(k.load(address, k.vf16, offset), k.vf32)
        bits = k.b.zext(k.load(address, k.vi16, offset), k.vi32)
        return k.b.bitcast(k.b.shl(bits, k.ints(16)), k.vf32)

    def store(self, value: Any, address: Any) -> None:
        k = self._k
        if self._dtype is torch.float16:
            value = k.b.fptrunc(value, k.vf16)
        elif self._dtype is torch.bfloat16:
            value = k.b.trunc(k.bf16_bits(value), k.vi16)
        k.store(value, address)


def _rotate(k: jit.Builder, x: Any, factors: Any) -> Any:
    """16 values as 8 complex numbers, multiplied by 8 complex factors (cosine, sine, ...)."""
    b = k.b
    lanes = range(LANES)
    swapped = k.shuffle(x, x, [lane ^ 1 for lane in lanes])
    cosines = k.shuffle(factors, factors, [lane & ~1 for lane in lanes])
    sines = k.shuffle(factors, factors, [lane | 1 for lane in lanes])
    signs = k.ir.Constant(k.vf32, [1.0 if lane & 1 else -1.0 for lane in lanes])
    return k.fma(x, cosines, b.fmul(b.fmul(swapped, sines), signs))


def _sum_each(k: jit.Builder, vectors: list[Any]) -> Any:
    """16 vectors to one whose lane i is the sum of the i-th vector's lanes."""
    step = 1
    while len(vectors) > 1:
        following = []
        for first, second in zip(vectors[::2], vectors[1::2], strict=True):
            near = [lane + LANES if lane & step else lane for lane in range(LANES)]
            far = [(lane ^ step) + LANES if lane & step else lane ^ step for lane in range(LANES)]
            following.append(k.b.fadd(k.shuffle(first, second, near), k.shuffle(first, second, far)))
        vectors = following
        step *= 2
    return vectors[0]
