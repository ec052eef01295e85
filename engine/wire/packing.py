"""The two ways to pack a block of K or V rows, in numpy: without loss, and as 8-bit codes with a scale for each head.

Nothing here is compiled: on one core numpy makes 8-bit codes of 1.5 to 2.6 GB of rows a second, and rows of codes
faster than that: more than a 10 Gbit/s link takes. It lets go of the interpreter lock meanwhile, as the compressor
does.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import zstandard
from numpy.typing import DTypeLike, NDArray

from engine.cache.spec import KVType
from engine.errors import ProtocolError
from engine.wire.blocks import Body, LosslessSpeed
from engine.wire.limits import BLOCK_BYTES, MAX_ROW_BYTES

Values = NDArray[Any]

# Rows hold no repetition, only bytes of which some are frequent: the search for matches is made as small as it goes,
# which is twice as fast as the library's own fast level and packs no worse.
_MATCH_WINDOW_LOG = 17
_COMPRESSION = zstandard.ZstdCompressionParameters(
    window_log=_MATCH_WINDOW_LOG,
    hash_log=6,
    chain_log=6,
    search_log=1,
    min_match=7,
    target_length=0,
    strategy=zstandard.STRATEGY_FAST,
)

# A plane that would shrink by less than this share is sent as it is: unpacking it would cost more than it saves.
_LEAST_GAIN = 1 / 16

_CODE_MAX = 127
_SCALE = np.dtype("<f4")

# Values from here on are not packed, those of the type's largest power of two and what is no number: the power, and its
# bits. Below, no code times its scale becomes infinite.
_TOO_LARGE = {
    KVType.BF16: (2.0**127, 0x7F00),
    KVType.F16: (2.0**15, 0x7800),
    KVType.F32: (2.0**127, 0x7F000000),
}

# The first time also makes buffers, and any may meet a busy processor.
_TRIES = 3

# Smaller scales stand for 0: their inverse is no float32.
_SMALLEST_SCALE = float(np.finfo(np.float32).tiny)


class Lossless:
    """Splits the values into planes, their lowest bytes first, and compresses those that shrink.

    A body is the length of each plane (4 bytes), then the planes. One of full length is as it was, a shorter one a
    Zstandard frame: a bfloat16's upper byte is mostly exponent, which takes few values, and its lower byte is noise.
    """

    def __init__(self, kv_type: KVType) -> None:
        self._n_planes = kv_type.element_bytes
        self._lengths = struct.Struct(f"<{self._n_planes}I")
        self._planes = [_Room(np.uint8) for _ in range(self._n_planes)]
        self._compressor = zstandard.ZstdCompressor(compression_params=_COMPRESSION)
        self._decompressor = zstandard.ZstdDecompressor(
            max_window_size=max(1 << _MATCH_WINDOW_LOG, MAX_ROW_BYTES)
        )

    def pack(self, rows: memoryview, head_dim: int) -> Body | None:
        values = _integers(rows, self._n_planes)
        planes = []
        for index, room in enumerate(self._planes):
            plane = room.take(values.shape)
            np.right_shift(values, 8 * index, out=plane, casting="unsafe")
            planes.append(self._packed(plane))
        lengths = [len(plane) for plane in planes]
        if self._lengths.size + sum(lengths) >= len(rows):
            return None
        return self._lengths.pack(*lengths), *planes

    def may_be(self, body_bytes: int, rows_bytes: int, head_dim: int) -> bool:
        return self._lengths.size < body_bytes < rows_bytes

    def unpack(self, body: memoryview, into: memoryview, head_dim: int) -> None:
        lengths = self._lengths.unpack_from(body)
        plane_bytes = len(into) // self._n_planes
        if self._lengths.size + sum(lengths) != len(body) or max(lengths) > plane_bytes:
            raise ProtocolError(f"a packed block whose planes of {lengths} bytes do not fit in it")
        planes, at = [], self._lengths.size
        for n_bytes in lengths:
            planes.append(self._unpacked(body[at : at + n_bytes], plane_bytes))
            at += n_bytes
        values = _integers(into, self._n_planes)
        values[:] = planes[-1]
        for plane in planes[-2::-1]:
            values <<= 8
            values |= plane

    def _packed(self, plane: NDArray[np.uint8]) -> bytes | memoryview:
        packed = self._compressor.compress(plane.data)
        return packed if len(packed) <= (1 - _LEAST_GAIN) * plane.size else plane.data

    def _unpacked(self, packed: memoryview, plane_bytes: int) -> NDArray[np.uint8]:
        if len(packed) < plane_bytes:
            try:
                # Before it is unpacked: the memory for it is taken by what it says of itself.
                if zstandard.frame_content_size(packed) != plane_bytes:
                    raise ProtocolError(f"a compressed plane that would not be {plane_bytes} bytes long")
                packed = memoryview(self._decompressor.decompress(packed, allow_extra_data=False))
            except zstandard.ZstdError as error:
                raise ProtocolError(f"a compressed plane that cannot be unpacked: {error}") from error
            if len(packed) != plane_bytes:
                raise ProtocolError(f"a compressed plane of {len(packed)} bytes, not {plane_bytes}")
        return np.frombuffer(packed, np.uint8)


class Int8:
    """Each head of each position as codes from -127 to 127 and the scale that they are multiplied by.

    A body is the scales (float32), then the codes, a byte each. Not packed are blocks with what is no number, or one
    too large, and heads so short that their codes would take more bytes.
    """

    def __init__(self, kv_type: KVType) -> None:
        self._kv_type = kv_type
        self._too_large, self._too_large_bits = _TOO_LARGE[kv_type]
        self._largest_scale = np.float32(self._too_large / _CODE_MAX)
        self._magnitudes = _Room(np.dtype(f"<u{kv_type.element_bytes}"))
        self._values = _Room(np.float32)
        self._codes = _Room(np.int8)

    def pack(self, rows: memoryview, head_dim: int) -> Body | None:
        if self._body_bytes(len(rows), head_dim) >= len(rows):
            return None
        bits = _integers(rows, self._kv_type.element_bytes).reshape(-1, head_dim)
        # Without their signs floats are ordered as their bits are, with infinity and what is no number above all else.
        magnitudes = self._magnitudes.take(bits.shape)
        np.bitwise_and(bits, (1 << (8 * bits.itemsize - 1)) - 1, out=magnitudes)
        largest_bits = magnitudes.max(-1)
        if (largest_bits >= self._too_large_bits).any():
            return None
        largest = np.empty(largest_bits.shape, np.float32)
        _widen(largest_bits, self._kv_type, largest)
        scales = largest / np.float32(_CODE_MAX)
        scales[scales < _SMALLEST_SCALE] = 0
        inverse = np.divide(np.float32(_CODE_MAX), largest, out=np.zeros_like(largest), where=scales > 0)
        values, codes = self._values.take(bits.shape), self._codes.take(bits.shape)
        _widen(bits, self._kv_type, values)
        values *= inverse[:, np.newaxis]
        np.rint(values, out=values)
        np.copyto(codes, values, casting="unsafe")
        return scales.astype(_SCALE).tobytes(), codes.data.cast("B")

    def may_be(self, body_bytes: int, rows_bytes: int, head_dim: int) -> bool:
        return body_bytes == self._body_bytes(rows_bytes, head_dim) < rows_bytes

    def unpack(self, body: memoryview, into: memoryview, head_dim: int) -> None:
        n_heads = self._n_heads(len(into), head_dim)
        scales = np.frombuffer(body, _SCALE, count=n_heads)
        if not ((scales >= 0) & (scales <= self._largest_scale)).all():
            raise ProtocolError("a packed block with a scale that is no number, negative or too large")
        codes = np.frombuffer(body, np.int8, offset=scales.nbytes).reshape(n_heads, head_dim)
        values = self._values.take(codes.shape)
        np.multiply(codes, scales[:, np.newaxis], out=values, dtype=np.float32)
        _narrow(values, self._kv_type, _integers(into, self._kv_type.element_bytes).reshape(values.shape))

    def _body_bytes(self, rows_bytes: int, head_dim: int) -> int:
        return self._n_heads(rows_bytes, head_dim) * (_SCALE.itemsize + head_dim)

    def _n_heads(self, rows_bytes: int, head_dim: int) -> int:
        return rows_bytes // (self._kv_type.element_bytes * head_dim)


class _Room:
    """Memory for what packing takes in between, kept from block to block: new pages cost more than the work in them."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._array = np.empty(0, dtype)

    def take(self, shape: tuple[int, ...]) -> Values:
        n_values = math.prod(shape)
        if self._array.size < n_values:
            self._array = np.empty(n_values, self._array.dtype)
        return self._array[:n_values].reshape(shape)


def _integers(rows: memoryview, n_bytes: int) -> Values:
    """The values' bits, where they lie."""
    return np.frombuffer(rows, f"<u{n_bytes}")


def _widen(bits: Values, kv_type: KVType, into: NDArray[np.float32]) -> None:
    """float32 of the bits of that type."""
    match kv_type:
        case KVType.BF16:
            np.left_shift(bits, 16, out=into.view(np.uint32), dtype=np.uint32)
        case KVType.F16:
            into[:] = bits.view("<f2")
        case KVType.F32:
            into[:] = bits.view("<f4")


def _narrow(values: NDArray[np.float32], kv_type: KVType, into: Values) -> None:
    """The bits in that type of float32 values that it can hold, rounded to nearest. Writes in `values` too."""
    match kv_type:
        case KVType.BF16:
            bits = values.view(np.uint32)
            bits += 0x8000
            np.right_shift(bits, 16, out=into, casting="unsafe")
        case KVType.F16:
            into.view("<f2")[:] = values
        case KVType.F32:
            into.view("<f4")[:] = values


def lossless_speed(kv_type: KVType, clock: Callable[[], float] = time.perf_counter) -> LosslessSpeed:
    """Measured here, within milliseconds, on values as K and V are distributed."""
    values = np.random.default_rng(0).standard_normal(BLOCK_BYTES // kv_type.element_bytes, np.float32)
    rows = memoryview(bytearray(BLOCK_BYTES))
    _narrow(values, kv_type, _integers(rows, kv_type.element_bytes))
    codec, into = Lossless(kv_type), memoryview(bytearray(len(rows)))
    body, slower_s = b"", []
    for _ in range(_TRIES):
        begun = clock()
        body = b"".join(codec.pack(rows, 1) or (body,))
        packed = clock()
        codec.unpack(memoryview(body), into, 1)
        slower_s.append(max(packed - begun, clock() - packed))
    return LosslessSpeed(bytes_per_s=len(rows) / min(slower_s), ratio=len(body) / len(rows))
