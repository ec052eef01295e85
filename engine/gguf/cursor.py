"""The one way that bytes of a model file are read: a cursor that refuses short data.

It knows the file's name for its error sentences and where it must stop; it knows nothing of GGUF.
"""

from __future__ import annotations

import struct
from array import array
from typing import NoReturn

from engine.errors import ModelFileError

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Cursor:
    """Reads little-endian values in order from `data`, never past `stop`.

    `data` is any readable buffer. Every method raises ModelFileError where fewer bytes are left than it
    needs, and none allocates more than the bytes it was asked for and found.
    """

    def __init__(self, data: memoryview, *, file: str, stop: int) -> None:
        self._data = data
        self._stop = min(stop, len(data))
        self._file = file
        self.position = 0

    @property
    def remaining(self) -> int:
        return self._stop - self.position

    def fail(self, what: str, advice: str = "the file is damaged: download it again") -> NoReturn:
        """Raise ModelFileError with the file's name, what is wrong with it and what to do."""
        raise ModelFileError(f"{self._file}: {what}; {advice}")

    def need(self, n_bytes: int, what: str) -> None:
        """Refuse when fewer than `n_bytes` are left for `what`."""
        if n_bytes > self.remaining:
            if self._stop < len(self._data):
                self.fail(f"{what} reaches past the largest header that Baton reads ({self._stop} bytes)")
            self.fail(
                f"{what} is cut short at byte {self._stop}", "the file is incomplete: download it again"
            )

    def u32(self, what: str) -> int:
        return int(self.scalar(_U32, what))

    def u64(self, what: str) -> int:
        return int(self.scalar(_U64, what))

    def scalar(self, form: struct.Struct, what: str) -> int | float | bool:
        """One value of the one-value struct `form`."""
        self.need(form.size, what)
        (value,) = form.unpack_from(self._data, self.position)
        self.position += form.size
        return value

    def take(self, n_bytes: int, what: str) -> bytes:
        """A copy of the next `n_bytes`."""
        self.need(n_bytes, what)
        start = self.position
        self.position = start + n_bytes
        return bytes(self._data[start : self.position])

    def text(self, what: str, *, max_bytes: int) -> str:
        """A string: its length in eight bytes, then that many of UTF-8, at most `max_bytes`."""
        length = self.u64(f"the length of {what}")
        if length > max_bytes:
            self.fail(f"{what} claims a length of {length} bytes, where {max_bytes} is the most")
        raw = self.take(length, what)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.fail(f"{what} is not valid UTF-8")

    def strings(self, count: int, what: str) -> tuple[bytes, array[int]]:
        """`count` strings in a row, found but not decoded.

        Returns the bytes they take up, length fields included, and for each string where it *ends* in them;
        string i starts 8 bytes after the end of string i-1 (after 0 for the first). The caller has checked
        `count` against the bytes that remain.
        """
        start = self.position
        ends = array("I")
        append = ends.append
        length_at = _U64.unpack_from
        region = self._data[start : self._stop]
        limit = len(region)
        position = 0
        try:
            for _ in range(count):
                position += length_at(region, position)[0] + 8
                append(position)
        except (struct.error, OverflowError):
            # a length field lies outside, wholly or in part
            position = limit + 1
        self.need(position, what)
        self.position = start + position
        return bytes(region[:position]), ends
