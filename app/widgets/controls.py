"""Controls that Qt has not: a switch, a choice of few, and a field to search in."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QAction, QFontMetrics, QIcon, QKeyEvent, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QAbstractButton, QButtonGroup, QFrame, QLineEdit, QMenu, QWidget

from app.look.look import current_look
from app.look.measures import MEDIUM, TINY
from app.widgets.basics import Button, is_enter, row


class Switch(QAbstractButton):
    """On or off, at once, by Space and Enter too. `toggled` is the button's own signal; `name` is read aloud."""

    def __init__(self, name: str, *, on: bool = False) -> None:
        super().__init__()
        self.setCheckable(True)
        self.setChecked(on)
        self.setAccessibleName(name)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setFixedSize(self.sizeHint())

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if is_enter(event) and not event.isAutoRepeat():
            self.click()
        else:
            super().keyPressEvent(event)

    def sizeHint(self) -> QSize:
        return QSize(38, 22)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        look = current_look()
        # on half pixels, where a line of one pixel is not spread over two
        track = QRectF(2.5, 3.5, 33, 15)
        pen = painter.pen()
        pen.setColor(look.colour("local" if self.hasFocus() or self.isChecked() else "border_input"))
        pen.setWidthF(2.0 if self.hasFocus() else 1.0)
        painter.setPen(pen if self.isEnabled() else Qt.PenStyle.NoPen)
        on = "local" if self.isEnabled() else "border_strong"
        painter.setBrush(look.colour(on if self.isChecked() else "hover"))
        painter.drawRoundedRect(track, 7.5, 7.5)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(look.colour("on_local" if self.isChecked() else "text_faint"))
        painter.drawEllipse(QRectF(22 if self.isChecked() else 5, 5.5, 11, 11))


class Menu(QMenu):
    """A menu with round corners, which the style by itself would paint on a square."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setProperty("kind", "floating")
        self.setWindowFlag(Qt.WindowType.FramelessWindowHint)
        self.setWindowFlag(Qt.WindowType.NoDropShadowWindowHint)
        self.setAttribute(Qt.WidgetAttribute.WA_TranslucentBackground)


def tick(action: QAction, *, is_chosen: bool) -> None:
    """Show in a menu whether it is the chosen one, and say so to a screen reader."""
    action.setCheckable(True)
    action.setChecked(is_chosen)
    action.setIcon(current_look().icon("check", "local") if is_chosen else QIcon())


class ChoosableRow(QFrame):
    """A row of a list: `chosen` is sent when it is clicked, or taken by Enter or Space; `left` at an arrow key, with
    1 down and -1 up."""

    chosen = Signal()
    left = Signal(int)

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "row")
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if event.button() is Qt.MouseButton.LeftButton and self.rect().contains(event.position().toPoint()):
            self.chosen.emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        match event.key():
            case Qt.Key.Key_Return | Qt.Key.Key_Enter | Qt.Key.Key_Space:
                self.chosen.emit()
            case Qt.Key.Key_Down:
                self.left.emit(1)
            case Qt.Key.Key_Up:
                self.left.emit(-1)
            case _:
                super().keyPressEvent(event)


class Segments(QFrame):
    """One of a few, side by side. `chosen` tells the value by the user's hand only."""

    chosen = Signal(object)

    def __init__(self, choices: Sequence[tuple[object, str]], *, name: str) -> None:
        super().__init__()
        self.setProperty("kind", "sunken")
        self.setAccessibleName(name)
        self._group = QButtonGroup(self)
        self._values = [value for value, _ in choices]
        self.buttons: list[Button] = []
        for index, (_, text) in enumerate(choices):
            button = Button(text, kind="segment")
            button.setCheckable(True)
            # read aloud as one of several; what it does is the group's
            button.setAutoExclusive(True)
            button.setAccessibleName(f"{name}: {text}")
            # The chosen one is bold, and nothing moves when another one is.
            bold = QFontMetrics(current_look().font(strong=True))
            button.setMinimumWidth(bold.horizontalAdvance(text) + 2 * MEDIUM + TINY)
            self._group.addButton(button, index)
            self.buttons.append(button)
        self.setLayout(row(*self.buttons, margin=2, spacing=2))
        self._group.idClicked.connect(lambda index: self.chosen.emit(self._values[index]))

    @property
    def value(self) -> object:
        index = self._group.checkedId()
        return self._values[index] if index >= 0 else None

    def show_value(self, value: object) -> None:
        if value in self._values:
            self.buttons[self._values.index(value)].setChecked(True)
        # Tab comes to the one that is chosen, and arrow keys go on from there
        for button in self.buttons:
            is_stop = button.isChecked()
            button.setFocusPolicy(Qt.FocusPolicy.StrongFocus if is_stop else Qt.FocusPolicy.ClickFocus)


class SearchField(QLineEdit):
    """With a glass before what is typed, and a cross behind it that takes it away."""

    def __init__(self, hint: str, *, name: str) -> None:
        super().__init__()
        self.setPlaceholderText(hint)
        self.setAccessibleName(name)
        look = current_look()
        self._glass = self.addAction(look.icon("search"), QLineEdit.ActionPosition.LeadingPosition)
        self._glass.setEnabled(False)
        self._cross = self.addAction(look.icon("close"), QLineEdit.ActionPosition.TrailingPosition)
        self._cross.setToolTip(self.tr("Clear"))
        self._cross.triggered.connect(lambda _=False: self.clear())
        self._cross.setVisible(False)
        self.textChanged.connect(lambda text: self._cross.setVisible(bool(text)))
        look.changed.connect(self._draw)
        self._draw()

    def _draw(self) -> None:
        look = current_look()
        # it cannot be clicked, and is no fainter for that
        glass = QIcon(look.pixmap("search", "text_faint"))
        glass.addPixmap(look.pixmap("search", "text_faint"), QIcon.Mode.Disabled)
        self._glass.setIcon(glass)
        self._cross.setIcon(look.icon("close"))
