"""What settings are called, and what is said beside that."""

from __future__ import annotations

import pytest

from app.pages.settings.words import without


@pytest.mark.parametrize(
    ("title", "help_", "left"),
    [
        ("Where prompts go", "Where prompts go: here, or there.", "Here, or there."),
        ("Prompts at once", "Prompts at once, at most four.", "At most four."),
        ("Port", "Port.", ""),
        ("Name", "Names of it.", "Names of it."),
        ("Connections", "Connections that share.", "Connections that share."),
        ("Chunk", "Tokens of a prompt.", "Tokens of a prompt."),
    ],
)
def test_a_title_is_not_said_twice(title: str, help_: str, left: str) -> None:
    assert without(title, help_) == left
