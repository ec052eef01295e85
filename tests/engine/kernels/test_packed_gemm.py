"""Products with rows rounded to 8 bits, against their plain reference."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels import packed_gemm
from engine.kernels.packed import BLOCK_ROWS, CodeBits, PackedMatrix, pack, unpack
from engine.kernels.packed_gemm import Gemm, gemm_reference
from engine.kernels.packed_gemv import Ending, Normed
from tests.engine.kernels.test_packed_gemv import KINDS, Kind, draw, rows_of

pytestmark = pytest.mark.skipif(not packed_gemm.available(), reason="no AVX-512 VNNI here")

WHOLE_ROW_COUNTS = (1, 3, 4, 5, 64, 129)


def rounded(x: Tensor, group: int) -> Tensor:
    """x [T, K] as whole numbers of 1/127 of each group's largest value."""
    groups = x.unflatten(1, (-1, group))
    scale = groups.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
    return ((groups / scale).round() * scale).flatten(1)


def assert_near(found: Tensor, expected: Tensor, x: Tensor, matrix: PackedMatrix) -> None:
    """Within float32's rounding, but for the odd value of x halfway between two codes."""
    sizes = x.abs() @ unpack(matrix).abs().t()
    assert found.shape == expected.shape
    error = (found - expected).abs()
    assert float((error > 4e-6 * sizes.amax()).float().mean()) < 0.01
    assert float((error / sizes.clamp_min(1e-30)).max()) < 1e-3


@pytest.mark.parametrize("n_rows", WHOLE_ROW_COUNTS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_products_of_any_number_of_rows(kind: Kind, n_rows: int) -> None:
    """N is no multiple of a block, K no power of two; a row's bits do not depend on how many rows there are."""
    matrix = draw(kind, 75, 7 * 32).matrix
    x = rows_of(n_rows, 7 * 32)
    found = Gemm(matrix)(x)
    assert_near(found[:, :75], rounded(x, kind.group) @ unpack(matrix).t(), x, matrix)
    assert_near(found[:, :75], gemm_reference(x, matrix), x, matrix)
    assert torch.equal(Gemm(matrix)(x[-1:].contiguous())[0], found[-1])


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_rounding_costs_little(kind: Kind) -> None:
    matrix = draw(kind, 64, 640).matrix
    x = rows_of(32, 640)
    exact = x @ unpack(matrix).t()
    assert float((Gemm(matrix)(x) - exact).norm() / exact.norm()) < 8e-3


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_and_parts_change_no_bit(threads: int) -> None:
    """Few blocks and many rows: the rows are shared out too."""
    matrix = draw(KINDS["Q5_0"], 64, 160).matrix
    x = rows_of(300, 160)
    one = Gemm(matrix)(x)
    try:
        torch.set_num_threads(threads)
        assert torch.equal(Gemm(matrix)(x), one)
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
    """Norm, bias, residual and gates, against plain torch."""
    n_out, n_cols, n_rows = 192, 224, 10
    matrix = draw(kind, n_out, n_cols).matrix
    x = 5 * rows_of(n_rows, n_cols) + 0.3
    normed = Normed(weight=1 + 0.5 * rows_of(1, n_cols, seed=2)[0], eps=1e-2) if with_norm else None
    bias = rows_of(1, n_out, seed=3)[0] if with_bias else None
    residual = rows_of(n_rows, n_out, seed=4)
    seen = x
    if normed is not None:
        seen = x / (x.square().mean(1, keepdim=True) + normed.eps).sqrt() * normed.weight
    expected = rounded(seen, kind.group) @ unpack(matrix).t() + (bias if bias is not None else 0)
    if ending is Ending.ADD:
        expected = expected + residual
    if ending.gated:
        gate, up = expected.view(n_rows, -1, 2, BLOCK_ROWS).unbind(2)
        act = F.silu(gate) if ending is Ending.SILU else F.gelu(gate, approximate="tanh")
        expected = (act * up).flatten(1)
    start = residual.clone() if ending is Ending.ADD else None
    found = Gemm(matrix, normed=normed, bias=bias, ending=ending)(x, start)
    size = float(expected.abs().max())
    assert float((found - expected).abs().max()) < 2e-3 * size
    assert float((found - expected).abs().mean()) < 2e-6 * size
    reference_out = residual.clone() if ending is Ending.ADD else None
    reference = gemm_reference(x, matrix, normed=normed, bias=bias, ending=ending, out=reference_out)
    assert float((reference - expected).abs().mean()) < 2e-6 * size


def test_rows_of_zeros_and_of_very_different_sizes() -> None:
    """A group of nothing but zeros has no scale; a large group costs a small one none of its precision."""
    matrix = draw(KINDS["Q8_0"], 32, 96).matrix
    x = torch.zeros(3, 96)
    x[1, 32:64] = rows_of(1, 32)[0]
    x[2] = rows_of(1, 96)[0] * torch.tensor([1e-6, 1.0, 1e6]).repeat_interleave(32)
    found = Gemm(matrix)(x)
    assert torch.equal(found[0], torch.zeros(32))
    assert_near(found[1:], rounded(x[1:], 32) @ unpack(matrix).t(), x[1:], matrix)


def test_the_largest_codes_do_not_overflow() -> None:
    codes = torch.full((32, 64), 127, dtype=torch.int8)
    codes[1] = -128
    matrix = pack(codes, torch.full((32, 2), 1.0), None, bits=CodeBits.B8, group=32)
    for sign in (1.0, -1.0):
        x = torch.full((5, 64), sign * 3)
        torch.testing.assert_close(Gemm(matrix)(x), x @ unpack(matrix).t(), rtol=1e-5, atol=0)
