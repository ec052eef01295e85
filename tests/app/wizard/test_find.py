"""Looking for the other computer, where nobody answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

from PySide6.QtWidgets import QAbstractButton

from app.wizard.course import Memory
from app.wizard.step import Guide, Target
from app.wizard.steps.find import FindStep
from tests.app.two_computers import pretend, two_computers
from tests.app.windows import button, click, texts


def told(node_id: str | None, name: str) -> dict[str, Any]:
    return {
        "node_id": node_id,
        "name": name,
        "addresses": ["10.0.0.9:7119"],
        "pairing_addresses": [],
        "version": "",
    }


def test_an_address_where_nobody_answers_is_nobody_found(look: object, tmp_path: Path) -> None:
    with two_computers(tmp_path) as context:
        guide = Mock(spec=Guide, memory=Memory(context.preferences), target=Target())
        step = FindStep(context, guide)
        step.show_step()
        pretend(context, discovery={"found": [told(None, "10.0.0.9:7119")], "interfaces": []})
        said = texts(step)
        assert "does not answer yet" in said and "Nobody was found yet" in said
        pretend(context, discovery={"found": [told("c" * 32, "attic")], "interfaces": []})
        assert "Nobody was found yet" not in texts(step)
        step.deleteLater()


def test_an_address_that_was_typed_is_taken_back(look: object, tmp_path: Path) -> None:
    with two_computers(tmp_path) as context:
        guide = Mock(spec=Guide, memory=Memory(context.preferences), target=Target())
        step = FindStep(context, guide)
        step.show_step()
        nobody = told(None, "10.0.0.9:7119")
        found = {
            "found": [nobody, {**told("c" * 32, "attic"), "addresses": ["10.0.0.4:7119"]}],
            "interfaces": [],
        }
        pretend(context, discovery={**found, "manual": ["10.0.0.9:7119"]})
        names = [each.accessibleName() for each in step.findChildren(QAbstractButton)]
        assert sum("Look no more" in name for name in names) == 1
        asked: list[str] = []
        context.client.delete = asked.append  # type: ignore[method-assign]
        step.run = lambda *_: None  # type: ignore[method-assign]
        click(button(step, "Look no more at 10.0.0.9:7119"))
        assert asked == ["/discovery/manual/10.0.0.9%3A7119"]
        step.deleteLater()
