"""The small parts every page is made of: texts, buttons, cards, lines, and ways to lay them out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import TypeVar

from PySide6.QtCore import QCoreApplication, QSize, Qt
from PySide6.QtGui import QFocusEvent, QIcon, QKeyEvent, QKeySequence
from PySide6.QtWidgets import (
    QBoxLayout,
    QFrame,
    QHBoxLayout,
    QLabel,
    QLayout,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from app.look.look import current_look
from app.look.measures import ICON, LARGE, MEDIUM, SMALL

Box = TypeVar("Box", bound=QBoxLayout)
Part = QWidget | QLayout | int | None

# What stays on the line of the number before it.
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:[kMGT]?i?B|[kMG]b/s|Gbit/s|tok/s|ms|s|min|h|%)\b)")
_NO_BREAK = "\u00a0"


class Text(QLabel):
    """A label. `size` is caption, title or heading, else body; `tone` is a hue of the palette by what it means."""

    def __init__(
        self,
        text: str = "",
        *,
        size: str = "",
        tone: str = "",
        strong: bool = False,
        mono: bool = False,
        wrap: bool = False,
        selectable: bool = False,
    ) -> None:
        super().__init__()
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setText(text)
        self.setProperty("scale", size)
        self.setProperty("tone", tone)
        self.setProperty("strong", strong)
        self.setProperty("mono", mono)
        self.setWordWrap(wrap)
        if wrap:
            # A wrapped label asks for the height that its width needs, and gives way sideways.
            policy = QSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Minimum)
            policy.setHeightForWidth(True)
            self.setSizePolicy(policy)
        if selectable:
            self.setTextInteractionFlags(
                Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
            )

    def setText(self, text: str) -> None:
        super().setText(_BEFORE_UNIT.sub(_NO_BREAK, text))

    def text(self) -> str:
        return super().text().replace(_NO_BREAK, " ")

    def set_tone(self, tone: str) -> None:
        if self.property("tone") != tone:
            set_property(self, "tone", tone)


class Icon(QLabel):
    """One of `resources/icons`, in a colour of the palette; follows the theme. Says nothing to a screen reader."""

    def __init__(self, name: str, colour: str = "text_soft", size: int = ICON) -> None:
        super().__init__()
        self._shown = name, colour, size
        self.setFixedSize(size, size)
        current_look().changed.connect(self._draw)
        self._draw()

    def show_icon(self, name: str, colour: str = "text_soft") -> None:
        self._shown = name, colour, self._shown[2]
        self._draw()

    def _draw(self) -> None:
        self.setPixmap(current_look().pixmap(*self._shown))


class Button(QPushButton):
    """`kind` is primary, danger, quiet, link, fold, icon, nav, chip or segment; else an ordinary button.

    A button that shows an icon alone needs `name`, which is its tooltip as well. Enter presses the one that has
    the focus.
    """

    def __init__(
        self,
        text: str = "",
        on_click: Callable[[], object] | None = None,
        *,
        kind: str = "",
        icon: str = "",
        name: str = "",
        colour: str = "",
    ) -> None:
        super().__init__(text)
        self.setProperty("kind", kind)
        self.setAutoDefault(False)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        if kind == "primary":
            colour = colour or "on_local"
        elif kind == "danger":
            colour = colour or "on_danger"
        self._icon, self._colour = icon, colour or "text_soft"
        if name:
            self.setAccessibleName(name)
            self.setToolTip(name)
        if icon:
            self.setIconSize(QSize(ICON, ICON))
            current_look().changed.connect(self._draw)
            self._draw()
        if on_click is not None:
            self.clicked.connect(lambda _checked=False: on_click())

    def keyPressEvent(self, event: QKeyEvent) -> None:
        # Qt leaves Enter to a dialog's default button, and outside of dialogs to nobody.
        if is_enter(event) and not event.isAutoRepeat():
            self.click()
        else:
            super().keyPressEvent(event)

    def show_icon(self, icon: str, colour: str = "text_soft") -> None:
        self._icon, self._colour = icon, colour
        self._draw()

    def _draw(self) -> None:
        self.setIcon(current_look().icon(self._icon, self._colour) if self._icon else QIcon())


class Card(QFrame):
    """A surface with a border and a column of parts in it. `tone`: local, peer, warning or danger."""

    def __init__(self, *parts: Part, tone: str = "", padding: int = LARGE, spacing: int = SMALL) -> None:
        super().__init__()
        self.setProperty("kind", "card")
        self.setProperty("tone", tone)
        self.column = column(*parts, margin=padding, spacing=spacing)
        self.setLayout(self.column)

    def set_tone(self, tone: str) -> None:
        if self.property("tone") != tone:
            set_property(self, "tone", tone)


class Line(QFrame):
    """A hairline between two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "line")


class Scrolled(QScrollArea):
    """A column that scrolls, no wider than `width`, in the middle of what room there is."""

    def __init__(self, *parts: Part, width: int = 0, margin: int = 24, spacing: int = LARGE) -> None:
        super().__init__()
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        # Its room is kept where it is not seen: nothing moves sideways when the column grows.
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOn)
        self.setAccessibleName(QCoreApplication.translate("Scrolled", "Page, scrolled by the arrow keys"))
        self.verticalScrollBar().rangeChanged.connect(self._on_range)
        self._on_range(0, 0)
        inner = _Inner()
        inner.setObjectName("scrolled")
        self.column = column(*parts, margin=margin, spacing=spacing)
        if width:
            body = QWidget()
            body.setObjectName("scrolled")
            body.setLayout(self.column)
            body.setMaximumWidth(width)
            body.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
            around = QHBoxLayout(inner)
            around.setContentsMargins(0, 0, 0, 0)
            around.addStretch(1)
            around.addWidget(body, 1000)
            around.addStretch(1)
        else:
            inner.setLayout(self.column)
        self.setWidget(inner)

    def _on_range(self, least: int, most: int) -> None:
        scrolls = most > least
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus if scrolls else Qt.FocusPolicy.NoFocus)
        set_property(self.verticalScrollBar(), "state", "" if scrolls else "still")

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        set_property(self.verticalScrollBar(), "tone", "focus")

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        set_property(self.verticalScrollBar(), "tone", "")


class _Inner(QWidget):
    """As tall as its width makes it: what wrapped labels ask for before they know theirs is too much."""

    def minimumSizeHint(self) -> QSize:
        return QSize(super().minimumSizeHint().width(), 0)


def row(*parts: Part, margin: int = 0, spacing: int = SMALL) -> QHBoxLayout:
    """Side by side; None is a stretch, a number a gap."""
    return _filled(QHBoxLayout(), parts, margin, spacing)


def column(*parts: Part, margin: int = 0, spacing: int = MEDIUM) -> QVBoxLayout:
    """One under the other; None is a stretch, a number a gap."""
    return _filled(QVBoxLayout(), parts, margin, spacing)


def _filled(box: Box, parts: Iterable[Part], margin: int, spacing: int) -> Box:
    box.setContentsMargins(margin, margin, margin, margin)
    box.setSpacing(spacing)
    for part in parts:
        if part is None:
            box.addStretch(1)
        elif isinstance(part, int):
            box.addSpacing(part)
        elif isinstance(part, QLayout):
            box.addLayout(part)
        else:
            box.addWidget(part)
    return box


def tab_in_order(layout: QLayout) -> None:
    """Have Tab go through a layout's controls as they are seen, whenever they were made."""
    for before, after in pairwise(_controls(layout)):
        QWidget.setTabOrder(before, after)


def _controls(layout: QLayout) -> Iterator[QWidget]:
    for index in range(layout.count()):
        if (item := layout.itemAt(index)) is None:
            continue
        widget, inner = item.widget(), item.layout()
        if widget is not None and widget.focusPolicy() & Qt.FocusPolicy.TabFocus:
            yield widget
        if widget is not None:
            inner = widget.layout()
        if inner is not None:
            yield from _controls(inner)


def with_keys(words: str, keys: str) -> str:
    """What a tooltip says of a control that has a shortcut, as this system writes it."""
    return f"{words} ({QKeySequence(keys).toString(QKeySequence.SequenceFormat.NativeText)})"


def is_enter(event: QKeyEvent) -> bool:
    """Enter of either block of keys, without Shift or the like."""
    held = event.modifiers() & ~Qt.KeyboardModifier.KeypadModifier
    return event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and not held


def set_property(widget: QWidget, name: str, value: object) -> None:
    """Set what the style sheet looks at, and have it look."""
    widget.setProperty(name, value)
    widget.style().unpolish(widget)
    widget.style().polish(widget)


def clear(layout: QLayout) -> None:
    """Take everything out of a layout and end it."""
    while (item := layout.takeAt(0)) is not None:
        if (widget := item.widget()) is not None:
            widget.hide()
            widget.deleteLater()
        elif (inner := item.layout()) is not None:
            clear(inner)
            inner.deleteLater()
