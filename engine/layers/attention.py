"""Scaled dot-product attention of new rows over a sequence's cached rows, with grouped query heads.

Two shapes matter: one new row (decode) and a chunk of rows at the end of what is cached (prefill). Both go to torch's
fused kernel without copying K or V; what differs is how the query heads of a group are laid out.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.cache.attention import Visible
from engine.kernels import chunk_attention_bf16
from engine.kernels.chunk_attention import attend_chunk_cpu
from engine.kernels.decode_attention import DecodeAttention, HeadNorms
from engine.layers.linear import Linear, PackedLinear
from engine.layers.norm import RMSNorm
from engine.layers.rope import Rope, rotate
from engine.layers.step import Step


def attend_one(q: Tensor, seen: Visible, scale: float) -> Tensor:
    """q [H, D] of the newest position over everything in `seen` -> [H, Dv].

    The query heads of a group are folded into the query axis, so that K and V are read once a group.
    """
    n_heads, head_dim = q.shape
    n_kv = seen.k.shape[1]
    out = F.scaled_dot_product_attention(
        q.view(1, n_kv, n_heads // n_kv, head_dim),
        seen.k.transpose(0, 1).unsqueeze(0),
        seen.v.transpose(0, 1).unsqueeze(0),
        scale=scale,
    )
    return out.view(n_heads, seen.v.shape[2])


def attend_chunk(q: Tensor, seen: Visible, scale: float, mask: Tensor | None) -> Tensor:
    """q [T, H, D] of the last T positions of `seen` -> [T, H, Dv].

    `mask` is what `step.chunk_mask` gives for these positions; None means plainly causal over the T rows alone.
    K and V are shared by the query heads of a group through a stride of 0.
    """
    n_rows, n_heads, head_dim = q.shape
    n_kv = seen.k.shape[1]
    group = n_heads // n_kv
    out = F.scaled_dot_product_attention(
        q.view(n_rows, n_kv, group, head_dim).permute(1, 2, 0, 3),
        seen.k.permute(1, 0, 2).unsqueeze(1).expand(-1, group, -1, -1),
        seen.v.permute(1, 0, 2).unsqueeze(1).expand(-1, group, -1, -1),
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
    )
    return out.permute(2, 0, 1, 3).reshape(n_rows, n_heads, seen.v.shape[2])


class SelfAttention:
    """Grouped-query attention with rotary positions over a sequence's cache, up to the output projection.

    `qkv` gives the rows of all query heads, then all key heads, then all value heads; it holds the norm before it.
    `q_norm` and `k_norm` act on each head before rotation. A `window` of 0 sees all earlier positions.
    """

    def __init__(
        self,
        *,
        layer: int,
        qkv: Linear,
        rope: Rope,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        scale: float,
        window: int = 0,
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
    ) -> None:
        self._layer = layer
        self._qkv = qkv
        self._rope = rope
        self._n_heads = n_heads
        self._n_kv_heads = n_kv_heads
        self._head_dim = head_dim
        self._scale = scale
        self._window = window
        self._q_norm = q_norm
        self._k_norm = k_norm
        self._norms = None
        if q_norm is not None and k_norm is not None:
            self._norms = HeadNorms(q_weight=q_norm.weight, k_weight=k_norm.weight, eps=q_norm.eps)

    def __call__(self, x: Tensor, step: Step, *, last: bool = False) -> Tensor | None:
        """x [T, d] -> mixed heads [T, H D]; writes the rows' K and V to the cache.

        In the `last` layer only rows whose logits are wanted go on: [n_wanted, H D], or None when there are none.
        """
        qkv = self._qkv(x)
        dtype = step.cache_dtype
        if (
            isinstance(self._qkv, PackedLinear)
            and step.one_row_each
            and DecodeAttention.supports(self._head_dim, dtype)
        ):
            mixed = self._decode(qkv, step, dtype)
            mixed = step.wanted(mixed) if last else mixed
            return mixed if mixed.shape[0] else None
        n_heads, n_kv = self._n_heads, self._n_kv_heads
        heads = qkv.unflatten(-1, (n_heads + 2 * n_kv, self._head_dim))
        query_key, value = heads[:, : n_heads + n_kv].float(), heads[:, n_heads + n_kv :]
        if self._q_norm is not None and self._k_norm is not None:
            query_key = torch.cat(
                (self._q_norm(query_key[:, :n_heads]), self._k_norm(query_key[:, n_heads:])), dim=1
            )
        query_key = rotate(query_key, step.factors(self._rope))
        key = query_key[:, n_heads:]
        seen = [
            rows.sequence.layers[self._layer].write(
                rows.first, key[rows.begin : rows.end], value[rows.begin : rows.end]
            )
            for rows in step.rows
        ]
        step.wrote(self._layer)
        query = query_key[:, :n_heads]
        parts = []
        for rows, visible in zip(step.rows, seen, strict=True):
            begin = rows.wanted if last else rows.begin
            if begin < rows.end:
                parts.append(self._attend(query[begin : rows.end], visible, step))
        if not parts:
            return None
        mixed = parts[0] if len(parts) == 1 else torch.cat(parts)
        return mixed.flatten(1)

    def _decode(self, qkv: Tensor, step: Step, dtype: torch.dtype) -> Tensor:
        """One row of each sequence, all in one kernel."""
        kernel = DecodeAttention.of(
            n_heads=self._n_heads,
            n_kv_heads=self._n_kv_heads,
            head_dim=self._head_dim,
            scale=self._scale,
            dtype=dtype,
            normed=self._norms is not None,
        )
        places = [rows.sequence.layers[self._layer].claim(rows.first) for rows in step.rows]
        mixed = kernel(qkv, places, step.factors(self._rope), self._norms)
        step.wrote(self._layer)
        return mixed

    def _attend(self, query: Tensor, seen: Visible, step: Step) -> Tensor:
        """Rows [T, H, D], the newest of `seen`, which may hold more than a window lets the first of them see."""
        if query.shape[0] == 1:
            return self._attend_newest(query[0].to(step.cache_dtype), seen).unsqueeze(0)
        if query.device.type == "cpu" and chunk_attention_bf16.supports(self._head_dim, step.cache_dtype):
            return chunk_attention_bf16.attend_chunk_bf16(query, seen, self._scale, self._window)
        query = query.to(step.cache_dtype)
        if query.device.type == "cpu" and not self._window:
            return attend_chunk_cpu(query, seen, self._scale, step.block_mask)
        return attend_chunk(query, seen, self._scale, step.mask(seen, query.shape[0], self._window))

    def _attend_newest(self, query: Tensor, seen: Visible) -> Tensor:
        """The newest row alone, query [H, D]."""
        n_seen = seen.k.shape[0]
        if self._window and n_seen > self._window:
            hidden = n_seen - self._window
            seen = Visible(k=seen.k[hidden:], v=seen.v[hidden:], first=seen.first + hidden)
        return attend_one(query, seen, self._scale)
