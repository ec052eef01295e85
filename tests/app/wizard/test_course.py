"""Which steps apply, what comes next, and where a first run that was left goes on."""

from __future__ import annotations

from pathlib import Path

from app.preferences import Preferences
from app.wizard.course import Facts, Memory, Step, course, resumed, step_after, step_before


def walk(facts: Facts) -> list[Step]:
    steps = [Step.WELCOME]
    while (after := step_after(steps[-1], facts)) is not steps[-1]:
        steps.append(after)
    return steps


def test_two_computers_go_all_the_way() -> None:
    assert walk(Facts(asks_permission=True)) == list(Step)
    assert Step.PERMISSION not in walk(Facts())


def test_one_computer_skips_what_takes_two() -> None:
    assert walk(Facts(is_alone=True)) == [Step.WELCOME, Step.FIND, Step.MODEL, Step.READY]


def test_what_is_done_is_skipped_both_ways() -> None:
    paired = Facts(is_paired=True)
    assert walk(paired) == [Step.WELCOME, Step.CABLE, Step.MODEL, Step.ROLES, Step.READY]
    assert step_before(Step.CABLE, paired) is Step.WELCOME
    # the picture of the way stays whole
    assert Step.PAIR in course(paired)
    assert Step.FIND in walk(Facts(is_paired=True, wants_another=True))


def test_back_works_from_everywhere_but_the_first() -> None:
    assert step_before(Step.WELCOME, Facts()) is None
    # from the step that has just been done, too
    assert step_before(Step.PAIR, Facts(is_paired=True)) is Step.WELCOME
    assert step_after(Step.PAIR, Facts(is_paired=True)) is Step.CABLE


def test_it_goes_on_where_it_was_left() -> None:
    assert resumed("", Facts()) is Step.WELCOME
    assert resumed("of another version", Facts()) is Step.WELCOME
    assert resumed("model", Facts(is_paired=True)) is Step.MODEL
    assert resumed("pair", Facts(is_paired=True)) is Step.CABLE
    assert resumed("cable", Facts(is_alone=True)) is Step.MODEL


def test_it_is_remembered(tmp_path: Path) -> None:
    memory = Memory(Preferences(tmp_path / "window.json"))
    assert (memory.step, memory.is_over, memory.is_alone) == ("", False, False)
    memory.step, memory.is_alone = Step.MODEL, True
    later = Memory(Preferences(tmp_path / "window.json"))
    assert (later.step, later.is_over, later.is_alone) == ("model", False, True)
