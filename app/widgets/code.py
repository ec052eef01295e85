"""A pairing code: shown large with its time running out, and typed."""

from __future__ import annotations

from PySide6.QtCore import QRectF, Qt, QTimer, Signal
from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QApplication, QLineEdit, QWidget

from app.look.look import current_look
from app.look.measures import CAPTION_PX, LARGE, MEDIUM
from app.widgets.basics import Button, Text, row, set_property
from app.widgets.feedback import announce

_CODE_PX = 46
_FIELD_PX = 28
_DIGITS = 8


class CodeView(QWidget):
    """A code in two groups, and a thin ring of the time that it is still good; `expired` when there is none left."""

    expired = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._code = Text(selectable=True)
        self._ring = _Ring()
        self._ring.over.connect(self.expired)
        self._copy = copy = Button(kind="icon", icon="copy", name=self.tr("Copy the code"))
        copy.clicked.connect(lambda _=False: QApplication.clipboard().setText(self._code.text()))
        self.setLayout(row(None, 44, self._code, copy, self._ring, None, spacing=LARGE))
        self.layout().setContentsMargins(0, MEDIUM, 0, MEDIUM)  # type: ignore[union-attr]
        self.setMinimumHeight(_CODE_PX + 2 * MEDIUM + LARGE)
        current_look().changed.connect(self._dress)
        self._dress()
        self.clear()

    @property
    def code(self) -> str:
        return self._code.text()

    def clear(self) -> None:
        """None is good now."""
        self._ring.stop()
        self._code.clear()
        self._copy.hide()
        self._ring.hide()

    def show_code(self, code: str, left_s: float, of_s: float) -> None:
        self._code.setText(code)
        self._code.setAccessibleName(self.tr("Code: {}").format(" ".join(code)))
        announce(self, self._code.accessibleName())
        self._copy.show()
        self._ring.show()
        self._ring.count_down(left_s, of_s)

    def _dress(self) -> None:
        look = current_look()
        self._code.setStyleSheet(
            f'font-family: "{look.mono_name}"; font-size: {_CODE_PX}px; font-weight: 600; color: {look.palette.text};'
        )


class _Ring(QWidget):
    """What is left of a time, as an arc with the minutes and seconds in it."""

    over = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._left_s, self._of_s = 0.0, 1.0
        self._clock = QTimer(self, interval=1000)
        self._clock.timeout.connect(self._tick)
        self.setFixedSize(52, 52)
        current_look().changed.connect(self.update)

    def count_down(self, left_s: float, of_s: float) -> None:
        self._left_s, self._of_s = left_s, max(of_s, left_s, 1.0)
        self._clock.start()
        self._say()

    def stop(self) -> None:
        self._clock.stop()

    def _tick(self) -> None:
        self._left_s = max(0.0, self._left_s - 1)
        self._say()
        if not self._left_s:
            self._clock.stop()
            self.over.emit()

    def _say(self) -> None:
        self.setAccessibleName(self.tr("{} left").format(self._text))
        self.update()

    @property
    def _text(self) -> str:
        return f"{int(self._left_s) // 60}:{int(self._left_s) % 60:02d}"

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        look = current_look()
        place = QRectF(self.rect()).adjusted(3, 3, -3, -3)
        painter.setPen(QPen(look.colour("border"), 2.5))
        painter.drawEllipse(place)
        hue = "local" if self._left_s > 30 else "warning"
        pen = QPen(look.colour(hue), 2.5)
        pen.setCapStyle(Qt.PenCapStyle.RoundCap)
        painter.setPen(pen)
        painter.drawArc(place, 90 * 16, round(360 * 16 * self._left_s / self._of_s))
        painter.setFont(look.font(CAPTION_PX))
        painter.setPen(look.colour("text_soft"))
        painter.drawText(place, Qt.AlignmentFlag.AlignCenter, self._text)


class CodeField(QLineEdit):
    """Where a code is typed; it is grouped as it comes, and `completed` once it has all its digits."""

    completed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setAccessibleName(self.tr("Code that the other computer shows"))
        self.setPlaceholderText("0000-0000")
        self.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        self.setFixedSize(264, 60)
        self.textEdited.connect(self._group)
        current_look().changed.connect(self._dress)
        self._dress()

    @property
    def code(self) -> str:
        return self.text()

    @property
    def is_complete(self) -> bool:
        return len(_digits(self.text())) == _DIGITS

    def show_wrong(self, is_wrong: bool) -> None:
        set_property(self, "state", "wrong" if is_wrong else "")

    def _group(self, text: str) -> None:
        self.show_wrong(False)
        digits = _digits(text)[:_DIGITS]
        half = _DIGITS // 2
        n_before = min(len(_digits(text[: self.cursorPosition()])), len(digits))
        self.setText(digits if len(digits) <= half else f"{digits[:half]}-{digits[half:]}")
        # where the user was typing, behind the same digits
        self.setCursorPosition(n_before + (n_before > half))
        if self.is_complete:
            self.completed.emit()

    def _dress(self) -> None:
        look = current_look()
        self.setStyleSheet(f'font-family: "{look.mono_name}"; font-size: {_FIELD_PX}px; font-weight: 600;')


def _digits(text: str) -> str:
    return "".join(letter for letter in text if letter.isascii() and letter.isdigit())
