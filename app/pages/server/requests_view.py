"""What programs asked the endpoint lately, the newest first, as it happens."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QStackedLayout,
    QTableWidget,
    QTableWidgetItem,
)

from app.context import Context
from app.look.look import current_look
from app.pages.server.following import Event, Following
from app.pages.server.requests import NO_KEY, NOT_READY, RequestList, Row
from app.widgets.feedback import EmptyState

_WIDTHS = (88, 0, 0, 144, 72, 80, 120, 116)
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
        for place, width in enumerate(_WIDTHS):
            if width:
                header.setSectionResizeMode(place, QHeaderView.ResizeMode.Fixed)
                self._table.setColumnWidth(place, current_look().px(width))
            else:
                header.setSectionResizeMode(place, QHeaderView.ResizeMode.Stretch)
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

    def _status(self, shown: Row) -> str:
        match shown.stage:
            case "running":
                return self.tr("answering")
            case "left":
                return self.tr("broken off")
            case "failed" if shown.status == str(NOT_READY):
                return self.tr("not ready yet")
            case "failed" if shown.status == str(NO_KEY):
                return self.tr("no valid key")
            case "failed":
                return self.tr("failed, {}").format(shown.status) if shown.status else self.tr("failed")
        return self.tr("done")


def _text(item: QTableWidgetItem | None) -> str:
    return "" if item is None else item.text()
