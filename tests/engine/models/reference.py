"""The tiny models by `transformers`, in float32: the reference for our own forward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.engine.models import tiny
from tests.engine.models.tiny import TinyConfig


def reference_model(config: TinyConfig, seed: int) -> Any:
    """A `transformers` model with the weights of `write_tiny(..., seed)`."""
    model = _build(config)
    model.eval()
    weights = {name: torch.from_numpy(values) for name, values in tiny.draw_weights(config, seed).items()}
    missing, surplus = model.load_state_dict(weights, strict=False)
    if set(missing) - {"lm_head.weight"} or surplus or ("lm_head.weight" in missing) != config.tied:
        raise ValueError(f"weights do not fit: missing {missing}, surplus {surplus}")
    model.tie_weights()
    return model


def reference_logits(model: Any, tokens: list[int]) -> Tensor:
    """float32 [T, V]: the logits of every position."""
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


def _build(config: TinyConfig) -> Any:
    common: dict[str, Any] = {
        "vocab_size": config.n_vocab,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.eps,
        "max_position_embeddings": tiny.CONTEXT_LENGTH,
        "tie_word_embeddings": config.tied,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        "attn_implementation": "eager",
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base},
    }
    if config.rope_factors:
        common["rope_parameters"] = {
            "rope_type": "llama3",
            "rope_theta": config.rope_base,
            "factor": tiny.ROPE_DIVISOR,
            "low_freq_factor": tiny.LOW_FREQUENCY_FACTOR,
            "high_freq_factor": tiny.HIGH_FREQUENCY_FACTOR,
            "original_max_position_embeddings": tiny.ROPE_DIVISOR_ORIGINAL_CONTEXT,
        }
    match config.architecture:
        case "llama":
            from transformers import LlamaConfig, LlamaForCausalLM

            biases = {"attention_bias": config.qkv_bias, "mlp_bias": config.other_biases}
            return LlamaForCausalLM(LlamaConfig(**common, **biases))
        case "qwen2":
            from transformers import Qwen2Config, Qwen2ForCausalLM

            return Qwen2ForCausalLM(Qwen2Config(**common))
        case "qwen3":
            from transformers import Qwen3Config, Qwen3ForCausalLM

            return Qwen3ForCausalLM(Qwen3Config(**common))
        case "gemma3":
            from transformers import Gemma3ForCausalLM, Gemma3TextConfig

            common["rope_parameters"] = {
                "full_attention": {
                    "rope_type": "linear",
                    "rope_theta": config.rope_base,
                    "factor": config.rope_linear,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            }
            measures = {"sliding_window": config.window, "query_pre_attn_scalar": config.head_dim}
            return Gemma3ForCausalLM(Gemma3TextConfig(**common, **measures))
    raise ValueError(config.architecture)
