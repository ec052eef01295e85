"""The `qwen3` family: Qwen 3 (dense). As llama, with a norm on each query and key head."""

from __future__ import annotations

from torch import Tensor

from engine.layers.attention import SelfAttention
from engine.layers.mlp import Activation, GatedMLP
from engine.layers.rope import Rope, pair_order
from engine.layers.step import Step
from engine.layers.weights import WeightLoader
from engine.models.base import Stack, output_name
from engine.models.spec import ModelSpec

ARCHITECTURE = "qwen3"


def attention(load: WeightLoader, model: ModelSpec, layer: int, rope: Rope) -> SelfAttention:
    """Queries and keys rotate by halves in the file; rows and norm weights are put in the order of pairs."""
    name = f"blk.{layer}"
    n_rotated = model.rope.n_rotated
    one_head = pair_order(1, model.head_dim, n_rotated)
    return SelfAttention(
        layer=layer,
        qkv=load.linear(
            f"{name}.attn_q",
            f"{name}.attn_k",
            f"{name}.attn_v",
            norm=load.norm(f"{name}.attn_norm", model.eps),
            orders={
                f"{name}.attn_q": pair_order(model.n_heads, model.head_dim, n_rotated),
                f"{name}.attn_k": pair_order(model.n_kv_heads, model.head_dim, n_rotated),
            },
        ),
        rope=rope,
        n_heads=model.n_heads,
        n_kv_heads=model.n_kv_heads,
        head_dim=model.head_dim,
        scale=model.head_dim**-0.5,
        q_norm=load.norm(f"{name}.attn_q_norm", model.eps, order=one_head),
        k_norm=load.norm(f"{name}.attn_k_norm", model.eps, order=one_head),
    )


class Qwen3Block:
    """x + attention(norm x), then x + mlp(norm x)."""

    def __init__(self, load: WeightLoader, model: ModelSpec, layer: int, rope: Rope) -> None:
        name = f"blk.{layer}"
        self._attention = attention(load, model, layer, rope)
        self._out = load.linear(f"{name}.attn_output")
        mlp_norm = load.norm(f"{name}.ffn_norm", model.eps)
        self._mlp = GatedMLP(
            load.gated(f"{name}.ffn_gate", f"{name}.ffn_up", Activation.SILU, mlp_norm),
            load.linear(f"{name}.ffn_down"),
        )

    def __call__(self, x: Tensor, step: Step, *, last: bool = False) -> Tensor | None:
        heads = self._attention(x, step, last=last)
        if heads is None:
            return None
        x = self._out.add_to(step.wanted(x) if last else x, heads)
        return self._mlp.add_to(x)


def stack(load: WeightLoader, model: ModelSpec) -> Stack:
    """All layers in the loader's form."""
    rope = Rope(
        head_dim=model.head_dim,
        n_rotated=model.rope.n_rotated,
        base=model.rope.base,
        scale=model.rope.scale,
        device=load.device,
    )
    return Stack(
        embedding=load.embedding("token_embd"),
        blocks=[Qwen3Block(load, model, layer, rope) for layer in range(model.n_layers)],
        head=load.linear(output_name(load), norm=load.norm("output_norm", model.eps)),
    )
