"""Damaged and hostile files: always a ModelFileError that says what is wrong, never a crash or a flood of memory."""

from __future__ import annotations

import contextlib
import os
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ModelFileError
from engine.gguf import header
from engine.gguf.header import Header, parse_header
from engine.gguf.metadata import StringArray
from engine.gguf.reader import GGUFFile
from engine.gguf.types import GGMLType, ValueType
from tests.engine.gguf import build

ARCHITECTURE = build.pair("general.architecture", ValueType.STRING, build.text("llama"))


def parse(data: bytes) -> Header:
    return parse_header(memoryview(data), file="bad.gguf")


def one_pair(kind: int, value: bytes, key: str | bytes = "key") -> bytes:
    return build.File(pairs=[build.pair(key, kind, value)]).to_bytes()


def one_tensor(**fields: object) -> bytes:
    tensor = build.Tensor(**({"name": "t", "data": bytes(16)} | fields))  # type: ignore[arg-type]
    return build.File(pairs=[ARCHITECTURE], tensors=[tensor]).to_bytes()


def two_tensors(second: int) -> bytes:
    """Two tensors of 64 bytes, the second at offset `second`."""
    tensors = [
        build.Tensor(name="a", dims=(16,), data=bytes(64)),
        build.Tensor(name="b", dims=(16,), data=bytes(64), offset=second),
    ]
    return build.File(tensors=tensors).to_bytes()


def u64(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def nested(depth: int) -> bytes:
    value = build.array(ValueType.UINT8, [1])
    for _ in range(depth - 1):
        value = struct.pack("<IQ", ValueType.ARRAY, 1) + value
    return value


def alignment(value: int) -> bytes:
    return one_pair(ValueType.UINT32, struct.pack("<I", value), "general.alignment")


HUGE = (1 << 64) - 1

REFUSALS: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "magic number is cut short"),
    "another format": (lambda: b"PK\3\4" + bytes(100), "not a GGUF file"),
    "version 1": (lambda: build.File(version=1).to_bytes(), "version 1 is too old"),
    "version 0": (lambda: build.File(version=0).to_bytes(), "version 0 is not known"),
    "version 4": (lambda: build.File(version=4).to_bytes(), "version 4 is not known"),
    "big-endian": (lambda: build.File(version=3 << 24).to_bytes(), "big-endian"),
    "tensor count": (lambda: build.File(n_tensors=HUGE).to_bytes(), "claims 18446744073709551615 tensors"),
    "tensor count past the end": (
        lambda: build.File(n_tensors=1000).to_bytes(),
        "more than the file has room for",
    ),
    "key count": (lambda: build.File(n_pairs=HUGE).to_bytes(), "metadata keys"),
    "key count past the end": (
        lambda: build.File(n_pairs=1000).to_bytes(),
        "more than the file has room for",
    ),
    "key twice": (
        lambda: build.File(pairs=[ARCHITECTURE] * 2).to_bytes(),
        "'general.architecture' occurs twice",
    ),
    "empty key": (lambda: one_pair(ValueType.UINT8, b"\1", ""), "key 0 is empty"),
    "long key": (lambda: one_pair(ValueType.UINT8, b"\1", "k" * 65_536), "65535 is the most"),
    "key not UTF-8": (lambda: one_pair(ValueType.UINT8, b"\1", b"\xff\xfe"), "not valid UTF-8"),
    "text not UTF-8": (lambda: one_pair(ValueType.STRING, build.text(b"\xc3")), "not valid UTF-8"),
    "endless text": (lambda: one_pair(ValueType.STRING, u64(HUGE)), "claims a length of"),
    "text past the end": (lambda: one_pair(ValueType.STRING, u64(1000)), "'key' is cut short"),
    "unknown value type": (lambda: one_pair(99, b""), "unknown value type 99"),
    "bool of 2": (lambda: one_pair(ValueType.BOOL, b"\2"), "neither true nor false"),
    "bools of 2": (
        lambda: one_pair(ValueType.ARRAY, build.array(ValueType.BOOL, [0, 1, 2, 0])),
        "neither true nor",
    ),
    "array count": (
        lambda: one_pair(ValueType.ARRAY, build.array(ValueType.INT64, [], count=HUGE)),
        "is the most",
    ),
    "array past the end": (
        lambda: one_pair(ValueType.ARRAY, build.array(ValueType.FLOAT32, [1.0], count=100)),
        "cut short",
    ),
    "strings past the end": (
        lambda: one_pair(ValueType.ARRAY, build.array(ValueType.STRING, ["a"], count=100)),
        "cut short",
    ),
    "string in array past the end": (
        lambda: one_pair(ValueType.ARRAY, build.array(ValueType.STRING, [])[:4] + u64(2, 1000) + bytes(16)),
        "cut short",
    ),
    "string in array endless": (
        lambda: one_pair(ValueType.ARRAY, build.array(ValueType.STRING, [])[:4] + u64(3, HUGE, 0, 0)),
        "cut short",
    ),
    "string in array wraps around": (
        lambda: one_pair(ValueType.ARRAY, build.array(ValueType.STRING, [])[:4] + u64(3, HUGE - 7, 0, 0)),
        "cut short",
    ),
    "nested too deep": (
        lambda: one_pair(ValueType.ARRAY, nested(header.MAX_ARRAY_DEPTH + 1)),
        "nested too deep",
    ),
    "too many inner arrays": (
        lambda: one_pair(
            ValueType.ARRAY,
            struct.pack("<IQ", ValueType.ARRAY, header.MAX_INNER_ARRAYS + 1)
            + build.array(ValueType.UINT8, []) * (header.MAX_INNER_ARRAYS + 1),
        ),
        "nested too deep, or too many",
    ),
    "alignment 0": (lambda: alignment(0), "no power of two"),
    "alignment 24": (lambda: alignment(24), "no power of two"),
    "alignment endless": (lambda: alignment(1 << 31), "no power of two"),
    "alignment a text": (
        lambda: one_pair(ValueType.STRING, build.text("32"), "general.alignment"),
        "general.alignment is not an integer",
    ),
    "alignment true": (lambda: one_pair(ValueType.BOOL, b"\1", "general.alignment"), "is not an integer"),
    "name twice": (
        lambda: build.File(tensors=[build.Tensor(name="t", data=bytes(16))] * 2).to_bytes(),
        "tensor 't' occurs twice",
    ),
    "empty name": (lambda: one_tensor(name=""), "tensor 0 has no name"),
    "long name": (lambda: one_tensor(name="n" * 65), "64 is the most"),
    "no dimensions": (lambda: one_tensor(dims=()), "has 0 dimensions"),
    "five dimensions": (lambda: one_tensor(dims=(1, 1, 1, 2, 2)), "has 5 dimensions"),
    "dimensions without end": (lambda: one_tensor(n_dims=0xFFFFFFFF), "has 4294967295 dimensions"),
    "dimension 0": (lambda: one_tensor(dims=(4, 0)), "impossible shape"),
    "product wraps to 4": (lambda: one_tensor(dims=(1 << 32, 1 << 32, 4)), "impossible shape"),
    "product overflows": (lambda: one_tensor(dims=(HUGE, HUGE, HUGE, HUGE)), "impossible shape"),
    "unknown type": (lambda: one_tensor(kind=4), "type 4, which Baton does not know"),
    "broken block": (lambda: one_tensor(kind=GGMLType.Q4_0, dims=(16, 2)), "not whole Q4_0 blocks of 32"),
    "unaligned": (lambda: one_tensor(offset=8), "no multiple of the alignment 32"),
    "outside": (lambda: one_tensor(offset=1 << 40), "needs the file to have"),
    "offset without end": (lambda: one_tensor(offset=HUGE - 31), "needs the file to have"),
    "data cut short": (lambda: one_tensor(data=bytes(16), dims=(9,)), "needs the file to have"),
    "overlap": (lambda: two_tensors(32), "'b' overlaps 'a'"),
    "same place": (lambda: two_tensors(0), "overlaps"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusal_names_file_fault_and_remedy(case: str) -> None:
    make, expected = REFUSALS[case]
    data = make()
    with pytest.raises(ModelFileError) as refusal:
        parse(data)
    message = str(refusal.value)
    assert message.startswith("bad.gguf: ")
    assert expected in message
    assert "; " in message  # what to do comes after it


def test_the_sound_neighbours_of_refused_files_are_read() -> None:
    parse(two_tensors(64))
    parse(one_tensor(name="n" * 64))
    parse(one_tensor(dims=(1, 1, 2, 2)))
    parse(one_pair(ValueType.UINT8, b"\1", "k" * 65_535))
    parse(one_pair(ValueType.ARRAY, nested(header.MAX_ARRAY_DEPTH)))


def test_every_truncation_is_refused() -> None:
    made = build.sample()
    data = made.to_bytes()
    end = len(data) - (-len(made.tensors[-1].data) % made.alignment)
    parse(data[:end])
    for length in range(0, end, 7):
        with pytest.raises(ModelFileError):
            parse(data[:length])


def test_a_bad_string_in_an_array_is_refused_when_it_is_asked_for() -> None:
    value = build.array(ValueType.STRING, ["sound", b"\xff"])
    strings = parse(one_pair(ValueType.ARRAY, value)).metadata.strings("key")
    assert strings[0] == "sound"
    with pytest.raises(ModelFileError, match=r"bad\.gguf: 'key'\[1\] is not valid UTF-8"):
        strings[1]
    with pytest.raises(ModelFileError):
        list(strings)


def test_names_in_messages_are_escaped_and_short() -> None:
    with pytest.raises(ModelFileError) as refusal:
        parse(one_pair(99, b"", "\x1b[2J" + "k" * 60_000))
    assert "\x1b" not in str(refusal.value)
    assert len(str(refusal.value)) < 300


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFileError, match="empty"):
        GGUFFile.open(tmp_path / "empty.gguf")
    with pytest.raises(ModelFileError, match="not a file"):
        GGUFFile.open(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFileError, match="not a file"):
        GGUFFile.open(tmp_path)


def test_a_refused_file_is_let_go(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(one_pair(ValueType.ARRAY, build.array(ValueType.STRING, ["a"], count=100)))
    folder = Path("/proc/self/fd")
    before = len(list(folder.iterdir())) if folder.exists() else 0
    for _ in range(3):
        with pytest.raises(ModelFileError, match="cut short"):
            GGUFFile.open(path)
    assert not folder.exists() or len(list(folder.iterdir())) == before


# A file of 6 kB: what parsing it makes is some 30 kB, and no lie in it may make that a megabyte.
MAX_PEAK_BYTES = 1 << 20

_TELLING = [0, 1, 2, 8, 9, 31, 32, 255, 65_535, 65_536, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63, HUGE]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Some bytes, an integer or the length of a file changed, or a stretch of it repeated or dropped."""
    mutated = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(mutated) - 8)
        match rng.randrange(6):
            case 0:
                mutated[at] ^= 1 << rng.randrange(8)
            case 1:
                mutated[at] = rng.randrange(256)
            case 2:
                mutated[at : at + 8] = u64(rng.choice(_TELLING))
            case 3:
                mutated[at : at + 4] = struct.pack("<I", rng.choice(_TELLING) & 0xFFFFFFFF)
            case 4:
                del mutated[at : at + rng.randrange(1, 64)]
            case 5:
                mutated[at:at] = mutated[at : at + rng.randrange(1, 64)]
        if len(mutated) < 64:
            break
    return bytes(mutated)


def read_all(data: bytes) -> None:
    """Parse and touch every value, as a loader would."""
    found = parse(data)
    for value in found.metadata.values():
        if isinstance(value, StringArray):
            list(value)
    for tensor in found.tensors:
        if not 0 <= tensor.offset <= tensor.offset + tensor.n_bytes <= len(data):
            pytest.fail(f"{tensor} lies outside {len(data)} bytes")


def fuzz(n_files: int, seed: int) -> int:
    """Read mutated files; returns how many were refused."""
    rng = random.Random(seed)
    sound = build.sample().to_bytes()
    # most of the header, rather than of the data, is hit
    tensors = sum(len(tensor.data) for tensor in build.sample().tensors)
    head, tail = sound[: len(sound) - tensors], sound[len(sound) - tensors :]
    refused = 0
    tracemalloc.start()
    try:
        for number in range(n_files):
            data = mutate(head, rng) + tail
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                read_all(data)
            except ModelFileError:
                refused += 1
            peak = tracemalloc.get_traced_memory()[1] - before
            if peak > MAX_PEAK_BYTES:
                pytest.fail(f"file {number} of seed {seed} took {peak} bytes of memory")
    finally:
        tracemalloc.stop()
    return refused


def test_mutated_files_are_read_or_refused() -> None:
    refused = fuzz(2_000, seed=1)
    assert 500 < refused < 2_000


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_mutated_files_are_read_or_refused(seed: int) -> None:
    assert fuzz(50_000, seed) > 10_000


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(st.binary(max_size=400))
def test_any_bytes_after_the_magic_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ModelFileError):
        read_all(b"GGUF\3\0\0\0" + data)


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, 14), st.binary(max_size=40)), min_size=1, max_size=4),
    st.binary(max_size=100),
)
def test_any_values_under_sound_keys_are_read_or_refused(
    values: list[tuple[int, bytes]], rest: bytes
) -> None:
    pairs = [build.pair(f"k{index}", kind, value) for index, (kind, value) in enumerate(values)]
    with contextlib.suppress(ModelFileError):
        read_all(build.File(pairs=pairs).to_bytes() + rest)


@pytest.mark.soak
def test_a_huge_header_is_refused_within_bounds(tmp_path: Path) -> None:
    """A sparse file full of empty strings: the array's limit and the header's hold."""
    path = tmp_path / "sparse.gguf"
    made = build.File(pairs=[], n_pairs=40).to_bytes()[:24]
    with path.open("wb") as file:
        file.write(made)
        for index in range(40):
            file.write(
                build.text(f"k{index}") + struct.pack("<IIQ", ValueType.ARRAY, ValueType.STRING, 8 << 20)
            )
            file.seek(8 * (8 << 20), os.SEEK_CUR)
        file.truncate(file.tell())
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match="largest header"):
            GGUFFile.open(path)
        assert tracemalloc.get_traced_memory()[1] < 2 * header.MAX_HEADER_BYTES
    finally:
        tracemalloc.stop()
