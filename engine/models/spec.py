"""A model's measures, read from its file's metadata without torch: the node counts memory by them, too."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.cache.spec import CacheSpec, KVType, LayerKind, LayerSpec
from engine.errors import ModelFileError, UnsupportedModel
from engine.gguf.metadata import Metadata

# The deepest model in use has 126; a file that claims millions would only cost memory.
MAX_LAYERS = 2048


# The architectures that are known, and of how many layers the last is global where the others slide: no file says so.
# 0 where none slides.
PERIODS = {"llama": 0, "qwen2": 0, "qwen3": 0, "gemma3": 6}


@dataclass(frozen=True, kw_only=True)
class RopeSpec:
    """Rotary positions: the first `n_rotated` values of a head, with `base`; all positions divided by `scale`."""

    base: float
    n_rotated: int
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model's measures, as its file gives them. `layers` says what each layer caches."""

    architecture: str
    name: str
    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_vocab: int
    context_length: int
    eps: float
    rope: RopeSpec
    layers: tuple[LayerSpec, ...]

    def cache_spec(self, *, kv_type: KVType, n_ctx: int, n_slots: int) -> CacheSpec:
        return CacheSpec(layers=self.layers, kv_type=kv_type, n_ctx=n_ctx, n_slots=n_slots)


def read_spec(metadata: Metadata) -> ModelSpec:
    """The measures of a model as its metadata gives them.

    Raises UnsupportedModel for an unknown architecture, and ModelFileError for measures that cannot be.
    """
    architecture = metadata.text("general.architecture")
    period = PERIODS.get(architecture)
    if period is None:
        raise UnsupportedModel(
            f"the architecture {architecture!a} is not known to Baton (known: {', '.join(sorted(PERIODS))}); choose a "
            "model of one of these"
        )

    def key(name: str) -> str:
        return f"{architecture}.{name}"

    n_layers = metadata.integer(key("block_count"))
    d_model = metadata.integer(key("embedding_length"))
    n_heads = metadata.integer(key("attention.head_count"))
    n_kv_heads = metadata.integer(key("attention.head_count_kv"), n_heads)
    context_length = metadata.integer(key("context_length"))
    window = metadata.integer(key("attention.sliding_window"), 0) if period else 0
    positive = min(d_model, n_heads, n_kv_heads, context_length) >= 1 and 1 <= n_layers <= MAX_LAYERS
    if not positive or n_heads % n_kv_heads or window < 0:
        raise ModelFileError(
            f"the model's measures do not fit each other ({n_layers} layers of {d_model}, {n_heads} heads over "
            f"{n_kv_heads}, context {context_length}): "
            "download it again, or convert it anew"
        )
    head_dim = metadata.integer(key("attention.key_length"), d_model // n_heads)
    n_rotated = metadata.integer(key("rope.dimension_count"), head_dim)
    if head_dim % 2 or n_rotated % 2 or not 0 < n_rotated <= head_dim:
        raise ModelFileError(
            f"the model has heads of {head_dim} values of which {n_rotated} rotate: it is damaged"
        )
    if metadata.integer(key("attention.value_length"), head_dim) != head_dim:
        raise UnsupportedModel(
            f"{architecture}: heads whose keys and values differ in size are not known yet"
        )
    base = metadata.number(key("rope.freq_base"), 10000.0)
    eps = metadata.number(key("attention.layer_norm_rms_epsilon"), 1e-6)
    if not 0 < base < math.inf or not 0 <= eps < 1:
        raise ModelFileError(
            f"the model has a rope base of {base} and a norm epsilon of {eps}: it is damaged"
        )
    attention = LayerSpec(
        kind=LayerKind.ATTENTION, n_kv_heads=n_kv_heads, k_head_dim=head_dim, v_head_dim=head_dim
    )
    sliding = LayerSpec(
        kind=LayerKind.WINDOW, n_kv_heads=n_kv_heads, k_head_dim=head_dim, v_head_dim=head_dim, window=window
    )
    return ModelSpec(
        architecture=architecture,
        name=metadata.text("general.name", architecture),
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        n_vocab=len(metadata.strings("tokenizer.ggml.tokens")),
        context_length=context_length,
        eps=eps,
        rope=RopeSpec(
            base=base,
            n_rotated=n_rotated,
            scale=_rope_scale(metadata, architecture),
        ),
        layers=tuple(sliding if window and (index + 1) % period else attention for index in range(n_layers)),
    )


def _rope_scale(metadata: Metadata, architecture: str) -> float:
    kind = metadata.text(f"{architecture}.rope.scaling.type", "none")
    factor = metadata.number(f"{architecture}.rope.scaling.factor", 1.0)
    if kind in ("none", "linear"):
        return factor if kind == "linear" and factor > 0 else 1.0
    raise UnsupportedModel(
        f"{architecture}: rope scaling {kind!r} is not known (known: none, linear, and Llama 3's frequency factors)"
    )
