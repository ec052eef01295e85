"""docs/protocol.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from engine.wire.document import place, render

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"


def test_the_page_holds_the_tables_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert place(page, render()) == page, (
        "run `python -m engine.wire.document` and put its tables into the page"
    )


def test_every_table_has_its_place() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- table: ([a-z ]+) -->", page)) == set(render())


def test_a_changed_table_is_noticed() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert place(page.replace("| `hello` |", "| `hullo` |"), render()) == page
    assert "| `hello` |" in page
