"""Small files that are sound models to look at, and would be refused to be loaded only for their weights."""

from __future__ import annotations

import os
from pathlib import Path

from engine.gguf.types import GGMLType, ValueType
from tests.engine.gguf.build import File, Tensor, array, pair, scalar

LAYERS, HEADS, KV_HEADS, HEAD_DIM = 3, 4, 2, 8


def write_model(
    path: Path,
    *,
    architecture: str = "llama",
    name: str = "Tiny",
    n_bytes: int = 4096,
    n_ctx: int = 8192,
    extra: tuple[bytes, ...] = (),
) -> Path:
    """A model with one tensor of about `n_bytes` random bytes."""
    n_values = n_bytes // 4
    texts = {"general.architecture": architecture, "general.name": name}
    numbers = {
        "block_count": LAYERS,
        "embedding_length": HEADS * HEAD_DIM,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "context_length": n_ctx,
    }
    pairs = [pair(key, ValueType.STRING, scalar(ValueType.STRING, value)) for key, value in texts.items()]
    pairs += [
        pair(f"{architecture}.{key}", ValueType.UINT32, scalar(ValueType.UINT32, value))
        for key, value in numbers.items()
    ]
    pairs.append(pair("tokenizer.ggml.tokens", ValueType.ARRAY, array(ValueType.STRING, ["a", "b", "c"])))
    tensor = Tensor(
        name="token_embd.weight", kind=GGMLType.F32, dims=(n_values,), data=os.urandom(4 * n_values)
    )
    path.write_bytes(File(pairs=[*pairs, *extra], tensors=[tensor]).to_bytes())
    return path
