"""The first run's step of the cable."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from app.node.faults import AppError
from app.wizard.step import Guide
from app.wizard.steps import cable
from app.wizard.steps.cable import CableStep
from tests.app.two_computers import pretend, two_computers
from tests.app.windows import texts, wait


def test_a_measurement_that_breaks_off_is_begun_once_more(
    look: object, tmp_path: Path, monkeypatch: Any
) -> None:
    """Right after pairing the link may be replaced by another one."""
    n_begun = 0

    async def lines(path: str, body: Any = None) -> AsyncGenerator[dict[str, Any], None]:
        nonlocal n_begun
        n_begun += 1
        yield {"part": "round trips"}
        raise AppError("the link with spark was ended here")

    monkeypatch.setattr(cable, "_AGAIN_AFTER_MS", 0)
    with two_computers(tmp_path) as context:
        pretend(context)
        monkeypatch.setattr(context.client, "lines", lines)
        step = CableStep(context, Mock(spec=Guide))
        step.show()
        step.show_step()
        wait(lambda: n_begun == 2)
        wait(lambda: "The link with spark was ended here." in texts(step))
        other = step.other()
        assert other is not None and other.text == "Test again" and n_begun == 2
        step.deleteLater()
