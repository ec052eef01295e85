"""Who shares a step does not change anyone's numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.cache.sequence import SequenceState
from engine.cache.spec import KVType
from engine.layers.step import Segment
from engine.models.base import Model
from engine.models.registry import WeightsMode
from tests.engine.models.conftest import TinyModel
from tests.engine.models.running import distance, new_pool, prefill, random_tokens
from tests.engine.models.tiny import Quant

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")
PROMPT_LENGTHS = (5, 40, 17, 90)
N_STEPS = 8


def prompts(model: Model) -> list[list[int]]:
    return [random_tokens(n, model.spec.n_vocab, seed=n) for n in PROMPT_LENGTHS]


def four_slots(model: Model, kv_type: KVType) -> list[SequenceState]:
    pool, _ = new_pool(model, n_ctx=128, n_slots=4, kv_type=kv_type)
    return [pool.sequence(slot) for slot in range(4)]


def alone(model: Model, kv_type: KVType) -> list[Tensor]:
    """Greedy logits [N_STEPS, V] of each prompt by itself."""
    results = []
    for sequence, prompt in zip(four_slots(model, kv_type), prompts(model), strict=True):
        prefill(model, sequence, prompt, chunk=32)
        token, logits = prompt[-1], []
        for _ in range(N_STEPS):
            logits.append(model.forward([], [Segment(sequence=sequence, tokens=[token])])[0])
            token = int(logits[-1].argmax())
        results.append(torch.stack(logits))
    return results


def together(model: Model, kv_type: KVType) -> list[Tensor]:
    """The same with all four in each step."""
    sequences = four_slots(model, kv_type)
    for sequence, prompt in zip(sequences, prompts(model), strict=True):
        prefill(model, sequence, prompt, chunk=32)
    tokens = [prompt[-1] for prompt in prompts(model)]
    steps = []
    for _ in range(N_STEPS):
        segments = [Segment(sequence=s, tokens=[t]) for s, t in zip(sequences, tokens, strict=True)]
        steps.append(model.forward([], segments))
        tokens = steps[-1].argmax(-1).tolist()
    return list(torch.stack(steps, dim=1))


@pytest.mark.parametrize("quant", [Quant.MIXED_32, Quant.Q4_K_M])
@pytest.mark.parametrize("name", FAMILIES)
def test_four_at_once_bit_for_bit(name: str, quant: Quant, tiny_model: TinyModel) -> None:
    """Packed rows are computed each for itself."""
    model = tiny_model(name, quant, WeightsMode.AUTO)
    for one, other in zip(alone(model, KVType.BF16), together(model, KVType.BF16), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", FAMILIES)
def test_four_at_once_in_float32(name: str, tiny_model: TinyModel) -> None:
    """Dense products may sum in another order with more rows: the same tokens, and nearly the same numbers."""
    model = tiny_model(name)
    for one, other in zip(alone(model, KVType.F32), together(model, KVType.F32), strict=True):
        assert torch.equal(one.argmax(-1), other.argmax(-1))
        assert distance(one, other) < 1e-4


@pytest.mark.parametrize("name", FAMILIES)
def test_a_chunk_and_decode_rows_in_one_step(name: str, tiny_model: TinyModel) -> None:
    """Bit for bit what each gives alone, in whatever form."""
    for quant, weights in ((Quant.MIXED_32, WeightsMode.AUTO), (Quant.F32, WeightsMode.FLOAT32)):
        model = tiny_model(name, quant, weights)
        a, b, c, d = four_slots(model, KVType.BF16)
        chunk, other = prompts(model)[1], prompts(model)[2]
        for sequence in (b, d):
            prefill(model, sequence, other, chunk=32)
        shared = model.forward([Segment(sequence=a, tokens=chunk)], [Segment(sequence=b, tokens=other[-1:])])
        first = model.forward([Segment(sequence=c, tokens=chunk)], [])
        second = model.forward([], [Segment(sequence=d, tokens=other[-1:])])
        assert torch.equal(shared, torch.cat((first, second)))


def test_an_empty_step_gives_no_logits(tiny_model: TinyModel) -> None:
    model = tiny_model("qwen3")
    assert model.forward([], []).shape == (0, model.spec.n_vocab)
