"""Repacking straight from file blocks, against `codes` merged and packed by torch, and against the plain values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.gguf.types import GGMLType
from engine.gguf.unpack import codes, dequantise
from engine.kernels.arena import Arena
from engine.kernels.packed import BLOCK_ROWS, CodeBits, PackedMatrix, unpack
from engine.kernels.repack import SMALL_NORM, Part, Repacking
from engine.layers.weights import _pack_parts

pytestmark = pytest.mark.usefixtures("needs_jit")

# Where float16 stand in a block.
HALVES = {
    GGMLType.Q4_0: (0,),
    GGMLType.Q4_1: (0, 2),
    GGMLType.Q5_0: (0,),
    GGMLType.Q5_1: (0, 2),
    GGMLType.Q8_0: (0,),
    GGMLType.Q2_K: (80, 82),
    GGMLType.Q3_K: (108,),
    GGMLType.Q4_K: (0, 2),
    GGMLType.Q5_K: (0, 2),
    GGMLType.Q6_K: (208,),
    GGMLType.IQ4_NL: (0,),
    GGMLType.IQ4_XS: (0,),
}
AS_STORED = {GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q5_0, GGMLType.Q5_1, GGMLType.Q8_0, GGMLType.IQ4_NL}
N_COLS = 512


def repack(
    parts: list[Part], *, interleave: bool = False, repacking: Repacking | None = None
) -> PackedMatrix | None:
    """One matrix, filled; None where it cannot be."""
    repacking = repacking or Repacking()
    told: list[bool] = []
    matrix = repacking.add(parts, interleave=interleave, on_filled=lambda: told.append(True))
    filled = repacking.run() and matrix is not None
    assert bool(told) == filled
    return matrix if filled else None


def drawn(kind: GGMLType, n_rows: int, *, seed: int, size: float = 0.01) -> Tensor:
    """Rows of random blocks with sensible scales, uint8 [N, bytes of a row], at an odd address."""
    generator = torch.Generator().manual_seed(seed)
    n_blocks = n_rows * N_COLS // kind.block_size
    raw = torch.randint(0, 256, (n_blocks, kind.type_size), generator=generator, dtype=torch.uint8)
    for byte in HALVES[kind]:
        halves = (torch.randn(n_blocks, 1, generator=generator) * size).half()
        raw[:, byte : byte + 2] = halves.view(torch.uint8)
    room = torch.empty(raw.numel() + 1, dtype=torch.uint8)
    room[1:] = raw.flatten()
    return room[1:].view(n_rows, -1)


def drawn_part(kind: GGMLType, n_rows: int, *, seed: int, shuffled: bool = False) -> Part:
    order = torch.randperm(n_rows, generator=torch.Generator().manual_seed(seed)) if shuffled else None
    return Part(rows=drawn(kind, n_rows, seed=seed), kind=kind, order=order)


def ordered_rows(part: Part) -> Tensor:
    rows = part.rows if part.order is None else part.rows[part.order]
    return rows.clone()


def shape_of(part: Part) -> tuple[int, int]:
    return part.n_rows, N_COLS


def reference(parts: list[Part], *, interleave: bool = False) -> PackedMatrix:
    unpacked = [codes(ordered_rows(part), part.kind, shape_of(part)) for part in parts]
    return _pack_parts(unpacked, interleave=interleave)


def values(parts: list[Part]) -> Tensor:
    return torch.cat([dequantise(ordered_rows(part), part.kind, shape_of(part)) for part in parts])


def half_an_ulp(parts: list[Part]) -> Tensor:
    """What rounding a scale and a minimum to float16 may change in each weight."""
    bounds = []
    for part in parts:
        unpacked = codes(ordered_rows(part), part.kind, shape_of(part))
        size = unpacked.q.float().unflatten(1, (-1, unpacked.group)).abs() * unpacked.scale.abs().unsqueeze(2)
        if unpacked.minimum is not None:
            size = size + unpacked.minimum.abs().unsqueeze(2)
        bounds.append(size.flatten(1) * 2.0**-11)
    return torch.cat(bounds)


def check(found: PackedMatrix | None, parts: list[Part], *, interleave: bool = False) -> None:
    assert found is not None
    expected = reference(parts, interleave=interleave)
    for name in ("bits", "group", "offset", "n_rows", "n_cols", "n_blocks"):
        assert getattr(found, name) == getattr(expected, name), name
    assert found.codes.shape == expected.codes.shape and found.codes.dtype is expected.codes.dtype
    if found.n_rows % BLOCK_ROWS == 0:
        assert torch.equal(found.codes, expected.codes)
    assert found.scales.shape == expected.scales.shape and found.scales.dtype is torch.float16
    assert (found.minima is None) == (expected.minima is None)
    if found.minima is not None and expected.minima is not None:
        assert found.minima.shape == expected.minima.shape and found.minima.dtype is torch.float16
    wanted = values(parts)
    if interleave:
        wanted = wanted.unflatten(0, (2, -1, BLOCK_ROWS)).transpose(0, 1).flatten(0, 2)
    if all(part.kind in AS_STORED for part in parts):
        assert found.norm == 1.0
        assert torch.equal(unpack(found), wanted)
    else:
        assert found.norm == SMALL_NORM
        bound = half_an_ulp(parts)
        if interleave:
            bound = bound.unflatten(0, (2, -1, BLOCK_ROWS)).transpose(0, 1).flatten(0, 2)
        # A little more, for products and sums of the unpacked values in float32.
        assert ((unpack(found) - wanted).abs() <= 1.001 * bound).all()


@pytest.mark.parametrize("kind", HALVES, ids=lambda kind: kind.name)
def test_each_type(kind: GGMLType) -> None:
    parts = [drawn_part(kind, 96, seed=1)]
    check(repack(parts), parts)


@pytest.mark.parametrize("kind", HALVES, ids=lambda kind: kind.name)
def test_each_type_beside_eight_bits(kind: GGMLType) -> None:
    """The widest form: 8 bits, and groups of 16 where the type has them."""
    parts = [drawn_part(GGMLType.Q8_0, 32, seed=2), drawn_part(kind, 64, seed=3)]
    check(repack(parts), parts)


@pytest.mark.parametrize(
    "kinds",
    [
        ("Q5_0", "Q5_0", "Q8_0"),
        ("Q4_K", "Q6_K"),
        ("Q6_K", "Q4_K", "Q6_K"),
        ("Q4_0", "Q4_1", "Q4_K"),
        ("Q4_1", "Q5_0"),
        ("Q4_1", "Q5_1"),
        ("Q2_K", "Q4_K"),
        ("Q2_K", "Q5_K"),
        ("Q3_K", "Q5_0"),
        ("Q3_K", "Q2_K"),
        ("IQ4_XS", "Q2_K"),
    ],
    ids=" ".join,
)
def test_mixed_types(kinds: tuple[str, ...]) -> None:
    parts = [drawn_part(GGMLType[kind], 32 * (2 + i), seed=i) for i, kind in enumerate(kinds)]
    check(repack(parts), parts)


@pytest.mark.parametrize("n_rows", [1, 31, 32, 33, 127])
@pytest.mark.parametrize("kind", [GGMLType.Q4_1, GGMLType.Q5_0, GGMLType.Q6_K], ids=lambda kind: kind.name)
def test_rows_that_do_not_fill_a_block(kind: GGMLType, n_rows: int) -> None:
    parts = [drawn_part(kind, n_rows, seed=4)]
    found = repack(parts)
    check(found, parts)
    assert found is not None
    padding = found.scales.transpose(1, 2).flatten(0, 1)[n_rows:]
    assert not padding.any()


def test_parts_of_one_type_need_no_whole_blocks() -> None:
    parts = [drawn_part(GGMLType.Q4_K, n_rows, seed=n_rows) for n_rows in (7, 40, 17)]
    check(repack(parts), parts)


def test_orders() -> None:
    parts = [
        drawn_part(GGMLType.Q5_0, 64, seed=5, shuffled=True),
        drawn_part(GGMLType.Q5_0, 32, seed=6),
        drawn_part(GGMLType.Q8_0, 33, seed=7, shuffled=True),
    ]
    check(repack(parts), parts)


def test_an_order_may_pick_and_repeat_rows() -> None:
    part = Part(
        rows=drawn(GGMLType.Q4_0, 9, seed=8), kind=GGMLType.Q4_0, order=torch.tensor([8, 0, 0, 3] * 16)
    )
    check(repack([part]), [part])


@pytest.mark.parametrize("kinds", [("Q5_0", "Q5_0"), ("Q4_K", "Q6_K")], ids=" ".join)
def test_interleaved(kinds: tuple[str, str]) -> None:
    parts = [drawn_part(GGMLType[kind], 96, seed=i, shuffled=i == 0) for i, kind in enumerate(kinds)]
    check(repack(parts, interleave=True), parts, interleave=True)


def test_rows_with_gaps_between() -> None:
    wide = drawn(GGMLType.Q8_0, 64, seed=9)
    rows = wide[::2]
    part = Part(rows=rows, kind=GGMLType.Q8_0)
    check(repack([part]), [part])


def test_threads_share_the_blocks() -> None:
    parts = [drawn_part(GGMLType.Q4_K, 32 * 7, seed=10), drawn_part(GGMLType.Q6_K, 32, seed=11)]
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        check(repack(parts), parts)
    finally:
        torch.set_num_threads(before)


def test_memory_of_the_caller() -> None:
    given: list[Tensor] = []
    arena = Arena()

    def empty(n_bytes: int) -> Tensor:
        given.append(arena.empty(n_bytes))
        return given[-1]

    parts = [drawn_part(GGMLType.Q4_1, 64, seed=12)]
    found = repack(parts, repacking=Repacking(empty))
    check(found, parts)
    assert found is not None and found.minima is not None
    addresses = {found.codes.data_ptr(), found.scales.data_ptr(), found.minima.data_ptr()}
    assert {tensor.data_ptr() for tensor in given} == addresses


def test_scales_of_any_size_that_float16_holds_stay_as_they_are() -> None:
    rows = drawn(GGMLType.Q5_0, 32, seed=13)
    for row, scale in enumerate((65504.0, -65504.0, 6e-8, -0.0, 6.1e-5)):
        rows[row, :2] = torch.tensor([scale]).half().view(torch.uint8)
    part = Part(rows=rows, kind=GGMLType.Q5_0)
    check(repack([part]), [part])


@pytest.mark.parametrize("kind", [GGMLType.Q4_K, GGMLType.Q6_K], ids=lambda kind: kind.name)
def test_small_scales_keep_their_precision(kind: GGMLType) -> None:
    part = Part(rows=drawn(kind, 32, seed=14, size=1e-6), kind=kind)
    check(repack([part]), [part])


@pytest.mark.parametrize("kind", [GGMLType.Q4_K, GGMLType.Q6_K, GGMLType.Q4_0], ids=lambda kind: kind.name)
def test_refuses_scales_beyond_float16(kind: GGMLType) -> None:
    rows = drawn(kind, 64, seed=15)
    byte = HALVES[kind][-1]
    rows[-1, byte : byte + 2] = torch.tensor([-9000.0]).half().view(torch.uint8)
    assert repack([Part(rows=rows, kind=kind)]) is None


def test_refuses_what_it_has_no_rule_for() -> None:
    sound = drawn_part(GGMLType.Q8_0, 32, seed=16)
    plain = Part(rows=torch.zeros(32, 2 * N_COLS, dtype=torch.uint8), kind=GGMLType.F16)
    rare = Part(rows=torch.zeros(32, 17 * N_COLS // 32, dtype=torch.uint8), kind=GGMLType.MXFP4)
    narrow = Part(rows=torch.zeros(32, 34, dtype=torch.uint8), kind=GGMLType.Q8_0)
    torn = Part(rows=torch.zeros(32, 33, dtype=torch.uint8), kind=GGMLType.Q8_0)
    assert repack([]) is None
    assert repack([sound, plain]) is None
    assert repack([rare]) is None
    assert repack([sound, narrow]) is None
    assert repack([torn]) is None
    assert (
        repack([Part(rows=sound.rows, kind=GGMLType.Q8_0, order=torch.tensor([], dtype=torch.int64))]) is None
    )


def test_refuses_blocks_of_two_types() -> None:
    first, second = drawn_part(GGMLType.Q5_0, 33, seed=17), drawn_part(GGMLType.Q8_0, 33, seed=18)
    assert repack([first, second]) is None
    assert repack([first, second], interleave=True) is None
    assert repack([first, first], interleave=True) is None
    assert repack([drawn_part(GGMLType.Q5_0, 32, seed=19)] * 3, interleave=True) is None
    longer = drawn_part(GGMLType.Q5_0, 64, seed=20)
    assert repack([drawn_part(GGMLType.Q5_0, 32, seed=21), longer], interleave=True) is None


def test_the_form_depends_on_types_alone() -> None:
    """Codes that would fit 4 bits stay in the type's 5, so that all layers of a model share their kernels."""
    rows = torch.zeros(32, 24 * N_COLS // 32, dtype=torch.uint8)
    found = repack([Part(rows=rows, kind=GGMLType.Q5_1)])
    assert found is not None and found.bits is CodeBits.B5


def test_many_matrices_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Filled by one `run` on several threads, some with parts of several types."""
    monkeypatch.setattr("engine.kernels.repack._AT_ONCE_BYTES", 100_000)
    kinds = (GGMLType.Q4_0, GGMLType.Q5_0, GGMLType.Q8_0, GGMLType.Q6_K, GGMLType.Q4_K)
    groups = [[drawn_part(kind, 64, seed=50 + number)] for number, kind in enumerate(kinds)]
    groups.append([drawn_part(GGMLType.Q5_0, 64, seed=60), drawn_part(GGMLType.Q8_0, 32, seed=61)])
    repacking = Repacking()
    told: list[int] = []
    found = [
        repacking.add(parts, on_filled=lambda number=number: told.append(number))  # type: ignore[misc]
        for number, parts in enumerate(groups)
    ]
    assert not told
    assert repacking.run()
    assert sorted(told) == list(range(len(groups)))
    for matrix, parts in zip(found, groups, strict=True):
        check(matrix, parts)
    assert repacking.run()
    assert len(told) == len(groups)
