"""The view that gets models, without a node."""

from __future__ import annotations

from pathlib import Path

from app.pages.models.get import GetView
from app.pages.models.rows import Memory
from tests.app.pages.models.test_hub import ENTRY
from tests.app.two_computers import two_computers
from tests.app.windows import button


def test_it_begins_with_the_catalogue(look: object, tmp_path: Path) -> None:
    with two_computers(tmp_path) as context:
        view = GetView(context)
        view.show_known([], [], [ENTRY], Memory(name="studio"), None)  # type: ignore[list-item]
        assert button(view, f"Get {ENTRY['title']}").isEnabled()
        view.deleteLater()
