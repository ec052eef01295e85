"""The `llama` family: Llama 2 and 3, SmolLM, Mistral. Pre-norm, grouped-query attention, SiLU-gated MLP."""

from __future__ import annotations

from torch import Tensor

from engine.layers.attention import SelfAttention
from engine.layers.mlp import Activation, GatedMLP
from engine.layers.rope import Rope
from engine.layers.step import Step
from engine.layers.weights import WeightLoader
from engine.models.base import Stack, output_name
from engine.models.spec import ModelSpec

ARCHITECTURE = "llama"


def attention(load: WeightLoader, model: ModelSpec, layer: int, rope: Rope) -> SelfAttention:
    """Rows of this family's files are already in the order of adjacent rotary pairs."""
    name = f"blk.{layer}"
    return SelfAttention(
        layer=layer,
        qkv=load.linear(
            f"{name}.attn_q",
            f"{name}.attn_k",
            f"{name}.attn_v",
            norm=load.norm(f"{name}.attn_norm", model.eps),
        ),
        rope=rope,
        n_heads=model.n_heads,
        n_kv_heads=model.n_kv_heads,
        head_dim=model.head_dim,
        scale=model.head_dim**-0.5,
    )


class LlamaBlock:
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
    """All layers in the loader's form. Llama 3's scaling comes as a factor for each frequency."""
    rope = Rope(
        head_dim=model.head_dim,
        n_rotated=model.rope.n_rotated,
        base=model.rope.base,
        scale=model.rope.scale,
        factors=load.vector("rope_freqs.weight") if load.has("rope_freqs") else None,
        device=load.device,
    )
    return Stack(
        embedding=load.embedding("token_embd"),
        blocks=[LlamaBlock(load, model, layer, rope) for layer in range(model.n_layers)],
        head=load.linear(output_name(load), norm=load.norm("output_norm", model.eps)),
    )
