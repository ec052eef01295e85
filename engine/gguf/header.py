"""Parses the header of one GGUF file, and checks all it says against the size of the file.

It reads through a cursor over bytes that someone else mapped; it opens no file and knows nothing of split
models. Only GGUF versions 2 and 3, little-endian, are read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from engine.gguf.cursor import Cursor
from engine.gguf.metadata import Metadata, StringArray, Value
from engine.gguf.types import GGMLType, TensorInfo, ValueType

MAGIC = b"GGUF"
VERSIONS = (2, 3)

# The limits below bound what a hostile file can make us allocate or compute; sound files stay far under them.
# A vocabulary of 262,144 tokens makes a header of about 8 MB, and the largest ones known have a million.
MAX_HEADER_BYTES = 256 << 20
MAX_METADATA_KEYS = 16_384
MAX_ARRAY_ITEMS = 8 << 20
# Arrays of arrays cost far more memory than file; no writer known makes any.
MAX_ARRAY_DEPTH = 3
MAX_INNER_ARRAYS = 65_536
# The format's own limits.
MAX_KEY_BYTES = 65_535
MAX_TENSOR_NAME_BYTES = 64
MAX_DIMENSIONS = 4
# A 61-layer mixture of experts has about 1,100 tensors; with every expert on its own, 50,000.
MAX_TENSORS = 131_072
# Beyond any tensor, and far from where 64-bit products overflow for those who compute on in C.
MAX_ELEMENTS = 1 << 48

DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20

# The smallest entries possible, to refuse impossible counts before anything is allocated for them.
_MIN_METADATA_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8
_MIN_STRING_BYTES = 8
_MIN_ARRAY_BYTES = 4 + 8

_FORMS: dict[ValueType, struct.Struct] = {
    ValueType.UINT8: struct.Struct("<B"),
    ValueType.INT8: struct.Struct("<b"),
    ValueType.UINT16: struct.Struct("<H"),
    ValueType.INT16: struct.Struct("<h"),
    ValueType.UINT32: struct.Struct("<I"),
    ValueType.INT32: struct.Struct("<i"),
    ValueType.FLOAT32: struct.Struct("<f"),
    ValueType.UINT64: struct.Struct("<Q"),
    ValueType.INT64: struct.Struct("<q"),
    ValueType.FLOAT64: struct.Struct("<d"),
}
_BOOL = struct.Struct("<B")

_NEWER = "update Baton, or download the model in another quantisation"
_RECONVERT = "download a newer version of the model, or convert it anew"


@dataclass(frozen=True, kw_only=True)
class Header:
    """What the header of one file says.

    `tensors` in the file's order, their offsets absolute and proven to lie in the file without overlap.
    """

    version: int
    metadata: Metadata
    alignment: int
    tensors: tuple[TensorInfo, ...]


def parse_header(data: memoryview, *, file: str, part: int = 0) -> Header:
    """Parse the header at the start of `data`, which is the whole file.

    `file` names it in errors, `part` is noted in each TensorInfo. Raises ModelFileError for everything that
    is not a sound GGUF file.
    """
    cursor = Cursor(data, file=file, stop=MAX_HEADER_BYTES)
    version = _read_version(cursor)
    n_tensors = cursor.u64("the number of tensors")
    n_keys = cursor.u64("the number of metadata keys")
    _check_count(cursor, n_keys, _MIN_METADATA_BYTES, MAX_METADATA_KEYS, "metadata keys")
    _check_count(cursor, n_tensors, _MIN_TENSOR_BYTES, MAX_TENSORS, "tensors")
    values = _MetadataReader(cursor, file).read(n_keys)
    alignment = _alignment(cursor, values)
    entries = _read_entries(cursor, n_tensors)
    tensors = _place(cursor, entries, alignment=alignment, file_bytes=len(data), part=part)
    return Header(
        version=version,
        metadata=Metadata(values, file=file),
        alignment=alignment,
        tensors=tensors,
    )


def _read_version(cursor: Cursor) -> int:
    if cursor.take(4, "the magic number") != MAGIC:
        cursor.fail("this is not a GGUF file", "choose a file that ends in .gguf, or download it again")
    version = cursor.u32("the version")
    if version & 0xFFFF == 0 and version:
        cursor.fail("the file is big-endian, which Baton does not read", "download the little-endian version")
    if version == 1:
        cursor.fail("GGUF version 1 is too old for Baton", _RECONVERT)
    if version not in VERSIONS:
        cursor.fail(
            f"GGUF version {version} is not known to Baton (it reads 2 and 3)",
            "update Baton, or download it again",
        )
    return version


def _check_count(cursor: Cursor, count: int, min_bytes: int, most: int, what: str) -> None:
    if count > most:
        cursor.fail(f"the header claims {count} {what}, where {most} is the most")
    if count * min_bytes > cursor.remaining:
        cursor.fail(f"the header claims {count} {what}, more than the file has room for")


class _MetadataReader:
    """Reads key-value pairs; counts nested arrays, so that they stay few."""

    def __init__(self, cursor: Cursor, file: str) -> None:
        self._cursor = cursor
        self._file = file
        self._n_inner_arrays = 0

    def read(self, n_keys: int) -> dict[str, Value]:
        cursor = self._cursor
        values: dict[str, Value] = {}
        for index in range(n_keys):
            key = cursor.text(f"metadata key {index}", max_bytes=MAX_KEY_BYTES)
            if not key:
                cursor.fail(f"metadata key {index} is empty")
            if key in values:
                cursor.fail(f"the metadata key {_shown(key)} occurs twice")
            values[key] = self._value(self._type(key), key)
        return values

    def _type(self, key: str) -> ValueType:
        number = self._cursor.u32(f"the type of {_shown(key)}")
        try:
            return ValueType(number)
        except ValueError:
            self._cursor.fail(f"the metadata key {_shown(key)} has the unknown value type {number}")

    def _value(self, kind: ValueType, key: str) -> Value:
        cursor = self._cursor
        if kind is ValueType.STRING:
            return cursor.text(_shown(key), max_bytes=MAX_HEADER_BYTES)
        if kind is ValueType.ARRAY:
            return self._array(key, depth=1)
        if kind is ValueType.BOOL:
            flag = cursor.scalar(_BOOL, _shown(key))
            if flag not in (0, 1):
                cursor.fail(f"{_shown(key)} is neither true nor false")
            return bool(flag)
        return cursor.scalar(_FORMS[kind], _shown(key))

    def _array(self, key: str, depth: int) -> Value:
        cursor = self._cursor
        kind = self._type(key)
        count = cursor.u64(f"the length of {_shown(key)}")
        if count > MAX_ARRAY_ITEMS:
            cursor.fail(f"{_shown(key)} claims {count} items, where {MAX_ARRAY_ITEMS} is the most")
        if kind is ValueType.ARRAY:
            return self._inner_arrays(key, count, depth)
        if kind is ValueType.STRING:
            cursor.need(count * _MIN_STRING_BYTES, _shown(key))
            raw, ends = cursor.strings(count, _shown(key))
            return StringArray(raw, ends, what=f"{self._file}: {_shown(key)}")
        if kind is ValueType.BOOL:
            flags = cursor.take(count, _shown(key))
            if flags.strip(b"\0\1"):
                cursor.fail(f"{_shown(key)} holds a value that is neither true nor false")
            return memoryview(flags).cast("?")
        form = _FORMS[kind]
        return memoryview(cursor.take(count * form.size, _shown(key))).cast(form.format[1:])  # type: ignore[call-overload]

    def _inner_arrays(self, key: str, count: int, depth: int) -> Value:
        cursor = self._cursor
        self._n_inner_arrays += count
        if depth >= MAX_ARRAY_DEPTH or self._n_inner_arrays > MAX_INNER_ARRAYS:
            cursor.fail(f"the arrays in {_shown(key)} are nested too deep, or too many")
        cursor.need(count * _MIN_ARRAY_BYTES, _shown(key))
        return tuple(self._array(key, depth + 1) for _ in range(count))


def _alignment(cursor: Cursor, values: dict[str, Value]) -> int:
    alignment = values.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or isinstance(alignment, bool):
        cursor.fail("general.alignment is not an integer")
    if not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        cursor.fail(f"general.alignment is {alignment}, which is no power of two up to {MAX_ALIGNMENT}")
    return alignment


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    type: GGMLType
    shape: tuple[int, ...]
    offset: int  # from the start of the data section
    n_bytes: int


def _read_entries(cursor: Cursor, n_tensors: int) -> list[_Entry]:
    entries: list[_Entry] = []
    names: set[str] = set()
    for index in range(n_tensors):
        name = cursor.text(f"the name of tensor {index}", max_bytes=MAX_TENSOR_NAME_BYTES)
        if not name:
            cursor.fail(f"tensor {index} has no name")
        if name in names:
            cursor.fail(f"the tensor {_shown(name)} occurs twice")
        names.add(name)
        entries.append(_read_entry(cursor, name))
    return entries


def _read_entry(cursor: Cursor, name: str) -> _Entry:
    shown = f"the tensor {_shown(name)}"
    n_dims = cursor.u32(f"the number of dimensions of {shown}")
    if not 1 <= n_dims <= MAX_DIMENSIONS:
        cursor.fail(f"{shown} has {n_dims} dimensions, where 1 to {MAX_DIMENSIONS} are allowed")
    dims = [cursor.u64(f"the shape of {shown}") for _ in range(n_dims)]
    n_elements = 1
    for dim in dims:
        n_elements *= dim
        if not 1 <= n_elements <= MAX_ELEMENTS:
            cursor.fail(f"{shown} has the impossible shape {dims}")
    number = cursor.u32(f"the type of {shown}")
    try:
        kind = GGMLType(number)
    except ValueError:
        cursor.fail(f"{shown} is of type {number}, which Baton does not know", _NEWER)
    if dims[0] % kind.block_size:
        cursor.fail(
            f"rows of {shown} hold {dims[0]} elements, which are not whole {kind.name} blocks"
            f" of {kind.block_size}"
        )
    offset = cursor.u64(f"the offset of {shown}")
    n_bytes = n_elements // kind.block_size * kind.type_size
    return _Entry(name, kind, tuple(reversed(dims)), offset, n_bytes)


def _place(
    cursor: Cursor, entries: list[_Entry], *, alignment: int, file_bytes: int, part: int
) -> tuple[TensorInfo, ...]:
    """Turn offsets into absolute ones; refuse those that are unaligned, overlap, or lie outside the file."""
    data_start = -(-cursor.position // alignment) * alignment
    end, before = 0, ""
    for entry in sorted(entries, key=lambda entry: entry.offset):
        shown = f"the tensor {_shown(entry.name)}"
        if entry.offset % alignment:
            cursor.fail(
                f"{shown} starts at {entry.offset}, which is no multiple of the alignment {alignment}"
            )
        if entry.offset < end:
            cursor.fail(f"{shown} overlaps {_shown(before)}")
        end, before = entry.offset + entry.n_bytes, entry.name
        if data_start + end > file_bytes:
            cursor.fail(
                f"{shown} needs the file to have {data_start + end} bytes, and it has {file_bytes}",
                "the file is incomplete: download it again",
            )
    return tuple(
        TensorInfo(
            name=entry.name,
            type=entry.type,
            shape=entry.shape,
            offset=data_start + entry.offset,
            n_bytes=entry.n_bytes,
            part=part,
        )
        for entry in entries
    )


def _shown(name: str) -> str:
    """A name from the file, fit for a sentence: quoted, unprintable characters escaped, and not endless."""
    return ascii(name if len(name) <= 80 else name[:77] + "...")
