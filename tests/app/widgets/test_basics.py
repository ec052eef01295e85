"""Texts: a number and its unit stay on one line, and what is read of a text is what was said."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel

from app.widgets.basics import Scrolled, Text
from tests.app.windows import wait


def test_a_number_keeps_its_unit(look: object) -> None:
    said = "which frees 17.6 GB in 3 s at 9.8 Gb/s, and 4 people"
    text = Text(said)
    assert text.text() == said
    shown = QLabel.text(text)
    assert "17.6\u00a0GB" in shown and "3\u00a0s " in shown and "9.8\u00a0Gb/s" in shown
    assert "4 people" in shown


def test_only_what_scrolls_takes_the_focus_and_shows_it(look: object) -> None:
    words = Text("few", wrap=True)
    scrolled = Scrolled(words)
    scrolled.resize(200, 300)
    scrolled.show()
    assert scrolled.focusPolicy() is Qt.FocusPolicy.NoFocus
    words.setText("many " * 400)
    wait(lambda: scrolled.focusPolicy() is Qt.FocusPolicy.StrongFocus)
    scrolled.activateWindow()
    wait(scrolled.isActiveWindow)
    scrolled.setFocus()
    assert scrolled.verticalScrollBar().property("tone") == "focus"
    scrolled.clearFocus()
    assert not scrolled.verticalScrollBar().property("tone")
    scrolled.close()
