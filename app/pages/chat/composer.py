"""Where a message is written: text, files, and beside them the model, the instructions and how full the context is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from PySide6.QtCore import (
    QEvent,
    QKeyCombination,
    QMimeData,
    QPoint,
    QSize,
    Qt,
    Signal,
)
from PySide6.QtGui import (
    QContextMenuEvent,
    QFocusEvent,
    QFont,
    QFontMetrics,
    QGuiApplication,
    QKeyEvent,
    QKeySequence,
    QPainter,
    QPaintEvent,
    QTextOption,
)
from PySide6.QtWidgets import QFrame, QMenu, QPlainTextEdit, QScrollArea, QSizePolicy, QWidget

from app.chats.attaching import MAX_INLINE_CHARS, PASTED_CHARS
from app.chats.gauge import Fill
from app.chats.model import File
from app.chats.models import Choice, Readiness, loading_words
from app.chats.titles import shortened
from app.look.look import current_look
from app.look.measures import BODY_PX, CONTROL_HEIGHT, MEDIUM, SMALL, TINY
from app.widgets.basics import Button, Icon, Text, column, row, set_property
from app.widgets.controls import Menu, tick
from app.widgets.feedback import Meter
from app.widgets.flow import Flow
from app.words import translate

_MAX_LINES = 10
_PASTE_INLINE = QKeyCombination(
    Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier, Qt.Key.Key_V
)
_NAME_CHARS = 28

_ARROW = 12
_PICKER_LEAST = 64

# Of the attached files: three lines, and the beginning of a fourth where there are more.
_FILES_HEIGHT = 116


class Composer(QFrame):
    """Tells what the user wants; what becomes of it is the page's decision. Files are shown as they are told.

    `text_given` has a text that was pasted and is too long for the message.
    """

    sent = Signal(str)
    stopped = Signal()
    edited = Signal()
    attach_wanted = Signal()
    files_given = Signal(list)
    text_given = Signal(str)
    file_removed = Signal(str)
    file_inlined = Signal(str)
    settings_toggled = Signal(bool)
    model_chosen = Signal(str)
    more_models_wanted = Signal()
    preset_chosen = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "card")
        self.setProperty("tone", "input")
        self.text = _MessageEdit()
        self.text.submitted.connect(self._send)
        self.text.textChanged.connect(self.edited)
        self.text.textChanged.connect(self._show_button)
        self.text.files_given.connect(self.files_given)
        self.text.text_given.connect(self.text_given)
        self.text.focused.connect(lambda focused: set_property(self, "tone", "local" if focused else "input"))
        self._files = _Files()
        self._files.hide()
        self._n_reading = 0
        self._has_files = self._is_answering = False
        self._can_send = True
        attach = Button("", self.attach_wanted.emit, kind="icon", icon="attach", name=self.tr("Attach files"))
        self.model = ModelButton()
        self.model.chosen.connect(self.model_chosen)
        self.model.more_wanted.connect(self.more_models_wanted)
        self.preset = PresetButton()
        self.preset.chosen.connect(self.preset_chosen)
        self.gauge = ContextGauge()
        self.settings = Button("", kind="icon", icon="sliders", name=self.tr("Instructions and sampling"))
        self.settings.setCheckable(True)
        self.settings.toggled.connect(self.settings_toggled)
        self._button = Button("", self._on_button, kind="primary", icon="send", name=self.tr("Send"))
        self._button.setFixedSize(QSize(40, 32))
        foot = row(
            attach,
            self.model,
            self.preset,
            None,
            self.gauge,
            SMALL,
            self.settings,
            self._button,
            spacing=TINY,
        )
        self.setLayout(column(self._files, self.text, foot, margin=SMALL, spacing=SMALL))
        self.layout().setContentsMargins(MEDIUM, MEDIUM, SMALL, SMALL)  # type: ignore[union-attr]
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Minimum)
        self._show_button()

    @property
    def draft(self) -> str:
        return self.text.toPlainText()

    def show_draft(self, text: str) -> None:
        """Without its being taken for typed."""
        if text != self.draft:
            self.text.blockSignals(True)
            self.text.setPlainText(text)
            self.text.blockSignals(False)
            self.text.moveCursor(self.text.textCursor().MoveOperation.End)
            self.text.grow()
        self._show_button()

    def show_files(self, files: Sequence[File], n_reading: int = 0, can_inline: Collection[str] = ()) -> None:
        """Those that are attached, and how many are still being read.

        `can_inline` are the ids of those that can be put in the message instead.
        """
        chips: list[QWidget] = []
        for file in files:
            chip = FileChip(file, can_inline=file.id in can_inline)
            chip.removed.connect(self.file_removed)
            chip.inlined.connect(self.file_inlined)
            chips.append(chip)
        if n_reading:
            chips.append(Text(self.tr("Reading…"), size="caption", tone="faint"))
        self._files.show_parts(chips)
        self._has_files, self._n_reading = bool(files), n_reading
        self._files.setVisible(bool(files) or n_reading > 0)
        self._show_button()

    def show_state(self, *, is_answering: bool, can_send: bool, hint: str) -> None:
        """`can_send`: there is a model to ask, and a node that has it."""
        self._is_answering, self._can_send = is_answering, can_send
        self.text.setPlaceholderText(hint)
        self._show_button()

    def _send(self) -> None:
        if self._may_send():
            self.sent.emit(self.draft.strip())

    def _may_send(self) -> bool:
        has_something = bool(self.draft.strip()) or self._has_files
        return has_something and self._can_send and not self._is_answering and not self._n_reading

    def _on_button(self) -> None:
        if self._is_answering:
            self.stopped.emit()
        else:
            self._send()

    def _show_button(self) -> None:
        name = self.tr("Stop") if self._is_answering else self.tr("Send")
        self._button.show_icon("stop" if self._is_answering else "send", "on_local")
        self._button.setAccessibleName(name)
        self._button.setToolTip(self.tr("Stop (Esc)") if self._is_answering else self.tr("Send (Enter)"))
        self._button.setEnabled(self._is_answering or self._may_send())


class _MessageEdit(QPlainTextEdit):
    """Grows to ten lines. Enter sends, with Shift it begins a new line.

    Long texts that are pasted are given away; with Shift they are put in, up to what can still be typed in.
    """

    submitted = Signal()
    focused = Signal(bool)
    files_given = Signal(list)
    text_given = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "bare")
        self.setAccessibleName(self.tr("Message"))
        self.setTabChangesFocus(True)
        self.setWordWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.document().setDocumentMargin(0)
        self.document().documentLayout().documentSizeChanged.connect(lambda _: self.grow())
        self.grow()

    def grow(self) -> None:
        """As high as its lines, up to ten."""
        n_lines = round(self.document().documentLayout().documentSize().height())
        shown = max(1, min(n_lines, _MAX_LINES))
        self.setFixedHeight(shown * self.fontMetrics().lineSpacing() + TINY)
        scrolls = n_lines > _MAX_LINES
        policy = Qt.ScrollBarPolicy.ScrollBarAsNeeded if scrolls else Qt.ScrollBarPolicy.ScrollBarAlwaysOff
        self.setVerticalScrollBarPolicy(policy)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        is_enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if is_enter and not event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.submitted.emit()
            return
        if event.keyCombination() == _PASTE_INLINE:
            self.paste_inline()
            return
        super().keyPressEvent(event)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange:
            self.grow()

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.focused.emit(True)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.focused.emit(False)

    def canInsertFromMimeData(self, source: QMimeData) -> bool:
        return bool(files_in(source)) or super().canInsertFromMimeData(source)

    def insertFromMimeData(self, source: QMimeData) -> None:
        if files := files_in(source):
            self.files_given.emit(files)
        elif len(source.text()) >= PASTED_CHARS:
            self.text_given.emit(source.text())
        else:
            super().insertFromMimeData(source)

    def paste_inline(self) -> None:
        """The text of the clipboard, long as it may be, but for one that would make typing slow."""
        text = QGuiApplication.clipboard().text()
        if len(text) > MAX_INLINE_CHARS:
            self.text_given.emit(text)
        else:
            self.insertPlainText(text)

    def menu_of_text(self) -> QMenu:
        """What can be done with the text, as everywhere, and how to paste a long one into it."""
        menu = self.createStandardContextMenu()
        menu.addSeparator()
        inline = menu.addAction(self.tr("Paste into the message"), self.paste_inline)
        inline.setShortcut(QKeySequence(_PASTE_INLINE))
        inline.setEnabled(bool(QGuiApplication.clipboard().text()))
        return menu

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        menu = self.menu_of_text()
        menu.popup(event.globalPos())
        menu.aboutToHide.connect(menu.deleteLater)


class _Files(QScrollArea):
    """The attached files, as high as their lines up to a few; more of them are scrolled, so that the message keeps its
    place."""

    def __init__(self) -> None:
        super().__init__()
        self._flow = Flow()
        self.setWidget(self._flow)
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._flow.setObjectName("scrolled")
        self.setAccessibleName(self.tr("Attached files"))
        policy = QSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Minimum)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)
        self._n_shown = 0
        self.verticalScrollBar().rangeChanged.connect(self._on_range)
        self._follows = False

    def show_parts(self, parts: Sequence[QWidget]) -> None:
        """The last of them is seen where there are more than before."""
        self._follows = len(parts) > self._n_shown
        self._n_shown = len(parts)
        self._flow.show_parts(parts)
        self.updateGeometry()

    def _on_range(self, _: int, end: int) -> None:
        if self._follows:
            self.verticalScrollBar().setValue(end)

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        return min(self._flow.heightForWidth(width), current_look().px(_FILES_HEIGHT))

    def sizeHint(self) -> QSize:
        hint = self._flow.sizeHint()
        return QSize(hint.width(), min(hint.height(), current_look().px(_FILES_HEIGHT)))

    def minimumSizeHint(self) -> QSize:
        return QSize(0, self.sizeHint().height())


class FileChip(QFrame):
    """An attached file: its name, its size in tokens, and a cross; and what puts it in the message."""

    removed = Signal(str)
    inlined = Signal(str)

    def __init__(self, file: File, *, can_inline: bool = False) -> None:
        super().__init__()
        self.setProperty("kind", "sunken")
        name = Text(shortened(file.name, _NAME_CHARS), size="caption")
        name.setToolTip(file.name)
        size = Text(size_words(file), size="caption", tone="faint")
        cross = Button(
            "",
            lambda: self.removed.emit(file.id),
            kind="icon",
            icon="close",
            name=self.tr("Remove {name}").format(name=file.name),
        )
        inline = Button(
            "",
            lambda: self.inlined.emit(file.id),
            kind="icon",
            icon="down",
            name=self.tr("Put {name} in the message").format(name=file.name),
        )
        for button in (inline, cross):
            button.setProperty("scale", "small")
            button.setIconSize(QSize(14, 14))
        buttons = row(*([inline] if can_inline else []), cross, spacing=2)
        self.setLayout(row(Icon("file", "text_soft", 16), name, size, buttons, spacing=SMALL))
        self.layout().setContentsMargins(SMALL, 2, 2, 2)  # type: ignore[union-attr]


class _Picker(Button):
    """A quiet button that says what is chosen and opens a menu; its words give way where there is little room."""

    def __init__(self, on_click: Callable[[], object]) -> None:
        super().__init__("", on_click, kind="quiet")
        self._words = ""
        self.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
        current_look().changed.connect(self.update)

    def say(self, words: str) -> None:
        if words != self._words:
            self._words = words
            self.updateGeometry()
            self.update()

    @property
    def words(self) -> str:
        return self._words

    def sizeHint(self) -> QSize:
        width = QFontMetrics(self._font()).horizontalAdvance(self._words)
        # Letters of some fonts reach over what they are said to take.
        return QSize(width + 2 * SMALL + 2 * TINY + _ARROW, current_look().px(CONTROL_HEIGHT))

    def minimumSizeHint(self) -> QSize:
        return QSize(min(_PICKER_LEAST, self.sizeHint().width()), current_look().px(CONTROL_HEIGHT))

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        look = current_look()
        painter = QPainter(self)
        painter.setFont(self._font())
        painter.setPen(look.colour("text" if self.underMouse() else "text_soft"))
        room = self.rect().adjusted(SMALL, 0, -SMALL - TINY - _ARROW, 0)
        words = painter.fontMetrics().elidedText(self._words, Qt.TextElideMode.ElideRight, room.width())
        painter.drawText(room, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft, words)
        pixmap = look.pixmap("down", "text_faint", _ARROW)
        painter.drawPixmap(
            room.left() + painter.fontMetrics().horizontalAdvance(words) + TINY,
            (self.height() - _ARROW) // 2,
            pixmap,
        )

    def _font(self) -> QFont:
        return current_look().font(BODY_PX - 1)


class ModelButton(_Picker):
    """Which model answers; opens a menu of those there are."""

    chosen = Signal(str)
    more_wanted = Signal()

    def __init__(self) -> None:
        super().__init__(self.open)
        self._choices: Sequence[Choice] = ()
        self._model = ""
        self.show_choices((), "")

    def show_choices(self, choices: Sequence[Choice], model: str) -> None:
        self._choices, self._model = choices, model
        choice = next((one for one in choices if one.id == model), None)
        if choice is None:
            words = self.tr("No model")
        elif choice.readiness is Readiness.LOADING:
            words = f"{shortened(model, _NAME_CHARS)}  {choice.progress or choice.checked:.0%}"
        else:
            words = shortened(model, _NAME_CHARS)
        self.say(words)
        self.setAccessibleName(self.tr("Model: {name}").format(name=model or self.tr("none")))
        self.setToolTip(self.tr("{name}. Another one: Ctrl+L").format(name=model) if model else "")

    def menu_of_models(self) -> QMenu:
        menu = Menu(self)
        for choice in self._choices:
            action = menu.addAction(f"{choice.id}\t{self._state_words(choice)}")
            action.triggered.connect(lambda _=False, id_=choice.id: self.chosen.emit(id_))
            tick(action, is_chosen=choice.id == self._model)
            if choice.readiness is Readiness.FAILED:
                action.setToolTip(choice.reason)
        if self._choices:
            menu.addSeparator()
        menu.addAction(self.tr("Get and manage models…"), self.more_wanted.emit)
        return menu

    def open(self) -> None:
        menu = self.menu_of_models()
        menu.popup(_above(self, menu))
        menu.aboutToHide.connect(menu.deleteLater)

    def _state_words(self, choice: Choice) -> str:
        if choice.on:
            return self.tr("loaded on {}").format(choice.on)
        return {
            Readiness.LOADED: self.tr("loaded"),
            Readiness.LOADING: loading_words(choice),
            Readiness.FAILED: self.tr("could not be loaded"),
            Readiness.UNLOADED: "",
        }[choice.readiness]


class PresetButton(_Picker):
    """Which instructions the model gets; opens a menu of presets. `chosen` tells a name, "" for none."""

    chosen = Signal(str)
    edit_wanted = Signal()

    def __init__(self) -> None:
        super().__init__(self.open)
        self._names: Sequence[str] = ()
        self._name = ""
        self.show_presets((), "", is_own=False)

    def show_presets(self, names: Sequence[str], name: str, *, is_own: bool) -> None:
        """`name` is the preset in use, "" where none is; `is_own`: then there is a text of the user's."""
        self._names, self._name = names, name
        words = name or (self.tr("Own instructions") if is_own else self.tr("No instructions"))
        self.say(words)
        self.setAccessibleName(self.tr("Instructions: {name}").format(name=words))

    def menu_of_presets(self) -> QMenu:
        menu = Menu(self)
        for name, words in (("", self.tr("No instructions")), *((name, name) for name in self._names)):
            action = menu.addAction(words)
            action.triggered.connect(lambda _=False, name=name: self.chosen.emit(name))
            tick(action, is_chosen=name == self._name)
        menu.addSeparator()
        menu.addAction(self.tr("Edit instructions…"), self.edit_wanted.emit)
        return menu

    def open(self) -> None:
        menu = self.menu_of_presets()
        menu.popup(_above(self, menu))
        menu.aboutToHide.connect(menu.deleteLater)


class ContextGauge(QWidget):
    """How much of the model's context the conversation takes; amber where little is left."""

    def __init__(self) -> None:
        super().__init__()
        self._meter = Meter(4)
        self._meter.setFixedWidth(56)
        self._words = Text(size="caption", tone="faint")
        self.setLayout(row(self._meter, self._words, spacing=SMALL))
        self.hide()

    def show_fill(self, fill: Fill) -> None:
        self.setVisible(fill.n_tokens > 0)
        tone = "warning" if fill.is_nearly_full else "local"
        self._meter.setVisible(fill.n_ctx is not None)
        self._meter.show_shares((fill.share, tone))
        about = "" if fill.is_exact else "~"
        if fill.n_ctx is None:
            words = self.tr("{n} tokens").format(n=f"{about}{fill.n_tokens:,}")
            whole = words
        else:
            words = f"{fill.share:.0%}"
            whole = self.tr("{n} of {all} tokens of context").format(
                n=f"{about}{fill.n_tokens:,}", all=f"{fill.n_ctx:,}"
            )
            if fill.is_nearly_full:
                whole += self.tr(". What does not fit is refused: start a new chat before it is full")
        self._words.setText(words)
        self._words.set_tone("warning" if fill.is_nearly_full else "faint")
        self.setToolTip(whole)
        self.setAccessibleName(whole)

    @property
    def words(self) -> str:
        return self.toolTip()


def _above(button: QWidget, menu: QMenu) -> QPoint:
    """Where a menu stands on its button: the composer is at the window's foot."""
    return button.mapToGlobal(QPoint(0, -menu.sizeHint().height() - 2))


def files_in(data: QMimeData) -> list[Path]:
    """The local files of what is dropped or pasted."""
    return [Path(url.toLocalFile()) for url in data.urls() if url.isLocalFile()] if data.hasUrls() else []


def size_words(file: File) -> str:
    """In tokens where they were counted, else in bytes."""
    if file.n_tokens is not None:
        return translate("Files", "{} tokens").format(f"{file.n_tokens:,}")
    if file.n_bytes >= 1000:
        return translate("Files", "{} kB").format(f"{file.n_bytes / 1000:,.0f}")
    return translate("Files", "{} bytes").format(file.n_bytes)
