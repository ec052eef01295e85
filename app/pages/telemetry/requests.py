"""The requests at the left, the newest first: how long the prompt was, where it was prefilled, how long it took."""

from __future__ import annotations

import time
from dataclasses import dataclass

from PySide6.QtCore import (
    QAbstractListModel,
    QModelIndex,
    QPersistentModelIndex,
    QRect,
    QSize,
    Qt,
    Signal,
)
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QListView, QStyle, QStyledItemDelegate, QStyleOptionViewItem

from app.look.look import current_look
from app.look.measures import BODY_PX, CAPTION_PX, MEDIUM, RADIUS_CONTROL
from app.telemetry import figures
from app.telemetry.ledger import Record
from app.words import translate

_ROW_HEIGHT = 60
_ENTRY = Qt.ItemDataRole.UserRole


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the list. `hue` is that of who prefilled, `doing_hue` of who is at work now; `share` of the prompt is
    there, 1 from its end on."""

    model: str
    key: str
    title: str
    took: str
    where: str
    hue: str
    doing_hue: str
    at: str
    share: float
    is_over: bool
    is_failed: bool


def entry_of(model: str, key: str, record: Record) -> Entry:
    told, sides = record.told, record.sides
    is_failed = told["outcome"] == "failed"
    is_remote = record.is_remote
    if told["fallback"]:
        is_remote = any(chunk.remote for chunk in record.chunks.values())
    where = translate("RequestsList", "on {}").format(sides.worker if is_remote else sides.decoder)
    if told["fallback"] and is_remote:
        where = translate("RequestsList", "on {}, then {}").format(sides.worker, sides.decoder)
    if record.is_over and told["outcome"] in ("failed", "cancelled"):
        where = translate("RequestsList", "failed") if is_failed else translate("RequestsList", "cancelled")
    elif record.state == "queued":
        where = translate("RequestsList", "waits for a slot")
    n_prompt = told["n_prompt_tokens"]
    return Entry(
        model=model,
        key=key,
        title=translate("RequestsList", "{} tokens").format(figures.count(n_prompt)),
        took=figures.duration(told["ended_ms"]) if record.is_over and told["ended_ms"] else "",
        where=where,
        hue="danger" if is_failed else sides.worker_hue if is_remote else sides.decoder_hue,
        doing_hue=sides.worker_hue if record.state == "prefill_remote" else sides.decoder_hue,
        at=time.strftime("%H:%M:%S", time.localtime(record.asked_s)),
        share=told["n_prompt_tokens_processed"] / n_prompt
        if n_prompt and told["prefilled_ms"] is None
        else 1.0,
        is_over=record.is_over,
        is_failed=is_failed,
    )


class RequestsModel(QAbstractListModel):
    """Entries, changed in place where they are the same requests as before, so that the choice stays."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Entry] = []

    def rowCount(self, parent: QModelIndex | QPersistentModelIndex = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(self.entries)

    def data(
        self, index: QModelIndex | QPersistentModelIndex, role: int = Qt.ItemDataRole.DisplayRole
    ) -> object:
        entry = self.entries[index.row()]
        if role == _ENTRY:
            return entry
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.AccessibleTextRole):
            return f"{entry.title}, {entry.where}, {entry.at} {entry.took}".strip()
        return None

    def show_entries(self, entries: list[Entry]) -> None:
        """The newest first."""
        new = [entry.key for entry in entries]
        old = [entry.key for entry in self.entries]
        if new == old:
            for number, (entry, known) in enumerate(zip(entries, self.entries, strict=True)):
                if entry != known:
                    self.entries[number] = entry
                    self.dataChanged.emit(self.index(number), self.index(number))
        elif new[-len(old) :] == old and old:
            n_new = len(new) - len(old)
            self.beginInsertRows(QModelIndex(), 0, n_new - 1)
            self.entries = entries
            self.endInsertRows()
            self.dataChanged.emit(self.index(0), self.index(len(entries) - 1))
        else:
            self.beginResetModel()
            self.entries = entries
            self.endResetModel()

    def row_of(self, key: str) -> int:
        return next((number for number, entry in enumerate(self.entries) if entry.key == key), -1)


class RequestsList(QListView):
    """`chosen` tells model and key of a request that the user went to."""

    chosen = Signal(str, str)

    def __init__(self) -> None:
        super().__init__()
        self.setAccessibleName(self.tr("Requests"))
        self.setModel(RequestsModel())
        self.setItemDelegate(_Painter(self))
        self.setUniformItemSizes(True)
        self.setMouseTracking(True)
        self.setVerticalScrollMode(QListView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setSpacing(0)
        self._is_ours = False
        self.selectionModel().currentChanged.connect(self._on_current)

    @property
    def requests(self) -> RequestsModel:
        model = self.model()
        assert isinstance(model, RequestsModel)
        return model

    def show_entries(self, entries: list[Entry], chosen: str) -> None:
        """With the one whose key is `chosen` marked."""
        self._is_ours = True
        self.requests.show_entries(entries)
        row = self.requests.row_of(chosen)
        if row >= 0 and self.currentIndex().row() != row:
            self.setCurrentIndex(self.requests.index(row))
        self._is_ours = False

    def _on_current(self, index: QModelIndex) -> None:
        if not self._is_ours and index.isValid():
            entry = self.requests.entries[index.row()]
            self.chosen.emit(entry.model, entry.key)


class _Painter(QStyledItemDelegate):
    def sizeHint(self, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex) -> QSize:
        return QSize(160, current_look().px(_ROW_HEIGHT))

    def paint(
        self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> None:
        entry = index.data(_ENTRY)
        look = current_look()
        rect: QRect = option.rect.adjusted(8, 2, -8, -2)
        state = option.state
        is_chosen = bool(state & QStyle.StateFlag.State_Selected)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        if is_chosen or state & QStyle.StateFlag.State_MouseOver:
            painter.setBrush(look.colour("pressed" if is_chosen else "hover"))
            painter.drawRoundedRect(rect, RADIUS_CONTROL, RADIUS_CONTROL)
        if is_chosen and state & QStyle.StateFlag.State_HasFocus:
            painter.setPen(look.colour("local"))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(rect, RADIUS_CONTROL, RADIUS_CONTROL)
            painter.setPen(Qt.PenStyle.NoPen)
        inner = rect.adjusted(MEDIUM, 8, -MEDIUM, -8)
        line = look.px(20)
        upper = QRect(inner.left(), inner.top(), inner.width(), line)
        lower = QRect(inner.left(), inner.top() + line, inner.width(), line)
        left, right = Qt.AlignmentFlag.AlignLeft, Qt.AlignmentFlag.AlignRight
        middle = Qt.AlignmentFlag.AlignVCenter
        painter.setPen(look.colour("text"))
        painter.setFont(look.font(BODY_PX, strong=True))
        painter.drawText(upper, left | middle, entry.title)
        painter.setFont(look.font(CAPTION_PX))
        painter.setPen(look.colour("text_soft"))
        if entry.is_over:
            painter.drawText(upper, right | middle, entry.took)
        elif entry.share < 1:
            painter.setPen(look.colour(entry.doing_hue))
            painter.drawText(upper, right | middle, f"{entry.share:.0%}")
        else:
            painter.setPen(look.colour(entry.doing_hue))
            painter.drawText(upper, right | middle, translate("RequestsList", "decodes"))
        painter.setPen(look.colour("text_faint"))
        painter.drawText(lower, right | middle, entry.at)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(look.colour(entry.hue))
        painter.drawEllipse(lower.left(), lower.center().y() - 3, 7, 7)
        painter.setPen(look.colour("danger" if entry.is_failed else "text_soft"))
        words = lower.adjusted(14, 0, -look.px(64), 0)
        painter.drawText(
            words,
            left | middle,
            painter.fontMetrics().elidedText(entry.where, Qt.TextElideMode.ElideRight, words.width()),
        )
        painter.restore()
