"""How numbers stand in sentences for people."""

from __future__ import annotations

import argparse
import contextlib

# Above this a float's last digits mean nothing.
_EXACT_FLOAT = 1 << 53


def number_text(value: float) -> str:
    """A whole number with all its digits, any other in a few: never 4e+06 for what can be counted."""
    if isinstance(value, float) and not (value.is_integer() and abs(value) <= _EXACT_FLOAT):
        return f"{value:g}"
    return str(int(value))


def whole_numbers(text: str) -> tuple[int, ...]:
    """Of "N,N,...", none of them negative; for a flag. Raises ArgumentTypeError."""
    with contextlib.suppress(ValueError):
        numbers = tuple(int(part) for part in text.split(","))
        if min(numbers) >= 0:
            return numbers
    raise argparse.ArgumentTypeError(f"{text}: whole numbers are needed here, with commas between them")
