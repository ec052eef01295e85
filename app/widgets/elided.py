"""A label of one line that gives way to its neighbours: what does not fit is left out, and stands in its tooltip."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QSizePolicy

from app.widgets.basics import Text

_LEAST = 48


class ElidedText(Text):
    """`full_text` is what it says; `mode` where it is cut."""

    def __init__(
        self,
        text: str = "",
        *,
        size: str = "",
        tone: str = "",
        strong: bool = False,
        mono: bool = False,
        mode: Qt.TextElideMode = Qt.TextElideMode.ElideRight,
    ) -> None:
        super().__init__(size=size, tone=tone, strong=strong, mono=mono)
        self._full, self._mode = "", mode
        self.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)
        self.say(text)

    @property
    def full_text(self) -> str:
        return self._full

    def say(self, text: str) -> None:
        self._full = text
        self.setAccessibleName(text)
        self._cut()
        self.updateGeometry()

    def sizeHint(self) -> QSize:
        self.ensurePolished()
        width = self.fontMetrics().horizontalAdvance(self._full) + 2
        return QSize(width, self.fontMetrics().height())

    def minimumSizeHint(self) -> QSize:
        return QSize(min(_LEAST, self.sizeHint().width()), self.fontMetrics().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._cut()

    def _cut(self) -> None:
        self.ensurePolished()
        shown = self.fontMetrics().elidedText(self._full, self._mode, max(self.width(), 0))
        is_cut = self.width() > 0 and shown != self._full
        self.setText(shown if is_cut else self._full)
        self.setToolTip(self._full if is_cut else "")
