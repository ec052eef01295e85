"""Chunk attention on a CPU against the plain rule, with every measure different."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.cache.attention import Visible
from engine.kernels import chunk_attention
from engine.kernels.chunk_attention import attend_chunk_cpu, causal_block
from engine.kernels.chunk_attention_bf16 import attend_chunk_bf16, supports


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def plain(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int = 0) -> Tensor:
    """q [T, H, D] of the last T of S positions -> [T, H, Dv], in float64, position by position."""
    n_rows, n_heads, _ = q.shape
    group = n_heads // k.shape[1]
    keys, values = (part.double().repeat_interleave(group, 1) for part in (k, v))
    scores = torch.einsum("thd,shd->hts", q.double(), keys) * scale
    place = torch.arange(k.shape[0])
    row = place[-n_rows:].unsqueeze(1)
    hidden = place > row
    if window:
        hidden |= place <= row - window
    return torch.einsum("hts,shd->thd", scores.masked_fill(hidden, -torch.inf).softmax(-1), values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(6, 2, 16), (5, 5, 24), (4, 1, 40)], ids=str)
@pytest.mark.parametrize(
    ("n_rows", "n_before"), [(2, 0), (31, 0), (128, 0), (129, 0), (300, 0), (2, 1), (60, 131), (257, 90)]
)
def test_against_the_rule(
    shape: tuple[int, int, int], n_rows: int, n_before: int, dtype: torch.dtype
) -> None:
    n_heads, n_kv, head_dim = shape
    q = drawn(n_rows, n_heads, head_dim, seed=1).to(dtype)
    k, v = (drawn(n_before + n_rows, n_kv, head_dim, seed=s).to(dtype) for s in (2, 3))
    scale = 1.7 * head_dim**-0.5
    found = attend_chunk_cpu(
        q, Visible(k=k, v=v, first=0), scale, lambda rows, keys, group: causal_block(rows, keys, group, dtype)
    )
    assert found.dtype is dtype
    tolerance = 2e-6 if dtype is torch.float32 else 2.5e-2
    torch.testing.assert_close(found.double(), plain(q, k, v, scale), atol=tolerance, rtol=tolerance)


def test_a_cache_s_strided_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """K and V are views of a longer buffer that holds NaN beyond; small blocks, so that several are joined."""
    monkeypatch.setattr(chunk_attention, "BLOCK_ROWS", 5)
    k, v = (torch.full((70, 2, 16), torch.nan) for _ in range(2))
    k[:50], v[:50] = drawn(50, 2, 16, seed=2), drawn(50, 2, 16, seed=3)
    q = drawn(23, 6, 16, seed=1)
    found = attend_chunk_cpu(
        q,
        Visible(k=k[:50], v=v[:50], first=0),
        0.3,
        lambda rows, keys, group: causal_block(rows, keys, group, torch.float32),
    )
    torch.testing.assert_close(found.double(), plain(q, k[:50], v[:50], 0.3), atol=2e-6, rtol=2e-6)


def test_scores_far_apart() -> None:
    """Where the earlier part or the chunk's own outweighs the other by hundreds, the join gives no NaN."""
    for earlier, own in ((200.0, -200.0), (-200.0, 200.0), (0.0, 0.0)):
        k = torch.cat((torch.full((20, 1, 16), earlier / 16), torch.full((6, 1, 16), own / 16)))
        v = drawn(26, 1, 16, seed=4)
        q = torch.ones(6, 2, 16)
        found = attend_chunk_cpu(
            q,
            Visible(k=k, v=v, first=0),
            1.0,
            lambda rows, keys, group: causal_block(rows, keys, group, torch.float32),
        )
        torch.testing.assert_close(found.double(), plain(q, k, v, 1.0), atol=1e-5, rtol=1e-5)


@pytest.fixture
def needs_bf16_dots() -> None:
    if not supports(16, torch.bfloat16):
        pytest.skip("this processor has no bfloat16 dot products")


@pytest.mark.usefixtures("needs_bf16_dots")
@pytest.mark.parametrize("window", [0, 1, 9, 70, 400])
@pytest.mark.parametrize("shape", [(6, 2, 16), (5, 5, 48), (4, 1, 80), (3, 1, 256)], ids=str)
@pytest.mark.parametrize(("n_rows", "n_before"), [(2, 0), (33, 0), (129, 0), (5, 64), (60, 131), (130, 61)])
def test_bf16_dots_against_the_rule(
    shape: tuple[int, int, int], n_rows: int, n_before: int, window: int
) -> None:
    """K and V lie in a longer buffer that holds NaN beyond; queries come as float32 and non-contiguous."""
    n_heads, n_kv, head_dim = shape
    n_seen = n_before + n_rows
    q = drawn(n_rows, n_heads + 2, head_dim, seed=1)[:, :n_heads]
    k, v = (torch.full((n_seen + 40, n_kv, head_dim), torch.nan, dtype=torch.bfloat16) for _ in range(2))
    k[:n_seen], v[:n_seen] = drawn(n_seen, n_kv, head_dim, seed=2), drawn(n_seen, n_kv, head_dim, seed=3)
    scale = 1.7 * head_dim**-0.5
    seen = Visible(k=k[:n_seen], v=v[:n_seen], first=7)
    found = attend_chunk_bf16(q, seen, scale, window)
    assert found.dtype is torch.bfloat16
    expected = plain(q.to(torch.bfloat16), seen.k, seen.v, scale, window)
    torch.testing.assert_close(found.double(), expected, atol=1.5e-2, rtol=1.5e-2)
    # Errors of single values are roundings to bfloat16; together they must not lean to one side.
    assert float((found.double() - expected).mean().abs()) < 5e-4


@pytest.mark.usefixtures("needs_bf16_dots")
def test_bf16_dots_with_scores_far_apart() -> None:
    k = torch.zeros(100, 1, 16, dtype=torch.bfloat16)
    k[3], k[70] = 1000.0, -1000.0
    v = drawn(100, 1, 16, seed=4).to(torch.bfloat16)
    q = torch.ones(40, 2, 16)
    found = attend_chunk_bf16(q, Visible(k=k, v=v, first=0), 1.0, 0)
    torch.testing.assert_close(found, v[3].expand(40, 2, 16))


@pytest.mark.usefixtures("needs_bf16_dots")
def test_bf16_dots_threads_change_no_bit() -> None:
    q, k, v = drawn(90, 6, 32, seed=1), drawn(120, 2, 32, seed=2), drawn(120, 2, 32, seed=3)
    seen = Visible(k=k.to(torch.bfloat16), v=v.to(torch.bfloat16), first=0)
    one = attend_chunk_bf16(q, seen, 0.2, 50)
    try:
        for threads in (2, 3):
            torch.set_num_threads(threads)
            assert torch.equal(attend_chunk_bf16(q, seen, 0.2, 50), one)
    finally:
        torch.set_num_threads(1)
