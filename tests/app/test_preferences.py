"""What the window remembers, and what it makes of a file that somebody else has written into."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import pytest

from app.preferences import Preferences


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


def test_what_is_set_is_there_the_next_time(tmp_path: Path) -> None:
    file = tmp_path / "new" / "window.json"
    Preferences(file).set("page", "models")
    Preferences(file).set("colour", Colour.BLUE.value)
    again = Preferences(file)
    assert again.get("page", "chat") == "models"
    assert again.one_of("colour", Colour, Colour.RED) is Colour.BLUE


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"page": 3, "colour": "green"}', '{"colour": ["red"]}']
)
def test_what_makes_no_sense_is_as_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "window.json"
    file.write_text(text)
    found = Preferences(file)
    assert found.get("page", "chat") == "chat"
    assert found.one_of("colour", Colour, Colour.RED) is Colour.RED
    found.set("page", "models")
    assert Preferences(file).get("page", "chat") == "models"


def test_a_folder_that_cannot_be_written_costs_only_the_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = Preferences(tmp_path / "file" / "window.json")
    found.set("page", "models")
    assert found.get("page", "chat") == "models"
