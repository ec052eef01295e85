"""Amounts in words."""

from __future__ import annotations

from app.amounts import Pace, duration_text, memory_text, rate_text, size_text


def test_sizes_have_the_unit_that_fits() -> None:
    assert [size_text(n) for n in (2_000, 98_362_432, 17.34e9, 2.4e11)] == [
        "2 kB",
        "98 MB",
        "17.3 GB",
        "240 GB",
    ]
    assert [memory_text(gib * 2**30) for gib in (7.6, 192)] == ["7.6 GB", "192 GB"]


def test_times_are_as_exact_as_they_can_be() -> None:
    assert [duration_text(s) for s in (0.2, 59, 90, 3600, 4800)] == [
        "1 s",
        "59 s",
        "2 min",
        "1 h",
        "1 h 20 min",
    ]


def test_rates() -> None:
    assert (rate_text(2310.4), rate_text(24.83)) == ("2,310 tokens/s", "24.8 tokens/s")


def test_a_pace_is_that_of_the_last_seconds() -> None:
    pace = Pace()
    assert pace.per_s == 0 and pace.left_s(100) is None
    for second in range(10):
        pace.hear(second * 10, second)
    assert pace.per_s == 10 and pace.left_s(190) == 10


def test_a_count_that_falls_begins_anew() -> None:
    pace = Pace()
    for at_s, count in ((0, 0), (1, 50), (2, 10), (3, 30)):
        pace.hear(count, at_s)
    assert pace.per_s == 20
