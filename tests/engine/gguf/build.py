"""Writes GGUF files byte by byte, sound ones and others: every count, type and offset can be given false."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from engine.gguf.types import GGMLType, ValueType

_SCALARS = {
    ValueType.UINT8: "<B",
    ValueType.INT8: "<b",
    ValueType.UINT16: "<H",
    ValueType.INT16: "<h",
    ValueType.UINT32: "<I",
    ValueType.INT32: "<i",
    ValueType.FLOAT32: "<f",
    ValueType.BOOL: "<B",
    ValueType.UINT64: "<Q",
    ValueType.INT64: "<q",
    ValueType.FLOAT64: "<d",
}

# Where each type's blocks hold float16 factors: random bytes there would make infinities.
_HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
    "IQ1_S": (0,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
}


def random_blocks(kind: GGMLType, n_blocks: int, seed: int = 0) -> np.ndarray:
    """Valid blocks of random codes and scales: uint8 [n_blocks, type_size]."""
    rng = np.random.default_rng([seed, kind.value])
    raw = rng.integers(0, 256, (n_blocks, kind.type_size), dtype=np.uint8)
    for byte in _HALVES.get(kind.name, ()):
        raw[:, byte : byte + 2] = rng.normal(size=n_blocks).astype(np.float16).view(np.uint8).reshape(-1, 2)
    if kind is GGMLType.IQ1_M:
        # the float16 is spread over the top nibbles of the last four 16-bit words
        half = rng.normal(size=n_blocks).astype(np.float16).view(np.uint16)
        words = raw[:, 48:].view(np.uint16)
        for index, shift in enumerate((12, 8, 4, 0)):
            words[:, index] = (words[:, index] & 0x0FFF) | ((half << shift) & 0xF000)
    if kind is GGMLType.MXFP4:
        # twelve times the largest exponent would overflow
        raw[:, 0] = rng.integers(0, 250, n_blocks)
    return raw


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind: ValueType, value: object) -> bytes:
    if kind is ValueType.STRING:
        return text(value)  # type: ignore[arg-type]
    return struct.pack(_SCALARS[kind], value)


def array(kind: ValueType, values: Iterable[object], *, count: int | None = None) -> bytes:
    items = [scalar(kind, value) for value in values]
    return struct.pack("<IQ", kind, len(items) if count is None else count) + b"".join(items)


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    """A metadata entry: `value` already packed."""
    return text(key) + struct.pack("<I", kind) + value


@dataclass(kw_only=True)
class Tensor:
    """An entry and its bytes; `dims` innermost first as in the file, `offset` and `n_dims` only to lie."""

    name: str | bytes
    kind: int = GGMLType.F32
    dims: tuple[int, ...] = (4,)
    data: bytes = b""
    offset: int | None = None
    n_dims: int | None = None


@dataclass(kw_only=True)
class File:
    """A GGUF file to be written; counts are right unless they are given."""

    pairs: list[bytes] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: int = 3
    alignment: int = 32
    n_tensors: int | None = None
    n_pairs: int | None = None

    def to_bytes(self) -> bytes:
        head = self.magic + struct.pack(
            "<IQQ",
            self.version,
            len(self.tensors) if self.n_tensors is None else self.n_tensors,
            len(self.pairs) if self.n_pairs is None else self.n_pairs,
        )
        head += b"".join(self.pairs)
        data = b""
        for tensor in self.tensors:
            offset = len(data) if tensor.offset is None else tensor.offset
            head += text(tensor.name)
            head += struct.pack("<I", len(tensor.dims) if tensor.n_dims is None else tensor.n_dims)
            head += b"".join(struct.pack("<Q", dim) for dim in tensor.dims)
            head += struct.pack("<IQ", tensor.kind, offset)
            data += tensor.data + bytes(-len(tensor.data) % self.alignment)
        return head + bytes(-len(head) % self.alignment) + data


def sample(seed: int = 0) -> File:
    """A small sound file with every value type, nested arrays and tensors of five types."""
    scalars = [
        (ValueType.UINT8, 250),
        (ValueType.INT8, -100),
        (ValueType.UINT16, 65000),
        (ValueType.INT16, -30000),
        (ValueType.UINT32, 4_000_000_000),
        (ValueType.INT32, -2_000_000_000),
        (ValueType.FLOAT32, 0.15625),
        (ValueType.BOOL, 1),
        (ValueType.STRING, "ein Wörtchen"),
        (ValueType.UINT64, 1 << 63),
        (ValueType.INT64, -(1 << 62)),
        (ValueType.FLOAT64, 1e300),
    ]
    pairs = [pair("general.architecture", ValueType.STRING, text("llama"))]
    pairs += [pair(f"one.{kind.name}", kind, scalar(kind, value)) for kind, value in scalars]
    pairs += [pair(f"many.{kind.name}", ValueType.ARRAY, array(kind, [value] * 3)) for kind, value in scalars]
    words = ["", "a", "Ġthe", "\N{SLIGHTLY SMILING FACE}", "x" * 300]
    pairs.append(pair("words", ValueType.ARRAY, array(ValueType.STRING, words)))
    inner = array(ValueType.INT32, [1, 2]) + array(ValueType.STRING, ["p", "q"])
    pairs.append(pair("nested", ValueType.ARRAY, struct.pack("<IQ", ValueType.ARRAY, 2) + inner))
    tensors = []
    kinds = (GGMLType.F32, GGMLType.Q4_0, GGMLType.Q8_0, GGMLType.Q6_K, GGMLType.BF16)
    for index, kind in enumerate(kinds):
        dims = (kind.block_size * (index + 1), index + 2)
        data = random_blocks(kind, (index + 1) * (index + 2), seed).tobytes()
        tensors.append(Tensor(name=f"blk.{index}.attn_q.weight", kind=kind, dims=dims, data=data))
    return File(pairs=pairs, tensors=tensors)
