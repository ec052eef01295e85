"""Our float32 forward pass gives the log-probabilities of `transformers`, however the prompt is cut up."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from engine.batching.chunks import equal_chunks
from engine.layers.step import Segment
from tests.engine.models.conftest import SEED, TinyModel
from tests.engine.models.reference import reference_logits, reference_model
from tests.engine.models.running import append, cut, distance, new_sequence, random_tokens
from tests.engine.models.tiny import VARIANTS

# Sums of a few hundred float32 products, in another order.
TOLERANCE = 1e-4

N_TOKENS = 61


@functools.cache
def expected(name: str) -> tuple[list[int], Tensor]:
    """A random prompt and what `transformers` says about each of its positions, [T, V]."""
    config = VARIANTS[name]
    tokens = random_tokens(N_TOKENS, config.n_vocab, seed=3)
    return tokens, reference_logits(reference_model(config, SEED), tokens)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_prompt_in_one_go(name: str, tiny_model: TinyModel) -> None:
    tokens, logits = expected(name)
    model = tiny_model(name)
    assert distance(append(model, new_sequence(model), tokens), logits[-1]) < TOLERANCE


@pytest.mark.parametrize("chunk", [7, 20])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_prompt_in_equal_chunks(name: str, chunk: int, tiny_model: TinyModel) -> None:
    tokens, logits = expected(name)
    model = tiny_model(name)
    sequence = new_sequence(model)
    for first, end in equal_chunks(0, N_TOKENS, chunk):
        found = append(model, sequence, tokens[first:end])
        assert distance(found, logits[end - 1]) < TOLERANCE


@pytest.mark.parametrize("name", VARIANTS)
def test_token_by_token(name: str, tiny_model: TinyModel) -> None:
    tokens, logits = expected(name)
    model = tiny_model(name)
    sequence = new_sequence(model)
    found = torch.stack([append(model, sequence, [token], decode=True) for token in tokens])
    assert distance(found, logits) < TOLERANCE


@pytest.mark.parametrize("name", VARIANTS)
def test_chunks_and_single_tokens_mixed(name: str, tiny_model: TinyModel) -> None:
    tokens, logits = expected(name)
    model = tiny_model(name)
    sequence = new_sequence(model)
    for piece in cut(tokens, (1, 3, 1, 1, 14, 2, 30, 1, 8)):
        found = append(model, sequence, piece, decode=len(piece) == 1)
        assert distance(found, logits[sequence.length - 1]) < TOLERANCE


@pytest.mark.parametrize("name", VARIANTS)
def test_several_sequences_in_one_step(name: str, tiny_model: TinyModel) -> None:
    """Chunks of two sequences and decode rows of two others share a step; logits come in the order promised."""
    tokens, logits = expected(name)
    model = tiny_model(name)
    one, other, third, fourth = (new_sequence(model) for _ in range(4))
    append(model, other, tokens[:13])
    append(model, third, tokens[:25])
    append(model, fourth, tokens[:6])
    found = model.forward(
        [Segment(sequence=one, tokens=tokens[:17]), Segment(sequence=other, tokens=tokens[13:30])],
        [Segment(sequence=third, tokens=tokens[25:26]), Segment(sequence=fourth, tokens=tokens[6:7])],
    )
    assert [s.length for s in (one, other, third, fourth)] == [17, 30, 26, 7]
    assert distance(found, logits[[16, 29, 25, 6]]) < TOLERANCE


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_of_several_last_rows(name: str, tiny_model: TinyModel) -> None:
    """Also where the window of the first wanted row begins before that of the last, and of a whole segment."""
    tokens, logits = expected(name)
    model = tiny_model(name)
    one, other = new_sequence(model), new_sequence(model)
    found = model.forward(
        [
            Segment(sequence=one, tokens=tokens[:24], n_logits=5),
            Segment(sequence=other, tokens=tokens[:3], n_logits=99),
        ],
        [],
    )
    assert distance(found, logits[[19, 20, 21, 22, 23, 0, 1, 2]]) < TOLERANCE
    found = model.forward([Segment(sequence=one, tokens=tokens[24:], n_logits=N_TOKENS - 25)], [])
    assert distance(found, logits[25:]) < TOLERANCE


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_only_where_wanted(name: str, tiny_model: TinyModel) -> None:
    """What the last layer skips does not change what comes later."""
    tokens, logits = expected(name)
    model = tiny_model(name)
    one, other = new_sequence(model), new_sequence(model)
    layers: list[int] = []
    first = Segment(sequence=one, tokens=tokens[:20], n_logits=0, on_layer=layers.append)
    nothing = model.forward([first], [])
    assert nothing.shape == (0, model.spec.n_vocab)
    assert layers == list(range(model.spec.n_layers))
    found = model.forward(
        [
            Segment(sequence=one, tokens=tokens[20:41], n_logits=0),
            Segment(sequence=other, tokens=tokens[:9]),
        ],
        [],
    )
    assert distance(found, logits[8:9]) < TOLERANCE
    assert distance(append(model, one, tokens[41:]), logits[-1]) < TOLERANCE
