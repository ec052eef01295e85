"""Causal attention of a chunk on a CPU: the same result as `layers.attention.attend_chunk`, without a window.

torch's fused CPU kernel is at its best with many query rows and no mask. So the query heads of a group become query
rows, the part of the cache before the chunk is attended to without a mask, and only the chunk's own square, taken in
blocks of rows, needs one. The two parts are joined by their log-sum-exp. Measured for 14 heads of 64 and 512 rows:
5.4 ms against 11.9 ms.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.cache.attention import Visible

# Rows of a block of the chunk's own square: smaller skips more of the hidden half, larger calls the kernel less.
BLOCK_ROWS = 128

# Additive masks by (rows, keys); all layers of a step use the same few.
_Masks = Callable[[int, int, int], Tensor]


def attend_chunk_cpu(q: Tensor, seen: Visible, scale: float, block_mask: _Masks) -> Tensor:
    """q [T, H, D] of the last T positions of `seen` -> [T, H, Dv]; `block_mask(rows, keys, group)` is
    `causal_block`."""
    n_rows = q.shape[0]
    n_before = seen.k.shape[0] - n_rows
    out, log_sum = _own_square(q, seen.k[n_before:], seen.v[n_before:], scale, block_mask)
    if n_before == 0:
        return out
    earlier, earlier_log_sum = _flash(q, seen.k[:n_before], seen.v[:n_before], scale, None)
    weight = torch.sigmoid(earlier_log_sum - log_sum).unsqueeze(-1)
    return torch.lerp(out.float(), earlier.float(), weight).to(q.dtype)


def causal_block(rows: int, keys: int, group: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [1, 1, group * rows, keys] for `rows` positions, the last of `keys`, once per head of a group."""
    hidden = torch.ones(rows, keys, dtype=torch.bool).triu(keys - rows + 1)
    mask = torch.zeros(rows, keys, dtype=dtype).masked_fill_(hidden, float("-inf"))
    return mask.repeat(group, 1)[None, None]


def _own_square(q: Tensor, k: Tensor, v: Tensor, scale: float, block_mask: _Masks) -> tuple[Tensor, Tensor]:
    n_rows, n_heads, _ = q.shape
    group = n_heads // k.shape[1]
    out = q.new_empty(n_rows, n_heads, v.shape[2])
    log_sum = torch.empty(n_rows, n_heads)
    for first in range(0, n_rows, BLOCK_ROWS):
        end = min(first + BLOCK_ROWS, n_rows)
        mask = block_mask(end - first, end, group)
        out[first:end], log_sum[first:end] = _flash(q[first:end], k[:end], v[:end], scale, mask)
    return out, log_sum


def _flash(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """q [T, H, D], k and v [S, Hk, D] -> the attention [T, H, Dv] and its log-sum-exp [T, H]."""
    n_rows, n_heads, head_dim = q.shape
    n_kv = k.shape[1]
    group = n_heads // n_kv
    folded = (
        q.view(n_rows, n_kv, group, head_dim).permute(1, 2, 0, 3).reshape(1, n_kv, group * n_rows, head_dim)
    )
    out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        folded,
        k.transpose(0, 1).unsqueeze(0),
        v.transpose(0, 1).unsqueeze(0),
        0.0,
        False,
        attn_mask=mask,
        scale=scale,
    )
    out = out.view(n_kv, group, n_rows, -1).permute(2, 0, 1, 3).reshape(n_rows, n_heads, -1)
    return out, log_sum.view(n_kv, group, n_rows).permute(2, 0, 1).reshape(n_rows, n_heads)
