"""A model's metadata: a mapping with typed look-ups, and string arrays that are decoded when asked for.

It does not know how a header is laid out, nor which keys a model family needs.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, overload

from engine.errors import ModelFileError

Scalar = int | float | bool | str
# A numeric or bool array is a memoryview of its own copy (never of the file), so it outlives the file.
Value = Scalar | Sequence[Any]


class StringArray(Sequence[str]):
    """An array of strings that keeps their bytes and decodes those that are asked for.

    `raw` holds the strings as they stand in the file, each after its eight-byte length; `ends[i]` is where
    string i ends. Raises ModelFileError at the access of a string that is not UTF-8.
    """

    __slots__ = ("_ends", "_raw", "_what")

    def __init__(self, raw: bytes, ends: array[int], *, what: str) -> None:
        self._raw = raw
        self._ends = ends
        self._what = what

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self._ends)))]
        return self._decode(self.encoded(index), index)

    def __iter__(self) -> Iterator[str]:
        raw, ends = self._raw, self._ends
        starts = [8, *[end + 8 for end in ends[:-1]]]
        try:
            # All at once takes a third of the time, and there are hundreds of thousands.
            return iter([raw[start:end].decode() for start, end in zip(starts, ends, strict=False)])
        except UnicodeDecodeError:
            return (self[index] for index in range(len(ends)))

    def __repr__(self) -> str:
        return f"<StringArray of {len(self)}>"

    def encoded(self, index: int) -> bytes:
        """The bytes of string `index`, whether or not they are UTF-8."""
        if index < 0:
            index += len(self._ends)
        if not 0 <= index < len(self._ends):
            raise IndexError(f"string {index} of {len(self._ends)}")
        start = self._ends[index - 1] + 8 if index else 8
        return self._raw[start : self._ends[index]]

    def _decode(self, raw: bytes, index: int) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise ModelFileError(
                f"{self._what}[{index}] is not valid UTF-8; the file is damaged: download it again"
            ) from None


class Metadata(Mapping[str, Value]):
    """The key-value pairs of a header, read-only, in the file's order.

    The typed look-ups raise ModelFileError, naming file and key, when the value is of another type, or absent
    without a default.
    """

    def __init__(self, values: dict[str, Value], *, file: str) -> None:
        self._values = values
        self._file = file

    def __getitem__(self, key: str) -> Value:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<Metadata of {self._file}: {len(self)} keys>"

    def text(self, key: str, default: str | None = None) -> str:
        value = self._find(key, default)
        if not isinstance(value, str):
            self._wrong(key, "a string")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._find(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            self._wrong(key, "an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._find(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            self._wrong(key, "a number")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._find(key, default)
        if not isinstance(value, bool):
            self._wrong(key, "true or false")
        return value

    def strings(self, key: str, default: Sequence[str] | None = None) -> Sequence[str]:
        value = self._find(key, default)
        if default is not None and value is default:
            return default
        if not isinstance(value, StringArray):
            self._wrong(key, "an array of strings")
        return value

    def numbers(self, key: str, default: Sequence[Any] | None = None) -> Sequence[Any]:
        """An array of integers, floats or flags; the element type is the file's."""
        value = self._find(key, default)
        if default is not None and value is default:
            return default
        if not isinstance(value, memoryview):
            self._wrong(key, "an array of numbers")
        return value

    def _find(self, key: str, default: Any) -> Any:
        value = self._values.get(key, default)
        if value is None:
            raise ModelFileError(
                f"{self._file}: the metadata has no {key!r}; download the file again, or convert it anew"
            )
        return value

    def _wrong(self, key: str, wanted: str) -> NoReturn:
        raise ModelFileError(
            f"{self._file}: the metadata value {key!r} is not {wanted}; "
            "download the file again, or convert the model anew"
        )
