"""Rotation of adjacent pairs, and that it says the same as rotation of halves for rows in another order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.layers.rope import Rope, pair_order, rotate

CPU = torch.device("cpu")


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rotate_halves(x: Tensor, positions: Tensor, base: float, n_rotated: int) -> Tensor:
    """x [T, H, D] as most families write it: value i turns with value i + n/2; in float64."""
    half = n_rotated // 2
    frequencies = base ** (-torch.arange(0, n_rotated, 2, dtype=torch.float64) / n_rotated)
    angles = torch.outer(positions.double(), frequencies).unsqueeze(1)
    first, second = x[..., :half].double(), x[..., half:n_rotated].double()
    turned = (
        first * angles.cos() - second * angles.sin(),
        second * angles.cos() + first * angles.sin(),
        x[..., n_rotated:].double(),
    )
    return torch.cat(turned, dim=-1)


@pytest.mark.parametrize(("head_dim", "n_rotated"), [(16, 16), (24, 24), (24, 10), (2, 2)])
def test_pairs_in_order_score_as_halves_do(head_dim: int, n_rotated: int) -> None:
    """Scores of reordered, pair-rotated queries and keys are those of half-rotated ones."""
    n_heads, n_rows, base = 3, 9, 50.0
    positions = torch.tensor([0, 1, 2, 5, 900, 901, 902, 1030, 4000])
    q, k = drawn(n_rows, n_heads, head_dim, seed=1), drawn(n_rows, n_heads, head_dim, seed=2)
    expected = torch.einsum(
        "thd,shd->hts",
        rotate_halves(q, positions, base, n_rotated),
        rotate_halves(k, positions, base, n_rotated),
    )
    order = pair_order(n_heads, head_dim, n_rotated)
    assert sorted(order.tolist()) == list(range(n_heads * head_dim))
    rope = Rope(head_dim=head_dim, n_rotated=n_rotated, base=base, device=CPU)
    turned = [
        rotate(x.flatten(1)[:, order].view(n_rows, n_heads, head_dim).clone(), rope.at(positions))
        for x in (q, k)
    ]
    found = torch.einsum("thd,shd->hts", *turned)
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=2e-5)


def test_a_pair_turns_by_its_angle() -> None:
    rope = Rope(head_dim=4, n_rotated=4, base=100.0, device=CPU)
    x = torch.tensor([[[1.0, 0.0, 1.0, 0.0]]])
    turned = rotate(x.clone(), rope.at(torch.tensor([3])))[0, 0]
    angles = torch.tensor([3.0, 3.0 / 10])
    expected = torch.stack((angles.cos(), angles.sin()), dim=1).flatten()
    torch.testing.assert_close(turned, expected)


def test_scale_divides_positions_and_factors_divide_frequencies() -> None:
    plain = Rope(head_dim=8, n_rotated=8, base=10.0, device=CPU)
    scaled = Rope(head_dim=8, n_rotated=8, base=10.0, scale=4.0, device=CPU)
    by_factors = Rope(head_dim=8, n_rotated=8, base=10.0, factors=torch.full((4,), 4.0), device=CPU)
    expected = plain.at(torch.arange(5))
    for rope in (scaled, by_factors):
        torch.testing.assert_close(rope.at(4 * torch.arange(5)), expected)


def test_spans_and_single_positions_agree_as_the_table_grows() -> None:
    rope = Rope(head_dim=6, n_rotated=4, base=10.0, device=CPU)
    early = rope.span(0, 3).clone()
    late = rope.span(5000, 5003)
    assert late.shape == (3, 1, 3)
    assert torch.equal(rope.span(0, 3), early)
    assert torch.equal(rope.at(torch.tensor([5001, 2, 5002])), torch.stack((late[1], early[2], late[2])))
    # What does not rotate stays as it is.
    assert torch.equal(late[:, 0, 2], torch.ones(3, dtype=torch.complex64))


def test_far_positions_are_exact() -> None:
    """Angles are computed in float64: at position 100,000 float32 would be off by hundredths."""
    rope = Rope(head_dim=4, n_rotated=4, base=3.0, device=CPU)
    angle = torch.tensor(100_000 / 3**0.5, dtype=torch.float64)
    found = rope.at(torch.tensor([100_000]))[0, 0, 1]
    torch.testing.assert_close(torch.view_as_real(found).double(), torch.stack((angle.cos(), angle.sin())))
