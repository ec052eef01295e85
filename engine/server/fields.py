"""Reads the fields of a JSON object, each with its type; what is wrong is named. Knows no particular request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import InvalidRequest

# Of any field; seeds are the largest in use.
MAX_INTEGER_BITS = 64


class Fields:
    """One JSON object. A field that is null counts as absent, as clients mean it; unknown fields are ignored."""

    def __init__(self, content: Mapping[str, Any], *, inside: str = "") -> None:
        self._content = content
        self._inside = inside

    def raw(self, name: str) -> Any:
        """Whatever is there, or None."""
        return self._content.get(name)

    def text(self, name: str, default: str) -> str:
        value = self.optional_text(name)
        return default if value is None else value

    def optional_text(self, name: str) -> str | None:
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.wrong(name, "a string", value)
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false", value)
        return value

    def integer(self, name: str, default: int) -> int:
        value = self.optional_integer(name)
        return default if value is None else value

    def optional_integer(self, name: str) -> int | None:
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, "an integer", value)
        if value.bit_length() > MAX_INTEGER_BITS:
            raise self.wrong(name, "an integer of a usable size", value)
        return value

    def number(self, name: str, default: float) -> float:
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, "a number", value)
        try:
            return float(value)
        except OverflowError:
            raise self.wrong(name, "a number of a usable size", value) from None

    def items(self, name: str) -> list[Any]:
        value = self.raw(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(name, "a list", value)
        return value

    def object(self, name: str) -> dict[str, Any]:
        value = self.raw(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.wrong(name, "an object", value)
        return value

    def path(self, name: str) -> str:
        """The field as an error names it."""
        return f"{self._inside}.{name}" if self._inside else name

    def wrong(self, name: str, wanted: str, value: Any) -> InvalidRequest:
        where = self.path(name)
        return InvalidRequest(f"{where} must be {wanted}, not {_kind(value)}", param=where)


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case list():
            return "a list"
    return "an object"
