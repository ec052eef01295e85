"""The `gemma3` family: norms around each half, query and key norms, GELU, five sliding layers to one global."""

from __future__ import annotations

from torch import Tensor

from engine.cache.spec import LayerKind
from engine.layers.attention import SelfAttention
from engine.layers.mlp import Activation, GatedMLP
from engine.layers.rope import Rope, pair_order
from engine.layers.step import Step
from engine.layers.weights import WeightLoader
from engine.models.base import Stack, output_name
from engine.models.spec import ModelSpec

ARCHITECTURE = "gemma3"

# The sliding layers' rope base has no key in the file.
LOCAL_ROPE_BASE = 10000.0

# The 27B model alone scales attention by the width of a head of d_model, not by the true head size.
LAYERS_OF_27B = 62


def attention(load: WeightLoader, model: ModelSpec, layer: int, rope: Rope) -> SelfAttention:
    """Rows and norm weights of queries and keys are put in the order of adjacent rotary pairs."""
    name = f"blk.{layer}"
    n_rotated = model.rope.n_rotated
    one_head = pair_order(1, model.head_dim, n_rotated)
    scaled_by = model.d_model // model.n_heads if model.n_layers == LAYERS_OF_27B else model.head_dim
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
        scale=scaled_by**-0.5,
        window=model.layers[layer].window,
        q_norm=load.norm(f"{name}.attn_q_norm", model.eps, order=one_head),
        k_norm=load.norm(f"{name}.attn_k_norm", model.eps, order=one_head),
    )


class Gemma3Block:
    """x + norm(attention(norm x)), then x + norm(mlp(norm x)). GGUF's `post_attention_norm` is what it says here."""

    def __init__(self, load: WeightLoader, model: ModelSpec, layer: int, rope: Rope) -> None:
        name = f"blk.{layer}"
        self._attention = attention(load, model, layer, rope)
        self._out = load.linear(f"{name}.attn_output")
        self._attention_out_norm = load.norm(f"{name}.post_attention_norm", model.eps)
        mlp_norm = load.norm(f"{name}.ffn_norm", model.eps)
        self._mlp = GatedMLP(
            load.gated(f"{name}.ffn_gate", f"{name}.ffn_up", Activation.GELU, mlp_norm),
            load.linear(f"{name}.ffn_down"),
        )
        self._mlp_out_norm = load.norm(f"{name}.post_ffw_norm", model.eps)

    def __call__(self, x: Tensor, step: Step, *, last: bool = False) -> Tensor | None:
        heads = self._attention(x, step, last=last)
        if heads is None:
            return None
        x = (step.wanted(x) if last else x) + self._attention_out_norm(self._out(heads).float())
        return x + self._mlp_out_norm(self._mlp(x).float())


def stack(load: WeightLoader, model: ModelSpec) -> Stack:
    """All layers in the loader's form. The file's rope scaling holds for the global layers alone."""
    ropes = {
        LayerKind.ATTENTION: Rope(
            head_dim=model.head_dim,
            n_rotated=model.rope.n_rotated,
            base=model.rope.base,
            scale=model.rope.scale,
            device=load.device,
        ),
        LayerKind.WINDOW: Rope(
            head_dim=model.head_dim, n_rotated=model.rope.n_rotated, base=LOCAL_ROPE_BASE, device=load.device
        ),
    }
    return Stack(
        embedding=load.embedding("token_embd"),
        blocks=[
            Gemma3Block(load, model, layer, ropes[model.layers[layer].kind])
            for layer in range(model.n_layers)
        ],
        head=load.linear(output_name(load), norm=load.norm("output_norm", model.eps)),
        embedding_scale=model.d_model**0.5,
    )
