"""Kept blocks: what is found is what was added, the longest there is, in the room that there is."""

from __future__ import annotations

import random

import pytest

from engine.cache.blocks import BLOCK_TOKENS, BlockIndex, common_prefix

BYTES = 10


def index_of(*, budget: int = 1000, any_length: bool = True) -> BlockIndex[str]:
    return BlockIndex(budget_bytes=budget * BYTES, any_length=any_length)


def keep(index: BlockIndex[str], tokens: list[int]) -> bool:
    """As who keeps a sequence does it; False where there was no room for all of it."""
    before, first = index.missing(tokens)
    while first < len(tokens):
        end = min(first + BLOCK_TOKENS, len(tokens))
        if not index.make_room(BYTES, before):
            return False
        before = index.add(before, tokens[first:end], f"to {end}", n_bytes=BYTES, is_end=end == len(tokens))
        first = end
    return True


def tokens_of(n: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(50_000) for _ in range(n)]


def test_nothing_is_found_in_nothing() -> None:
    assert index_of().find(tokens_of(900)).length == 0


@pytest.mark.parametrize("n", [1, 100, BLOCK_TOKENS, BLOCK_TOKENS + 1, 3 * BLOCK_TOKENS, 900])
def test_what_was_kept_is_found_whole(n: int) -> None:
    tokens = tokens_of(n)
    for any_length in (True, False):
        index = index_of(any_length=any_length)
        keep(index, tokens)
        found = index.find([*tokens, 1, 2, 3])
        assert found.length == n
        assert [token for block in found.blocks for token in block.tokens] == tokens
        assert found.blocks[-1].content == f"to {n}"


def test_any_part_of_a_block_will_do_where_any_length_does() -> None:
    tokens = tokens_of(900)
    index = index_of()
    keep(index, tokens)
    for n in (1, 255, 256, 257, 600, 899):
        other = [*tokens[:n], tokens[n] + 1, *tokens[n:]]
        assert index.find(other).length == n
        assert index.find(tokens[:n]).length == n


def test_only_ends_will_do_where_a_state_is_needed() -> None:
    tokens = tokens_of(900)
    index = index_of(any_length=False)
    keep(index, tokens[:300])
    keep(index, tokens[:512])
    keep(index, tokens)
    for n, end in ((299, 0), (300, 300), (511, 300), (512, 512), (899, 512), (900, 900)):
        assert index.find(tokens[:n]).length == end


def test_a_whole_block_becomes_an_end_later() -> None:
    tokens = tokens_of(3 * BLOCK_TOKENS)
    index = index_of(any_length=False)
    keep(index, tokens)
    assert index.find(tokens[: 2 * BLOCK_TOKENS]).length == 0
    n_bytes = index.n_bytes
    keep(index, tokens[: 2 * BLOCK_TOKENS])
    assert index.find(tokens[: 2 * BLOCK_TOKENS]).length == 2 * BLOCK_TOKENS
    assert index.find(tokens).length == len(tokens) and index.n_bytes == n_bytes


def test_a_longer_part_takes_the_place_of_a_shorter_one() -> None:
    tokens = tokens_of(700)
    index = index_of()
    for n in (10, 200, 300, 500, 700):
        keep(index, tokens[:n])
    assert index.n_bytes == 3 * BYTES and index.status().n_tokens == 700
    # the other way round nothing is added
    keep(index, tokens[:650])
    assert index.n_bytes == 3 * BYTES and index.find(tokens).length == 700


def test_chats_that_begin_alike_share_their_beginning() -> None:
    system = tokens_of(2 * BLOCK_TOKENS)
    index = index_of()
    for seed in range(1, 5):
        keep(index, system + tokens_of(100, seed))
    assert index.n_bytes == (2 + 4) * BYTES
    for seed in range(1, 5):
        assert index.find(system + tokens_of(100, seed)).length == len(system) + 100


def test_equal_tokens_after_other_ones_are_no_match() -> None:
    first, second = tokens_of(BLOCK_TOKENS, 1), tokens_of(BLOCK_TOKENS, 2)
    index = index_of()
    keep(index, first + second)
    assert index.find(second).length == 0
    assert index.find(second + second).length == 0


def test_the_one_not_used_for_longest_goes_first_and_from_its_end() -> None:
    old, new, newest = (tokens_of(2 * BLOCK_TOKENS, seed) for seed in (1, 2, 3))
    index = index_of(budget=5)
    keep(index, old)
    keep(index, new)
    index.use(index.find(old))
    keep(index, newest)
    assert index.find(old).length == len(old)
    assert index.find(new).length == BLOCK_TOKENS
    assert index.find(newest).length == len(newest)
    assert index.n_bytes == 5 * BYTES


def test_what_does_not_fit_is_kept_as_far_as_it_does() -> None:
    tokens = tokens_of(10 * BLOCK_TOKENS)
    index = index_of(budget=4)
    assert not keep(index, tokens)
    assert index.find(tokens).length == 4 * BLOCK_TOKENS
    assert index.n_bytes == 4 * BYTES


@pytest.mark.parametrize("any_length", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_against_a_list_of_all_that_was_kept(seed: int, any_length: bool) -> None:
    """Sequences that part at many places; with room for all, the longest common beginning is found each time."""
    rng = random.Random(seed)
    index = index_of(budget=100_000, any_length=any_length)
    kept: list[list[int]] = []
    for step in range(60):
        base = rng.choice(kept)[: rng.randrange(1200)] if kept and rng.random() < 0.8 else []
        tokens = base + tokens_of(rng.randrange(1, 700), seed=1000 * seed + step)
        best = max((common_prefix(one, tokens) for one in kept), default=0)
        ends = max((len(one) for one in kept if tokens[: len(one)] == one), default=0)
        assert index.find(tokens).length == (best if any_length else ends)
        keep(index, tokens)
        kept.append(tokens)
        assert index.find(tokens).length == len(tokens)
