"""A window cache shows exactly what a full cache with a mask would, whatever was appended, dropped or landed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from engine.cache.window import WindowCache
from engine.layers.step import chunk_mask

N_KV, K_DIM, V_DIM = 3, 5, 7


def rows(n: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, N_KV, K_DIM, generator=generator), torch.randn(n, N_KV, V_DIM, generator=generator)


@dataclass
class Twin:
    """A window cache, and beside it every row it was ever given that still counts."""

    window: int
    n_rows: int
    n_ctx: int
    k: list[Tensor] = field(default_factory=list)
    v: list[Tensor] = field(default_factory=list)
    seed: int = 0

    def __post_init__(self) -> None:
        # Memory starts as garbage that would show.
        self.cache = WindowCache(
            torch.full((self.n_rows, N_KV, K_DIM), torch.nan),
            torch.full((self.n_rows, N_KV, V_DIM), torch.nan),
            self.window,
        )

    @property
    def length(self) -> int:
        return len(self.k)

    def draw(self, n: int) -> tuple[Tensor, Tensor]:
        self.seed += 1
        k, v = rows(n, self.seed)
        self.k += list(k)
        self.v += list(v)
        return k, v

    def append(self, n: int) -> None:
        first = self.length
        k, v = self.draw(n)
        seen = self.cache.write(first, k, v)
        end = first + n
        # Nothing that the first of the new rows may see is missing, and every row is the right one.
        assert 0 <= seen.first <= max(0, first - self.window + 1)
        assert seen.k.shape[0] == end - seen.first
        assert torch.equal(seen.k, torch.stack(self.k[seen.first :]))
        assert torch.equal(seen.v, torch.stack(self.v[seen.first :]))

    def claim(self) -> None:
        """One row, written as a kernel writes it: by address."""
        position = self.length
        row = self.cache.claim(position)
        k, v = self.draw(1)
        for base, address, new, held in (
            (row.k_first, row.k_row, k, self.cache.k),
            (row.v_first, row.v_row, v, self.cache.v),
        ):
            row_bytes = held[0].nbytes
            index, rest = divmod(address - held.data_ptr(), row_bytes)
            first, rest_of_first = divmod(base - held.data_ptr(), row_bytes)
            assert (rest, rest_of_first) == (0, 0)
            assert 0 <= first <= index < self.n_rows
            assert index == first + row.n_seen - 1
            held[index] = new[0]
            shown = held[first : index + 1]
            every = torch.stack(self.k if held is self.cache.k else self.v)
            assert torch.equal(shown, every[-row.n_seen :])
        assert row.n_seen == min(self.window, position + 1)

    def truncate(self, length: int) -> bool:
        """Drop what comes after `length` as `SequenceState` does; False when that costs everything."""
        kept = self.cache.keeps(length)
        if not kept:
            length = 0
        if length == 0:
            self.cache.reset()
        del self.k[length:], self.v[length:]
        return kept

    def land(self, n: int, *, completely: bool = True) -> None:
        """A handoff of the next `n` positions, of which only the last window is brought."""
        start, stop = self.length, self.length + n
        first = max(start, stop - self.window + 1)
        self.cache.make_room(start, first, stop)
        row, end = self.cache.place(first, stop)
        assert 0 <= row <= end <= self.n_rows
        if not completely:
            self.cache.k[row:end] = torch.nan
            self.cache.v[row:end] = torch.nan
            return
        k, v = self.draw(n)
        self.cache.k[row:end] = k[first - start :]
        self.cache.v[row:end] = v[first - start :]

    def land_checkpoints(self, *lengths: int) -> None:
        """Whole windows as of these positions come in turn to the two places, and then half of one more."""
        start, stop = self.length, lengths[-1] + self.window
        first = stop - self.window + 1
        self.cache.make_room(start, first, stop)
        row, _ = self.cache.place(first, stop)
        for place, length in enumerate(lengths):
            k, v = self.draw(length - self.length)
            at = row + place % 2 * self.cache.spare_rows
            self.cache.k[at : at + self.window - 1] = k[-(self.window - 1) :]
            self.cache.v[at : at + self.window - 1] = v[-(self.window - 1) :]
            self.cache.landed(length, place % 2)
        at = row + len(lengths) % 2 * self.cache.spare_rows
        self.cache.k[at : at + self.window - 1] = torch.nan
        self.cache.v[at : at + self.window // 2] = torch.nan


def capacity(window: int, slack: int, n_ctx: int) -> int:
    return min(n_ctx, window + slack)


@pytest.mark.parametrize("slack", [1, 2, 9, 40])
@pytest.mark.parametrize("window", [1, 2, 5, 16])
def test_random_appends(window: int, slack: int) -> None:
    rng = random.Random(window * 100 + slack)
    n_ctx = 400
    twin = Twin(window=window, n_rows=capacity(window, slack, n_ctx), n_ctx=n_ctx)
    while twin.length < n_ctx:
        twin.append(
            min(
                rng.choice([1, 1, 1, 2, 3, window, window + slack, 3 * (window + slack)]), n_ctx - twin.length
            )
        )


@pytest.mark.parametrize("seed", range(30))
def test_random_lives(seed: int) -> None:
    """Appends, truncations to any length that the cache says it keeps, and handoffs, whole and failed."""
    rng = random.Random(seed)
    window, slack, n_ctx = rng.randint(1, 20), rng.randint(1, 30), rng.randint(10, 300)
    twin = Twin(window=window, n_rows=capacity(window, slack, n_ctx), n_ctx=n_ctx)
    for _ in range(60):
        room = n_ctx - twin.length
        action = rng.choice(["append", "append", "claim", "claim", "truncate", "land", "fail"])
        if room == 0 or action == "truncate":
            twin.truncate(rng.randint(0, twin.length))
        elif action == "append":
            twin.append(rng.randint(1, min(room, rng.choice([1, 4, 60]))))
        elif action == "claim":
            for _ in range(rng.randint(1, min(room, 30))):
                twin.claim()
        elif action == "land":
            twin.land(rng.randint(1, room))
        else:
            twin.land(rng.randint(1, room), completely=False)
            twin.truncate(twin.length)


@pytest.mark.parametrize(
    ("start", "n"), [(0, 3), (0, 200), (7, 2), (7, 9), (7, 10), (7, 150), (150, 2), (150, 100)]
)
@pytest.mark.parametrize("window", [1, 2, 11, 600])
def test_landing_after_a_prefix(window: int, start: int, n: int) -> None:
    """Single cases of each kind: inside the window, larger than it, a window larger than the context."""
    n_ctx = 300
    twin = Twin(window=window, n_rows=capacity(window, 4, n_ctx), n_ctx=n_ctx)
    if start:
        twin.append(start)
    twin.land(n)
    for _ in range(20):
        twin.append(1)


def test_a_failed_landing_that_fits_costs_nothing() -> None:
    twin = Twin(window=8, n_rows=40, n_ctx=400)
    twin.append(10)
    twin.land(5, completely=False)
    assert twin.truncate(10)
    twin.append(3)


def test_a_failed_landing_that_took_the_window_says_so() -> None:
    twin = Twin(window=8, n_rows=40, n_ctx=400)
    twin.append(10)
    twin.land(100, completely=False)
    assert not twin.truncate(10)
    assert twin.length == 0
    twin.append(12)


@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize("lengths", [(20,), (20, 35), (20, 35, 50)])
@pytest.mark.parametrize("n_rows", [14, 18, 40])
def test_a_handoff_that_broke_is_gone_on_with_from_its_last_checkpoint(
    start: int, lengths: tuple[int, ...], n_rows: int
) -> None:
    twin = Twin(window=8, n_rows=n_rows, n_ctx=400)
    if start:
        twin.append(start)
    twin.land_checkpoints(*lengths)
    assert not any(twin.cache.keeps(length) for length in range(start, lengths[-1]))
    assert twin.truncate(lengths[-1])
    twin.claim()
    twin.append(3)
    twin.append(60)


def test_two_windows_need_room_for_two() -> None:
    rooms = {rows: WindowCache(*torch.zeros(2, rows, 1, 2), 8).spare_rows for rows in (8, 13, 14, 40)}
    assert rooms == {8: 0, 13: 0, 14: 7, 40: 7}


def test_keeps_is_not_needlessly_strict() -> None:
    """While nothing has slid, every length can be gone on from; after a slide, the last `slack` ones."""
    cache = WindowCache(torch.zeros(20, 1, 2), torch.zeros(20, 1, 2), 8)
    cache.write(0, *(torch.zeros(20, 1, 2) for _ in range(2)))
    assert all(cache.keeps(length) for length in range(21))
    cache.write(20, *(torch.zeros(1, 1, 2) for _ in range(2)))
    assert [cache.keeps(length) for length in (19, 20, 21)] == [False, True, True]


@pytest.mark.parametrize("window", [0, 1, 3, 50])
@pytest.mark.parametrize(
    ("first_seen", "n_seen", "n_rows"), [(0, 6, 6), (0, 9, 4), (5, 9, 4), (5, 9, 1), (0, 1, 1)]
)
def test_chunk_mask_against_the_rule(first_seen: int, n_seen: int, n_rows: int, window: int) -> None:
    mask = chunk_mask(first_seen, n_seen, n_rows, window, torch.float32, torch.device("cpu"))
    if mask is None:
        assert n_rows == n_seen
        mask = torch.zeros(n_rows, n_seen).masked_fill(~torch.ones(n_rows, n_seen).tril().bool(), -torch.inf)
    for row in range(n_rows):
        position = first_seen + n_seen - n_rows + row
        for column in range(n_seen):
            key = first_seen + column
            visible = key <= position and (window == 0 or position - key < window)
            assert mask[row, column] == (0.0 if visible else -torch.inf)
