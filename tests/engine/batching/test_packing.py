"""Who gets a chunk in the next pass: everybody in time, within what a pass may hold."""

from __future__ import annotations

import random

import pytest

from engine.batching.chunks import equal_chunks
from engine.batching.packing import MAX_PASSED_OVER, Packer


def packer(pass_tokens: int, **prompts: int) -> Packer[str]:
    """With prompts of so many tokens, in chunks of 100."""
    made: Packer[str] = Packer(pass_tokens=pass_tokens)
    for name, n_tokens in prompts.items():
        made.join(name, equal_chunks(0, n_tokens, 100))
    return made


def names(made: Packer[str], n_passes: int = 1) -> list[str]:
    return ["".join(name for name, _ in made.next_pass()) for _ in range(n_passes)]


def test_one_chunk_of_each_that_fits() -> None:
    made = packer(250, a=300, b=300, c=100)
    assert made.next_pass() == [("a", (0, 100)), ("b", (0, 100))]
    assert made.next_pass() == [("c", (0, 100)), ("a", (100, 200))]
    assert made.next_pass() == [("b", (100, 200)), ("a", (200, 300))]
    assert made.next_pass() == [("b", (200, 300))]
    assert made.next_pass() == [] and len(made) == 0


def test_a_newcomer_is_in_the_next_pass() -> None:
    made = packer(200, a=1000, b=1000)
    assert names(made, 2) == ["ab", "ab"]
    made.join("short", [(0, 40)])
    assert names(made, 2) == ["shorta", "ba"]


def test_newcomers_one_after_the_other_do_not_keep_the_long_prompt_out() -> None:
    made = packer(100, long=1000)
    assert names(made) == ["long"]
    seen = []
    for number in range(3 * (MAX_PASSED_OVER + 1)):
        made.join(str(number), [(0, 100)])
        seen += names(made)
    assert seen.count("long") == 3


def test_a_chunk_that_is_too_large_goes_alone() -> None:
    made = packer(50, a=100)
    made.join("b", [(0, 10)])
    made.join("c", [(0, 10)])
    assert sorted(names(made, 2)) == ["a", "bc"]


def test_who_leaves_is_not_packed() -> None:
    made = packer(1000, a=300, b=300)
    made.next_pass()
    made.leave("a")
    made.leave("a")
    assert names(made) == ["b"]
    made.join("a", [(0, 5)])
    assert names(made) == ["ab"]


def test_joining_twice_or_with_nothing_is_a_mistake() -> None:
    made = packer(100, a=100)
    with pytest.raises(ValueError):
        made.join("a", [(0, 5)])
    with pytest.raises(ValueError):
        made.join("b", [])


@pytest.mark.parametrize("seed", range(30))
def test_any_mixture_comes_to_its_end(seed: int) -> None:
    """Every chunk once and in order, the budget kept, and nobody passed over for long."""
    rng = random.Random(seed)
    pass_tokens, n_places = rng.choice((64, 200, 1024)), rng.randint(1, 6)
    made: Packer[int] = Packer(pass_tokens=pass_tokens)
    plans: dict[int, list[tuple[int, int]]] = {}
    done: dict[int, list[tuple[int, int]]] = {}
    last_seen: dict[int, int] = {}
    left: set[int] = set()
    n_pass = 0
    while len(done) < 60 or made:
        while len(done) < 60 and len(made) < n_places and rng.random() < 0.7:
            key, first = len(done), rng.randrange(50)
            plans[key] = equal_chunks(first, first + rng.randint(1, 1500), rng.choice((16, 100, 512)))
            done[key] = []
            last_seen[key] = n_pass
            made.join(key, plans[key])
        if made and rng.random() < 0.03:
            gone = rng.choice([key for key in done if done[key] != plans[key] and key not in left])
            made.leave(gone)
            left.add(gone)
        packed = made.next_pass()
        n_pass += 1
        sizes = [end - first for _, (first, end) in packed]
        assert sum(sizes) <= pass_tokens or len(sizes) == 1
        assert len({key for key, _ in packed}) == len(packed)
        for key, chunk in packed:
            done[key].append(chunk)
            assert key not in left
            assert n_pass - last_seen[key] <= MAX_PASSED_OVER + 2 * n_places
            last_seen[key] = n_pass
    for key, plan in plans.items():
        assert done[key] == plan[: len(done[key])]
        assert key in left or done[key] == plan
