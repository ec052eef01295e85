"""Packing rows: what comes back, what is not packed, and bodies that lie."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.spec import KVType
from engine.errors import ProtocolError
from engine.wire.limits import BLOCK_BYTES
from engine.wire.packing import Int8, Lossless, lossless_speed

GOLDEN = Path(__file__).with_name("golden_frames.json")

TORCH = {KVType.BF16: torch.bfloat16, KVType.F16: torch.float16, KVType.F32: torch.float32}
TOO_LARGE = {KVType.BF16: 2.0**127, KVType.F16: 2.0**15, KVType.F32: 2.0**127}
# The rounding of one value in that type, as a share of it.
STEP = {KVType.BF16: 2**-8, KVType.F16: 2**-11, KVType.F32: 2**-24}


def rows_of(values: np.ndarray, kv_type: KVType) -> memoryview:
    """The bytes of these values in that type, by torch."""
    tensor = torch.from_numpy(np.ascontiguousarray(values, np.float32)).to(TORCH[kv_type])
    return memoryview(tensor.view(torch.uint8).numpy().tobytes())


def values_of(rows: memoryview | bytes, kv_type: KVType) -> np.ndarray:
    return torch.frombuffer(bytearray(rows), dtype=TORCH[kv_type]).float().numpy()


def packed(codec: Lossless | Int8, rows: memoryview, head_dim: int) -> bytes | None:
    body = codec.pack(rows, head_dim)
    return None if body is None else b"".join(body)


def normal(n_values: int, kv_type: KVType, *, seed: int = 5) -> memoryview:
    return rows_of(np.random.default_rng(seed).standard_normal(n_values), kv_type)


def unpacked(codec: Lossless | Int8, body: bytes, n_bytes: int, head_dim: int) -> bytes:
    assert codec.may_be(len(body), n_bytes, head_dim)
    into = bytearray(b"\xa5" * n_bytes)
    codec.unpack(memoryview(body), memoryview(into), head_dim)
    return bytes(into)


@pytest.mark.parametrize("kv_type", KVType)
def test_nothing_is_lost(kv_type: KVType) -> None:
    rows = normal(3000, kv_type)
    body = packed(Lossless(kv_type), rows, 10)
    assert body is not None and len(body) < 0.9 * len(rows)
    assert unpacked(Lossless(kv_type), body, len(rows), 10) == bytes(rows)


@given(st.sampled_from(KVType), st.binary(min_size=1, max_size=40), st.integers(1, 50), st.randoms())
def test_nothing_is_lost_whatever_the_bytes(kv_type: KVType, some: bytes, times: int, random: object) -> None:
    whole = some * times * kv_type.element_bytes
    body = packed(Lossless(kv_type), memoryview(whole), 1)
    if body is not None:
        assert len(body) < len(whole)
        assert unpacked(Lossless(kv_type), body, len(whole), 1) == whole


def test_what_does_not_shrink_is_not_packed() -> None:
    noise = memoryview(np.random.default_rng(1).bytes(4096))
    assert packed(Lossless(KVType.BF16), noise, 16) is None


def test_a_plane_that_does_not_shrink_is_sent_as_it_is() -> None:
    rows = normal(2000, KVType.BF16)
    body = packed(Lossless(KVType.BF16), rows, 20)
    assert body is not None
    lower, upper = struct.unpack_from("<2I", body)
    assert (lower, body[8 : 8 + lower]) == (2000, bytes(rows)[0::2])
    assert upper < 1000 and 8 + lower + upper == len(body)


@pytest.mark.parametrize("kv_type", KVType)
def test_codes_are_within_half_a_step_of_each_heads_own_scale(kv_type: KVType) -> None:
    n_heads, head_dim = 30, 24
    # Heads from tiny to large: one scale for all would lose the small ones.
    values = (
        np.random.default_rng(2).standard_normal((n_heads, head_dim)) * np.logspace(-3, 3, n_heads)[:, None]
    )
    rows = rows_of(values, kv_type)
    body = packed(Int8(kv_type), rows, head_dim)
    assert body is not None and len(body) == n_heads * (4 + head_dim)
    wanted = values_of(rows, kv_type).reshape(n_heads, head_dim)
    got = values_of(unpacked(Int8(kv_type), body, len(rows), head_dim), kv_type).reshape(n_heads, head_dim)
    largest = np.abs(wanted).max(-1, keepdims=True)
    assert (np.abs(got - wanted) <= largest / 127 / 2 * 1.001 + largest * STEP[kv_type]).all()
    # The largest of each head comes back as it was, and so a second time changes nothing.
    assert np.allclose(np.abs(got).max(-1, keepdims=True), largest, rtol=2 * STEP[kv_type])
    again = packed(Int8(kv_type), rows_of(got, kv_type), head_dim)
    assert again is not None and again[4 * n_heads :] == body[4 * n_heads :]


@given(
    st.sampled_from([KVType.BF16, KVType.F16]),
    st.lists(st.integers(0, 65535), min_size=8, max_size=8),
)
def test_whatever_bits_a_head_holds_it_is_packed_well_or_not_at_all(kv_type: KVType, bits: list[int]) -> None:
    rows = memoryview(struct.pack("<8H", *bits))
    values = values_of(rows, kv_type)
    body = packed(Int8(kv_type), rows, 8)
    if body is None:
        assert not (np.abs(values) < TOO_LARGE[kv_type]).all()
        return
    got = values_of(unpacked(Int8(kv_type), body, len(rows), 8), kv_type)
    largest = np.abs(values).max()
    tiny = 127 * float(np.finfo(np.float32).tiny) if kv_type is KVType.BF16 else 2.0**-24
    assert (np.abs(got - values) <= largest * (0.5 / 127 * 1.001 + STEP[kv_type]) + tiny).all()


def test_zeros_and_heads_of_few_values() -> None:
    zeros = memoryview(bytes(64))
    body = packed(Int8(KVType.BF16), zeros, 8)
    assert body is not None and unpacked(Int8(KVType.BF16), body, 64, 8) == bytes(64)
    # Two values of two bytes against a scale and two codes.
    assert packed(Int8(KVType.BF16), normal(32, KVType.BF16), 4) is None
    assert not Int8(KVType.BF16).may_be(64, 64, 4)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kv_type", KVType)
def test_a_block_with_what_is_no_number_is_not_packed(wrong: float, kv_type: KVType) -> None:
    values = np.ones(64)
    values[37] = wrong
    assert packed(Int8(kv_type), rows_of(values, kv_type), 16) is None


def scaled(*scales: float, codes: bytes = b"\x01\x7f\x81\x80\x00\x05\x06\x07\x08\x09\x0a\x0b") -> memoryview:
    return memoryview(struct.pack(f"<{len(scales)}f", *scales) + codes)


@pytest.mark.parametrize("kv_type", KVType)
@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -1.0, 3e38])
def test_a_scale_that_no_row_has_is_refused_and_nothing_written(kv_type: KVType, scale: float) -> None:
    into = bytearray(b"\xa5" * 12 * kv_type.element_bytes)
    with pytest.raises(ProtocolError, match="scale"):
        Int8(kv_type).unpack(scaled(0.5, scale), memoryview(into), 6)
    assert set(into) == {0xA5}


@pytest.mark.parametrize("kv_type", KVType)
def test_the_largest_scale_makes_no_infinity(kv_type: KVType) -> None:
    into = bytearray(12 * kv_type.element_bytes)
    largest = float(np.float32(TOO_LARGE[kv_type] / 127))
    Int8(kv_type).unpack(scaled(largest, largest, codes=b"\x80" * 12), memoryview(into), 6)
    assert np.isfinite(values_of(bytes(into), kv_type)).all()


def planes(*packed: bytes, lengths: tuple[int, ...] | None = None) -> memoryview:
    return memoryview(struct.pack(f"<{len(packed)}I", *(lengths or map(len, packed))) + b"".join(packed))


ZEROS = zstandard.compress(bytes(1000))

LYING_PLANES = {
    "a plane longer than the rows": planes(bytes(1001), ZEROS),
    "planes longer than the body": planes(bytes(1000), ZEROS, lengths=(1000, len(ZEROS) + 1)),
    "planes shorter than the body": planes(bytes(1000), ZEROS, lengths=(999, len(ZEROS))),
    "lengths beyond all": planes(bytes(1000), ZEROS, lengths=(0xFFFFFFFF, 0xFFFFFFFF)),
    "no planes": planes(b"", b""),
    "no compressed plane": planes(bytes(1000), b"\0" * 30),
    "a plane cut short": planes(bytes(1000), ZEROS[:-3]),
    "a plane and more": planes(bytes(1000), ZEROS + b"\0"),
    "two frames for one": planes(bytes(1000), zstandard.compress(bytes(500)) * 2),
    "a plane that becomes longer": planes(bytes(1000), zstandard.compress(bytes(1001))),
    "a plane that becomes shorter": planes(bytes(1000), zstandard.compress(bytes(999))),
    "a plane that fills memory": planes(bytes(1000), zstandard.compress(bytes(64 << 20))[:900]),
    "a plane that does not say its length": planes(
        bytes(1000), zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
    ),
}


@pytest.mark.parametrize("name", LYING_PLANES)
def test_planes_that_lie_are_refused_and_nothing_written(name: str) -> None:
    into = bytearray(b"\xa5" * 2000)
    with pytest.raises(ProtocolError):
        Lossless(KVType.BF16).unpack(LYING_PLANES[name], memoryview(into), 10)
    assert set(into) == {0xA5}


def test_a_spoilt_plane_is_never_taken_for_longer_or_shorter() -> None:
    """Each byte of a compressed plane, spoilt: an error, or rows of the right length."""
    rows = normal(1000, KVType.BF16)
    body = packed(Lossless(KVType.BF16), rows, 10)
    assert body is not None
    for at in range(1008, len(body), 7):
        spoilt = bytearray(body)
        spoilt[at] ^= 0x55
        into = bytearray(len(rows))
        try:
            Lossless(KVType.BF16).unpack(memoryview(bytes(spoilt)), memoryview(into), 10)
        except ProtocolError:
            assert not any(into)


def test_golden_bodies() -> None:
    """Bytes that another version's worker may send."""
    golden = {name: bytes.fromhex(text) for name, text in json.loads(GOLDEN.read_text()).items()}
    rows = memoryview(bytes(range(64)) * 2 + bytes(128))
    assert unpacked(Lossless(KVType.BF16), golden["lossless_body"], 256, 8) == bytes(rows)
    codes = rows_of(np.arange(-12, 12) / 4, KVType.BF16)
    assert packed(Int8(KVType.BF16), codes, 12) == golden["int8_body"]
    assert unpacked(Int8(KVType.BF16), golden["int8_body"], 48, 12) == bytes.fromhex(
        json.loads(GOLDEN.read_text())["int8_rows"]
    )


@pytest.mark.parametrize("kv_type", KVType)
def test_the_speed_is_that_of_the_slower_way(kv_type: KVType) -> None:
    ticks = iter([0.0, 9.0, 99.0, 100.0, 100.25, 100.75, 200.0, 200.5, 200.75])
    speed = lossless_speed(kv_type, clock=lambda: next(ticks))
    assert speed.bytes_per_s == BLOCK_BYTES / 0.5
    assert 0.6 < speed.ratio < 0.95
