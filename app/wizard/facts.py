"""Facts of a computer, a line each: what it is called on the left, what it is on the right."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout

from app.look.look import current_look
from app.look.measures import HUGE, SMALL
from app.widgets.basics import Card, Text, clear


class FactsCard(Card):
    """Shows pairs of words; lines of which nothing is known are left out."""

    def __init__(self) -> None:
        super().__init__()
        self._grid = QGridLayout()
        self._grid.setHorizontalSpacing(HUGE)
        self._grid.setVerticalSpacing(SMALL)
        self._grid.setColumnMinimumWidth(0, current_look().px(104))
        self._grid.setColumnStretch(1, 1)
        self.column.addLayout(self._grid)
        self._shown: list[tuple[str, str]] = []

    def show_facts(self, facts: Sequence[tuple[str, str]]) -> None:
        known = [(name, value) for name, value in facts if value]
        if known == self._shown:
            return
        self._shown = known
        clear(self._grid)
        for line, (name, value) in enumerate(known):
            label = Text(name, tone="soft")
            self._grid.addWidget(label, line, 0, Qt.AlignmentFlag.AlignTop)
            self._grid.addWidget(Text(value, wrap=True, selectable=True), line, 1)
