"""The decode kernel against a plain computation: norms, rotation, what it writes to the cache, and what it mixes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.cache.attention import AttentionCache
from engine.cache.window import WindowCache
from engine.kernels.decode_attention import DecodeAttention, HeadNorms
from engine.layers.rope import Rope

pytestmark = pytest.mark.usefixtures("needs_jit")

# (query heads, KV heads, head size): groups of 1 to 7, heads of one vector and of many.
SHAPES = [(6, 3, 32), (14, 2, 64), (4, 1, 256), (5, 5, 16), (9, 3, 80), (3, 1, 128)]
TYPES = [torch.float32, torch.bfloat16, torch.float16]
EPS = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def caches(lengths: list[int], n_kv: int, head_dim: int, dtype: torch.dtype) -> list[AttentionCache]:
    """One cache for each length, filled up to it, with garbage beyond."""
    made = []
    for seed, length in enumerate(lengths):
        k, v = (torch.full((length + 5, n_kv, head_dim), torch.nan, dtype=dtype) for _ in range(2))
        k[:length] = drawn(length, n_kv, head_dim, seed=10 + seed)
        v[:length] = drawn(length, n_kv, head_dim, seed=20 + seed)
        made.append(AttentionCache(k, v))
    return made


def plain(
    qkv: Tensor,
    cache: tuple[Tensor, Tensor],
    angles: Tensor,
    norms: HeadNorms | None,
    scale: float,
    n_kv: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """One row in float64: (mixed heads [H, D], its key, its value), over the earlier K and V given."""
    k, v = (part.double() for part in cache)
    head_dim = k.shape[2]
    heads = qkv.double().view(-1, head_dim)
    q, key, value = heads.split((heads.shape[0] - 2 * n_kv, n_kv, n_kv))
    if norms is not None:
        q = F.rms_norm(q, (head_dim,), norms.q_weight.double(), norms.eps)
        key = F.rms_norm(key, (head_dim,), norms.k_weight.double(), norms.eps)

    def turned(x: Tensor) -> Tensor:
        even, odd = x[:, 0::2], x[:, 1::2]
        cos, sin = angles.cos(), angles.sin()
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(1)

    q, key = turned(q), turned(key)
    stored_key, stored_value = (part.to(cache[0].dtype).double() for part in (key, value))
    group = q.shape[0] // n_kv
    keys = torch.cat((k, stored_key[None])).repeat_interleave(group, 1)
    values = torch.cat((v, stored_value[None])).repeat_interleave(group, 1)
    weights = (torch.einsum("hd,shd->hs", q, keys) * scale).softmax(-1)
    return torch.einsum("hs,shd->hd", weights, values), key, value


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_a_plain_computation(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    n_heads, n_kv, head_dim = shape
    lengths = [0, 1, 15, 16, 17, 75]
    held = caches(lengths, n_kv, head_dim, dtype)
    normed = n_kv != 3
    norms = (
        HeadNorms(q_weight=1 + drawn(head_dim, seed=1), k_weight=1 + drawn(head_dim, seed=2), eps=1e-3)
        if normed
        else None
    )
    scale = 1.3 * head_dim**-0.5
    qkv = 2 * drawn(len(lengths), (n_heads + 2 * n_kv) * head_dim, seed=3)
    rope = Rope(head_dim=head_dim, n_rotated=head_dim, base=100.0, device=torch.device("cpu"))
    angles = torch.outer(torch.tensor(lengths, dtype=torch.float64), rope._frequencies)
    kernel = DecodeAttention.of(
        n_heads=n_heads, n_kv_heads=n_kv, head_dim=head_dim, scale=scale, dtype=dtype, normed=normed
    )
    places = [cache.claim(length) for cache, length in zip(held, lengths, strict=True)]
    found = kernel(qkv, places, rope.at(torch.tensor(lengths)), norms).view(-1, n_heads, head_dim)
    for row, (cache, length) in enumerate(zip(held, lengths, strict=True)):
        earlier = cache.k[:length], cache.v[:length]
        mixed, key, value = plain(qkv[row], earlier, angles[row], norms, scale, n_kv)
        torch.testing.assert_close(found[row].double(), mixed, atol=EPS[dtype], rtol=EPS[dtype])
        torch.testing.assert_close(cache.k[length].double(), key, atol=EPS[dtype], rtol=EPS[dtype])
        assert torch.equal(cache.v[length], value.to(dtype))
        assert cache.k[length + 1 :].isnan().all()
        assert cache.v[length + 1 :].isnan().all()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_rounding_to_the_cache_is_torch_s(dtype: torch.dtype) -> None:
    """Bit for bit, to the nearest even, also for what is too large or too small."""
    head_dim = 32
    cache = caches([0], 1, head_dim, dtype)[0]
    kernel = DecodeAttention.of(
        n_heads=1, n_kv_heads=1, head_dim=head_dim, scale=1.0, dtype=dtype, normed=False
    )
    qkv = torch.zeros(1, 3 * head_dim)
    values = torch.cat(
        (
            torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11, -0.0, 1e-40, 3e38, -7e4]),
            drawn(24, seed=5) * 10.0 ** torch.arange(-12, 12),
        )
    )
    qkv[0, 2 * head_dim :] = values
    kernel(qkv, [cache.claim(0)], torch.ones(1, 1, head_dim // 2, dtype=torch.complex64), None)
    assert torch.equal(cache.v[0, 0], values.to(dtype))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_rows_and_threads_change_no_bit(threads: int) -> None:
    n_heads, n_kv, head_dim, lengths = 14, 2, 64, [3, 40, 0, 129]
    qkv = drawn(4, (n_heads + 2 * n_kv) * head_dim, seed=6)
    factors = torch.polar(torch.ones(4, 1, head_dim // 2), drawn(4, 1, head_dim // 2, seed=7))

    def run(rows: list[int], n_threads: int) -> Tensor:
        held = caches(lengths, n_kv, head_dim, torch.bfloat16)
        torch.set_num_threads(n_threads)
        try:
            kernel = DecodeAttention(
                n_heads=n_heads,
                n_kv_heads=n_kv,
                head_dim=head_dim,
                scale=0.2,
                dtype=torch.bfloat16,
                normed=False,
            )
            places = [held[row].claim(lengths[row]) for row in rows]
            return kernel(qkv[rows].contiguous(), places, factors[rows], None)
        finally:
            torch.set_num_threads(1)

    alone = torch.cat([run([row], 1) for row in range(4)])
    assert torch.equal(run([0, 1, 2, 3], threads), alone)
    assert torch.equal(run([3, 1], threads), alone[[3, 1]])


def test_two_models_at_once() -> None:
    """Two engines in one process decode side by side, each in its thread."""
    n_heads, n_kv, head_dim, length = 14, 2, 64, 200
    kernel = {"n_heads": n_heads, "n_kv_heads": n_kv, "head_dim": head_dim, "scale": 0.2, "normed": False}
    factors = torch.ones(1, 1, head_dim // 2, dtype=torch.complex64)

    def run(seed: int) -> list[Tensor]:
        cache = caches([length], n_kv, head_dim, torch.float32)[0]
        qkv = drawn(1, (n_heads + 2 * n_kv) * head_dim, seed=seed)
        attend = DecodeAttention.of(**kernel, dtype=torch.float32)
        return [attend(qkv, [cache.claim(length)], factors, None) for _ in range(300)]

    expected = [run(seed)[0] for seed in range(2)]
    with ThreadPoolExecutor(2) as threads:
        for found, right in zip(threads.map(run, range(2)), expected, strict=True):
            assert all(torch.equal(one, right) for one in found)


def test_scores_far_apart() -> None:
    """One position takes all, or all are hidden behind it by hundreds: no NaN, no overflow."""
    head_dim = 32
    cache = caches([40], 1, head_dim, torch.float32)[0]
    cache.k[:40] = 0
    cache.k[17] = 100.0
    cache.k[18] = -100.0
    qkv = torch.cat((torch.ones(head_dim), torch.zeros(head_dim), drawn(head_dim, seed=8)))[None]
    kernel = DecodeAttention.of(
        n_heads=1, n_kv_heads=1, head_dim=head_dim, scale=1.0, dtype=torch.float32, normed=False
    )
    factors = torch.ones(1, 1, head_dim // 2, dtype=torch.complex64)
    found = kernel(qkv, [cache.claim(40)], factors, None)
    torch.testing.assert_close(found.view(-1), cache.v[17, 0])


@pytest.mark.parametrize("window", [1, 6, 16, 33])
def test_a_window_s_rows(window: int) -> None:
    """Row after row through a sliding buffer, against a full cache and the last `window` positions of it."""
    n_heads, n_kv, head_dim, n_rows = 6, 3, 32, 90
    kernel = DecodeAttention.of(
        n_heads=n_heads, n_kv_heads=n_kv, head_dim=head_dim, scale=0.3, dtype=torch.float32, normed=False
    )
    buffer = (torch.full((window + 4, n_kv, head_dim), torch.nan) for _ in range(2))
    sliding = WindowCache(*buffer, window)
    full = AttentionCache(*(torch.zeros(n_rows, n_kv, head_dim) for _ in range(2)))
    factors = torch.ones(1, 1, head_dim // 2, dtype=torch.complex64)
    for position in range(n_rows):
        qkv = drawn(1, (n_heads + 2 * n_kv) * head_dim, seed=position)
        found = kernel(qkv, [sliding.claim(position)], factors, None)
        first = max(0, position - window + 1)
        zero = torch.zeros(head_dim // 2, dtype=torch.float64)
        earlier = full.k[first:position], full.v[first:position]
        mixed, key, value = plain(qkv[0], earlier, zero, None, 0.3, n_kv)
        full.k[position], full.v[position] = key.float(), value.float()
        torch.testing.assert_close(found.view(n_heads, head_dim).double(), mixed, atol=3e-6, rtol=3e-6)


def test_support_is_for_whole_vectors() -> None:
    assert DecodeAttention.supports(64, torch.bfloat16)
    assert not DecodeAttention.supports(40, torch.bfloat16)
    assert not DecodeAttention.supports(64, torch.float64)
