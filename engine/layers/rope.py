"""Rotary positions. Every family rotates adjacent pairs here: `pair_order` says how to bring others into that form.

GGUF stores the query and key rows of the `llama` family for adjacent pairs and of the others for halves (value i with
value i + n/2). Reordering the rows of both in the same way changes no attention score, so the loader reorders rows
once and one routine serves all: a complex product.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Rope:
    """Rotation by position for heads of `head_dim` values, of which the first `n_rotated` rotate.

    `factors` [n_rotated / 2] divides each frequency (Llama 3's scaling comes so); `scale` divides all positions.
    The table grows as positions are asked for.
    """

    def __init__(
        self,
        *,
        head_dim: int,
        n_rotated: int,
        base: float,
        device: torch.device,
        scale: float = 1.0,
        factors: Tensor | None = None,
    ) -> None:
        exponents = torch.arange(0, n_rotated, 2, dtype=torch.float64) / n_rotated
        frequencies = 1.0 / (base**exponents * scale)
        if factors is not None:
            frequencies = frequencies / factors.cpu().double()
        # Values beyond n_rotated stay as they are: frequency 0.
        self._frequencies = torch.nn.functional.pad(frequencies, (0, (head_dim - n_rotated) // 2))
        self._device = device
        self._table = torch.empty(0, head_dim // 2, dtype=torch.complex64, device=device)

    def at(self, positions: Tensor) -> Tensor:
        """Factors complex64 [T, 1, D/2] for `positions` int64 [T], to hand to `rotate`."""
        return self._table_to(int(positions.max()) + 1)[positions].unsqueeze(1)

    def span(self, first: int, end: int) -> Tensor:
        """`at` for the positions [first, end), without a copy."""
        return self._table_to(end)[first:end].unsqueeze(1)

    def _table_to(self, end: int) -> Tensor:
        if end > self._table.shape[0]:
            size = max(1024, 1 << (end - 1).bit_length())
            angles = torch.outer(torch.arange(size, dtype=torch.float64), self._frequencies)
            self._table = torch.polar(torch.ones_like(angles), angles).to(torch.complex64).to(self._device)
        return self._table


def rotate(x: Tensor, factors: Tensor) -> Tensor:
    """x float32 [T, H, D], rotated by `factors` [T, 1, D/2]; a contiguous x is rotated in place."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs.mul_(factors)).flatten(-2)


def pair_order(n_heads: int, head_dim: int, n_rotated: int) -> Tensor:
    """Row order int64 [n_heads * head_dim] that turns half-split rotary rows into adjacent pairs."""
    half = n_rotated // 2
    head = torch.arange(head_dim)
    head[0:n_rotated:2] = torch.arange(half)
    head[1:n_rotated:2] = torch.arange(half, n_rotated)
    return (torch.arange(n_heads).unsqueeze(1) * head_dim + head).flatten()
