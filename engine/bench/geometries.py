"""Caches of known models, by name: what each layer keeps. Measures alone, no weights and no files."""

from __future__ import annotations

from dataclasses import dataclass

from engine.cache.spec import LayerKind, LayerSpec


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """The layers of one model's cache. `note` says in words what they are."""

    name: str
    note: str
    layers: tuple[LayerSpec, ...]


def _attention(n_layers: int, *, n_kv_heads: int, head_dim: int) -> tuple[LayerSpec, ...]:
    layer = LayerSpec(
        kind=LayerKind.ATTENTION, n_kv_heads=n_kv_heads, k_head_dim=head_dim, v_head_dim=head_dim
    )
    return (layer,) * n_layers


def _hybrid(
    n_layers: int, *, attention_every: int, n_kv_heads: int, head_dim: int, state_bytes: int
) -> tuple[LayerSpec, ...]:
    """The last of every `attention_every` layers attends, the others are recurrent."""
    recurrent = LayerSpec(kind=LayerKind.RECURRENT, state_bytes=state_bytes)
    group = (recurrent,) * (attention_every - 1) + _attention(1, n_kv_heads=n_kv_heads, head_dim=head_dim)
    return group * (n_layers // attention_every)


def _windowed(
    n_layers: int, *, attention_every: int, n_kv_heads: int, head_dim: int, window: int
) -> tuple[LayerSpec, ...]:
    """The last of every `attention_every` layers sees everything, the others a window."""
    everything = _attention(1, n_kv_heads=n_kv_heads, head_dim=head_dim)[0]
    near = LayerSpec(
        kind=LayerKind.WINDOW,
        n_kv_heads=n_kv_heads,
        k_head_dim=head_dim,
        v_head_dim=head_dim,
        window=window,
    )
    return tuple(
        everything if index % attention_every == attention_every - 1 else near for index in range(n_layers)
    )


# One gated delta layer in float32: 48 heads of 128 x 128, and the last 3 inputs of its convolution's 10,240 channels.
_QWEN_STATE_BYTES = 4 * (48 * 128 * 128 + 3 * 10_240)

GEOMETRIES = {
    geometry.name: geometry
    for geometry in (
        Geometry(
            name="qwen3.6-27b",
            note="64 layers: 16 attend with 4 KV heads of 256, 48 are recurrent and hold 149.6 MiB together",
            layers=_hybrid(64, attention_every=4, n_kv_heads=4, head_dim=256, state_bytes=_QWEN_STATE_BYTES),
        ),
        Geometry(
            name="llama-8b",
            note="32 attention layers with 8 KV heads of 128",
            layers=_attention(32, n_kv_heads=8, head_dim=128),
        ),
        Geometry(
            name="qwen2.5-0.5b",
            note="24 attention layers with 2 KV heads of 64",
            layers=_attention(24, n_kv_heads=2, head_dim=64),
        ),
        Geometry(
            name="gemma3-12b",
            note="48 layers with 8 KV heads of 256; 8 see everything, 40 the last 1,024 positions",
            layers=_windowed(48, attention_every=6, n_kv_heads=8, head_dim=256, window=1024),
        ),
    )
}
