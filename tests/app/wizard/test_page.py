"""The frame of the first run, where nobody but the test speaks for the node."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.wizard.course import Step
from app.wizard.page import WizardPage
from tests.app.two_computers import two_computers


@pytest.mark.parametrize(
    ("left_at", "begins_at"),
    [(Step.FIND, Step.FIND), (Step.PAIR, Step.PAIR), (Step.READY, Step.FIND), (Step.ROLES, Step.ROLES)],
)
def test_who_looked_for_a_further_computer_goes_on_with_that(
    look: object, tmp_path: Path, left_at: Step, begins_at: Step
) -> None:
    with two_computers(tmp_path) as context:
        page = WizardPage(context)
        page.memory.step, page.memory.is_over = left_at, True
        page.shown()
        assert page.step is begins_at
        page.finish("chat")
        page.deleteLater()
