"""Causal attention of a chunk over a bfloat16 cache, for processors with bfloat16 dot products (AVX-512 BF16).

Query rows of one head lie across vector lanes, so that scores, softmax and mixing never reduce over lanes: one
instruction multiplies 16 rows by one pair of values and adds the pair up in float32. Softmax runs online over blocks of
keys. The same result as `chunk_attention.attend_chunk_cpu`, windows included, several times as fast.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from engine.cache.attention import Visible
from engine.kernels import jit
from engine.kernels.jit import LANES

# Rows of queries an item works on: two vectors, which share every load of K and V.
ROW_BLOCK = 2 * LANES

# Keys between two rescalings of the running sums.
KEY_BLOCK = 64

# Keys whose scores, or value pairs whose sums, are in registers together.
_AT_ONCE = 8

_ROWS = range(ROW_BLOCK // LANES)


def supports(head_dim: int, dtype: torch.dtype) -> bool:
    """Whether the kernel can be used here for such heads and such a cache."""
    return dtype is torch.bfloat16 and head_dim % (2 * _AT_ONCE) == 0 and jit.has_cpu_feature("avx512bf16")


def attend_chunk_bf16(q: Tensor, seen: Visible, scale: float, window: int) -> Tensor:
    """q float [T, H, D] of the last T positions of `seen` -> bfloat16 [T, H, D]; `window` 0 sees all earlier ones."""
    n_rows, n_heads, head_dim = q.shape
    n_seen, n_kv_heads, _ = seen.k.shape
    padded = -(-n_rows // ROW_BLOCK) * ROW_BLOCK
    # Pairs of values side by side, rows across: [H, D/2, T].
    pairs = torch.zeros(n_heads * head_dim // 2, padded, dtype=torch.int32)
    pairs[:, :n_rows] = q.to(torch.bfloat16).reshape(n_rows, -1).view(torch.int32).t()
    out = torch.empty(n_heads * head_dim, padded, dtype=torch.float32)
    threads = torch.get_num_threads()
    per_thread = ROW_BLOCK * (head_dim + KEY_BLOCK + KEY_BLOCK // 2) + KEY_BLOCK // 2 * head_dim
    scratch = torch.empty(threads * per_thread, dtype=torch.float32)
    _kernel(n_heads, n_kv_heads, head_dim)(
        pairs.data_ptr(),
        seen.k.data_ptr(),
        seen.v.data_ptr(),
        out.data_ptr(),
        scratch.data_ptr(),
        4 * per_thread,
        padded,
        n_seen,
        n_seen - n_rows,
        window or n_seen,
        jit.float_bits(scale),
        seen.k.stride(0) * seen.k.element_size(),
        seen.v.stride(0) * seen.v.element_size(),
        threads,
    )
    return out[:, :n_rows].to(torch.bfloat16).t().contiguous().view(n_rows, n_heads, head_dim)


_FIELDS = (
    "q",
    "k",
    "v",
    "out",
    "scratch",
    "per_thread",
    "padded",
    "n_seen",
    "n_before",
    "window",
    "scale",
    "k_row_bytes",
    "v_row_bytes",
)


@jit.kept
def _kernel(n_heads: int, n_kv_heads: int, head_dim: int) -> jit.Kernel:
    k = jit.Builder(_FIELDS)
    b, c = k.b, k.c
    group = n_heads // n_kv_heads
    pairs = head_dim // 2
    # Scratch of a thread: sums [D, rows], scores [keys, rows], weights as pairs [keys/2, rows], V as pairs [keys/2, D].
    sums = k.thread_slice("scratch", k.field("per_thread"))
    scores = b.add(sums, c(4 * ROW_BLOCK * head_dim))
    weights = b.add(scores, c(4 * ROW_BLOCK * KEY_BLOCK))
    values = b.add(weights, c(4 * ROW_BLOCK * KEY_BLOCK // 2))
    scale = k.splat(k.field_float("scale"))
    lanes = k.ir.Constant(k.vi32, list(range(LANES)))

    def row_vector(base: Any, index: Any, half: int) -> Any:
        """Address of rows [16 half, 16 half + 16) at `index` of a table with ROW_BLOCK columns."""
        return b.add(b.add(base, b.mul(index, c(4 * ROW_BLOCK))), c(4 * LANES * half))

    def last_key(key: Any) -> Any:
        return k.smaller(key, b.sub(k.field("n_seen"), c(1)))

    def item(index: Any, _: list[Any]) -> list[Any]:
        blocks = b.udiv(k.field("padded"), c(ROW_BLOCK))
        number = b.udiv(index, blocks)
        first_row = b.mul(b.urem(index, blocks), c(ROW_BLOCK))
        kv_offset = b.mul(b.udiv(number, c(group)), c(2 * head_dim))
        k_base, v_base = (b.add(k.field(name), kv_offset) for name in ("k", "v"))
        q_base = b.add(
            k.field("q"), b.mul(b.add(b.mul(b.mul(number, c(pairs)), k.field("padded")), first_row), c(4))
        )
        first_position = b.add(first_row, k.field("n_before"))
        # No row of the block sees a key from `end` on, or one before `start`.
        end = k.smaller(b.add(first_position, c(ROW_BLOCK)), k.field("n_seen"))
        out_of_window = b.sub(b.add(first_position, c(1)), k.field("window"))
        start = b.select(b.icmp_signed("<", out_of_window, c(0)), c(0), out_of_window)
        start = b.mul(b.udiv(start, c(KEY_BLOCK)), c(KEY_BLOCK))
        positions = [
            b.add(k.splat(b.trunc(b.add(first_position, c(LANES * half)), k.i32)), lanes) for half in _ROWS
        ]
        oldest = [b.sub(position, k.splat(b.trunc(k.field("window"), k.i32))) for position in positions]

        def clear(d: Any, _: list[Any]) -> list[Any]:
            for half in _ROWS:
                k.store(k.floats(0), row_vector(sums, d, half))
            return []

        k.loop(c(0), c(head_dim), [], clear)

        def key_block(block: Any, carried: list[Any]) -> list[Any]:
            """`carried`: the largest score so far and the sum of weights, for each vector of rows."""
            first_key = b.add(start, b.mul(block, c(KEY_BLOCK)))

            def score_keys(part: Any, largest: list[Any]) -> list[Any]:
                keys = [b.add(first_key, b.add(b.mul(part, c(_AT_ONCE)), c(i))) for i in range(_AT_ONCE)]
                rows_of = [b.add(k_base, b.mul(last_key(key), k.field("k_row_bytes"))) for key in keys]

                def one_pair(pair: Any, dots: list[Any]) -> list[Any]:
                    at = b.add(q_base, b.mul(b.mul(pair, k.field("padded")), c(4)))
                    query = [k.load(at, k.vi32, 4 * LANES * half) for half in _ROWS]
                    following = []
                    for i in range(_AT_ONCE):
                        key = k.splat(k.load(b.add(rows_of[i], b.mul(pair, c(4))), k.i32))
                        for half in _ROWS:
                            following.append(k.dot_pairs(dots[i * len(_ROWS) + half], query[half], key))
                    return following

                dots = k.loop(c(0), c(pairs), [k.floats(0)] * (_AT_ONCE * len(_ROWS)), one_pair)
                following = list(largest)
                for i, key in enumerate(keys):
                    position = k.splat(b.trunc(key, k.i32))
                    for half in _ROWS:
                        visible = b.and_(
                            b.icmp_signed("<=", position, positions[half]),
                            b.icmp_signed(">", position, oldest[half]),
                        )
                        score = b.fmul(dots[i * len(_ROWS) + half], scale)
                        score = b.select(visible, score, k.floats(-math.inf))
                        k.store(score, row_vector(scores, b.add(b.mul(part, c(_AT_ONCE)), c(i)), half))
                        following[half] = k.larger_lanes(following[half], score)
                return following

            n_parts = c(KEY_BLOCK // _AT_ONCE)
            largest = k.loop(c(0), n_parts, [carried[2 * half] for half in _ROWS], score_keys)
            # A row that has seen nothing yet keeps its -inf out of the arithmetic.
            peaks = [k.larger_lanes(value, k.floats(-1e30)) for value in largest]
            shrink = [k.exp(b.fsub(carried[2 * half], peaks[half])) for half in _ROWS]

            def weigh(pair: Any, totals: list[Any]) -> list[Any]:
                following = list(totals)
                for half in _ROWS:
                    parts = []
                    for odd in range(2):
                        score = k.load(row_vector(scores, b.add(b.mul(pair, c(2)), c(odd)), half), k.vf32)
                        weight = k.exp(b.fsub(score, peaks[half]))
                        hidden = b.fcmp_ordered("==", score, k.floats(-math.inf))
                        weight = b.select(hidden, k.floats(0), weight)
                        following[half] = b.fadd(following[half], weight)
                        parts.append(k.bf16_bits(weight))
                    both = b.or_(parts[0], b.shl(parts[1], k.ints(16)))
                    k.store(both, row_vector(weights, pair, half))
                return following

            totals = [b.fmul(carried[2 * half + 1], shrink[half]) for half in _ROWS]
            totals = k.loop(c(0), c(KEY_BLOCK // 2), totals, weigh)

            def pair_values(pair: Any, _: list[Any]) -> list[Any]:
                key = b.add(first_key, b.mul(pair, c(2)))
                at = [
                    b.add(v_base, b.mul(last_key(b.add(key, c(odd))), k.field("v_row_bytes")))
                    for odd in range(2)
                ]
                target = b.add(values, b.mul(pair, c(4 * head_dim)))
                for d in range(0, head_dim, LANES):
                    low, high = (b.zext(k.load(row, k.vi16, 2 * d), k.vi32) for row in at)
                    k.store(b.or_(low, b.shl(high, k.ints(16))), b.add(target, c(4 * d)))
                return []

            k.loop(c(0), c(KEY_BLOCK // 2), [], pair_values)

            def mix(part: Any, _: list[Any]) -> list[Any]:
                first = b.mul(part, c(_AT_ONCE))
                totals = [
                    b.fmul(k.load(row_vector(sums, b.add(first, c(i)), half), k.vf32), shrink[half])
                    for i in range(_AT_ONCE)
                    for half in _ROWS
                ]

                def one_pair(pair: Any, totals: list[Any]) -> list[Any]:
                    weight = [k.load(row_vector(weights, pair, half), k.vi32) for half in _ROWS]
                    at = b.add(values, b.mul(b.add(b.mul(pair, c(head_dim)), first), c(4)))
                    following = []
                    for i in range(_AT_ONCE):
                        value = k.splat(k.load(at, k.i32, 4 * i))
                        for half in _ROWS:
                            following.append(k.dot_pairs(totals[i * len(_ROWS) + half], weight[half], value))
                    return following

                totals = k.loop(c(0), c(KEY_BLOCK // 2), totals, one_pair)
                for i in range(_AT_ONCE):
                    for half in _ROWS:
                        k.store(totals[i * len(_ROWS) + half], row_vector(sums, b.add(first, c(i)), half))
                return []

            k.loop(c(0), c(head_dim // _AT_ONCE), [], mix)
            return [value for half in _ROWS for value in (peaks[half], totals[half])]

        n_blocks = b.udiv(b.add(b.sub(end, start), c(KEY_BLOCK - 1)), c(KEY_BLOCK))
        nothing = [k.floats(-math.inf), k.floats(0)] * len(_ROWS)
        carried = k.loop(c(0), n_blocks, nothing, key_block)
        inverses = [b.fdiv(k.floats(1), carried[2 * half + 1]) for half in _ROWS]
        out = b.add(b.mul(b.mul(number, c(head_dim)), k.field("padded")), first_row)
        out = b.add(k.field("out"), b.mul(out, c(4)))

        def finish(d: Any, _: list[Any]) -> list[Any]:
            target = b.add(out, b.mul(b.mul(d, k.field("padded")), c(4)))
            for half in _ROWS:
                value = b.fmul(k.load(row_vector(sums, d, half), k.vf32), inverses[half])
                k.store(value, b.add(target, c(4 * LANES * half)))
            return []

        k.loop(c(0), c(head_dim), [], finish)
        return []

    n_items = b.mul(b.udiv(k.field("padded"), c(ROW_BLOCK)), c(n_heads))
    k.loop(*k.share(n_items), [], item)
    return k.compile()
