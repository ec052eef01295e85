"""Whether a file's tensors have the shapes that its metadata promises, checked before anything is loaded.

Knows the parts that all dense families share, by name; a part that is not listed here is not checked.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.errors import ModelFileError
from engine.gguf.reader import GGUFFile
from engine.models.spec import ModelSpec


def check_shapes(file: GGUFFile, spec: ModelSpec) -> None:
    """Raise ModelFileError for the first tensor that does not fit; missing tensors are the loader's concern."""
    for name, shape in _expected(file, spec):
        info = file.tensors.get(name)
        if info is not None and tuple(info.shape) != shape:
            raise ModelFileError(
                f"{file.paths[0]}: the tensor {name!a} is {_text(tuple(info.shape))} where the model's measures make "
                f"it {_text(shape)}: download the file again, or convert it anew"
            )


def _expected(file: GGUFFile, spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    d, head = spec.d_model, spec.head_dim
    queries, keys = spec.n_heads * head, spec.n_kv_heads * head
    yield "token_embd.weight", (spec.n_vocab, d)
    yield "output.weight", (spec.n_vocab, d)
    yield "output_norm.weight", (d,)
    yield "rope_freqs.weight", (spec.rope.n_rotated // 2,)
    for layer in range(spec.n_layers):
        name = f"blk.{layer}"
        matrices = [
            ("attn_q", queries, d),
            ("attn_k", keys, d),
            ("attn_v", keys, d),
            ("attn_output", d, queries),
        ]
        gate = file.tensors.get(f"{name}.ffn_gate.weight")
        if gate is not None:
            # Each layer may have its own width here: what matters is that its three matrices agree.
            width = gate.shape[0]
            matrices += [("ffn_gate", width, d), ("ffn_up", width, d), ("ffn_down", d, width)]
        for part, rows, columns in matrices:
            yield f"{name}.{part}.weight", (rows, columns)
            yield f"{name}.{part}.bias", (rows,)
        for part in ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"):
            yield f"{name}.{part}.weight", (d,)
        for part in ("attn_q_norm", "attn_k_norm"):
            yield f"{name}.{part}.weight", (head,)


def _text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
