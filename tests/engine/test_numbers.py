"""Numbers in sentences."""

from __future__ import annotations

import math

import pytest

from engine.numbers import number_text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (-1, "-1"),
        (4_194_304, "4194304"),
        (4_194_304.0, "4194304"),
        (1 << 64, "18446744073709551616"),
        (0.25, "0.25"),
        (1e300, "1e+300"),
        (math.inf, "inf"),
    ],
)
def test_whole_numbers_are_written_whole(number: float, text: str) -> None:
    assert number_text(number) == text
