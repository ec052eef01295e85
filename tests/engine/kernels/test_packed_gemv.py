"""Packed products against their plain reference: every width of code, every ending, every number of rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.packed import BLOCK_ROWS, CodeBits, PackedMatrix, pack, unpack
from engine.kernels.packed_gemv import Ending, Gemv, Normed, gemv_reference

pytestmark = pytest.mark.usefixtures("needs_jit")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of packed matrix; the last column says which file types become it."""

    bits: CodeBits
    group: int
    offset: int
    has_minima: bool


KINDS = {
    "Q4": Kind(bits=CodeBits.B4, group=32, offset=0, has_minima=True),
    "Q2_K": Kind(bits=CodeBits.B4, group=16, offset=0, has_minima=True),
    "Q5_0": Kind(bits=CodeBits.B5, group=32, offset=-16, has_minima=False),
    "Q3_K": Kind(bits=CodeBits.B5, group=16, offset=-16, has_minima=False),
    "Q5_1": Kind(bits=CodeBits.B5, group=32, offset=0, has_minima=True),
    "Q8_0": Kind(bits=CodeBits.B8, group=32, offset=0, has_minima=False),
    "Q6_K": Kind(bits=CodeBits.B8, group=16, offset=0, has_minima=False),
    "mixed": Kind(bits=CodeBits.B8, group=16, offset=0, has_minima=True),
}


@dataclass(frozen=True, kw_only=True)
class Drawn:
    matrix: PackedMatrix
    weights: Tensor
    """What the matrix stands for, float32 [N, K], with scales and minima as they are before packing."""


def draw(kind: Kind, n_rows: int, n_cols: int, seed: int = 0) -> Drawn:
    generator = torch.Generator().manual_seed(seed)
    groups = n_cols // kind.group
    if kind.bits is CodeBits.B8:
        codes = torch.randint(-128, 128, (n_rows, n_cols), generator=generator, dtype=torch.int8)
    else:
        codes = torch.randint(0, 1 << kind.bits, (n_rows, n_cols), generator=generator).to(torch.uint8)
    scales = torch.randn(n_rows, groups, generator=generator) * 3e-3
    minima = torch.randn(n_rows, groups, generator=generator) * 2e-2 if kind.has_minima else None
    values = (codes.float() + kind.offset).unflatten(1, (groups, kind.group)) * scales.unsqueeze(2)
    if minima is not None:
        values = values + minima.unsqueeze(2)
    matrix = pack(codes, scales, minima, bits=kind.bits, group=kind.group, offset=kind.offset)
    return Drawn(matrix=matrix, weights=values.flatten(1))


def gemv(x: Tensor, matrix: PackedMatrix, *, ending: Ending = Ending.STORE) -> Tensor:
    return Gemv(matrix, ending=ending)(x)


def rows_of(n_rows: int, n_cols: int, seed: int = 1) -> Tensor:
    return torch.randn(n_rows, n_cols, generator=torch.Generator().manual_seed(seed))


def assert_near(found: Tensor, expected: Tensor, x: Tensor, matrix: PackedMatrix) -> None:
    """Within float32's rounding of the sums that make up each value."""
    bound = 4e-6 * (x.abs() @ unpack(matrix).abs().t()).amax()
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= float(bound)


@pytest.mark.parametrize("n_rows", [1, 32, 75])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_packing_keeps_codes_and_nearly_the_scales(kind: Kind, n_rows: int) -> None:
    drawn = draw(kind, n_rows, 5 * 32)
    matrix = drawn.matrix
    assert (matrix.n_rows, matrix.n_cols, matrix.n_blocks) == (n_rows, 160, -(-n_rows // BLOCK_ROWS))
    # Scales and minima are rounded to 11 bits each, relative to the largest.
    largest_code = {CodeBits.B4: 16, CodeBits.B5: 32, CodeBits.B8: 128}[kind.bits]
    bound = 2.0**-11 * (largest_code * 3e-3 * 5 + 2e-2 * 5)
    assert float((unpack(matrix) - drawn.weights).abs().max()) < bound


def test_packed_bytes_are_counted() -> None:
    for name, bits in (("Q4", 4), ("Q5_0", 5), ("Q8_0", 8)):
        kind = KINDS[name]
        matrix = draw(kind, 64, 96).matrix
        per_group = 4 if kind.has_minima else 2
        assert matrix.n_bytes == 64 * 96 * bits // 8 + 64 * 96 // kind.group * per_group


def test_a_matrix_of_zeros() -> None:
    matrix = pack(torch.zeros(40, 64, dtype=torch.int8), torch.zeros(40, 2), None, bits=CodeBits.B8, group=32)
    assert torch.equal(gemv(rows_of(2, 64), matrix)[:, :40], torch.zeros(2, 40))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_products_of_one_to_nine_rows(kind: Kind) -> None:
    """N is no multiple of a block, K no power of two; each row's bits do not depend on how many rows there are."""
    matrix = draw(kind, 75, 7 * 32).matrix
    x = rows_of(9, 7 * 32)
    alone = torch.cat([gemv(x[row : row + 1], matrix) for row in range(9)])
    assert_near(alone[:, :75], gemv_reference(x, matrix), x, matrix)
    for n_rows in range(1, 10):
        assert torch.equal(gemv(x[:n_rows], matrix), alone[:n_rows])
        assert torch.equal(gemv(x[9 - n_rows :].contiguous(), matrix), alone[9 - n_rows :])


@pytest.mark.parametrize("kind", [KINDS["Q4"], KINDS["Q5_0"], KINDS["Q8_0"]], ids=["Q4", "Q5_0", "Q8_0"])
def test_threads_change_no_bit(kind: Kind) -> None:
    matrix = draw(kind, 32 * 11, 160).matrix
    x = rows_of(3, 160)
    one = gemv(x, matrix)
    try:
        for threads in (2, 3):
            torch.set_num_threads(threads)
            assert torch.equal(gemv(x, matrix), one)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("kind", [KINDS["Q4"], KINDS["Q5_0"], KINDS["Q6_K"]], ids=["Q4", "Q5_0", "Q6_K"])
@pytest.mark.parametrize(
    ("ending", "with_bias"),
    [
        (Ending.STORE, False),
        (Ending.STORE, True),
        (Ending.ADD, True),
        (Ending.SILU, False),
        (Ending.GELU, False),
    ],
)
@pytest.mark.parametrize("with_norm", [False, True])
def test_what_comes_before_and_after(kind: Kind, ending: Ending, with_norm: bool, with_bias: bool) -> None:
    """Norm, bias, residual and gates, against plain torch; rows are each for themselves here too."""
    n_out, n_cols = 192, 224
    matrix = draw(kind, n_out, n_cols).matrix
    x = 5 * rows_of(6, n_cols) + 0.3
    normed = Normed(weight=1 + 0.5 * rows_of(1, n_cols, seed=2)[0], eps=1e-2) if with_norm else None
    bias = rows_of(1, n_out, seed=3)[0] if with_bias else None
    residual = rows_of(6, n_out, seed=4)

    product_of = Gemv(matrix, normed=normed, bias=bias, ending=ending)

    def run(rows: Tensor, start: Tensor) -> Tensor:
        return product_of(rows.contiguous(), start.clone() if ending is Ending.ADD else None)

    seen = x
    if normed is not None:
        seen = x / (x.square().mean(1, keepdim=True) + normed.eps).sqrt() * normed.weight
    product = seen @ unpack(matrix).t()
    expected = product + (bias if bias is not None else 0)
    if ending is Ending.ADD:
        expected = expected + residual
    if ending.gated:
        gate, up = product.view(6, -1, 2, BLOCK_ROWS).unbind(2)
        act = F.silu(gate) if ending is Ending.SILU else F.gelu(gate, approximate="tanh")
        expected = (act * up).flatten(1)
    found = run(x, residual)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-5)
    for row in range(6):
        assert torch.equal(run(x[row : row + 1], residual[row : row + 1])[0], found[row])
    reference_out = residual.clone() if ending is Ending.ADD else None
    reference = gemv_reference(x, matrix, normed=normed, bias=bias, ending=ending, out=reference_out)
    torch.testing.assert_close(reference, expected, atol=2e-4, rtol=2e-5)


@pytest.mark.parametrize("ending", [Ending.SILU, Ending.GELU])
def test_gates_far_from_zero(ending: Ending) -> None:
    """Neither overflow nor NaN where the exponential leaves float32's range."""
    matrix = draw(KINDS["Q8_0"], 64, 32).matrix
    for size in (1e-3, 30.0, 1e4):
        x = size * rows_of(2, 32)
        gate, up = (x @ unpack(matrix).t()).view(2, 1, 2, 32).unbind(2)
        act = F.silu(gate) if ending is Ending.SILU else F.gelu(gate, approximate="tanh")
        found = gemv(x, matrix, ending=ending)
        torch.testing.assert_close(found, (act * up).flatten(1), rtol=1e-4, atol=1e-5 * size)


def test_values_far_apart_in_one_matrix() -> None:
    """Scales lie in float16 relative to the largest: rows a thousand times smaller keep their precision."""
    codes = torch.randint(-127, 128, (64, 64), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    scales = torch.full((64, 2), 1e-2)
    scales[32:] = 1e-5
    matrix = pack(codes, scales, None, bits=CodeBits.B8, group=32)
    weights = (codes.float().view(64, 2, 32) * scales.unsqueeze(2)).flatten(1)
    x = rows_of(1, 64)
    found, expected = gemv(x, matrix)[0], (x @ weights.t())[0]
    for part in (slice(0, 32), slice(32, 64)):
        error = (found[part] - expected[part]).abs().max() / expected[part].abs().max()
        assert float(error) < 1e-3


def test_two_products_in_two_threads() -> None:
    """Each engine of a process decodes in its own thread; what one computes does not reach the other."""
    kind = KINDS["Q4"]
    layers = [
        Gemv(draw(kind, 96, 320, seed=seed).matrix, normed=Normed(weight=torch.ones(320), eps=1e-6))
        for seed in (1, 2)
    ]
    x = rows_of(1, 320)
    expected = [layer(x) for layer in layers]
    with ThreadPoolExecutor(2) as threads:
        runs = threads.map(lambda layer: [layer(x) for _ in range(300)], layers)
        for found, right in zip(runs, expected, strict=True):
            assert all(torch.equal(one, right) for one in found)
