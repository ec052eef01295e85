"""What each form of the weights loses against float32 of the same file, and what `--weights` chooses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.cache.spec import KVType
from engine.device import Device
from engine.kernels import packed_gemm
from engine.layers.step import Segment
from engine.models.base import Model
from engine.models.registry import WeightsMode, load_model
from tests.engine.models.conftest import TinyFile, TinyModel
from tests.engine.models.running import MULTIPLIES_BFLOAT16, append, divergence, new_sequence, random_tokens
from tests.engine.models.tiny import Quant

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")

# Mean KL divergence from float32, at twice the worst seen. Packed codes lose only the rounding of their scales to 16
# bits; a cache in bfloat16 costs more than that, and computing in bfloat16 more again.
PACKED_KL = 2e-5
PACKED_KL_BF16_CACHE = 4e-4
BF16_KL = 2e-3
LEAST_SAME_TOP = 0.93

N_PROMPT = 61
N_DECODED = 24


def prompt(model: Model) -> list[int]:
    return random_tokens(N_PROMPT, model.spec.n_vocab, seed=3)


def as_prefill(model: Model, kv_type: KVType = KVType.BF16) -> Tensor:
    """Logits [T, V] of all positions in the form for many rows."""
    segment = Segment(sequence=new_sequence(model, kv_type=kv_type), tokens=prompt(model), n_logits=N_PROMPT)
    return model.forward([segment], [])


def as_decode(model: Model, kv_type: KVType = KVType.BF16) -> Tensor:
    """Logits [n, V] of the first positions, one row at a time."""
    sequence = new_sequence(model, kv_type=kv_type)
    return torch.stack([append(model, sequence, [token], decode=True) for token in prompt(model)[:N_DECODED]])


def loss(reference: Tensor, found: Tensor) -> float:
    """Mean KL divergence, once most of the top tokens have been found the same."""
    reference = reference[: found.shape[0]]
    assert torch.isfinite(found).all()
    assert float((reference.argmax(-1) == found.argmax(-1)).float().mean()) >= LEAST_SAME_TOP
    return float(divergence(reference, found).mean())


@pytest.mark.parametrize("quant", [Quant.MIXED_32, Quant.Q4_K_M])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_default_form(name: str, quant: Quant, tiny_model: TinyModel) -> None:
    reference = as_prefill(tiny_model(name, quant), KVType.F32)
    model = tiny_model(name, quant, WeightsMode.AUTO)
    assert loss(reference, as_prefill(model)) < BF16_KL
    assert loss(reference, as_decode(model)) < PACKED_KL_BF16_CACHE
    assert loss(reference, as_decode(model, KVType.F32)) < PACKED_KL


@pytest.mark.parametrize("quant", [Quant.Q4_0, Quant.Q4_1, Quant.Q5_0, Quant.Q5_1, Quant.Q8_0])
def test_each_type_packed(quant: Quant, tiny_model: TinyModel) -> None:
    reference = as_prefill(tiny_model("qwen2", quant), KVType.F32)
    model = tiny_model("qwen2", quant, WeightsMode.PACKED)
    assert loss(reference, as_decode(model, KVType.F32)) < PACKED_KL


@pytest.mark.parametrize("quant", [Quant.F32, Quant.F16, Quant.BF16])
def test_unquantised_files(quant: Quant, tiny_model: TinyModel) -> None:
    reference = as_prefill(tiny_model("llama-biased", quant), KVType.F32)
    model = tiny_model("llama-biased", quant, WeightsMode.AUTO)
    assert loss(reference, as_prefill(model)) < BF16_KL
    assert loss(reference, as_decode(model)) < BF16_KL


@pytest.mark.parametrize("name", FAMILIES)
def test_packed_alone(name: str, tiny_model: TinyModel) -> None:
    """Prefill without a dense copy; decode rows are those of the default form."""
    reference = as_prefill(tiny_model(name, Quant.MIXED_32), KVType.F32)
    model = tiny_model(name, Quant.MIXED_32, WeightsMode.PACKED)
    assert loss(reference, as_prefill(model)) < BF16_KL
    assert torch.equal(as_decode(model), as_decode(tiny_model(name, Quant.MIXED_32, WeightsMode.AUTO)))


@pytest.mark.parametrize("name", FAMILIES)
def test_bf16_alone(name: str, tiny_model: TinyModel) -> None:
    """Prefill and decode rows are dense."""
    reference = as_prefill(tiny_model(name, Quant.MIXED_32), KVType.F32)
    model = tiny_model(name, Quant.MIXED_32, WeightsMode.BF16)
    assert loss(reference, as_prefill(model)) < BF16_KL
    assert loss(reference, as_decode(model)) < BF16_KL


@pytest.mark.parametrize("name", FAMILIES)
def test_processors_without_8_bit_dot_products(
    name: str, tiny_file: TinyFile, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefill is dense where memory allows, and unpacks the file's codes where it does not."""
    monkeypatch.setattr("engine.kernels.packed_gemm.available", lambda: False)
    path = tiny_file(name, Quant.MIXED_32)
    dense = as_prefill(load_model(path, device="cpu"))
    assert torch.equal(dense, as_prefill(tiny_model(name, Quant.MIXED_32, WeightsMode.BF16)))
    unpacking = as_prefill(load_model(path, device="cpu", weights=WeightsMode.PACKED))
    reference = as_prefill(tiny_model(name, Quant.MIXED_32), KVType.F32)
    assert loss(reference, unpacking) < BF16_KL
    # in float32 both hold what the file says
    assert torch.equal(dense, unpacking) is not MULTIPLIES_BFLOAT16
    monkeypatch.setattr(Device, "available_bytes", lambda self: 1000)
    assert torch.equal(as_prefill(load_model(path, device="cpu")), unpacking)


@pytest.mark.skipif(not packed_gemm.available(), reason="no AVX-512 VNNI here")
def test_which_models_are_rounded_to_8_bits(
    tiny_file: TinyFile, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large ones, all that are asked to be packed, and those whose dense copy does not fit."""
    path = tiny_file("qwen3", Quant.MIXED_32)
    rounded = as_prefill(tiny_model("qwen3", Quant.MIXED_32, WeightsMode.PACKED))
    dense = as_prefill(tiny_model("qwen3", Quant.MIXED_32, WeightsMode.BF16))
    assert torch.equal(as_prefill(load_model(path, device="cpu")), dense)
    assert not torch.equal(dense, rounded)
    with monkeypatch.context() as scarce:
        scarce.setattr(Device, "available_bytes", lambda self: 1000)
        assert torch.equal(as_prefill(load_model(path, device="cpu")), rounded)
    monkeypatch.setattr("engine.models.registry._ROUNDS_FROM", 1000)
    assert torch.equal(as_prefill(load_model(path, device="cpu")), rounded)


def test_16_bit_caches(tiny_model: TinyModel) -> None:
    reference = as_prefill(tiny_model("gemma3", Quant.MIXED_32), KVType.F32)
    model = tiny_model("gemma3", Quant.MIXED_32, WeightsMode.AUTO)
    assert loss(reference, as_prefill(model, KVType.F16)) < BF16_KL
    assert loss(reference, as_decode(model, KVType.F16)) < PACKED_KL_BF16_CACHE


def test_a_short_chunk_is_computed_as_decode_rows_are(tiny_model: TinyModel) -> None:
    """Up to `few_rows` rows take the packed form, whatever the cache holds already."""
    model = tiny_model("qwen3", Quant.MIXED_32, WeightsMode.AUTO)
    reference = as_prefill(tiny_model("qwen3", Quant.MIXED_32), KVType.F32)
    tokens, n = prompt(model), Model.few_rows
    for size, exact in ((n, True), (n + 1, False)):
        sequence = new_sequence(model)
        segment = Segment(sequence=sequence, tokens=tokens[:size], n_logits=size)
        lost = float(divergence(reference[:size], model.forward([segment], [])).mean())
        assert (lost < PACKED_KL_BF16_CACHE / 4) == (exact or not MULTIPLIES_BFLOAT16)


@pytest.mark.parametrize("weights", WeightsMode)
def test_progress_ends_at_its_total(weights: WeightsMode, tiny_file: TinyFile) -> None:
    told: list[tuple[int, int]] = []
    load_model(
        tiny_file("gemma3", Quant.MIXED_32),
        device="cpu",
        weights=weights,
        on_progress=lambda done, total: told.append((done, total)),
    )
    done = [one for one, _ in told]
    assert done == sorted(done)
    assert len({total for _, total in told}) == 1
    # Norms and the embedding's bytes are not told of.
    assert 0.8 < told[-1][0] / told[-1][1] <= 1


def test_forms_are_built_when_asked_for(tiny_file: TinyFile) -> None:
    """A worker needs no decode form; what was not asked for is built on first use."""
    model = load_model(tiny_file("qwen2", Quant.MIXED_32), device="cpu", decode=False)
    assert torch.isfinite(as_decode(model)).all()
