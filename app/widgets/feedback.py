"""What tells the user something: banners, toasts, empty states, states in a word, and questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QEvent, QObject, QPoint, QPropertyAnimation, Qt, QTimer
from PySide6.QtGui import (
    QAccessible,
    QAccessibleAnnouncementEvent,
    QColor,
    QPainter,
    QPaintEvent,
    QPen,
    QShowEvent,
)
from PySide6.QtWidgets import (
    QApplication,
    QDialog,
    QFrame,
    QGraphicsOpacityEffect,
    QHBoxLayout,
    QLayout,
    QWidget,
)

from app.look.look import current_look
from app.look.measures import HUGE, LARGE, MEDIUM, RADIUS_CARD, SMALL
from app.widgets.basics import Button, Icon, Text, clear, column, row, set_property

# Long enough to read a sentence and to reach for its button.
TOAST_MS = 6000

# Two lines of a sentence are read at a glance in it.
DIALOG_WIDTH = 440

_MOVES = (QEvent.Type.Resize, QEvent.Type.Move, QEvent.Type.Show, QEvent.Type.Hide)

# A longer sentence takes more lines.
_TOAST_WIDTH = 560

_TONE_ICONS = {"local": "check", "peer": "info", "warning": "warning", "danger": "warning", "": "info"}


@dataclass(frozen=True, kw_only=True)
class Action:
    """A button that goes with a message."""

    text: str
    run: Callable[[], object]


class Banner(QFrame):
    """One line at the foot of the window that needs the user: what happened, and a button for it. Hidden when empty."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "card")
        self._icon = Icon("warning", "warning")
        self._text = Text(wrap=True, selectable=True)
        self._buttons = QHBoxLayout()
        self.setLayout(row(self._icon, self._text, self._buttons, margin=MEDIUM, spacing=MEDIUM))
        self.layout().setStretch(1, 1)  # type: ignore[union-attr]
        self.hide()

    def say(self, text: str, *actions: Action, tone: str = "warning") -> None:
        if text == self._text.text() and self.isVisible():
            return
        self._text.setText(text)
        self._icon.show_icon(_TONE_ICONS[tone], tone or "text_soft")
        set_property(self, "tone", tone)
        clear(self._buttons)
        for action in actions:
            self._buttons.addWidget(Button(action.text, action.run))
        self.setAccessibleName(text)
        self.show()
        announce(self, text)

    def silence(self) -> None:
        self._text.setText("")
        self.hide()

    @property
    def text(self) -> str:
        return self._text.text()


class Toast(QFrame):
    """A short word over a window's lower edge, which goes by itself; one at a time, and above what `spared` gives."""

    def __init__(self, window: QWidget, spared: Callable[[], Sequence[QWidget]] = tuple) -> None:
        super().__init__(window)
        self._window, self._spared = window, spared
        self.setProperty("kind", "card")
        self._text = Text(wrap=True)
        self._button = Button(kind="link")
        self._button.clicked.connect(self._act)
        self._action: Action | None = None
        self.setLayout(row(self._text, self._button, margin=MEDIUM, spacing=LARGE))
        self._timer = QTimer(self, singleShot=True, interval=TOAST_MS)
        self._timer.timeout.connect(self.hide)
        self._watched: set[QWidget] = set()
        self._watch(window)
        self.hide()

    def _watch(self, widget: QWidget) -> None:
        if widget not in self._watched:
            self._watched.add(widget)
            widget.installEventFilter(self)

    def say(self, text: str, action: Action | None = None) -> None:
        self._text.setText(text)
        self._action = action
        self._button.setVisible(action is not None)
        if action is not None:
            self._button.setText(action.text)
        self.show()
        self._place()
        self.raise_()
        self._timer.start()
        appear(self)
        announce(self, text)

    @property
    def text(self) -> str:
        return self._text.text()

    def _act(self) -> None:
        self.hide()
        if self._action is not None:
            self._action.run()

    def _place(self) -> None:
        window = self._window
        room = window.width() - 2 * HUGE - 2 * MEDIUM
        if self._action is not None:
            room -= self._button.sizeHint().width() + LARGE
        line = self._text.fontMetrics().horizontalAdvance(self._text.text()) + 2
        self._text.setFixedWidth(min(line, room, current_look().px(_TOAST_WIDTH)))
        self.adjustSize()
        lower = window.height() - HUGE
        for spared in self._spared():
            self._watch(spared)
            if spared.isVisible():
                lower = min(lower, spared.mapTo(window, QPoint(0, 0)).y() - MEDIUM)
        self.move(QPoint((window.width() - self.width()) // 2, lower - self.height()))

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() in _MOVES and self.isVisible():
            self._place()
        return super().eventFilter(watched, event)


class EmptyState(QWidget):
    """What a page says when there is nothing on it yet: a sentence of what would be here, and a button to get there."""

    def __init__(self, icon: str, title: str, sentence: str, *actions: Action) -> None:
        super().__init__()
        self._title = Text(title, size="title")
        self._sentence = Text(sentence, tone="soft", wrap=True)
        for text in (self._title, self._sentence):
            text.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        self._sentence.setMaximumWidth(current_look().px(420))
        self._sentence.setMinimumWidth(current_look().px(280))
        buttons = [
            Button(action.text, action.run, kind="" if index else "primary")
            for index, action in enumerate(actions)
        ]
        words = row(None, self._sentence, None)
        words.setStretch(1, 100)
        self.setLayout(
            column(
                None,
                row(None, Icon(icon, "text_faint", 40), None),
                self._title,
                words,
                row(None, *buttons, None),
                None,
                margin=HUGE,
                spacing=MEDIUM,
            )
        )

    def say(self, title: str, sentence: str) -> None:
        self._title.setText(title)
        self._sentence.setText(sentence)


class Dot(QWidget):
    """A small round state beside its word; never alone. A ring where `filled` is false."""

    def __init__(self, tone: str = "text_faint", *, filled: bool = True) -> None:
        super().__init__()
        self._tone, self._filled = tone, filled
        self.setFixedSize(10, 10)

    def show_tone(self, tone: str, *, filled: bool = True) -> None:
        self._tone, self._filled = tone, filled
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        colour = current_look().colour(self._tone)
        if self._filled:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(colour)
            painter.drawEllipse(1, 1, 8, 8)
        else:
            pen = painter.pen()
            pen.setColor(colour)
            pen.setWidthF(1.6)
            painter.setPen(pen)
            painter.drawEllipse(2, 2, 6, 6)


class Tag(QWidget):
    """A word on a tinted ground: "local", "prefilled on spark", "does not fit"."""

    def __init__(self, text: str, tone: str = "") -> None:
        super().__init__()
        self._tone = tone
        self._text = Text(text, size="caption", tone=tone or "soft")
        self.setLayout(row(self._text, margin=2, spacing=0))
        self.layout().setContentsMargins(SMALL, 2, SMALL, 2)  # type: ignore[union-attr]

    def say(self, text: str, tone: str = "") -> None:
        self._tone = tone
        self._text.setText(text)
        self._text.set_tone(tone or "soft")
        self.update()

    @property
    def text(self) -> str:
        return self._text.text()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(current_look().colour(f"{self._tone}_soft" if self._tone else "hover"))
        radius = self.height() / 2
        painter.drawRoundedRect(self.rect(), radius, radius)


class Meter(QWidget):
    """A bar of shares of a whole, each with its own colour, one after the other."""

    def __init__(self, height: int = 6) -> None:
        super().__init__()
        self._shares: list[tuple[float, str]] = []
        self.setFixedHeight(height)
        self.setMinimumWidth(48)

    def show_shares(self, *shares: tuple[float, str]) -> None:
        """From the left, each a share of 0 to 1 and the name of its colour."""
        self._shares = list(shares)
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        radius = self.height() / 2
        look = current_look()
        painter.setBrush(look.colour("border"))
        painter.drawRoundedRect(self.rect(), radius, radius)
        right = 0.0
        ends: list[tuple[float, QColor]] = []
        for share, name in self._shares:
            right = min(1.0, right + max(0.0, share))
            ends.append((right, look.colour(name)))
        for end, colour in reversed(ends):
            if width := round(end * self.width()):
                painter.setBrush(colour)
                painter.drawRoundedRect(0, 0, max(width, self.height()), self.height(), radius, radius)


class Dialog(QDialog):
    """A window that the rest waits for: as high as its texts are at its width."""

    def __init__(self, parent: QWidget, title: str, *, width: int = DIALOG_WIDTH) -> None:
        super().__init__(parent)
        self.setWindowTitle(title)
        self.setModal(True)
        self.setMinimumWidth(current_look().px(width))
        self.resize(width, 0)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.fit()
        self._end_hovering()

    def _end_hovering(self) -> None:
        """What the pointer was over would not hear that it has left, and stay tinted."""
        parent = self.parentWidget()
        for widget in parent.window().findChildren(QWidget) if parent is not None else ():
            if widget.underMouse() and widget.window() is not self:
                QApplication.sendEvent(widget, QEvent(QEvent.Type.Leave))
                widget.update()

    def fit(self) -> None:
        """What it says has changed."""
        if (layout := self.layout()) is not None:
            # by itself it asks for the height that its texts had in a narrower window
            layout.setSizeConstraint(QLayout.SizeConstraint.SetNoConstraint)
            layout.activate()
            height = layout.totalHeightForWidth(self.width())
            self.setMinimumHeight(height)
            self.resize(self.width(), height)


class Question(Dialog):
    """Something that is asked before it is done: what will happen, and a button that names it."""

    def __init__(
        self, parent: QWidget, title: str, sentence: str, *, yes: str, no: str, dangerous: bool = False
    ) -> None:
        super().__init__(parent, title)
        text = Text(sentence, tone="soft", wrap=True)
        self._yes = Button(yes, self.accept, kind="danger" if dangerous else "primary")
        self._no = Button(no, self.reject)
        (self._no if dangerous else self._yes).setDefault(True)
        self.setLayout(
            column(
                Text(title, size="title", wrap=True),
                text,
                SMALL,
                row(None, self._no, self._yes),
                margin=HUGE,
                spacing=MEDIUM,
            )
        )
        (self._no if dangerous else self._yes).setFocus()


class DropHint(QWidget):
    """Lies over a widget while files are held above it, and says what becomes of them."""

    def __init__(self, over: QWidget, words: str) -> None:
        super().__init__(over)
        self._over = over
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        text = Text(words, size="title", wrap=True)
        text.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.setLayout(
            column(None, row(None, Icon("download", "local", 40), None), text, None, margin=2 * HUGE)
        )
        over.installEventFilter(self)
        self.hide()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._cover()
        self.raise_()

    def _cover(self) -> None:
        self.setGeometry(self._over.rect())

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() is QEvent.Type.Resize and watched is self._over:
            self._cover()
        return super().eventFilter(watched, event)

    def paintEvent(self, event: QPaintEvent) -> None:
        look = current_look()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        ground = look.colour("ground")
        ground.setAlphaF(0.94)
        painter.fillRect(self.rect(), ground)
        painter.setPen(QPen(look.colour("local"), 2.0, Qt.PenStyle.DashLine))
        painter.drawRoundedRect(self.rect().adjusted(LARGE, LARGE, -LARGE, -LARGE), RADIUS_CARD, RADIUS_CARD)


def announce(widget: QWidget, text: str) -> None:
    """Have a screen reader say it, where one listens, as soon as it has said what it says now."""
    QAccessible.updateAccessibility(QAccessibleAnnouncementEvent(widget, text))


def appear(widget: QWidget) -> None:
    """Let it come into view, where the system likes motion."""
    duration_ms = current_look().motion_ms
    if not duration_ms or QApplication.platformName() == "offscreen":
        return
    effect = QGraphicsOpacityEffect(widget)
    widget.setGraphicsEffect(effect)
    motion = QPropertyAnimation(effect, b"opacity", widget)
    motion.setDuration(duration_ms)
    motion.setStartValue(0.0)
    motion.setEndValue(1.0)
    motion.finished.connect(lambda: widget.setGraphicsEffect(None))  # type: ignore[arg-type]
    motion.start(QPropertyAnimation.DeletionPolicy.DeleteWhenStopped)
