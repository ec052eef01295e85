"""Figures side by side, each with its name above and what it means below."""

from __future__ import annotations

from itertools import zip_longest

from PySide6.QtWidgets import QGridLayout, QWidget

from app.look.measures import HUGE, LARGE, SMALL
from app.telemetry.decision import Fact
from app.widgets.basics import Text, column


class FactsGrid(QWidget):
    """Some in a row. Its parts stay while figures change, as they do many times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, SMALL, 0, 0)
        self._grid.setHorizontalSpacing(HUGE)
        self._grid.setVerticalSpacing(LARGE)
        self._places: list[_Place] = []
        self._shape: list[bool] = []
        self._a_row = 1

    def set_a_row(self, a_row: int) -> None:
        """How many stand side by side."""
        if a_row != self._a_row:
            self._a_row = a_row
            self._arrange()

    def show_facts(self, facts: list[Fact]) -> None:
        if (n_missing := max(len(facts), self._a_row) - len(self._places)) > 0:
            self._places += [_Place() for _ in range(n_missing)]
            self._arrange()
        shape = [bool(fact.note) for fact in facts]
        if shape != self._shape:
            self._shape = shape
            # Each part that came or went would have all that is around it laid out anew; of what is hidden nothing is.
            self.hide()
        for place, fact in zip_longest(self._places, facts):
            place.show_fact(fact)
        self.show()

    def _arrange(self) -> None:
        for number, place in enumerate(self._places):
            self._grid.addWidget(place, number // self._a_row, number % self._a_row)
            # What comes later finds the columns as they are.
            policy = place.sizePolicy()
            policy.setRetainSizeWhenHidden(number < self._a_row)
            place.setSizePolicy(policy)
        for number in range(self._grid.columnCount()):
            self._grid.setColumnStretch(number, int(number < self._a_row))


class _Place(QWidget):
    def __init__(self) -> None:
        super().__init__()
        self._name = Text(size="caption", tone="faint")
        self._value = Text(strong=True, selectable=True, wrap=True)
        self._note = Text(size="caption", tone="soft", wrap=True)
        self.setLayout(column(self._name, self._value, self._note, None, spacing=2))

    def show_fact(self, fact: Fact | None) -> None:
        self.setVisible(fact is not None)
        if fact is None:
            return
        self._name.setText(fact.name)
        self._value.setText(fact.value)
        self._value.set_tone(fact.tone)
        self._note.setText(fact.note)
        self._note.setVisible(bool(fact.note))
