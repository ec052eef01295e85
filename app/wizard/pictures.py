"""The drawings of the first run: the computers as far as they have come together, and macOS's question."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.look.look import Look, current_look
from app.look.measures import BODY_PX, CAPTION_PX, RADIUS_CARD

_HEIGHT = 128
_WIDTH = 560
_SCREEN = QSize(92, 60)
_FAR_APART = 296


class ComputersPicture(QWidget):
    """This computer, and beside it the other one: not there yet, looked for, found, or paired and joined by a cable.

    `captions` stand under the names, `cable` over the line between the two.
    """

    def __init__(self) -> None:
        super().__init__()
        self._here, self._there = "", ""
        self._state = "alone"
        self._captions = ("", "")
        self._cable = ""
        look = current_look()
        self.setFixedHeight(_SCREEN.height() + 24 + look.px(_HEIGHT - _SCREEN.height() - 24))
        self.setMinimumWidth(look.px(_WIDTH))
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        look.changed.connect(self.update)

    def show_computers(
        self,
        here: str,
        there: str = "",
        *,
        state: str = "alone",
        captions: tuple[str, str] = ("", ""),
        cable: str = "",
    ) -> None:
        """`state` is alone, sought, found, locked or joined."""
        self._here, self._there, self._state = here, there, state
        self._captions, self._cable = captions, cable
        self.setAccessibleName(" ".join(filter(None, (here, cable, there))))
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        look = current_look()
        middle = self.width() / 2
        if self._state == "alone":
            self._draw_computer(painter, look, middle, self._here, self._captions[0], "local")
            return
        apart = look.px(_FAR_APART)
        left, right = middle - apart / 2, middle + apart / 2
        self._draw_cable(painter, look, left, right)
        self._draw_computer(painter, look, left, self._here, self._captions[0], "local")
        self._draw_computer(
            painter, look, right, self._there, self._captions[1], "peer", is_there=self._state != "sought"
        )

    def _draw_computer(
        self,
        painter: QPainter,
        look: Look,
        x: float,
        name: str,
        caption: str,
        hue: str,
        *,
        is_there: bool = True,
    ) -> None:
        screen = QRectF(x - _SCREEN.width() / 2, 8, _SCREEN.width(), _SCREEN.height())
        pen = QPen(look.colour(hue if is_there else "border_strong"), 2)
        if not is_there:
            pen.setDashPattern([3, 3])
        painter.setPen(pen)
        painter.setBrush(look.colour(f"{hue}_soft") if is_there else Qt.BrushStyle.NoBrush)
        painter.drawRoundedRect(screen, RADIUS_CARD, RADIUS_CARD)
        painter.drawLine(QPointF(x, screen.bottom()), QPointF(x, screen.bottom() + 8))
        painter.drawLine(QPointF(x - 18, screen.bottom() + 9), QPointF(x + 18, screen.bottom() + 9))
        icon = look.pixmap("baton" if is_there else "search", hue if is_there else "text_faint", 24)
        painter.drawPixmap(QPointF(x - 12, screen.center().y() - 12), icon)
        self._write(painter, look, x, 84, name, BODY_PX, "text", strong=True)
        self._write(painter, look, x, 84 + look.px(22), caption, CAPTION_PX, hue if is_there else "text_soft")

    def _draw_cable(self, painter: QPainter, look: Look, left: float, right: float) -> None:
        y = 8 + _SCREEN.height() / 2
        begin, end = left + _SCREEN.width() / 2 + 8, right - _SCREEN.width() / 2 - 8
        pen = QPen(look.colour("border_strong"), 2)
        if self._state in ("sought", "found"):
            pen.setDashPattern([3, 4])
        painter.setPen(pen)
        painter.drawLine(QPointF(begin, y), QPointF(end, y))
        middle = (begin + end) / 2
        if self._state == "locked":
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(look.colour("ground"))
            painter.drawEllipse(QPointF(middle, y), 18, 18)
            painter.drawPixmap(QPointF(middle - 12, y - 12), look.pixmap("lock", "local", 24))
        self._write(painter, look, middle, y - 6 - look.px(20), self._cable, CAPTION_PX, "text_soft")

    def _write(
        self,
        painter: QPainter,
        look: Look,
        x: float,
        y: float,
        text: str,
        px: int,
        colour: str,
        *,
        strong: bool = False,
    ) -> None:
        painter.setFont(look.font(px, strong=strong))
        painter.setPen(look.colour(colour))
        room = look.px(220)
        short = painter.fontMetrics().elidedText(text, Qt.TextElideMode.ElideRight, room)
        painter.drawText(QRectF(x - room / 2, y, room, look.px(px + 8)), Qt.AlignmentFlag.AlignCenter, short)


class SystemQuestionPicture(QWidget):
    """macOS's dialog as it is going to look, with the button that is meant."""

    def __init__(self) -> None:
        super().__init__()
        self.setFixedSize(300, 196)
        self.setAccessibleName(self.tr("macOS asks whether Baton may find devices on your local network"))
        current_look().changed.connect(self.update)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        look = current_look()
        frame = QRectF(self.rect()).adjusted(1, 1, -1, -1)
        painter.setPen(QPen(look.colour("border_strong"), 1))
        painter.setBrush(look.colour("surface"))
        painter.drawRoundedRect(frame, 14, 14)
        self._draw_icon(painter, look, frame.center().x())
        painter.setFont(look.font(CAPTION_PX + 1, strong=True))
        painter.setPen(look.colour("text"))
        words = self.tr("“Baton” would like to find devices on your local network.")
        centred = Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap
        painter.drawText(QRectF(28, 68, frame.width() - 56, 40), centred, words)
        painter.setFont(look.font(CAPTION_PX))
        painter.setPen(look.colour("text_soft"))
        painter.drawText(
            QRectF(28, 108, frame.width() - 56, 24), centred, self.tr("It looks for your other computer.")
        )
        no, yes = QRectF(20, 148, 124, 30), QRectF(156, 148, 124, 30)
        self._draw_button(painter, look, no, self.tr("Don’t Allow"), look.colour("hover"), "text")
        self._draw_button(painter, look, yes, self.tr("Allow"), look.colour("local"), "on_local")

    def _draw_icon(self, painter: QPainter, look: Look, x: float) -> None:
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(look.colour("local_soft"))
        painter.drawRoundedRect(QRectF(x - 20, 20, 40, 40), 10, 10)
        painter.drawPixmap(QPointF(x - 12, 28), look.pixmap("baton", "local", 24))

    def _draw_button(
        self, painter: QPainter, look: Look, place: QRectF, word: str, ground: QColor, colour: str
    ) -> None:
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(ground)
        painter.drawRoundedRect(place, 7, 7)
        painter.setFont(look.font(CAPTION_PX + 1))
        painter.setPen(look.colour(colour))
        painter.drawText(place, Qt.AlignmentFlag.AlignCenter, word)
