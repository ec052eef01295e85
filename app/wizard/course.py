"""The order of the first run's steps, which of them apply, and where it goes on. Knows nothing of Qt."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from app.preferences import Preferences

_KEY = "setup"


class Step(enum.StrEnum):
    """In their order."""

    WELCOME = "welcome"
    PERMISSION = "permission"
    FIND = "find"
    PAIR = "pair"
    CABLE = "cable"
    MODEL = "model"
    ROLES = "roles"
    READY = "ready"


_OF_TWO = (Step.PAIR, Step.CABLE, Step.ROLES)
_TO_PAIR = (Step.FIND, Step.PAIR)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What decides which steps apply. `wants_another`: a further computer is to be paired, although one is."""

    asks_permission: bool = False
    is_paired: bool = False
    is_alone: bool = False
    wants_another: bool = False


def course(facts: Facts) -> tuple[Step, ...]:
    """All steps that there are for this computer, done or not."""
    left_out = set()
    if not facts.asks_permission:
        left_out.add(Step.PERMISSION)
    if facts.is_alone:
        left_out.update(_OF_TWO)
    return tuple(step for step in Step if step not in left_out)


def step_after(step: Step, facts: Facts) -> Step:
    """The next one that is still to be done; the last comes after itself."""
    steps = _open(facts)
    order = list(Step)
    return next((each for each in steps if order.index(each) > order.index(step)), steps[-1])


def step_before(step: Step, facts: Facts) -> Step | None:
    """Where Back leads; None from the first."""
    order = list(Step)
    earlier = [each for each in _open(facts) if order.index(each) < order.index(step)]
    return earlier[-1] if earlier else None


def resumed(remembered: str, facts: Facts) -> Step:
    """The step that was left, or, where that is done or does not apply, the one after it."""
    if remembered not in list(Step):
        return Step.WELCOME
    step = Step(remembered)
    return step if step in _open(facts) else step_after(step, facts)


def _open(facts: Facts) -> tuple[Step, ...]:
    is_done = facts.is_paired and not facts.wants_another
    return tuple(step for step in course(facts) if not (is_done and step in _TO_PAIR))


class Memory:
    """What of the first run outlives the window: the step, whether it is over, and whether one computer is enough."""

    def __init__(self, preferences: Preferences) -> None:
        self._preferences = preferences

    @property
    def step(self) -> str:
        return str(self._get("step", ""))

    @step.setter
    def step(self, step: str) -> None:
        self._set("step", step)

    @property
    def is_over(self) -> bool:
        """Whether the window opens with a page: the run was finished, or put off."""
        return bool(self._get("is_over", False))

    @is_over.setter
    def is_over(self, is_over: bool) -> None:
        self._set("is_over", is_over)

    @property
    def is_alone(self) -> bool:
        return bool(self._get("is_alone", False))

    @is_alone.setter
    def is_alone(self, is_alone: bool) -> None:
        self._set("is_alone", is_alone)

    def _get(self, name: str, default: Any) -> Any:
        return self._preferences.get(_KEY, {}).get(name, default)

    def _set(self, name: str, value: Any) -> None:
        self._preferences.set(_KEY, {**self._preferences.get(_KEY, {}), name: value})
