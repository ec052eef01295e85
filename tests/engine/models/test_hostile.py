"""Model files that are not what they say, and tokens that do not exist, are refused in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter

from engine.errors import InvalidRequest, ModelFileError, PromptTooLong, UnsupportedModel
from engine.gguf.reader import GGUFFile
from engine.layers.step import Segment
from engine.models import registry
from engine.models.registry import WeightsMode, load_model
from engine.models.spec import PERIODS, read_spec
from tests.engine.models.conftest import TinyModel
from tests.engine.models.running import append, new_sequence
from tests.engine.models.tiny import Array, config_of, draw_weights, write_model

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")


def load_edited(path: Path, name: str, edit: Callable[[dict[str, Array]], None]) -> None:
    config = config_of(name)
    write_model(config, path, draw_weights(config, seed=1), edit=edit)
    load_model(path, device="cpu", weights=WeightsMode.FLOAT32)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("llama", "token_embd.weight"),
        ("llama", "blk.1.ffn_gate.weight"),
        ("qwen2", "blk.0.attn_k.weight"),
        ("qwen3", "blk.1.attn_q_norm.weight"),
        ("gemma3", "blk.5.post_ffw_norm.weight"),
        ("gemma3", "output_norm.weight"),
    ],
)
def test_a_missing_tensor_is_named(name: str, tensor: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=rf"no tensor '{tensor.removesuffix('.weight')}"):
        load_edited(tmp_path / "model.gguf", name, lambda tensors: tensors.pop(tensor))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_wrong_shape_is_named(name: str, tmp_path: Path) -> None:
    """One row more, or one column more, of any tensor."""
    config = config_of(name)
    names = list(_tensors(name))
    for index, tensor in enumerate(part for part in names if ".1." in part or "blk" not in part):

        def grow(tensors: dict[str, Array], tensor: str = tensor, axis: int = index % 2) -> None:
            values = tensors[tensor]
            axis = min(axis, values.ndim - 1)
            tensors[tensor] = np.concatenate((values, values.take([0], axis)), axis)

        path = tmp_path / f"{index}.gguf"
        write_model(config, path, draw_weights(config, seed=1), edit=grow)
        with pytest.raises(ModelFileError, match=r"where the model's measures make it"):
            load_model(path, device="cpu", weights=WeightsMode.FLOAT32)
        path.unlink()


def test_a_matrix_of_three_axes_is_refused(tmp_path: Path) -> None:
    def deepen(tensors: dict[str, Array]) -> None:
        tensors["blk.0.attn_q.weight"] = tensors["blk.0.attn_q.weight"][None].repeat(2, 0)

    with pytest.raises(ModelFileError, match=r"'blk\.0\.attn_q\.weight' is 2 x 128 x 96"):
        load_edited(tmp_path / "model.gguf", "llama", deepen)


def _tensors(name: str) -> dict[str, Array]:
    from tests.engine.models.tiny import to_gguf

    return to_gguf(config_of(name), draw_weights(config_of(name), seed=1))


def header(path: Path, architecture: str, values: dict[str, Any]) -> GGUFFile:
    """A file without tensors; keys get the architecture's prefix where they have no other."""
    writer = GGUFWriter(path, architecture)
    measures: dict[str, Any] = {
        "block_count": 2,
        "embedding_length": 64,
        "attention.head_count": 4,
        "context_length": 512,
        **values,
    }
    for key, value in measures.items():
        match value:
            case int():
                writer.add_int64(f"{architecture}.{key}", value)
            case float():
                writer.add_float32(f"{architecture}.{key}", value)
            case str():
                writer.add_string(f"{architecture}.{key}", value)
            case list():
                writer.add_array(f"{architecture}.{key}", value)
    writer.add_token_list(["a", "b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return GGUFFile.open(path)


def test_an_unknown_architecture_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    file = header(tmp_path / "model.gguf", "rwkv7", {})
    with pytest.raises(UnsupportedModel, match=r"'rwkv7' is not known.*gemma3, llama, qwen2, qwen3"):
        read_spec(file.metadata)
    with pytest.raises(UnsupportedModel, match="rwkv7"):
        load_model(file, device="cpu")


def test_every_architecture_whose_measures_are_read_can_be_loaded() -> None:
    assert registry.FAMILIES.keys() == PERIODS.keys()


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize(
    "values",
    [
        {"block_count": 0},
        {"block_count": 1 << 40},
        {"block_count": -3},
        {"embedding_length": 0},
        {"attention.head_count": 0},
        {"attention.head_count_kv": 3},
        {"attention.head_count_kv": 0},
        {"attention.head_count_kv": [2, 2]},
        {"attention.key_length": 15},
        {"attention.key_length": 0},
        {"attention.key_length": -16},
        {"rope.dimension_count": 32},
        {"rope.dimension_count": 0},
        {"rope.freq_base": 0.0},
        {"rope.freq_base": -5.0},
        {"rope.freq_base": float("nan")},
        {"attention.layer_norm_rms_epsilon": float("nan")},
        {"attention.layer_norm_rms_epsilon": -1.0},
        {"context_length": "long"},
        {"block_count": 2.5},
        {"context_length": 0},
    ],
    ids=str,
)
def test_measures_that_cannot_be(architecture: str, values: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ModelFileError):
        read_spec(header(tmp_path / "model.gguf", architecture, values).metadata)


def test_a_window_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError):
        read_spec(header(tmp_path / "model.gguf", "gemma3", {"attention.sliding_window": -1}).metadata)


@pytest.mark.parametrize(
    "values",
    [{"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, {"attention.value_length": 8}],
    ids=str,
)
def test_what_is_sound_but_not_known(values: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel):
        read_spec(header(tmp_path / "model.gguf", "llama", values).metadata)


def test_tokens_outside_the_vocabulary(tiny_model: TinyModel) -> None:
    """Refused before anything is computed: the sequence goes on as if nothing had been asked."""
    model = tiny_model("gemma3")
    n_vocab = model.spec.n_vocab
    sequence, other = new_sequence(model), new_sequence(model)
    append(model, sequence, range(10))
    for bad in (-1, n_vocab, 1 << 40):
        with pytest.raises(InvalidRequest, match=f"no token {bad}:.* 0 to {n_vocab - 1}"):
            append(model, sequence, [3, bad, 4])
        with pytest.raises(InvalidRequest):
            model.forward(
                [Segment(sequence=other, tokens=[1, 2])], [Segment(sequence=sequence, tokens=[bad])]
            )
    assert (sequence.length, other.length) == (10, 0)
    append(model, sequence, [n_vocab - 1, 0])


def test_more_tokens_than_the_cache_has_room_for(tiny_model: TinyModel) -> None:
    model = tiny_model("gemma3")
    sequence = new_sequence(model, n_ctx=32)
    append(model, sequence, range(30))
    with pytest.raises(PromptTooLong) as caught:
        append(model, sequence, [1, 2, 3])
    assert (caught.value.n_prompt_tokens, caught.value.n_ctx) == (33, 32)
    assert sequence.length == 30
    append(model, sequence, [1, 2])
