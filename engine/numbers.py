"""How numbers stand in sentences for people."""

from __future__ import annotations

# Above this a float's last digits mean nothing.
_EXACT_FLOAT = 1 << 53


def number_text(value: float) -> str:
    """A whole number with all its digits, any other in a few: never 4e+06 for what can be counted."""
    if isinstance(value, float) and not (value.is_integer() and abs(value) <= _EXACT_FLOAT):
        return f"{value:g}"
    return str(int(value))
