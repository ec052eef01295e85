"""The step that gets a model, where nobody but the test speaks for the node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from app.context import Context
from app.widgets.basics import Button
from app.wizard.course import Memory
from app.wizard.step import Guide, Target
from app.wizard.steps.model import ModelStep
from tests.app.two_computers import parts_of, pretend, two_computers
from tests.app.windows import button, click, texts, wait

TINY, OTHER = "smollm2-135m", "gemma3-270m"


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    with two_computers(tmp_path) as context:
        yield context


@pytest.fixture
def step(context: Context, look: object) -> Iterator[ModelStep]:
    step = ModelStep(context, Mock(spec=Guide, memory=Memory(context.preferences), target=Target()))
    step._ask = lambda: _told([], [TINY, OTHER])  # type: ignore[assignment, method-assign, return-value]
    step.show()
    yield step
    step.leave()
    step.hide()
    step.deleteLater()


async def _told(here: list[str], catalogue: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    models = [{"id": name, "title": name, "size_bytes": 1, "digest": name, "problem": ""} for name in here]
    return (
        {"here": {"models": models, "notes": []}, "peers": []},
        [{"name": name, "title": name, "size_bytes": 1, "here": name in here} for name in catalogue],
    )


def test_focus_stays_with_the_model_that_is_got(step: ModelStep, context: Context) -> None:
    step.show_step()
    wait(lambda: OTHER in texts(step))
    step.activateWindow()
    get = button(step, f"Get {TINY}")
    get.setFocus()
    wait(get.hasFocus)
    # as a stream that never ends
    context.bridge.stream = Mock()  # type: ignore[method-assign]
    click(get)
    assert button(step, "Stop").hasFocus()
    step._on_failed(TINY, _Failed("The disk is full."))
    assert "The disk is full." in texts(step) and get.hasFocus()


def test_who_was_paired_meanwhile_can_be_given_a_copy(step: ModelStep, context: Context) -> None:
    pretend(context, peers=[])
    step._ask = lambda: _told([TINY], [OTHER])  # type: ignore[assignment, method-assign, return-value]
    step.show_step()
    wait(lambda: TINY in texts(step))
    step.leave()
    pretend(context, peers=parts_of()["peers"])
    step.show_step()
    wait(lambda: f"Copy {TINY} to spark" in [each.accessibleName() for each in step.findChildren(Button)])


class _Failed(Exception):
    pass
