"""Texts: a number and its unit stay on one line, and what is read of a text is what was said."""

from __future__ import annotations

from PySide6.QtWidgets import QLabel

from app.widgets.basics import Text


def test_a_number_keeps_its_unit(look: object) -> None:
    said = "which frees 17.6 GB in 3 s at 9.8 Gb/s, and 4 people"
    text = Text(said)
    assert text.text() == said
    shown = QLabel.text(text)
    assert "17.6\u00a0GB" in shown and "3\u00a0s " in shown and "9.8\u00a0Gb/s" in shown
    assert "4 people" in shown
