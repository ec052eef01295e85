"""Attention through torch's fused kernel against the plain rule, with every measure different."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.cache.attention import Visible
from engine.layers.attention import attend_chunk, attend_one
from engine.layers.norm import RMSNorm
from engine.layers.step import chunk_mask

SHAPES = [(6, 2, 16, 24), (5, 5, 8, 8), (4, 1, 40, 16)]


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def plain(q: Tensor, seen: Visible, scale: float, window: int) -> Tensor:
    n_rows, n_heads, _ = q.shape
    group = n_heads // seen.k.shape[1]
    out = torch.empty(n_rows, n_heads, seen.v.shape[2], dtype=torch.float64)
    n_seen = seen.k.shape[0]
    for row in range(n_rows):
        place = n_seen - n_rows + row
        first = max(0, place - window + 1) if window else 0
        for head in range(n_heads):
            k = seen.k[first : place + 1, head // group].double()
            v = seen.v[first : place + 1, head // group].double()
            out[row, head] = (k @ q[row, head].double() * scale).softmax(0) @ v
    return out


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("n_seen", [1, 2, 37])
def test_one_row(shape: tuple[int, int, int, int], n_seen: int) -> None:
    n_heads, n_kv, k_dim, v_dim = shape
    seen = Visible(k=drawn(n_seen, n_kv, k_dim, seed=1), v=drawn(n_seen, n_kv, v_dim, seed=2), first=0)
    q = drawn(n_heads, k_dim, seed=3)
    found = attend_one(q, seen, 0.4)
    torch.testing.assert_close(found.double(), plain(q[None], seen, 0.4, 0)[0], atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("window", [0, 1, 4, 100])
@pytest.mark.parametrize(("n_rows", "n_before", "first"), [(7, 0, 0), (2, 9, 0), (7, 5, 3)])
def test_a_chunk(
    shape: tuple[int, int, int, int], window: int, n_rows: int, n_before: int, first: int
) -> None:
    n_heads, n_kv, k_dim, v_dim = shape
    n_seen = n_rows + n_before
    seen = Visible(k=drawn(n_seen, n_kv, k_dim, seed=1), v=drawn(n_seen, n_kv, v_dim, seed=2), first=first)
    q = drawn(n_rows, n_heads, k_dim, seed=3)
    mask = chunk_mask(first, n_seen, n_rows, window, torch.float32, torch.device("cpu"))
    found = attend_chunk(q, seen, 0.4, mask)
    torch.testing.assert_close(found.double(), plain(q, seen, 0.4, window), atol=2e-6, rtol=2e-6)


def test_rms_norm() -> None:
    x, weight = 3 * drawn(5, 24, seed=1), drawn(24, seed=2)
    found = RMSNorm(weight, 1e-2)(x)
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-2).sqrt() * weight
    torch.testing.assert_close(found, expected)
    fused = RMSNorm(weight, 1e-2).fused()
    torch.testing.assert_close(F.rms_norm(x, (24,), fused.weight, fused.eps), expected)
