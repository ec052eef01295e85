"""What was kept of a sequence and brought to another slot is, bit for bit, what was computed there."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest
import torch

from engine.cache.prefix import PrefixCache, Restored
from engine.cache.sequence import SequencePool
from engine.cache.spec import KVType
from engine.models.base import Model
from engine.models.registry import WeightsMode, load_model
from tests.engine.models.running import MULTIPLIES_BFLOAT16, append, distance, new_pool, random_tokens
from tests.engine.models.tiny import Quant, write_tiny

N_CTX = 1400
TIMEOUT_S = 10.0
ENOUGH = 1 << 30


class Kept:
    """A pool with a prefix cache, and what that says awaited."""

    def __init__(self, model: Model, budget_bytes: int) -> None:
        self.model = model
        self.pool: SequencePool = new_pool(model, n_ctx=N_CTX, n_slots=2, kv_type=KVType.BF16)[0]
        self.news = threading.Event()
        self.prefixes = PrefixCache(self.pool, budget_bytes=budget_bytes, on_done=self.news.set)

    def compute(self, slot: int, tokens: list[int]) -> None:
        """Have exactly `tokens` in the slot, whatever it held."""
        sequence = self.pool.sequence(slot)
        sequence.truncate(sequence.reusable(tokens))
        append(self.model, sequence, tokens[sequence.length :])

    def restore(self, slot: int, tokens: list[int]) -> int:
        """Bring what is kept of `tokens` into the slot, as its engine does; how many tokens it holds then."""
        sequence = self.pool.sequence(slot)
        self.prefixes.restore(slot, self.prefixes.find(tokens), sequence.reusable(tokens))
        assert self.news.wait(TIMEOUT_S)
        self.news.clear()
        (restored,) = self.prefixes.poll()
        assert restored.slot == slot
        sequence.adopt(tokens[: restored.length])
        return restored.length

    def check(self, slot: int, *, other_chunks: bool = False) -> None:
        """The slot goes on as one that has computed the same; nearly so with `other_chunks`, which a window layer's
        numbers depend on, those of very few rows, and all where products are float32."""
        sequence = self.pool.sequence(slot)
        fresh = new_pool(self.model, n_ctx=N_CTX, kv_type=KVType.BF16)[0].sequence(0)
        append(self.model, fresh, sequence.tokens)
        for token in (3, 5, 7):
            found, expected = (append(self.model, one, [token], decode=True) for one in (sequence, fresh))
            is_same = not other_chunks and MULTIPLIES_BFLOAT16
            assert torch.equal(found, expected) if is_same else distance(found, expected) < 1


@pytest.fixture(scope="module", params=["qwen3", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = write_tiny(request.param, tmp_path_factory.mktemp("prefix") / "tiny.gguf", 7, quant=Quant.Q8_0)
    return load_model(path, device="cpu", weights=WeightsMode.PACKED)


@pytest.fixture
def kept(model: Model) -> Iterator[Kept]:
    both = Kept(model, ENOUGH)
    yield both
    both.prefixes.close()


def tokens_of(kept: Kept, n: int, seed: int) -> list[int]:
    return random_tokens(n, kept.model.spec.n_vocab, seed)


@pytest.mark.parametrize("n", [1, 255, 256, 257, 1000])
def test_kept_and_brought_to_another_slot(kept: Kept, n: int) -> None:
    tokens = tokens_of(kept, n, 1)
    kept.compute(0, tokens)
    kept.prefixes.save(0, n)
    # its slot goes to another prompt meanwhile; whoever is brought back waits for the saving
    assert kept.restore(1, tokens) in (0, n)
    assert kept.restore(1, tokens) == n
    kept.compute(0, tokens_of(kept, 900, 2))
    kept.check(1)
    assert kept.prefixes.status().n_tokens == n


def test_only_what_the_slot_lacks_is_brought(kept: Kept) -> None:
    tokens = tokens_of(kept, 1000, 1)
    kept.compute(0, tokens)
    kept.prefixes.save(0, 1000)
    kept.compute(1, tokens[:300])
    kept.restore(0, tokens)
    held = kept.pool.sequence(1).reusable(tokens)
    assert held == 300 and kept.restore(1, tokens) == 1000
    kept.check(1)


def test_a_chat_that_goes_another_way(kept: Kept) -> None:
    """The end of each turn is kept, so that an edit or a new answer begins at the last turn that is left."""
    tokens = tokens_of(kept, 1200, 1)
    for length in (400, 700):
        kept.compute(0, tokens[:length])
        kept.prefixes.save(0, length)
        kept.restore(0, tokens[:length])
    other = [*tokens[:650], *tokens_of(kept, 300, 5)]
    any_length = not any(layer.window for layer in kept.pool.sequence(0).layers)
    assert kept.restore(1, other) == (650 if any_length else 400)
    kept.check(1)


def test_a_part_of_the_prompt_is_kept_too_where_the_model_needs_that(kept: Kept) -> None:
    """`save` names the prompt's end and the answer's: a second answer to the same prompt begins at the first."""
    tokens = tokens_of(kept, 600, 1)
    kept.compute(0, tokens)
    kept.prefixes.save(0, 590, 600)
    kept.restore(0, tokens)
    assert kept.restore(1, [*tokens[:590], *tokens_of(kept, 50, 3)]) == 590
    kept.check(1)


def test_rows_that_are_being_saved_are_not_to_be_written(kept: Kept) -> None:
    gate = threading.Event()
    kept.prefixes._jobs.put(lambda: gate.wait(TIMEOUT_S) and None)
    tokens = tokens_of(kept, 500, 1)
    kept.compute(0, tokens)
    kept.prefixes.save(0, 500)
    any_length = not any(layer.window for layer in kept.pool.sequence(0).layers)
    assert kept.prefixes.is_saving(0, 499) and not kept.prefixes.is_saving(1, 0)
    assert kept.prefixes.is_saving(0, 500) is not any_length
    # an empty prefix waits for the saving, and gives the slot back as it was
    kept.prefixes.restore(0, kept.prefixes.find([]), 200)
    assert kept.prefixes.poll() == []
    gate.set()
    assert kept.news.wait(TIMEOUT_S)
    assert kept.prefixes.poll() == [Restored(slot=0, length=200)]
    assert not kept.prefixes.is_saving(0, 0)


def test_a_failed_copy_costs_the_prefix_and_nothing_else(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = tokens_of(kept, 300, 1)
    kept.compute(0, tokens)
    kept.prefixes.save(0, 300)
    kept.restore(0, tokens)

    def out_of_memory(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("engine.cache.prefix._copy_each", out_of_memory)
    assert kept.restore(1, tokens) == 0
    assert kept.pool.sequence(1).length == 0
    kept.compute(0, tokens_of(kept, 300, 2))
    kept.prefixes.save(0, 300)
    kept.restore(0, kept.pool.sequence(0).tokens)
    monkeypatch.undo()
    assert kept.restore(1, tokens) == 300
    kept.check(1)
    assert "could not be kept" in caplog.text and "could not be brought back" in caplog.text


def test_nothing_is_kept_without_room(model: Model) -> None:
    kept = Kept(model, 0)
    kept.compute(0, tokens_of(kept, 300, 1))
    kept.prefixes.save(0, 300)
    assert kept.prefixes.find(tokens_of(kept, 300, 1)).length == 0 and not kept.prefixes.is_saving(0, 0)
    kept.prefixes.close()


@pytest.mark.parametrize("seed", range(3))
def test_many_chats_in_two_slots(model: Model, seed: int) -> None:
    """Any chat may go on in any slot, with room for some of them only."""
    rng = random.Random(seed)
    kept = Kept(model, 1 << 19)
    chats = {name: tokens_of(kept, rng.randrange(50, 400), name) for name in range(5)}
    for step in range(25):
        name, slot = rng.choice(list(chats)), rng.randrange(2)
        tokens = chats[name]
        held = kept.restore(slot, tokens)
        assert held <= len(tokens)
        kept.compute(slot, tokens)
        kept.check(slot, other_chunks=True)
        sequence = kept.pool.sequence(slot)
        sequence.reset()
        kept.compute(slot, tokens)
        kept.prefixes.save(slot, len(tokens))
        kept.restore(slot, tokens)
        assert kept.prefixes.status().n_bytes <= 1 << 19
        chats[name] = (tokens if rng.random() < 0.8 else tokens[: len(tokens) // 2]) + tokens_of(
            kept, rng.randrange(1, 200), 1000 + step
        )
        chats[name] = chats[name][: N_CTX - 10]
    kept.prefixes.close()
