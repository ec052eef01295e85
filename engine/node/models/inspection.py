"""What a person wants to know of a model file, as plain data: for the command line and for the window."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from engine.cache.spec import KVType
from engine.gguf.mix import quantization, type_bytes
from engine.gguf.reader import GGUFFile
from engine.node.models.model_folder import LocalModel

# Longer metadata texts, such as chat templates, are counted and not shown.
_LONGEST_TEXT = 200

_TEMPLATE = "tokenizer.chat_template"


def inspect_file(path: Path) -> dict[str, Any]:
    """Read from the header alone. Raises ModelNotFound or ModelFileError."""
    with GGUFFile.open(path) as file:
        types = Counter(tensor.type.name for tensor in file.tensors.values())
        return {
            "path": str(file.paths[0]),
            "files": len(file.paths),
            "size_bytes": file.n_bytes,
            "architecture": file.architecture,
            "quantization": quantization(file),
            "chat_template": _TEMPLATE in file.metadata,
            "tensors": dict(types.most_common()),
            "type_bytes": type_bytes(file),
            "metadata": {key: _plain(value) for key, value in file.metadata.items()},
        }


def inspect_model(model: LocalModel, *, n_ctx: int, n_slots: int, kv_type: KVType) -> dict[str, Any]:
    """`inspect_file`, and what the model takes here; `measures` is None where Baton cannot run it."""
    spec = model.spec
    measures = None
    if spec is not None:
        context = min(n_ctx, spec.context_length)
        measures = {
            "n_layers": spec.n_layers,
            "n_heads": spec.n_heads,
            "n_kv_heads": spec.n_kv_heads,
            "head_dim": spec.head_dim,
            "d_model": spec.d_model,
            "n_vocab": spec.n_vocab,
            "n_ctx_train": spec.context_length,
            "n_ctx": context,
            "n_slots": n_slots,
            "kv_bytes_per_token": model.kv_bytes_per_token(kv_type=kv_type),
            "weight_bytes": model.weight_bytes,
            "cache_bytes": model.cache_bytes(n_ctx=n_ctx, n_slots=n_slots, kv_type=kv_type),
            "needed_bytes": model.needed_bytes(n_ctx=n_ctx, n_slots=n_slots, kv_type=kv_type),
        }
    return {
        "id": model.model_id,
        "program": model.program,
        "problem": model.problem,
        "title": model.title,
        "n_params": model.n_params,
        "digest": model.digest,
        "measures": measures,
        **inspect_file(model.path),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else f"{len(value)} characters"
    return f"{len(value)} values"
