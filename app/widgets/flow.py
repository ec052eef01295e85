"""Parts side by side, and in further lines where one has no room for all."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QRect, QSize
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.look.measures import SMALL


class Flow(QWidget):
    """As high as its lines; a part that is wider than a line gets a line of its own, and no more than that."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[QWidget] = []
        policy = QSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Minimum)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)

    def show_parts(self, parts: Sequence[QWidget]) -> None:
        """In place of those that were there, which are ended."""
        for part in self._parts:
            part.hide()
            part.deleteLater()
        self._parts = list(parts)
        for part in self._parts:
            part.setParent(self)
            part.show()
            part.ensurePolished()
        self._place()
        self.updateGeometry()

    def sizeHint(self) -> QSize:
        hints = [part.sizeHint() for part in self._parts]
        return QSize(
            sum(hint.width() + SMALL for hint in hints), max((hint.height() for hint in hints), default=0)
        )

    def minimumSizeHint(self) -> QSize:
        return QSize(0, self.sizeHint().height())

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        return max((place.bottom() + 1 for place in self._places(width)), default=0)

    def event(self, event: QEvent) -> bool:
        # a part has become larger or smaller
        if event.type() is QEvent.Type.LayoutRequest:
            self._place()
            self.updateGeometry()
        return super().event(event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place()

    def _place(self) -> None:
        for part, place in zip(self._parts, self._places(self.width()), strict=True):
            part.setGeometry(place)

    def _places(self, width: int) -> list[QRect]:
        places: list[QRect] = []
        left = top = line = 0
        for part in self._parts:
            hint = part.sizeHint()
            if left and left + hint.width() > width:
                left, top, line = 0, top + line + SMALL, 0
            places.append(QRect(left, top, min(hint.width(), max(width, 1)), hint.height()))
            left += hint.width() + SMALL
            line = max(line, hint.height())
        return places
