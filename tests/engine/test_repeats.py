"""What of many like sentences is said: the first, a count a window, and the same again after long."""

from __future__ import annotations

import pytest

from engine.repeats import MAX_KINDS, Repeats


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def repeats(clock: Clock) -> Repeats:
    return Repeats(60.0, clock)


def test_the_first_of_each_kind_is_said(repeats: Repeats) -> None:
    assert [repeats.say(sentence) for sentence in ("a", "a", "b", "a", "b")] == [0, None, 0, None, None]


def test_the_same_is_said_again_after_long_with_what_was_left_unsaid(repeats: Repeats, clock: Clock) -> None:
    for _ in range(4):
        repeats.say("a")
    clock.now += 60
    assert repeats.say("a") == 3
    assert repeats.say("a") is None


def test_a_kind_may_have_many_sentences(repeats: Repeats, clock: Clock) -> None:
    assert [repeats.say(f"caller {n}", kind="caller") for n in range(3)] == [0, None, None]
    clock.now += 60
    assert repeats.overdue() == [("caller 0", 2)]


def test_counts_come_once_a_window_until_it_is_over(repeats: Repeats, clock: Clock) -> None:
    for _ in range(58):
        repeats.say("a")
    assert repeats.overdue() == []
    clock.now += 60
    assert repeats.overdue() == [("a", 57)]
    assert repeats.say("a") is None
    clock.now += 60
    assert repeats.overdue() == [("a", 1)]
    clock.now += 60
    assert repeats.overdue() == []
    assert repeats.say("a") == 0


def test_what_is_forgotten_is_new(repeats: Repeats) -> None:
    repeats.say("a")
    repeats.forget()
    assert repeats.say("a") == 0


def test_no_number_of_kinds_fills_the_memory(repeats: Repeats) -> None:
    for n in range(3 * MAX_KINDS):
        repeats.say(str(n))
    assert repeats.say(str(3 * MAX_KINDS - 1)) is None
    assert repeats.say("0") == 0
