"""A control for each kind of setting: it shows a value, and says what the user has made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QPainter, QPaintEvent, QWheelEvent
from PySide6.QtWidgets import QComboBox, QFileDialog, QLineEdit, QSlider, QStyledItemDelegate, QWidget

from app.look.look import current_look
from app.look.measures import ICON, MEDIUM, SMALL
from app.pages.settings.declared import Declared, Kind, nearest, parsed
from app.pages.settings.words import choice_text, title_of
from app.widgets.basics import Button, Text, row, set_property
from app.widgets.controls import Segments, Switch

_NUMBER_WIDTH = 104
_TEXT_WIDTH = 280


class Control(QWidget):
    """`edited` has the new value, None to take it back; `wrong` a kind of fault in what was typed, and the text."""

    edited = Signal(object)
    wrong = Signal(str)

    #: Whether it needs the whole width, under its words.
    is_wide = False

    def __init__(self, declared: Declared) -> None:
        super().__init__()
        self.declared = declared

    def show_value(self, declared: Declared) -> None:
        raise NotImplementedError

    def show_wrong(self, is_wrong: bool) -> None:
        """Mark it as holding something that cannot be kept."""


class SegmentsControl(Control):
    def __init__(self, declared: Declared) -> None:
        super().__init__(declared)
        self.is_wide = len(declared.choices) > 2
        choices = [(choice, choice_text(declared, choice)) for choice in declared.choices]
        self._segments = Segments(choices, name=title_of(declared))
        self._segments.chosen.connect(self.edited)
        self.setLayout(row(self._segments, None) if self.is_wide else row(None, self._segments))

    def show_value(self, declared: Declared) -> None:
        self._segments.show_value(declared.value)


class SwitchControl(Control):
    def __init__(self, declared: Declared) -> None:
        super().__init__(declared)
        self._switch = Switch(title_of(declared))
        self._switch.clicked.connect(lambda _=False: self.edited.emit(self._switch.isChecked()))
        self.setLayout(row(None, self._switch))

    def show_value(self, declared: Declared) -> None:
        self._switch.setChecked(bool(declared.value))


class TextControl(Control):
    """A line of text, or a number with its unit."""

    def __init__(self, declared: Declared, placeholder: str = "") -> None:
        super().__init__(declared)
        self.field = QLineEdit()
        self.field.setAccessibleName(title_of(declared))
        self.field.setPlaceholderText(placeholder)
        is_number = declared.type in ("int", "float")
        self.field.setFixedWidth(current_look().px(_NUMBER_WIDTH if is_number else _TEXT_WIDTH))
        if is_number:
            self.field.setAlignment(Qt.AlignmentFlag.AlignRight)
        self.field.textEdited.connect(self._on_edited)
        unit = [Text(declared.unit, tone="soft")] if declared.unit else []
        self.setLayout(row(None, self.field, *unit, spacing=SMALL))

    def show_value(self, declared: Declared) -> None:
        self.declared = declared
        text = _plain(declared.value)
        if not self.field.hasFocus() or parsed(declared, self.field.text())[0] != declared.value:
            self.field.setText(text)

    def show_wrong(self, is_wrong: bool) -> None:
        set_property(self.field, "state", "wrong" if is_wrong else "")

    def _on_edited(self, text: str) -> None:
        value, fault = parsed(self.declared, text)
        if fault:
            self.wrong.emit(fault)
        else:
            self.edited.emit(value)


class SliderControl(Control):
    """A slider over `stops`, with a field beside it for what is between them. `moved` has the value as it is moved."""

    moved = Signal(object)
    is_wide = True

    def __init__(self, declared: Declared, stops: Sequence[int], placeholder: str = "") -> None:
        super().__init__(declared)
        self._stops: list[int] = []
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setAccessibleName(title_of(declared))
        self.slider.setPageStep(1)
        self.slider.setMinimumHeight(24)
        self.slider.valueChanged.connect(self._on_slid)
        self.slider.installEventFilter(self)
        self.field = QLineEdit()
        self.field.setAccessibleName(self.tr("{}, as a number").format(title_of(declared)))
        self.field.setFixedWidth(current_look().px(_NUMBER_WIDTH))
        self.field.setAlignment(Qt.AlignmentFlag.AlignRight)
        self.field.setPlaceholderText(placeholder)
        self.field.textEdited.connect(self._on_typed)
        unit = [Text(declared.unit, tone="soft")] if declared.unit else []
        self.setLayout(row(self.slider, self.field, *unit, spacing=MEDIUM))
        self.layout().setStretch(0, 1)  # type: ignore[union-attr]
        self.show_stops(stops)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """The wheel scrolls the page, and moves no slider that happens to be under it."""
        if isinstance(event, QWheelEvent):
            event.ignore()
            return True
        return super().eventFilter(watched, event)

    def show_stops(self, stops: Sequence[int]) -> None:
        if list(stops) == self._stops:
            return
        self._stops = list(stops)
        self.slider.blockSignals(True)
        self.slider.setRange(0, max(0, len(self._stops) - 1))
        self.slider.blockSignals(False)

    def show_value(self, declared: Declared) -> None:
        self.declared = declared
        value = declared.value
        self._slide_to(value)
        if not self.field.hasFocus() or parsed(declared, self.field.text())[0] != value:
            self.field.setText(_plain(value))

    def show_wrong(self, is_wrong: bool) -> None:
        set_property(self.field, "state", "wrong" if is_wrong else "")

    def _slide_to(self, value: Any) -> None:
        self.slider.blockSignals(True)
        # without a value of its own it is as high as it goes
        place = nearest(self._stops, value) if isinstance(value, int) else len(self._stops) - 1
        self.slider.setValue(place)
        self.slider.blockSignals(False)

    def _on_slid(self, place: int) -> None:
        value = self._stops[place]
        self.field.setText(_plain(value))
        self.moved.emit(value)
        self.edited.emit(value)

    def _on_typed(self, text: str) -> None:
        value, fault = parsed(self.declared, text)
        if fault:
            self.wrong.emit(fault)
            return
        self._slide_to(value)
        self.moved.emit(value)
        self.edited.emit(value)


class _List(QComboBox):
    """With a sign that it opens, a list with round corners, and no wheel that chooses while the page is scrolled."""

    def __init__(self) -> None:
        super().__init__()
        # the one that it has by itself knows nothing of the style sheet
        self.setItemDelegate(QStyledItemDelegate(self))

    def showPopup(self) -> None:
        surface = self.view().window()
        surface.setWindowFlag(Qt.WindowType.FramelessWindowHint)
        surface.setWindowFlag(Qt.WindowType.NoDropShadowWindowHint)
        surface.setAttribute(Qt.WidgetAttribute.WA_TranslucentBackground)
        super().showPopup()

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        colour = "text_soft" if self.isEnabled() else "border_strong"
        at = self.width() - ICON - SMALL, (self.height() - ICON) // 2
        QPainter(self).drawPixmap(*at, current_look().pixmap("down", colour))


class ChoiceControl(Control):
    """One of many, from a list; the first stands for none where `none` names that."""

    def __init__(self, declared: Declared, choices: Sequence[tuple[str, str]], none: str = "") -> None:
        super().__init__(declared)
        self._list = _List()
        self._list.setAccessibleName(title_of(declared))
        self._list.setFixedWidth(current_look().px(_TEXT_WIDTH))
        self._none = none
        self.show_choices(choices)
        self._list.activated.connect(lambda _: self.edited.emit(self._list.currentData()))
        self.setLayout(row(None, self._list))

    def show_choices(self, choices: Sequence[tuple[str, str]]) -> None:
        current = self._list.currentData()
        self._list.clear()
        if self._none:
            self._list.addItem(self._none, None)
        for value, text in choices:
            self._list.addItem(text, value)
        self._choose(current)

    def show_value(self, declared: Declared) -> None:
        self._choose(declared.value)

    def _choose(self, value: Any) -> None:
        place = self._list.findData(value)
        if place < 0 and value is not None:
            self._list.addItem(str(value), value)
            place = self._list.count() - 1
        self._list.setCurrentIndex(max(place, 0))


class FolderControl(Control):
    is_wide = True

    def __init__(self, declared: Declared, placeholder: str) -> None:
        super().__init__(declared)
        self.field = QLineEdit()
        self.field.setAccessibleName(title_of(declared))
        self.field.setPlaceholderText(placeholder)
        self.field.textEdited.connect(lambda text: self.edited.emit(text.strip() or None))
        self.setLayout(row(self.field, Button(self.tr("Choose…"), self._choose), spacing=SMALL))

    def show_value(self, declared: Declared) -> None:
        if not self.field.hasFocus():
            self.field.setText(_plain(declared.value))

    def show_wrong(self, is_wrong: bool) -> None:
        set_property(self.field, "state", "wrong" if is_wrong else "")

    def _choose(self) -> None:
        folder = QFileDialog.getExistingDirectory(self.window(), title_of(self.declared), self.field.text())
        if folder:
            self.field.setText(folder)
            self.edited.emit(folder)


class SecretControl(Control):
    """Only whether it is set is known; it is made elsewhere. `asked` is sent by its button."""

    asked = Signal()

    def __init__(self, declared: Declared) -> None:
        super().__init__(declared)
        self._words = Text(tone="soft")
        self.setLayout(
            row(None, self._words, Button(self.tr("On the page Server"), self.asked.emit), spacing=MEDIUM)
        )

    def show_value(self, declared: Declared) -> None:
        self._words.setText(self.tr("Set") if declared.is_set else self.tr("Not set"))


def control_for(
    declared: Declared, *, stops: Sequence[int], models: Sequence[str], placeholder: str
) -> Control:
    """The control of a setting; `placeholder` stands where it has no value of its own."""
    match declared.kind:
        case Kind.SEGMENTS:
            return SegmentsControl(declared)
        case Kind.SWITCH:
            return SwitchControl(declared)
        case Kind.SLIDER:
            return SliderControl(declared, stops, placeholder)
        case Kind.CHOICE:
            return ChoiceControl(declared, [(one, choice_text(declared, one)) for one in declared.choices])
        case Kind.MODEL:
            return ChoiceControl(declared, [(one, one) for one in models], none=placeholder)
        case Kind.FOLDER:
            return FolderControl(declared, placeholder)
        case Kind.SECRET:
            return SecretControl(declared)
    return TextControl(declared, placeholder)


def _plain(value: Any) -> str:
    return "" if value is None else str(value)
