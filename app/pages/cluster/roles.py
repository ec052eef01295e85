"""Who prefills and who decodes: why, what each way would take, and a way to have it otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout, QSizePolicy, QWidget

from app.chats.titles import shortened
from app.look.measures import HUGE, MEDIUM, SMALL
from app.telemetry import figures
from app.widgets.basics import Card, Text, clear, row
from app.widgets.controls import Segments
from app.widgets.elided import ElidedText

AUTO = "auto"

# Of a computer's name on a button.
_NAME_CHARS = 16


class RolesCard(Card):
    """`on_wish` is called with the id of who is to prefill, or "auto"."""

    def __init__(self, on_wish: Callable[[str], object]) -> None:
        self._head = Text(strong=True)
        self._reason = Text(tone="soft", wrap=True, selectable=True)
        self._place = row(spacing=0)
        self._table = QGridLayout()
        self._table.setHorizontalSpacing(HUGE)
        self._table.setVerticalSpacing(SMALL)
        self._table.setColumnStretch(0, 1)
        self._on_wish = on_wish
        self._segments: Segments | None = None
        self._choices: list[tuple[object, str]] = []
        self._shown: object = None
        super().__init__(row(self._head, None, self._place), self._reason, spacing=MEDIUM)
        self.column.addLayout(self._table)
        self._head.setText(self.tr("Roles"))

    def show_roles(
        self, agreed: dict[str, Any] | None, wish: str, names: dict[str, str], why_none: str = ""
    ) -> None:
        """`names` by id, this computer first; `wish` is what was asked for; `why_none` is why none are agreed now."""
        shown = (agreed, wish, names, why_none)
        if shown == self._shown:
            if self._segments is not None:
                self._segments.show_value(wish)  # a wish that was refused is still shown there
            return
        self._shown = shown
        self._show_wish(wish, names)
        clear(self._table)
        if agreed is None:
            self._reason.setText(
                why_none
                or self.tr("Roles are agreed on for each model that both computers have. Copy one in Models.")
            )
            return
        self._reason.setText(self.tr("With {0} {1}.").format(agreed["model"], agreed["reason"]))
        self._show_ways(agreed, names)

    def _show_wish(self, wish: str, names: dict[str, str]) -> None:
        choices: list[tuple[object, str]] = [(AUTO, self.tr("Fastest way"))]
        choices += [
            (node_id, self.tr("{} prefills").format(shortened(name, _NAME_CHARS)))
            for node_id, name in names.items()
        ]
        if self._segments is None or choices != self._choices:
            clear(self._place)
            self._choices = choices
            self._segments = Segments(choices, name=self.tr("Roles"))
            self._segments.chosen.connect(self._on_wish)
            self._place.addWidget(self._segments)
        self._segments.show_value(wish)

    def _show_ways(self, agreed: dict[str, Any], names: dict[str, str]) -> None:
        heads = (
            self.tr("{} tokens, answer of {}").format(
                figures.count(agreed["prompt_tokens"]), figures.count(agreed["answer_tokens"])
            ),
            self.tr("First token"),
            self.tr("In all"),
        )
        for place, head in enumerate(heads):
            self._put(0, place, Text(head, size="caption", tone="faint", strong=True))
        for line, way in enumerate(agreed["ways"], 1):
            is_it = (way["prefill"], way["decode"]) == (
                agreed["prefill"] or agreed["decode"],
                agreed["decode"],
            )
            who = [names.get(way[role], "?") for role in ("prefill", "decode")]
            words = (
                self.tr("{} alone").format(who[0])
                if who[0] == who[1]
                else self.tr("{} prefills, {} decodes").format(*who)
            )
            who_text = ElidedText(f"✓ {words}" if is_it else words, strong=is_it)
            who_text.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
            self._put(line, 0, who_text)
            if way["obstacle"]:
                self._put(line, 1, Text(self.tr("does not fit"), tone="faint"))
                continue
            for place, name in enumerate(("first_token_s", "total_s"), 1):
                took = way[name]
                text = figures.duration(took * 1000) if took is not None else self.tr("not measured")
                self._put(line, place, Text(text, strong=is_it, tone="" if took is not None else "faint"))

    def _put(self, line: int, place: int, text: QWidget) -> None:
        if place and isinstance(text, Text):
            text.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self._table.addWidget(text, line, place)
