"""Records what llama.cpp makes of the corpus under each pre-tokenizer, with the starter model's vocabulary.

    python -m tests.engine.tokenizer.record_golden STARTER.gguf

writes golden/NAME.json: a list of ids for every text of the corpus. Run it when the corpus or a pre-tokenizer changes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from engine.gguf.reader import GGUFFile
from tests.engine.tokenizer.corpus import NASTY

GOLDEN = Path(__file__).parent / "golden"

# One name for each set of rules.
NAMES = (
    *("default", "llama-bpe", "qwen2", "qwen35", "gpt-2", "smollm", "tekken", "gpt-4o", "falcon"),
    *("deepseek-llm", "deepseek-coder", "deepseek-v3"),
)

_WIDTH = 32


def write_model(path: Path, starter: GGUFFile, pre: str) -> None:
    """A model of one layer that knows nothing but the starter's words, split by the rules of `pre`."""
    metadata = starter.metadata
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_WIDTH)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    tokens = list(metadata.strings("tokenizer.ggml.tokens"))
    writer.add_token_list(tokens)
    writer.add_token_types(list(metadata.numbers("tokenizer.ggml.token_type")))
    writer.add_token_merges(list(metadata.strings("tokenizer.ggml.merges")))
    writer.add_bos_token_id(metadata.integer("tokenizer.ggml.bos_token_id"))
    writer.add_eos_token_id(metadata.integer("tokenizer.ggml.eos_token_id"))
    writer.add_tensor("token_embd.weight", np.zeros((len(tokens), _WIDTH), np.float16))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(_WIDTH, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros((_WIDTH, _WIDTH), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def record(starter_path: Path) -> None:
    from tests.engine.tokenizer.llama_cpp import (
        llama_cpp,
    )  # the names above are wanted where xllamacpp is not

    GOLDEN.mkdir(exist_ok=True)
    with GGUFFile.open(starter_path) as starter, tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            model = Path(folder) / f"{name}.gguf"
            write_model(model, starter, name)
            with llama_cpp(model) as oracle:
                ids = oracle.tokenize_all(NASTY, special=False)
            lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in ids)
            (GOLDEN / f"{name}.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
