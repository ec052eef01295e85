"""Tiny random models of each family as GGUF files, for every test that needs a model and not its wit.

Weights are drawn in the order that `transformers` keeps them in and are brought into GGUF's order here, as a converter
would; `reference.py` gives the same weights to `transformers`. The files are complete: a byte-level tokenizer with a
few merges, a chat template and special tokens. Needs no torch.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType, quants
from numpy.typing import NDArray

Array = NDArray[np.float32]

# Every measure differs from every other, so that no two can be mixed up unseen.
CONTEXT_LENGTH = 4096
ROPE_DIVISOR_ORIGINAL_CONTEXT = 64

_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_WORDS = (
    "the",
    "baton",
    "passes",
    "from",
    "one",
    "runner",
    "on",
    "to",
    "next",
    "while",
    "both",
    "of",
    "them",
    "run",
)


@dataclass(frozen=True, kw_only=True)
class TinyConfig:
    """A family's measures. `rope_factors` gives Llama 3's frequency scaling, `rope_linear` gemma's on global layers."""

    architecture: str
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    n_layers: int
    n_merges: int
    rope_base: float
    eps: float
    tied: bool = False
    qkv_bias: bool = False
    other_biases: bool = False
    qk_norm: bool = False
    window: int = 0
    rope_factors: bool = False
    rope_linear: float = 1.0

    @property
    def n_vocab(self) -> int:
        return 256 + self.n_merges + len(_SPECIALS)

    @property
    def is_gemma(self) -> bool:
        return self.architecture == "gemma3"


LLAMA = TinyConfig(
    architecture="llama",
    d_model=96,
    n_heads=4,
    n_kv_heads=2,
    head_dim=32,
    d_ff=160,
    n_layers=3,
    n_merges=17,
    rope_base=10000.0,
    eps=1e-5,
    rope_factors=True,
)
FAMILIES: dict[str, TinyConfig] = {
    "llama": LLAMA,
    "qwen2": TinyConfig(
        architecture="qwen2",
        d_model=64,
        n_heads=8,
        n_kv_heads=2,
        head_dim=20,
        d_ff=96,
        n_layers=2,
        n_merges=22,
        rope_base=1e6,
        eps=1e-6,
        tied=True,
        qkv_bias=True,
    ),
    "qwen3": TinyConfig(
        architecture="qwen3",
        d_model=128,
        n_heads=4,
        n_kv_heads=2,
        head_dim=24,
        d_ff=224,
        n_layers=2,
        n_merges=31,
        rope_base=5e5,
        eps=1e-6,
        qk_norm=True,
    ),
    "gemma3": TinyConfig(
        architecture="gemma3",
        d_model=96,
        n_heads=4,
        n_kv_heads=1,
        head_dim=40,
        d_ff=224,
        n_layers=8,
        n_merges=26,
        rope_base=1e6,
        eps=1e-6,
        tied=True,
        qk_norm=True,
        window=11,
        rope_linear=8.0,
    ),
}
# What else a family's file may hold.
VARIANTS: dict[str, TinyConfig] = {
    **FAMILIES,
    "llama-biased": replace(
        LLAMA, rope_factors=False, qkv_bias=True, other_biases=True, tied=True, n_kv_heads=1
    ),
}


class Quant(enum.StrEnum):
    """How a file's matrices are stored. `MIXED_32` and `Q4_K_M` give the matrices of a layer different types."""

    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    Q4_0 = "Q4_0"
    Q4_1 = "Q4_1"
    Q5_0 = "Q5_0"
    Q5_1 = "Q5_1"
    Q8_0 = "Q8_0"
    MIXED_32 = "MIXED_32"
    Q4_K_M = "Q4_K_M"


def config_of(name: str, quant: Quant = Quant.F32) -> TinyConfig:
    """The measures of `write_tiny(name, ..., quant)`: blocks of 256 need wider matrices."""
    config = VARIANTS[name]
    if quant is not Quant.Q4_K_M:
        return config
    return replace(config, d_model=256, head_dim=512 // config.n_heads, d_ff=768)


def write_tiny(name: str, path: Path, seed: int = 0, *, quant: Quant = Quant.F32) -> Path:
    """Write the family or variant `name` to `path` with weights drawn from `seed`; returns `path`."""
    return write_model(
        config_of(name, quant), path, draw_weights(config_of(name, quant), seed), quant=quant, seed=seed
    )


def write_model(
    config: TinyConfig,
    path: Path,
    weights: dict[str, Array],
    *,
    quant: Quant = Quant.F32,
    seed: int = 0,
    edit: Callable[[dict[str, Array]], None] | None = None,
) -> Path:
    """Write `weights`, named and ordered as in `transformers`; `edit` may change the tensors under their GGUF names."""
    writer = GGUFWriter(path, config.architecture)
    _add_measures(writer, config)
    _add_tokenizer(writer, config)
    tensors = to_gguf(config, weights)
    if edit is not None:
        edit(tensors)
    rng = np.random.default_rng(seed + 1)
    for name, values in tensors.items():
        kind = _type_of(name, values, quant)
        writer.add_tensor(name, _stored(values, kind, rng), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def draw_weights(config: TinyConfig, seed: int) -> dict[str, Array]:
    """Random weights under the names of `transformers`; no layer is lost beside another."""
    rng = np.random.default_rng(seed)
    weights: dict[str, Array] = {}

    def matrix(name: str, n_out: int, n_in: int, size: float | None = None) -> None:
        scale = n_in**-0.5 if size is None else size
        weights[f"{name}.weight"] = (rng.standard_normal((n_out, n_in)) * scale).astype(np.float32)

    def bias(name: str, n_out: int) -> None:
        weights[f"{name}.bias"] = (rng.standard_normal(n_out) * 0.3).astype(np.float32)

    def norm(name: str, size: int) -> None:
        middle = 0.0 if config.is_gemma else 1.0
        weights[f"{name}.weight"] = (middle + 0.2 * rng.standard_normal(size)).astype(np.float32)

    d, q_size, kv_size = config.d_model, config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    matrix("model.embed_tokens", config.n_vocab, d, size=0.25)
    for layer in range(config.n_layers):
        name = f"model.layers.{layer}"
        norm(f"{name}.input_layernorm", d)
        for part, size in (("q", q_size), ("k", kv_size), ("v", kv_size)):
            matrix(f"{name}.self_attn.{part}_proj", size, d)
            if config.qkv_bias:
                bias(f"{name}.self_attn.{part}_proj", size)
        matrix(f"{name}.self_attn.o_proj", d, q_size)
        if config.qk_norm:
            norm(f"{name}.self_attn.q_norm", config.head_dim)
            norm(f"{name}.self_attn.k_norm", config.head_dim)
        norm(f"{name}.post_attention_layernorm", d)
        if config.is_gemma:
            norm(f"{name}.pre_feedforward_layernorm", d)
            norm(f"{name}.post_feedforward_layernorm", d)
        matrix(f"{name}.mlp.gate_proj", config.d_ff, d)
        matrix(f"{name}.mlp.up_proj", config.d_ff, d)
        matrix(f"{name}.mlp.down_proj", d, config.d_ff)
        if config.other_biases:
            bias(f"{name}.self_attn.o_proj", d)
            bias(f"{name}.mlp.gate_proj", config.d_ff)
            bias(f"{name}.mlp.up_proj", config.d_ff)
            bias(f"{name}.mlp.down_proj", d)
    norm("model.norm", d)
    if not config.tied:
        matrix("lm_head", config.n_vocab, d, size=2.5 * d**-0.5)
    return weights


def rope_factors(config: TinyConfig) -> Array:
    """What Llama 3's scaling divides each frequency by: 1 for short waves, 8 for long ones, between them a mix."""
    frequencies = config.rope_base ** (-np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim)
    turns = ROPE_DIVISOR_ORIGINAL_CONTEXT * frequencies / (2 * np.pi)
    kept = np.clip((turns - LOW_FREQUENCY_FACTOR) / (HIGH_FREQUENCY_FACTOR - LOW_FREQUENCY_FACTOR), 0, 1)
    return (1 / ((1 - kept) / ROPE_DIVISOR + kept)).astype(np.float32)


ROPE_DIVISOR, LOW_FREQUENCY_FACTOR, HIGH_FREQUENCY_FACTOR = 8.0, 1.0, 4.0


def to_gguf(config: TinyConfig, weights: dict[str, Array]) -> dict[str, Array]:
    """The same weights under GGUF's names and in its order."""
    tensors: dict[str, Array] = {}
    if config.rope_factors:
        tensors["rope_freqs.weight"] = rope_factors(config)
    for name, values in weights.items():
        if config.is_gemma and "norm" in name:
            values = values + 1
        if config.architecture == "llama" and "q_proj" in name:
            values = _interleaved(values, config.n_heads)
        if config.architecture == "llama" and "k_proj" in name:
            values = _interleaved(values, config.n_kv_heads)
        tensors[_gguf_name(name, config)] = values
    return tensors


def _interleaved(values: Array, n_heads: int) -> Array:
    """Rows of each head from halves (i with i + D/2) to adjacent pairs."""
    halves = values.reshape(n_heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name: str, config: TinyConfig) -> str:
    stem, kind = name.rsplit(".", 1)
    match stem:
        case "model.embed_tokens":
            return f"token_embd.{kind}"
        case "model.norm":
            return f"output_norm.{kind}"
        case "lm_head":
            return f"output.{kind}"
    _, _, layer, part = stem.split(".", 3)
    if config.is_gemma and part == "post_attention_layernorm":
        return f"blk.{layer}.post_attention_norm.{kind}"
    return f"blk.{layer}.{_NAMES[part]}.{kind}"


def _add_measures(writer: GGUFWriter, config: TinyConfig) -> None:
    writer.add_name(f"tiny {config.architecture}")
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(config.d_model)
    writer.add_block_count(config.n_layers)
    writer.add_feed_forward_length(config.d_ff)
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.n_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_base)
    writer.add_layer_norm_rms_eps(config.eps)
    writer.add_vocab_size(config.n_vocab)
    if not config.is_gemma:
        writer.add_rope_dimension_count(config.head_dim)
    if config.window:
        writer.add_sliding_window(config.window)
    if config.rope_linear != 1.0:
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope_linear)


def _add_tokenizer(writer: GGUFWriter, config: TinyConfig) -> None:
    tokens, merges = vocabulary(config)
    end = tokens.index("<|im_end|>")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - len(_SPECIALS)) + [3] * len(_SPECIALS))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(tokens.index("<|endoftext|>"))
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(False)
    writer.add_chat_template(_TEMPLATE)


def vocabulary(config: TinyConfig) -> tuple[list[str], list[str]]:
    """Tokens and merges of a byte-level vocabulary that knows a few words, and the beginnings of them."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    letter = {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(hidden)}
    tokens = [letter[byte] for byte in range(256)]
    merges: list[str] = []
    for word in _WORDS:
        beginning = letter[0x20]
        for character in word:
            if beginning + character not in tokens and len(merges) < config.n_merges:
                merges.append(f"{beginning} {character}")
                tokens.append(beginning + character)
            beginning += character
    return [*tokens, *_SPECIALS], merges


def _type_of(name: str, values: Array, quant: Quant) -> GGMLQuantizationType:
    kinds = GGMLQuantizationType
    if values.ndim < 2:
        return kinds.F32
    if quant is Quant.MIXED_32:
        by_part = {
            "attn_q": kinds.Q5_0,
            "attn_k": kinds.Q4_1,
            "attn_v": kinds.Q8_0,
            "ffn_gate": kinds.Q4_0,
            "ffn_up": kinds.Q5_1,
            "ffn_down": kinds.Q8_0,
        }
        return next((kind for part, kind in by_part.items() if f".{part}." in name), kinds.Q5_0)
    if quant is Quant.Q4_K_M:
        six_bits = any(part in name for part in ("attn_v", "ffn_down", "token_embd", "output.weight"))
        return kinds.Q6_K if six_bits else kinds.Q4_K
    return kinds[quant]


def _stored(values: Array, kind: GGMLQuantizationType, rng: np.random.Generator) -> NDArray[np.generic]:
    if kind in (GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q6_K):
        return _random_blocks(values, kind, rng)
    if values.shape[-1] % 32 and kind is not GGMLQuantizationType.F32:
        raise ValueError(f"{values.shape} is not whole blocks")
    return quants.quantize(values, kind)


def _random_blocks(values: Array, kind: GGMLQuantizationType, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Blocks of 256 random codes with the spread of `values`: the `gguf` package reads these types, but writes none."""
    n_rows, n_cols = values.shape
    spread = float(values.std())
    n_blocks = n_cols // 256
    is_six = kind is GGMLQuantizationType.Q6_K
    blocks = rng.integers(0, 256, (n_rows, n_blocks, 210 if is_six else 144), dtype=np.uint8)

    def scales(size: float) -> NDArray[np.uint8]:
        drawn = size * rng.uniform(0.7, 1.3, (n_rows, n_blocks, 1))
        return drawn.astype(np.float16).view(np.uint8)

    # Typical codes times typical inner scales: 18.5 * 74 for Q6_K; for Q4_K the minimum centres the values.
    if is_six:
        blocks[..., 208:210] = scales(spread / 1370)
    else:
        blocks[..., 0:2] = scales(spread / 220)
        blocks[..., 2:4] = scales(7.5 * spread / 220)
    return blocks.reshape(n_rows, -1)
