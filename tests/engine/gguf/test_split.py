"""Split models load as one, from whichever part is opened; parts that are missing or do not fit are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import ModelFileError, ModelNotFound
from engine.gguf.reader import GGUFFile
from engine.gguf.types import ValueType
from tests.engine.gguf import build

N_PARTS = 3


def name(number: int, count: int = N_PARTS) -> str:
    return f"model-{number:05d}-of-{count:05d}.gguf"


def part(
    index: int, *, no: int | None = None, count: int = N_PARTS, tensors: int = 2 * N_PARTS
) -> build.File:
    def entry(key: str, kind: ValueType, value: int) -> bytes:
        return build.pair(key, kind, build.scalar(kind, value))

    pairs = [
        entry("split.no", ValueType.UINT16, index if no is None else no),
        entry("split.count", ValueType.UINT16, count),
        entry("split.tensors.count", ValueType.INT32, tensors),
    ]
    if index == 0:
        pairs.insert(0, build.pair("general.architecture", ValueType.STRING, build.text("qwen3")))
    return build.File(
        pairs=pairs,
        tensors=[
            build.Tensor(name=f"blk.{index}.{which}.weight", data=bytes([index, number] * 8))
            for number, which in enumerate(("attn_q", "attn_k"))
        ],
    )


def write(folder: Path, **changed: build.File | None) -> Path:
    """Write all parts but those changed, given as p0, p1, ...; None leaves one out. Returns the first's path."""
    for index in range(N_PARTS):
        made = changed.get(f"p{index}", part(index))
        if made is not None:
            (folder / name(index + 1)).write_bytes(made.to_bytes())
    return folder / name(1)


@pytest.mark.parametrize("opened", [1, 2, 3])
def test_any_part_opens_the_whole_model(tmp_path: Path, opened: int) -> None:
    write(tmp_path)
    with GGUFFile.open(tmp_path / name(opened)) as file:
        assert file.architecture == "qwen3"
        assert [path.name for path in file.paths] == [name(1), name(2), name(3)]
        assert file.n_bytes == sum(path.stat().st_size for path in file.paths)
        assert len(file.tensors) == 6
        for index in range(N_PARTS):
            assert file.tensors[f"blk.{index}.attn_k.weight"].part == index
            assert file.tensor_bytes(f"blk.{index}.attn_k.weight") == bytes([index, 1] * 8)


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_missing_part_is_named(tmp_path: Path, missing: int) -> None:
    write(tmp_path, **{f"p{missing - 1}": None})
    opened = tmp_path / name(1 if missing != 1 else 2)
    with pytest.raises(
        ModelFileError, match=rf"{name(missing)}: this part of the model is missing.*download all"
    ):
        GGUFFile.open(opened)


REFUSALS: dict[str, tuple[Callable[[], dict[str, build.File]], str]] = {
    "another count inside": (
        lambda: {"p1": part(1, count=4)},
        r"00002-of-00003\.gguf: .*says that there are 4",
    ),
    "no count inside": (lambda: {"p2": build.File()}, r"00003-of-00003\.gguf: .*says that there are 1"),
    "parts in the wrong order": (
        lambda: {"p1": part(1, no=2)},
        "named as part 2, but it says that it is part 3",
    ),
    "tensors are missing": (lambda: {"p0": part(0, tensors=7)}, "hold 6 tensors, where 7 belong"),
    "a tensor in two parts": (
        lambda: {"p2": build.File(pairs=part(2).pairs, tensors=part(1).tensors)},
        r"00003-of-00003\.gguf: the tensor 'blk\.1\.attn_q\.weight' is already in another part",
    ),
    "a count that is a text": (
        lambda: {"p1": build.File(pairs=[build.pair("split.count", ValueType.STRING, build.text("3"))])},
        r"'split\.count' is not an integer",
    ),
    "a part is no GGUF": (
        lambda: {"p1": build.File(magic=b"GGML")},
        r"00002-of-00003\.gguf: this is not a GGUF",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_parts_that_do_not_fit_are_refused(tmp_path: Path, case: str) -> None:
    make, expected = REFUSALS[case]
    first = write(tmp_path, **make())
    with pytest.raises(ModelFileError, match=expected):
        GGUFFile.open(first)


def test_a_renamed_part_is_not_taken_for_a_whole_model(tmp_path: Path) -> None:
    (tmp_path / "renamed.gguf").write_bytes(part(0).to_bytes())
    with pytest.raises(ModelFileError, match="one part of 3 of a split model"):
        GGUFFile.open(tmp_path / "renamed.gguf")


@pytest.mark.parametrize(("number", "count"), [(0, 2), (3, 2), (1, 99_999)])
def test_impossible_part_numbers_are_refused(tmp_path: Path, number: int, count: int) -> None:
    path = tmp_path / name(number, count)
    path.write_bytes(build.sample().to_bytes())
    with pytest.raises(ModelFileError, match=f"a part {number} of {count}"):
        GGUFFile.open(path)


def test_one_part_of_one_needs_no_split_keys(tmp_path: Path) -> None:
    path = tmp_path / name(1, 1)
    path.write_bytes(build.sample().to_bytes())
    with GGUFFile.open(path) as file:
        assert file.paths == (path,)


def test_a_part_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    write(tmp_path, p1=None)
    with pytest.raises(ModelNotFound):
        GGUFFile.open(tmp_path / name(2))
