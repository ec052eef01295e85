"""A thread that has work and does none of it is stuck; one that has none may stand still for ever."""

from __future__ import annotations

from engine.batching.pulse import STUCK_AFTER_S, Pulse


class Clock:
    now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def test_only_who_has_work_can_be_stuck() -> None:
    clock = Clock()
    pulse = Pulse(clock)
    clock.now_s += 10 * STUCK_AFTER_S
    assert not pulse.is_stuck
    pulse.work()
    clock.now_s += STUCK_AFTER_S
    assert not pulse.is_stuck and pulse.still_s == STUCK_AFTER_S
    clock.now_s += 1
    assert pulse.is_stuck
    pulse.rest()
    assert not pulse.is_stuck and pulse.still_s == 0.0


def test_each_piece_of_work_counts_and_one_that_comes_late_begins_none() -> None:
    clock = Clock()
    pulse = Pulse(clock)
    pulse.work()
    for _ in range(5):
        clock.now_s += STUCK_AFTER_S
        pulse.beat()
    assert not pulse.is_stuck
    pulse.rest()
    pulse.beat()
    clock.now_s += 10 * STUCK_AFTER_S
    assert not pulse.is_stuck
