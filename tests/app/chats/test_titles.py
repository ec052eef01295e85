"""What conversations are called, and under which day they stand."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime

import pytest

from app.chats.titles import Group, Groups, title_of


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Summarise the attached log", "Summarise the attached log"),
        ("what is a fence? I read about it.", "What is a fence?"),
        ("Explain version 3.5 of it. Please.", "Explain version 3.5 of it"),
        ("\n\n# Heading\nmore", "Heading"),
        ("```\nx = 1\n```", "X = 1"),
        (
            "A question about " + "very " * 20 + "long things",
            "A question about very very very very very very…",
        ),
        ("x" * 80, "X" + "x" * 46 + "…"),
        ("   ", ""),
    ],
)
def test_the_first_sentence_is_the_title(text: str, title: str) -> None:
    assert title_of(text) == title
    assert len(title_of(text)) <= 48


def test_files_alone_give_their_names() -> None:
    assert title_of("", ["kernel.log", "notes.pdf"]) == "kernel.log, notes.pdf"


@dataclass
class One:
    pinned: bool
    updated: float


@pytest.mark.parametrize(
    ("day", "group"),
    [
        ("2026-03-15", Group.TODAY),
        ("2026-03-16", Group.TODAY),  # a clock that was put back
        ("2026-03-14", Group.YESTERDAY),
        ("2026-03-13", Group.WEEK),
        ("2026-03-08", Group.WEEK),
        ("2026-03-07", Group.MONTH),
        ("2026-02-13", Group.MONTH),
        ("2026-02-12", Group.OLDER),
    ],
)
def test_by_days_of_the_calendar(day: str, group: Group) -> None:
    at = datetime.fromisoformat(f"{day}T23:59:00").timestamp()
    groups = Groups(date(2026, 3, 15))
    assert groups.group_of(One(False, at)) is group
    assert groups.group_of(One(True, at)) is Group.PINNED
