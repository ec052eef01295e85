"""The two computers and the cable between them: who does what, what the cable is, and what flows in it just now."""

from __future__ import annotations

from PySide6.QtCore import QElapsedTimer, QEvent, QPointF, QRectF, QSize, Qt, QTimer
from PySide6.QtGui import QHideEvent, QPainter, QPaintEvent, QPen, QShowEvent
from PySide6.QtWidgets import QSizePolicy, QVBoxLayout, QWidget

from app.look.look import current_look
from app.look.measures import SMALL, TINY
from app.pages.cluster.story import Cable, Computer
from app.telemetry.figures import DASH
from app.widgets.basics import Card, Icon, Line, Text, column, row, set_property
from app.widgets.feedback import Dot, Meter, Tag

_FRAME_MS = 16

# A dot takes so long from one end to the other.
_CROSSING_MS = 1100
_N_DOTS = 3

# What is said above the cable stands so far below the cards' top, and the cable so far below that.
_ABOVE = 48
_CABLE_BELOW = 20


class ComputerCard(Card):
    """One of the two."""

    def __init__(self, hue: str) -> None:
        super().__init__(spacing=TINY)
        self._hue = hue
        self._name = _Line(size="title")
        self._role = Tag("", hue)
        self._whose = Text(
            self.tr("this computer") if hue == "local" else self.tr("the other computer"),
            size="caption",
            tone="faint",
        )
        self._device = _Line(tone="soft")
        self._meter = Meter(4)
        self._memory = Text(size="caption", tone="soft")
        self._model = _Line(strong=True)
        self._same = Text(size="caption", tone="local")
        self._dot = Dot()
        self._state = Text(size="caption", tone="soft", wrap=True)
        head = row(Icon("computer", hue), self._name, self._role, spacing=SMALL)
        head.setStretch(1, 1)
        state = row(self._dot, self._state, spacing=SMALL)
        state.setStretch(1, 1)
        self.column.addLayout(
            column(
                *(head, self._whose, SMALL),
                *(self._device, self._meter, self._memory, SMALL),
                *(self._model, self._same, None),
                *(Line(), state),
                spacing=TINY,
            )
        )
        self.setMinimumHeight(216)

    def show_computer(self, computer: Computer) -> None:
        self._name.setText(computer.name)
        self._role.setVisible(bool(computer.role))
        self._role.say(computer.role, self._hue)
        self._device.setText(computer.device)
        self._meter.setVisible(computer.used is not None)
        self._meter.show_shares((computer.used or 0.0, self._hue))
        self._memory.setText(computer.memory)
        self._model.setText(computer.model or (DASH if computer.is_away else self.tr("No model loaded")))
        set_property(self._model, "tone", "" if computer.model else "faint")
        self._same.setText(self.tr("✓ same model") if computer.is_same_model else "")
        self._dot.show_tone(computer.tone or "text_faint", filled=bool(computer.tone))
        self._state.setText(computer.state)
        said = (
            computer.name,
            computer.role,
            computer.device,
            computer.memory,
            computer.model,
            computer.state,
        )
        self.setAccessibleName(", ".join(filter(None, said)))


class ClusterPicture(QWidget):
    """Cards at both ends; between them the cable, in which dots run while KV does. `to_here` is which way."""

    def __init__(self) -> None:
        super().__init__()
        self.here, self.peer = ComputerCard("local"), ComputerCard("peer")
        for card in (self.here, self.peer):
            card.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Preferred)
        self._about = Text(size="caption", tone="soft", wrap=True)
        self._carries = Text(size="caption", tone="soft", wrap=True)
        self._well = Tag("", "local")
        self._odd = Tag("", "warning")
        for text in (self._about, self._carries):
            text.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        between = QVBoxLayout()
        between.setContentsMargins(SMALL, 0, SMALL, 0)
        between.setSpacing(SMALL)
        between.addSpacing(_ABOVE)
        between.addWidget(self._about)
        between.addSpacing(2 * _CABLE_BELOW - 2 * SMALL)
        between.addWidget(self._carries)
        between.addLayout(row(None, self._well, self._odd, None, spacing=SMALL))
        between.addStretch(1)
        layout = row(self.here, spacing=0)
        layout.addLayout(between, 1)
        layout.addWidget(self.peer)
        self.setLayout(layout)
        self._cable = Cable(is_up=False)
        self._is_flowing, self._to_here = False, True
        self._hue = "peer"
        self._clock = QElapsedTimer()
        self._timer = QTimer(self, interval=_FRAME_MS)
        self._timer.timeout.connect(self._move)
        current_look().changed.connect(self.update)

    def show_cable(self, cable: Cable, carries: str) -> None:
        """`carries` is the line below it: its ceiling, and what flows now."""
        self._cable = cable
        self._about.setText(
            cable.about or (self.tr("not measured yet") if cable.is_up else self.tr("no link"))
        )
        self._carries.setText(carries)
        self._say()
        self.update()

    def show_checks(self, n_well: int, n_odd: int) -> None:
        """How many of the doctor's checks went well, and how many did not."""
        self._well.setVisible(n_well > 0)
        self._well.say(
            self.tr("✓ {} checks").format(n_well) if n_well != 1 else self.tr("✓ 1 check"), "local"
        )
        self._odd.setVisible(n_odd > 0)
        self._odd.say(self.tr("⚠ {}").format(n_odd), "warning")

    def show_flow(self, is_flowing: bool, *, to_here: bool) -> None:
        """Whether KV is on its way, and to whom; its hue is that of who sends it."""
        self._is_flowing, self._to_here = is_flowing, to_here
        self._hue = "peer" if to_here else "local"
        self._rest_or_move()
        self._say()
        self.update()

    def _say(self) -> None:
        """What the cable shows, for those who do not see it."""
        flow = ""
        if self._is_flowing:
            flow = self.tr("KV is on its way to {}").format(
                self.tr("this computer") if self._to_here else self.tr("the other computer")
            )
        self.setAccessibleName(self.tr("The cable"))
        words = (self._about.text(), self._carries.text(), flow)
        self.setAccessibleDescription(", ".join(filter(None, words)))

    @property
    def _cable_y(self) -> float:
        """The middle between what is said above it and below."""
        return (self._about.geometry().bottom() + self._carries.geometry().top()) / 2

    def _rest_or_move(self) -> None:
        """Nothing moves without cause, unseen, or where the system asks for less."""
        moves = self._is_flowing and self.isVisible() and current_look().motion_ms > 0
        if moves and not self._timer.isActive():
            self._clock.start()
            self._timer.start()
        elif not moves:
            self._timer.stop()

    def _move(self) -> None:
        left, right = self.here.geometry().right(), self.peer.geometry().left()
        self.update(left, round(self._cable_y) - 12, right - left, 24)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._rest_or_move()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._timer.stop()

    def resizeEvent(self, event: QEvent) -> None:
        look = current_look()
        width = max(look.px(220), min(look.px(300), round(self.width() * 0.34)))
        for card in (self.here, self.peer):
            card.setFixedWidth(width)

    def sizeHint(self) -> QSize:
        return QSize(760, 224)

    def paintEvent(self, event: QPaintEvent) -> None:
        look = current_look()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        left, right = self.here.geometry().right() + 1.0, self.peer.geometry().left() - 0.0
        y = self._cable_y
        if not self._cable.is_up:
            self._paint_broken(painter, left, right, y)
            return
        painter.setPen(QPen(look.colour("border_strong"), 8, Qt.PenStyle.SolidLine, Qt.PenCapStyle.FlatCap))
        painter.drawLine(QPointF(left, y), QPointF(right, y))
        painter.setPen(QPen(look.colour("surface"), 5, Qt.PenStyle.SolidLine, Qt.PenCapStyle.FlatCap))
        painter.drawLine(QPointF(left, y), QPointF(right, y))
        self._paint_plugs(painter, left, right, y)
        if self._is_flowing:
            painter.setPen(
                QPen(look.colour(f"{self._hue}_soft"), 5, Qt.PenStyle.SolidLine, Qt.PenCapStyle.FlatCap)
            )
            painter.drawLine(QPointF(left + 10, y), QPointF(right - 10, y))
            self._paint_dots(painter, left + 14, right - 14, y)

    def _paint_dots(self, painter: QPainter, left: float, right: float, y: float) -> None:
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(current_look().colour(self._hue))
        passed = (self._clock.elapsed() / _CROSSING_MS) if self._timer.isActive() else 0.5 / _N_DOTS
        for number in range(_N_DOTS):
            share = (passed + number / _N_DOTS) % 1.0
            share = 1 - share if self._to_here else share
            painter.drawEllipse(QPointF(left + share * (right - left), y), 4.5, 4.5)

    def _paint_plugs(self, painter: QPainter, left: float, right: float, y: float) -> None:
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(current_look().colour("border_strong"))
        painter.drawRoundedRect(QRectF(left, y - 7, 10, 14), 3, 3)
        painter.drawRoundedRect(QRectF(right - 10, y - 7, 10, 14), 3, 3)

    def _paint_broken(self, painter: QPainter, left: float, right: float, y: float) -> None:
        """Two loose ends."""
        pen = QPen(current_look().colour("warning"), 2, Qt.PenStyle.DashLine)
        painter.setPen(pen)
        middle = (left + right) / 2
        painter.drawLine(QPointF(left + 12, y), QPointF(middle - 12, y))
        painter.drawLine(QPointF(middle + 12, y), QPointF(right - 12, y))
        self._paint_plugs(painter, left, right, y)
        painter.setPen(QPen(current_look().colour("warning"), 2))
        for sign in (-1, 1):
            x = middle + sign * 9
            painter.drawLine(QPointF(x - sign * 3, y - 5), QPointF(x, y))
            painter.drawLine(QPointF(x - sign * 3, y + 5), QPointF(x, y))


class _Line(Text):
    """A text that is cut at the right where there is no room, and said whole in its tooltip."""

    def __init__(self, **more: bool | str) -> None:
        super().__init__(**more)  # type: ignore[arg-type]
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self._whole = ""

    def setText(self, text: str) -> None:
        self._whole = text
        self.setToolTip(text)
        self.setAccessibleName(text)
        self._cut()

    def resizeEvent(self, event: QEvent) -> None:
        self._cut()

    def _cut(self) -> None:
        super().setText(
            self.fontMetrics().elidedText(self._whole, Qt.TextElideMode.ElideMiddle, self.width())
        )
