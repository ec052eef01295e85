"""Chunks of several prompts in one pass: nobody's numbers, layers or length depend on the others."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from engine.batching.chunks import equal_chunks
from engine.cache.sequence import SequenceState
from engine.cache.spec import KVType
from engine.errors import InvalidRequest
from engine.kernels import packed_gemm
from engine.layers.step import Segment
from engine.models.base import Model
from engine.models.registry import WeightsMode
from tests.engine.models.conftest import TinyModel
from tests.engine.models.running import append, new_pool, random_tokens
from tests.engine.models.tiny import Quant

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")
CHUNK = 40
# Every residue of what kernels take rows by, and chunks that are too short for the form for many rows.
LENGTHS = (3, 5, 17, 90, 100, 4, 1)

FORMS = {
    "reference": (Quant.F32, WeightsMode.FLOAT32, KVType.F32),
    "dense": (Quant.MIXED_32, WeightsMode.AUTO, KVType.BF16),
    "bf16": (Quant.MIXED_32, WeightsMode.BF16, KVType.BF16),
    "packed-32": (Quant.MIXED_32, WeightsMode.PACKED, KVType.BF16),
    "packed-k": (Quant.Q4_K_M, WeightsMode.PACKED, KVType.BF16),
}


def prompts(model: Model) -> list[list[int]]:
    return [random_tokens(n, model.spec.n_vocab, seed=n) for n in LENGTHS]


def sequences(model: Model, kv_type: KVType) -> list[SequenceState]:
    pool, _ = new_pool(model, n_ctx=128, n_slots=len(LENGTHS), kv_type=kv_type)
    return [pool.sequence(slot) for slot in range(len(LENGTHS))]


def segments(model: Model, places: list[SequenceState], *, n_logits: int = 0) -> list[list[Segment]]:
    """Each prompt's chunks."""
    return [
        [
            Segment(sequence=place, tokens=prompt[first:end], n_logits=min(n_logits, end - first))
            for first, end in equal_chunks(0, len(prompt), CHUNK)
        ]
        for place, prompt in zip(places, prompts(model), strict=True)
    ]


def held(place: SequenceState) -> list[Tensor]:
    """All that the cache holds of it."""
    return [rows[: place.length] for layer in place.layers for rows in (layer.k, layer.v)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", FAMILIES)
def test_bit_for_bit_what_each_gives_alone(name: str, form: str, tiny_model: TinyModel) -> None:
    quant, weights, kv_type = FORMS[form]
    model = tiny_model(name, quant, weights)
    together, alone = sequences(model, kv_type), sequences(model, kv_type)
    for packed in itertools.zip_longest(*segments(model, together)):
        model.forward([segment for segment in packed if segment is not None], [])
    for chunks in segments(model, alone):
        for segment in chunks:
            model.forward([segment], [])
    for one, other in zip(together, alone, strict=True):
        assert one.tokens == other.tokens
        assert all(torch.equal(a, b) for a, b in zip(held(one), held(other), strict=True))
        assert torch.equal(
            append(model, one, [1], decode=True),
            append(model, other, [1], decode=True),
        )


@pytest.mark.parametrize("form", ["dense", "packed-k"])
def test_logits_of_some_come_in_the_order_of_the_segments(form: str, tiny_model: TinyModel) -> None:
    quant, weights, kv_type = FORMS[form]
    model = tiny_model("qwen3", quant, weights)
    together, alone = sequences(model, kv_type), sequences(model, kv_type)
    n_logits = (1, 0, 3, 0, 2, 1, 0)

    def first_chunks(places: list[SequenceState]) -> list[Segment]:
        return [
            Segment(sequence=place, tokens=prompt[:CHUNK], n_logits=n)
            for place, prompt, n in zip(places, prompts(model), n_logits, strict=True)
        ]

    found = model.forward(first_chunks(together), [])
    expected = [model.forward([segment], []) for segment in first_chunks(alone)]
    assert torch.equal(found, torch.cat(expected))
    assert found.shape[0] == sum(n_logits)


@pytest.mark.parametrize("form", ["dense", "packed-k"])
def test_each_hears_of_its_own_layers_in_order(form: str, tiny_model: TinyModel) -> None:
    quant, weights, kv_type = FORMS[form]
    model = tiny_model("llama", quant, weights)
    heard: list[tuple[int, int]] = []
    parts = [
        Segment(
            sequence=place,
            tokens=prompt[:CHUNK],
            n_logits=0,
            on_layer=lambda layer, index=index: heard.append((layer, index)),
        )
        for index, (place, prompt) in enumerate(zip(sequences(model, kv_type), prompts(model), strict=True))
    ]
    model.forward(parts, [])
    # A layer of everybody before the next one of anybody: no prompt's bytes wait for another's whole pass.
    assert [layer for layer, _ in heard] == sorted(layer for layer, _ in heard)
    n_layers = len(model.spec.layers)
    for index in range(len(LENGTHS)):
        assert [layer for layer, who in heard if who == index] == list(range(n_layers))


def test_a_pass_that_fails_leaves_all_as_they_were(tiny_model: TinyModel) -> None:
    model = tiny_model("qwen3", Quant.Q4_K_M, WeightsMode.PACKED)
    places = sequences(model, KVType.BF16)

    def fail(layer: int) -> None:
        if layer == 1:
            raise ConnectionError

    parts = [Segment(sequence=place, tokens=[1] * 9, n_logits=0, on_layer=fail) for place in places]
    with pytest.raises(ConnectionError):
        model.forward(parts, [])
    with pytest.raises(InvalidRequest):
        model.forward([parts[0], Segment(sequence=places[1], tokens=[model.spec.n_vocab])], [])
    assert [place.length for place in places] == [0] * len(places)


@pytest.mark.skipif(not packed_gemm.available(), reason="the processor has no 8-bit products")
def test_our_own_products_take_the_rows_of_all_at_once(tiny_model: TinyModel) -> None:
    assert tiny_model("qwen3", Quant.Q4_K_M, WeightsMode.PACKED)._stack(many_rows=True).rows_stand_alone
    assert not tiny_model("qwen3", Quant.MIXED_32, WeightsMode.BF16)._stack(many_rows=True).rows_stand_alone
