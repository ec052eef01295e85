"""The controls around a message: its buttons, the field to edit it in, and how far its prompt is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QRectF, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QColor, QGuiApplication, QKeyEvent, QPainter, QPainterPath, QPaintEvent
from PySide6.QtWidgets import QPlainTextEdit, QWidget

from app.look.look import current_look
from app.look.measures import MEDIUM, SMALL, TINY
from app.pages.chat.transcript.model import Prefill
from app.pages.chat.transcript.words import prefill_lead, prefill_parts
from app.widgets.basics import Button, Text, column, row

ACTIONS_HEIGHT = 32
PREFILL_HEIGHT = 76
EDITOR_HEIGHT = 168
_COPIED_MS = 1500


@dataclass(frozen=True, kw_only=True)
class Action:
    icon: str
    name: str
    run: Callable[[], object]


class CopyButton(Button):
    """Puts on the clipboard what `text` gives, and shows that it did."""

    def __init__(self, name: str, text: Callable[[], str]) -> None:
        super().__init__("", self._copy, kind="icon", icon="copy", name=name)
        self._text = text
        self._timer = QTimer(self, singleShot=True, interval=_COPIED_MS)
        self._timer.timeout.connect(lambda: self.show_icon("copy"))

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self._text())
        self.show_icon("check", "local")
        self._timer.start()


class Actions(QWidget):
    """A row of small buttons, with the versions of a message to turn over where there are several."""

    turned = Signal(int)

    def __init__(self, copied: Callable[[], str], actions: Sequence[Action], branch: tuple[int, int]) -> None:
        super().__init__()
        self.setAccessibleName(self.tr("What to do with this message"))
        self.buttons: list[Button] = []
        parts: list[QWidget] = []
        index, count = branch
        if count > 1:
            left = Button(kind="icon", icon="left", name=self.tr("The version before"))
            right = Button(kind="icon", icon="right", name=self.tr("The next version"))
            left.setEnabled(index > 1)
            right.setEnabled(index < count)
            left.clicked.connect(lambda: self.turned.emit(-1))
            right.clicked.connect(lambda: self.turned.emit(1))
            parts += [left, Text(f"{index}/{count}", size="caption", tone="soft"), right]
            self.buttons += [left, right]
        copy = CopyButton(self.tr("Copy"), copied)
        made = [Button("", action.run, kind="icon", icon=action.icon, name=action.name) for action in actions]
        self.buttons += [copy, *made]
        for button in self.buttons:
            button.setIconSize(QSize(16, 16))
        self.setLayout(row(*parts, copy, *made, spacing=2))
        self.resize(self.sizeHint().width(), current_look().px(ACTIONS_HEIGHT))


class PrefillPanel(QWidget):
    """A prompt that is being read, in the place of its answer: one line, one bar, the figures."""

    answer_here = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._lead = Text(tone="soft")
        self._bar = _Bar()
        self._figures = Text(size="caption", tone="faint")
        self._remote = Text(size="caption", tone="peer")
        self.button = Button(self.tr("Answer here instead"), self.answer_here.emit, kind="link")
        foot = row(self._remote, self._figures, None, self.button, spacing=SMALL)
        self.setLayout(column(self._lead, self._bar, foot, spacing=TINY))

    def say(self, prefill: Prefill) -> None:
        self._lead.setText(prefill_lead(prefill))
        self._bar.say(prefill)
        parts = prefill_parts(prefill)
        remote = " · ".join(part.text for part in parts if part.is_remote)
        rest = " · ".join(part.text for part in parts if not part.is_remote)
        if prefill.note:
            rest = f"{rest} · {prefill.note}" if rest else prefill.note
        self._remote.setText(remote)
        self._remote.setVisible(bool(remote))
        self._figures.setText(rest)
        self.button.setVisible(prefill.is_remote)
        self.setAccessibleName(". ".join(part for part in (prefill_lead(prefill), remote, rest) if part))


class _Bar(QWidget):
    """Teal what is computed here. Violet what the other has: full what has arrived, lighter what is to come."""

    def __init__(self) -> None:
        super().__init__()
        self._prefill = Prefill(done=0, arrived=0, total=0)
        self.setFixedHeight(8)

    def say(self, prefill: Prefill) -> None:
        self._prefill = prefill
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        look, prefill = current_look(), self._prefill
        room = QRectF(self.rect()).adjusted(0, 1, 0, -1)
        track = QPainterPath()
        track.addRoundedRect(room, room.height() / 2, room.height() / 2)
        painter.fillPath(track, look.colour("border"))
        painter.setClipPath(track)
        if not prefill.total:
            return
        full = look.colour("peer" if prefill.is_remote else "local")
        lighter = QColor(full)
        lighter.setAlphaF(0.45)
        done = min(1.0, prefill.done / prefill.total) * room.width()
        arrived = min(done, min(1.0, prefill.arrived / prefill.total) * room.width())
        painter.fillRect(QRectF(0, room.top(), arrived, room.height()), full)
        painter.fillRect(QRectF(arrived, room.top(), done - arrived, room.height()), lighter)


class Editor(QWidget):
    """A message in a field, to be sent anew or left as it was."""

    sent = Signal(str)
    cancelled = Signal()

    def __init__(self, text: str) -> None:
        super().__init__()
        self.field = _Field(text)
        self.field.setAccessibleName(self.tr("Your message"))
        self.send = Button(self.tr("Send"), self._send, kind="primary")
        self.cancel = Button(self.tr("Cancel"), self.cancelled.emit)
        self.field.textChanged.connect(lambda: self.send.setEnabled(bool(self._text())))
        self.field.accepted.connect(self._send)
        self.field.left.connect(self.cancelled)
        self.setLayout(column(self.field, row(None, self.cancel, self.send), spacing=MEDIUM))

    def _text(self) -> str:
        return self.field.toPlainText().strip()

    def _send(self) -> None:
        if text := self._text():
            self.sent.emit(text)


class _Field(QPlainTextEdit):
    """Return sends, with Shift it is a new line; Escape leaves."""

    accepted = Signal()
    left = Signal()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        is_return = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if is_return and not event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.accepted.emit()
        elif event.key() == Qt.Key.Key_Escape:
            self.left.emit()
        else:
            super().keyPressEvent(event)
