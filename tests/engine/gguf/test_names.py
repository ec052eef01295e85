"""Names agree with the `gguf` package's, and cover the files that Baton runs."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from engine.gguf import names
from engine.gguf.reader import GGUFFile

PARTS = {
    names.ATTENTION_NORM: gguf.MODEL_TENSOR.ATTN_NORM,
    names.QUERY: gguf.MODEL_TENSOR.ATTN_Q,
    names.KEY: gguf.MODEL_TENSOR.ATTN_K,
    names.VALUE: gguf.MODEL_TENSOR.ATTN_V,
    names.ATTENTION_OUTPUT: gguf.MODEL_TENSOR.ATTN_OUT,
    names.FFN_NORM: gguf.MODEL_TENSOR.FFN_NORM,
    names.FFN_GATE: gguf.MODEL_TENSOR.FFN_GATE,
    names.FFN_UP: gguf.MODEL_TENSOR.FFN_UP,
    names.FFN_DOWN: gguf.MODEL_TENSOR.FFN_DOWN,
    names.QUERY_NORM: gguf.MODEL_TENSOR.ATTN_Q_NORM,
    names.KEY_NORM: gguf.MODEL_TENSOR.ATTN_K_NORM,
    names.POST_ATTENTION_NORM: gguf.MODEL_TENSOR.ATTN_POST_NORM,
    names.POST_FFN_NORM: gguf.MODEL_TENSOR.FFN_POST_NORM,
}
WHOLE = {
    names.TOKEN_EMBEDDING: gguf.MODEL_TENSOR.TOKEN_EMBD,
    names.OUTPUT_NORM: gguf.MODEL_TENSOR.OUTPUT_NORM,
    names.OUTPUT: gguf.MODEL_TENSOR.OUTPUT,
    names.ROPE_FACTORS: gguf.MODEL_TENSOR.ROPE_FREQS,
}


@pytest.mark.parametrize("part", PARTS)
def test_layer_names_are_those_of_the_gguf_package(part: str) -> None:
    stem = gguf.TENSOR_NAMES[PARTS[part]].format(bid=17)
    assert names.weight(17, part) == stem + ".weight"
    assert names.bias(17, part) == stem + ".bias"


@pytest.mark.parametrize("name", WHOLE)
def test_other_names_are_those_of_the_gguf_package(name: str) -> None:
    assert name == gguf.TENSOR_NAMES[WHOLE[name]] + ".weight"


def test_layers_are_found_in_names() -> None:
    assert names.layer_of(names.weight(12, names.QUERY)) == 12
    for name in ("output.weight", "blk.x.attn_q.weight", "blk.²", "blk.3", "blk.", "blk", "", "a.3.attn_q"):
        assert names.layer_of(name) is None


def test_keys_carry_the_family() -> None:
    assert names.key("gemma3", "block_count") == "gemma3.block_count"


def _assert_all_known(path: Path) -> None:
    with GGUFFile.open(path) as file:
        n_layers = file.metadata.integer(names.key(file.architecture, "block_count"))
        known = set(WHOLE)
        for layer in range(n_layers):
            for part in PARTS:
                known |= {names.weight(layer, part), names.bias(layer, part)}
        assert set(file.tensors) <= known


def test_every_tensor_of_the_llama_file_is_known(smollm2_path: Path) -> None:
    _assert_all_known(smollm2_path)


def test_every_tensor_of_the_qwen_file_is_known(qwen_path: Path) -> None:
    _assert_all_known(qwen_path)


def test_every_tensor_of_the_gemma_file_is_known(gemma_path: Path) -> None:
    _assert_all_known(gemma_path)
