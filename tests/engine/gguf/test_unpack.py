"""Unpacking agrees with the `gguf` package for every type, in every output type, whatever the size of the steps."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from engine.errors import UnsupportedModel
from engine.gguf import unpack
from engine.gguf.blocks import LAYOUTS
from engine.gguf.reader import GGUFFile
from engine.gguf.types import GGMLType
from engine.gguf.unpack import codes, dequantise
from tests.engine.gguf.build import random_blocks

OWN = sorted(LAYOUTS)
BY_PACKAGE = [GGMLType[kind.name] for kind in gguf.quants._type_traits if GGMLType[kind.name] not in LAYOUTS]
BY_PACKAGE.remove(GGMLType.BF16)


def expected(raw: np.ndarray, kind: GGMLType) -> torch.Tensor:
    with np.errstate(all="ignore"):
        return torch.from_numpy(gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(kind.value)))


def buffer(raw: np.ndarray) -> memoryview:
    return memoryview(bytearray(raw.tobytes()))


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 512 elements and stretches of 1024, so that small tensors have many of both and a rest."""
    monkeypatch.setattr(unpack, "CPU_STEP_ELEMENTS", 512)
    monkeypatch.setattr(unpack, "STEPS_A_STRETCH", 2)


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.name)
def test_own_unpackers_agree_to_the_bit(kind: GGMLType) -> None:
    raw = random_blocks(kind, 3 * 7 * 5)
    shape = (3, 7, 5 * kind.block_size)
    values = dequantise(buffer(raw), kind, shape)
    assert values.dtype is torch.float32 and values.shape == shape
    assert torch.equal(values.view(-1, kind.block_size), expected(raw, kind))


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.name)
@pytest.mark.usefixtures("small_steps")
def test_steps_and_stretches_join_without_a_seam(kind: GGMLType) -> None:
    raw = random_blocks(kind, 101, seed=1)
    shape = (101, kind.block_size)
    assert torch.equal(dequantise(buffer(raw), kind, shape), expected(raw, kind))
    found = codes(buffer(raw), kind, shape)
    whole = LAYOUTS[kind].codes(torch.from_numpy(raw))
    assert torch.equal(found.q, whole)
    half = dequantise(buffer(raw), kind, shape, dtype=torch.bfloat16)
    assert torch.equal(half, expected(raw, kind).bfloat16())


@pytest.mark.parametrize("kind", BY_PACKAGE, ids=lambda kind: kind.name)
@pytest.mark.usefixtures("small_steps")
def test_rare_types_come_from_the_gguf_package(kind: GGMLType) -> None:
    raw = random_blocks(kind, 11)
    with np.errstate(all="ignore"):
        values = dequantise(buffer(raw), kind, (11, kind.block_size))
    assert torch.equal(values.nan_to_num(), expected(raw, kind).nan_to_num())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_values_are_rounded_once(dtype: torch.dtype) -> None:
    raw = random_blocks(GGMLType.Q5_K, 6)
    values = dequantise(buffer(raw), GGMLType.Q5_K, (2, 768), dtype=dtype)
    assert values.dtype is dtype
    assert torch.equal(values.view(6, 256), expected(raw, GGMLType.Q5_K).to(dtype))


def test_rows_are_written_straight_into_out() -> None:
    raw = random_blocks(GGMLType.Q4_1, 12)
    joined = torch.full((5, 128), -1.0, dtype=torch.bfloat16)
    result = dequantise(buffer(raw), GGMLType.Q4_1, (3, 128), out=joined[1:4])
    assert result.data_ptr() == joined[1:4].data_ptr()
    assert torch.equal(joined[1:4].reshape(12, 32), expected(raw, GGMLType.Q4_1).bfloat16())
    assert (joined[0] == -1).all() and (joined[4] == -1).all()


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (GGMLType.F32, np.float32),
        (GGMLType.F16, np.float16),
        (GGMLType.F64, np.float64),
        (GGMLType.I8, np.int8),
        (GGMLType.I16, np.int16),
        (GGMLType.I32, np.int32),
        (GGMLType.I64, np.int64),
    ],
)
def test_plain_types_are_converted(kind: GGMLType, dtype: type) -> None:
    numbers = (np.random.default_rng(2).normal(size=(3, 5)) * 50).astype(dtype)
    values = dequantise(buffer(numbers), kind, (3, 5))
    assert torch.equal(values, torch.from_numpy(numbers).float())
    assert torch.equal(
        dequantise(buffer(numbers), kind, (15,), dtype=torch.bfloat16), values.view(-1).bfloat16()
    )


def test_bf16_is_converted() -> None:
    numbers = torch.randn(3, 5).bfloat16()
    raw = numbers.view(torch.uint8)
    assert torch.equal(dequantise(raw, GGMLType.BF16, (3, 5)), numbers.float())
    assert torch.equal(dequantise(raw, GGMLType.BF16, (3, 5), dtype=torch.bfloat16), numbers)


def test_tensors_at_odd_addresses_and_read_only_buffers_are_taken() -> None:
    raw = random_blocks(GGMLType.Q4_K, 4)
    want = expected(raw, GGMLType.Q4_K)
    odd = torch.cat((torch.zeros(3, dtype=torch.uint8), torch.from_numpy(raw).view(-1)))[3:]
    assert torch.equal(dequantise(odd, GGMLType.Q4_K, (4, 256)), want)
    assert torch.equal(dequantise(memoryview(raw.tobytes()), GGMLType.Q4_K, (4, 256)), want)


SIGNED = {
    "Q5_0": (-16, 15),
    "Q8_0": (-128, 127),
    "Q6_K": (-32, 31),
    "Q3_K": (-4, 3),
    "IQ4_NL": (-127, 113),
    "IQ4_XS": (-127, 113),
    "MXFP4": (-12, 12),
}
UNSIGNED = {"Q4_0": 15, "Q4_1": 15, "Q4_K": 15, "Q5_1": 31, "Q5_K": 31, "Q2_K": 3}


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.name)
def test_codes_give_the_values_to_the_bit(kind: GGMLType) -> None:
    raw = random_blocks(kind, 3 * 5 * 20, seed=3)
    width = 20 * kind.block_size
    found = codes(buffer(raw), kind, (3, 5, width))
    groups = (3, 5, width // found.group)
    assert found.q.shape == (3, 5, width) and found.q.is_contiguous()
    assert found.scale.shape == groups and found.scale.dtype is torch.float32
    assert found.group == (16 if kind.name in ("Q2_K", "Q3_K", "Q6_K") else 32)
    if kind.name in SIGNED:
        assert found.q.dtype is torch.int8 and (found.q.min(), found.q.max()) == SIGNED[kind.name]
    else:
        assert found.q.dtype is torch.uint8 and (found.q.min(), found.q.max()) == (0, UNSIGNED[kind.name])
    values = found.q.float().view(*groups, found.group) * found.scale.unsqueeze(-1)
    if found.minimum is not None:
        assert found.minimum.shape == groups and found.minimum.dtype is torch.float32
        values += found.minimum.unsqueeze(-1)
    assert (found.minimum is None) == (kind.name in SIGNED)
    assert torch.equal(values.view(-1, kind.block_size), expected(raw, kind))


def test_rows_may_be_unpacked_apart() -> None:
    kind, rows, width = GGMLType.Q6_K, 6, 512
    data = buffer(random_blocks(kind, 12))
    whole = dequantise(data, kind, (rows, width))
    row_bytes = kind.row_bytes(width)
    for row in range(rows):
        part = data[row * row_bytes : (row + 1) * row_bytes]
        assert torch.equal(dequantise(part, kind, (1, width))[0], whole[row])


def test_what_does_not_fit_is_refused() -> None:
    kind = GGMLType.Q4_0
    data = buffer(random_blocks(kind, 4))
    with pytest.raises(ValueError, match="72 bytes for shape"):
        dequantise(data, kind, (5, 32))
    with pytest.raises(ValueError, match="whole blocks of 32"):
        dequantise(data, kind, (32, 4))
    with pytest.raises(ValueError, match="whole blocks"):
        dequantise(data, kind, ())
    with pytest.raises(ValueError, match="out is"):
        dequantise(data, kind, (4, 32), out=torch.empty(2, 64))
    with pytest.raises(ValueError, match="contiguous: False"):
        dequantise(data, kind, (4, 32), out=torch.empty(32, 4).t())
    with pytest.raises(ValueError, match="not uint8"):
        dequantise(torch.zeros(72), kind, (4, 32))
    with pytest.raises(ValueError, match="no integer codes"):
        codes(memoryview(bytearray(4)), GGMLType.F32, (1,))


def test_types_that_nobody_unpacks_are_named() -> None:
    kind = GGMLType.Q8_K
    with pytest.raises(UnsupportedModel, match="Q8_K"):
        dequantise(memoryview(bytearray(kind.type_size)), kind, (1, 256))


def _assert_file_agrees(file: GGUFFile) -> set[GGMLType]:
    """Compare the first and the last rows of one tensor of each type."""
    seen: set[GGMLType] = set()
    for info in file.tensors.values():
        if info.type in seen:
            continue
        seen.add(info.type)
        row_bytes = info.type.row_bytes(info.shape[-1])
        raw = np.frombuffer(file.tensor_bytes(info.name), dtype=np.uint8).reshape(-1, row_bytes)
        for part in (raw[:50], raw[-50:]):
            shape = (len(part), info.shape[-1])
            want = torch.from_numpy(gguf.quants.dequantize(part, gguf.GGMLQuantizationType(info.type.value)))
            assert torch.equal(dequantise(memoryview(part).cast("B"), info.type, shape), want.view(shape))
    return seen


def test_the_starter_model_unpacks(smollm2_path: Path) -> None:
    with GGUFFile.open(smollm2_path) as file:
        assert _assert_file_agrees(file) == {GGMLType.Q4_1, GGMLType.Q8_0, GGMLType.F32}


def test_a_mixed_model_unpacks(qwen_path: Path) -> None:
    with GGUFFile.open(qwen_path) as file:
        assert _assert_file_agrees(file) >= {GGMLType.Q5_0, GGMLType.Q8_0, GGMLType.Q4_K, GGMLType.Q6_K}
