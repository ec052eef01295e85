"""What programs asked the endpoint lately, the newest first, as it happens."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from PySide6.QtCore import Qt
from PySide6.QtGui import QFontMetrics
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QStackedLayout,
    QTableWidget,
    QTableWidgetItem,
)

from app.context import Context
from app.look.look import current_look
from app.look.measures import CAPTION_PX
from app.pages.server.following import Event, Following
from app.pages.server.requests import NO_KEY, NOT_READY, RequestList, Row
from app.widgets.feedback import EmptyState

# To the left and right of a cell's text.
_AIR = 12
_RIGHT = (3, 4, 5)


class RequestsView(Following):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._list = RequestList()
        titles = (
            self.tr("Time"),
            self.tr("Asked"),
            self.tr("Model"),
            self.tr("Prompt (cached)"),
            self.tr("Answer"),
            self.tr("Took"),
            self.tr("Prefilled"),
            self.tr("Status"),
        )
        self._table = QTableWidget(0, len(titles))
        self._table.setHorizontalHeaderLabels(titles)
        self._table.setAccessibleName(self.tr("Recent requests"))
        self._table.verticalHeader().hide()
        self._table.verticalHeader().setDefaultSectionSize(current_look().px(32))
        self._table.setShowGrid(False)
        self._table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self._table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self._table.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self._table.setTabKeyNavigation(False)
        self._table.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        header = self._table.horizontalHeader()
        header.setHighlightSections(False)
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        self._longest = (
            ("00:00:00",),
            (),
            (),
            ("128,800 (128,800)",),
            ("128,800",),
            ("888.8 s",),
            (self.tr("on {}").format("computer"), self.tr("was cached")),
            tuple(self._status_words().values()),
        )
        for place, texts in enumerate(self._longest):
            mode = QHeaderView.ResizeMode.Fixed if texts else QHeaderView.ResizeMode.Stretch
            header.setSectionResizeMode(place, mode)
        self._fit_columns()
        for place in _RIGHT:
            if (item := self._table.horizontalHeaderItem(place)) is not None:
                item.setTextAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self._empty = EmptyState(
            "server",
            self.tr("No requests yet"),
            self.tr(
                "What programs ask of your models is listed here: when, how many tokens, how long, and where."
            ),
        )
        self._stack = QStackedLayout(self)
        self._stack.setContentsMargins(0, 0, 0, 0)
        self._stack.addWidget(self._empty)
        self._stack.addWidget(self._table)
        current_look().changed.connect(self._fill)
        current_look().changed.connect(self._fit_columns)

    def _fit_columns(self) -> None:
        """As wide as what may stand there, in the font of this system."""
        words, titles = (
            QFontMetrics(current_look().font()),
            QFontMetrics(current_look().font(CAPTION_PX, strong=True)),
        )
        for place, texts in enumerate(self._longest):
            if texts and (title := self._table.horizontalHeaderItem(place)) is not None:
                widths = [titles.horizontalAdvance(title.text()), *map(words.horizontalAdvance, texts)]
                self._table.setColumnWidth(place, max(widths) + 2 * _AIR)

    def cells(self) -> list[list[str]]:
        return [
            [_text(self._table.item(line, place)) for place in range(self._table.columnCount())]
            for line in range(self._table.rowCount())
        ]

    def feed(self) -> AsyncGenerator[Event, None]:
        return self._context.client.requests()

    def hear(self, event: Event) -> None:
        kind, data = event
        if kind == "all":
            self._list.begin(data["requests"])
        else:
            self._list.add(data["requests"])
        self._fill()

    def _fill(self) -> None:
        rows = self._list.rows()
        self._stack.setCurrentIndex(1 if rows else 0)
        self._table.setRowCount(len(rows))
        for line, shown in enumerate(rows):
            self._fill_line(line, shown)

    def _fill_line(self, line: int, shown: Row) -> None:
        place, hue = self._place(shown)
        texts = (
            shown.clock,
            shown.what,
            shown.model or "–",
            shown.prompt,
            shown.answer,
            shown.took,
            place,
            self._status(shown),
        )
        hues = {6: hue, 7: shown.tone or "text_soft", 0: "text_faint"}
        for column_, text in enumerate(texts):
            item = QTableWidgetItem(text)
            item.setToolTip(text if column_ in (1, 2) else "")
            item.setForeground(current_look().colour(hues.get(column_, "text")))
            if column_ in _RIGHT:
                item.setTextAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
            self._table.setItem(line, column_, item)

    def _place(self, shown: Row) -> tuple[str, str]:
        """Where its prompt was prefilled, and in what colour that is said."""
        peer = self._context.peer
        elsewhere = peer["name"] if peer else self.tr("the other computer")
        if shown.place == "cached":
            return self.tr("was cached"), "text_soft"
        if not shown.place:
            return "", "text_soft"
        # Remote is what is not where it was answered: for an answer of the other computer, here.
        is_here = (shown.place == "remote") is bool(shown.computer)
        if is_here:
            return self.tr("on {}").format(self._context.computer), "local"
        return self.tr("on {}").format(shown.computer or elsewhere), "peer"

    def _status_words(self) -> dict[str, str]:
        """By stage, or by the status of what failed."""
        return {
            "running": self.tr("answering"),
            "left": self.tr("broken off"),
            "done": self.tr("done"),
            "failed": self.tr("failed"),
            str(NOT_READY): self.tr("not ready yet"),
            str(NO_KEY): self.tr("wrong key"),
        }

    def _status(self, shown: Row) -> str:
        words = self._status_words()
        if shown.stage != "failed" or not shown.status:
            return words.get(shown.stage, words["done"])
        return words.get(shown.status) or self.tr("failed, {}").format(shown.status)


def _text(item: QTableWidgetItem | None) -> str:
    return "" if item is None else item.text()
