"""Sound files are read as they were written, and as the `gguf` package reads them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.errors import ModelFileError, ModelNotFound
from engine.gguf.header import parse_header
from engine.gguf.metadata import StringArray
from engine.gguf.reader import GGUFFile
from engine.gguf.types import GGMLType, ValueType
from tests.engine.gguf import build


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    path = tmp_path / "sample.gguf"
    path.write_bytes(build.sample().to_bytes())
    return path


def test_scalars_have_the_values_written(sample: Path) -> None:
    with GGUFFile.open(sample) as file:
        metadata = file.metadata
        assert file.architecture == "llama"
        assert metadata["one.UINT8"] == 250
        assert metadata["one.INT8"] == -100
        assert metadata["one.UINT16"] == 65000
        assert metadata["one.INT16"] == -30000
        assert metadata["one.UINT32"] == 4_000_000_000
        assert metadata["one.INT32"] == -2_000_000_000
        assert metadata["one.FLOAT32"] == 0.15625
        assert metadata["one.BOOL"] is True
        assert metadata["one.STRING"] == "ein Wörtchen"
        assert metadata["one.UINT64"] == 1 << 63
        assert metadata["one.INT64"] == -(1 << 62)
        assert metadata["one.FLOAT64"] == 1e300
        assert "one.ARRAY" not in metadata
        assert len(metadata) == 27


def test_arrays_have_the_values_written_and_outlive_the_file(sample: Path) -> None:
    with GGUFFile.open(sample) as file:
        metadata = file.metadata
    for kind in ValueType:
        if kind is not ValueType.ARRAY:
            assert list(metadata[f"many.{kind.name}"]) == [metadata[f"one.{kind.name}"]] * 3  # type: ignore[arg-type]
    words = metadata.strings("words")
    assert list(words) == ["", "a", "Ġthe", "\N{SLIGHTLY SMILING FACE}", "x" * 300]
    assert [words[i] for i in range(5)] == list(words)
    assert words[-1] == "x" * 300 and words[1:3] == ["a", "Ġthe"]
    assert isinstance(words, StringArray) and words.encoded(2) == "Ġthe".encode()
    with pytest.raises(IndexError):
        words[5]
    with pytest.raises(IndexError):
        words[-6]
    numbers, texts = metadata["nested"]  # type: ignore[misc]
    assert list(numbers) == [1, 2] and list(texts) == ["p", "q"]


def test_tensors_have_the_shapes_and_bytes_written(sample: Path) -> None:
    written = build.sample().tensors
    with GGUFFile.open(sample) as file:
        assert list(file.tensors) == [tensor.name for tensor in written]
        for tensor in written:
            info = file.tensors[str(tensor.name)]
            assert info.type == tensor.kind
            assert info.shape == tuple(reversed(tensor.dims))
            assert info.n_elements == tensor.dims[0] * tensor.dims[1]
            assert info.n_bytes == len(tensor.data)
            assert file.tensor_bytes(info.name) == tensor.data


def test_version_2_is_read(tmp_path: Path) -> None:
    made = build.sample()
    made.version = 2
    path = tmp_path / "old.gguf"
    path.write_bytes(made.to_bytes())
    with GGUFFile.open(path) as file:
        assert file.architecture == "llama"


def test_a_file_with_a_vocabulary_alone_is_read() -> None:
    made = build.File(pairs=[build.pair("general.architecture", ValueType.STRING, build.text("llama"))])
    # such a file may end before the alignment of its (empty) data
    header = parse_header(memoryview(made.to_bytes().rstrip(b"\0")), file="vocab.gguf")
    assert not header.tensors


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_other_alignments_are_honoured(tmp_path: Path, alignment: int) -> None:
    made = build.sample()
    made.alignment = alignment
    made.pairs.append(
        build.pair("general.alignment", ValueType.UINT32, build.scalar(ValueType.UINT32, alignment))
    )
    path = tmp_path / "aligned.gguf"
    path.write_bytes(made.to_bytes())
    with GGUFFile.open(path) as file:
        for tensor in made.tensors:
            assert file.tensor_bytes(str(tensor.name)) == tensor.data


def test_tensor_bytes_are_shared_with_the_mapping_and_never_reach_the_file(sample: Path) -> None:
    before = sample.read_bytes()
    with GGUFFile.open(sample) as file:
        name = next(iter(file.tensors))
        file.tensor_bytes(name)[0] ^= 0xFF
        assert file.tensor_bytes(name)[0] == before[file.tensors[name].offset] ^ 0xFF
    assert sample.read_bytes() == before


def test_views_stay_valid_after_close(sample: Path) -> None:
    file = GGUFFile.open(sample)
    name = next(iter(file.tensors))
    view = file.tensor_bytes(name)
    file.close()
    file.close()
    assert view == build.sample().tensors[0].data


def test_typed_look_ups_name_file_and_key(sample: Path) -> None:
    with GGUFFile.open(sample) as file:
        metadata = file.metadata
        assert metadata.integer("one.UINT8") == 250
        assert metadata.integer("absent", 7) == 7
        assert metadata.number("one.UINT8") == 250.0
        assert metadata.number("one.FLOAT64") == 1e300
        assert metadata.flag("one.BOOL") and metadata.flag("absent", False) is False
        assert metadata.text("absent", "") == ""
        assert metadata.strings("absent", ()) == () and metadata.numbers("absent", ()) == ()
        assert list(metadata.numbers("many.INT8")) == [-100] * 3
        for look_up, key in (
            (metadata.integer, "one.BOOL"),
            (metadata.integer, "one.FLOAT32"),
            (metadata.number, "one.BOOL"),
            (metadata.number, "one.STRING"),
            (metadata.flag, "one.UINT8"),
            (metadata.text, "one.UINT8"),
            (metadata.strings, "one.STRING"),
            (metadata.strings, "many.INT8"),
            (metadata.numbers, "words"),
            (metadata.integer, "absent"),
            (metadata.strings, "absent"),
        ):
            with pytest.raises(ModelFileError, match=rf"sample\.gguf.*{key}"):
                look_up(key)


def test_unknown_names_are_errors_for_users(sample: Path, tmp_path: Path) -> None:
    with GGUFFile.open(sample) as file, pytest.raises(ModelFileError, match=r"no tensor 'output\.weight'"):
        file.tensor_bytes("output.weight")
    with pytest.raises(ModelNotFound, match=r"absent\.gguf"):
        GGUFFile.open(tmp_path / "absent.gguf")


def test_type_table_agrees_with_the_gguf_package() -> None:
    for kind, sizes in gguf.GGML_QUANT_SIZES.items():
        if kind is gguf.GGMLQuantizationType.Q8_1:
            continue  # a type of intermediate results, never in a file; the package counts its factors as float32
        ours = GGMLType[kind.name]
        assert (ours.value, ours.block_size, ours.type_size) == (kind.value, *sizes)
    assert GGMLType.Q6_K.row_bytes(512) == 420
    with pytest.raises(ValueError, match="whole blocks of 256"):
        GGMLType.Q6_K.row_bytes(500)


def _assert_like_gguf_package(path: Path) -> None:
    theirs = gguf.GGUFReader(path)
    with GGUFFile.open(path) as ours:
        keys = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
        assert list(ours.metadata) == list(keys)
        for key, field in keys.items():
            value = ours.metadata[key]
            expected = field.contents()
            assert (list(value) if isinstance(expected, list) else value) == expected  # type: ignore[arg-type]
        assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
        for tensor in theirs.tensors:
            info = ours.tensors[tensor.name]
            assert info.type.value == tensor.tensor_type.value
            assert info.shape == tuple(reversed(tensor.shape.tolist()))
            assert (info.offset, info.n_bytes) == (tensor.data_offset, tensor.n_bytes)
            mine = np.frombuffer(ours.tensor_bytes(tensor.name), dtype=np.uint8)
            assert np.array_equal(mine[:4096], tensor.data.view(np.uint8).reshape(-1)[:4096])


def test_the_starter_model_reads_as_the_gguf_package_reads_it(smollm2_path: Path) -> None:
    _assert_like_gguf_package(smollm2_path)


@pytest.mark.soak
def test_a_large_bpe_vocabulary_reads_as_the_gguf_package_reads_it(qwen_path: Path) -> None:
    _assert_like_gguf_package(qwen_path)


@pytest.mark.soak
def test_a_large_spm_vocabulary_reads_as_the_gguf_package_reads_it(gemma_path: Path) -> None:
    _assert_like_gguf_package(gemma_path)


def test_large_vocabularies_are_whole(gemma_path: Path) -> None:
    with GGUFFile.open(gemma_path) as file:
        tokens = file.metadata.strings("tokenizer.ggml.tokens")
        assert len(tokens) == len(set(tokens)) == 262_144
        assert len(file.metadata.numbers("tokenizer.ggml.scores")) == 262_144


def test_reading_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import engine.gguf.reader, engine.gguf.digest"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(__file__).parents[3])
