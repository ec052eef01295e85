"""The first run's last step, which says no more than is so."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

from app.wizard.step import Guide
from app.wizard.steps.ready import ReadyStep
from tests.app.two_computers import pretend, roles, two_computers
from tests.app.windows import texts


def test_two_that_share_no_model_do_not_answer_as_one_yet(look: object, tmp_path: Path) -> None:
    with two_computers(tmp_path) as context:
        step = ReadyStep(context, Mock(spec=Guide))
        step.show_step()
        assert "answer as one from now on" in texts(step)
        none: list[dict[str, Any]] = []
        pretend(context, roles=roles(agreed=none))
        step.refresh()
        assert "answer as one with each model that both have" in texts(step)
        step.deleteLater()
