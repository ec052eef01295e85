"""The panel beside a chat: the instructions that the model gets, and how it chooses its words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtWidgets import QDoubleSpinBox, QFrame, QLineEdit, QPlainTextEdit, QSlider, QSpinBox, QWidget

from app.chats.model import Preset, Sampling
from app.chats.sampling import SETTINGS, Setting
from app.look.look import current_look
from app.look.measures import LARGE, MEDIUM, SMALL, TINY
from app.widgets.basics import Button, Line, Scrolled, Text, column, row
from app.words import translate

WIDTH = 300

_TYPED_MS = 300
_SLIDER_STEPS = 100


class ChatSettings(QFrame):
    """`system_changed` and `sampling_changed` tell what the user made of them."""

    system_changed = Signal(str)
    sampling_changed = Signal(object)
    preset_kept = Signal(object)
    preset_deleted = Signal(str)
    closed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "panel")
        self.setFixedWidth(current_look().px(WIDTH))
        self._sampling = Sampling()
        self._presets: Sequence[Preset] = ()
        self._own: frozenset[str] = frozenset()
        self.system = QPlainTextEdit()
        self.system.setAccessibleName(self.tr("Instructions"))
        self.system.setPlaceholderText(self.tr("You are a careful helper. Answer shortly."))
        self.system.setTabChangesFocus(True)
        self.system.setFixedHeight(current_look().px(112))
        self._typed = QTimer(self, singleShot=True, interval=_TYPED_MS)
        self._typed.timeout.connect(lambda: self.system_changed.emit(self.system.toPlainText()))
        self.system.textChanged.connect(self._on_typed)
        self._name = QLineEdit()
        self._name.setPlaceholderText(self.tr("Name of the preset"))
        self._name.setAccessibleName(self.tr("Name of the preset"))
        self._name.setMaxLength(40)
        self._name.textChanged.connect(lambda _: self._show_presets())
        self._name.returnPressed.connect(self._keep_preset)
        self._keep = Button(self.tr("Keep"), self._keep_preset)
        self._forget = Button(
            "", self._forget_preset, kind="icon", icon="trash", name=self.tr("Delete preset")
        )
        self.rows = {setting.name: _SettingRow(setting) for setting in SETTINGS}
        for one in self.rows.values():
            one.changed.connect(self._on_setting)
        self._reset = Button(self.tr("Reset"), self._reset_all, kind="link")
        close = Button("", self.closed.emit, kind="icon", icon="close", name=self.tr("Close"))
        head = row(Text(self.tr("Instructions"), strong=True), None, close, spacing=SMALL)
        scrolled = Scrolled(
            column(
                head,
                Text(
                    self.tr("Said to the model before each question."), size="caption", tone="soft", wrap=True
                ),
                self.system,
                row(self._name, self._keep, self._forget, spacing=TINY),
                spacing=SMALL,
            ),
            Line(),
            row(Text(self.tr("Sampling"), strong=True), None, self._reset, spacing=SMALL),
            column(*self.rows.values(), spacing=MEDIUM),
            None,
            margin=LARGE,
            spacing=MEDIUM,
        )
        self.setLayout(column(scrolled, spacing=0))
        self.layout().setContentsMargins(1, 0, 0, 0)  # type: ignore[union-attr]
        self._show_presets()

    def show_system(self, system: str) -> None:
        if system != self.system.toPlainText():
            self.system.blockSignals(True)
            self.system.setPlainText(system)
            self.system.blockSignals(False)
        self._show_presets()

    def show_sampling(self, sampling: Sampling) -> None:
        self._sampling = sampling
        for name, one in self.rows.items():
            one.show_value(getattr(sampling, name))
        self._reset.setVisible(sampling != Sampling())

    def show_presets(self, presets: Sequence[Preset], own: frozenset[str]) -> None:
        """All there are; `own` are the names of the user's."""
        self._presets, self._own = presets, own
        self._show_presets()

    def settle(self) -> None:
        """What was typed just now counts at once."""
        if self._typed.isActive():
            self._typed.stop()
            self.system_changed.emit(self.system.toPlainText())

    def _on_typed(self) -> None:
        self._typed.start()
        self._show_presets()

    def _show_presets(self) -> None:
        name, system = self._name.text().strip(), self.system.toPlainText().strip()
        self._keep.setEnabled(bool(name and system))
        self._forget.setVisible(name in self._own)

    def _keep_preset(self) -> None:
        if self._keep.isEnabled():
            self.settle()
            self.preset_kept.emit(
                Preset(name=self._name.text().strip(), system=self.system.toPlainText().strip())
            )

    def _forget_preset(self) -> None:
        self.preset_deleted.emit(self._name.text().strip())
        self._name.clear()

    def _on_setting(self, name: str, value: object) -> None:
        self.show_sampling(replace(self._sampling, **{name: value}))  # type: ignore[arg-type]
        self.sampling_changed.emit(self._sampling)

    def _reset_all(self) -> None:
        self.show_sampling(Sampling())
        self.sampling_changed.emit(self._sampling)


class _SettingRow(QWidget):
    """One setting: its name, a value to type or to drag, and what it does. A value that is the default is as none."""

    changed = Signal(str, object)

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self._setting = setting
        name, sentence = _words(setting.name)
        self.box: QSpinBox | QDoubleSpinBox = QDoubleSpinBox() if setting.decimals else QSpinBox()
        if isinstance(self.box, QDoubleSpinBox):
            self.box.setDecimals(setting.decimals)
            self.box.setRange(setting.least, setting.most)
            self.box.setSingleStep(setting.step)
        else:
            # Of a setting without a value of its own, one below the least stands for none.
            least = setting.least if setting.default is not None else setting.least - 1
            self.box.setRange(int(least), int(setting.most))
            if setting.default is None:
                none = self.tr("no limit") if setting.name == "max_tokens" else self.tr("random")
                self.box.setSpecialValueText(none)
        self.box.setAccessibleName(name)
        self.box.setAccessibleDescription(sentence)
        self.box.setFixedWidth(current_look().px(92))
        self.box.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        self.box.setKeyboardTracking(False)
        self.box.valueChanged.connect(self._on_typed)
        self._slider = QSlider(Qt.Orientation.Horizontal)
        self._slider.setRange(0, _SLIDER_STEPS)
        self._slider.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._slider.setAccessibleName(name)
        self._slider.valueChanged.connect(self._on_dragged)
        parts = [row(Text(name), None, self.box, spacing=SMALL)]
        self.setLayout(
            column(
                *parts,
                *([self._slider] if setting.default is not None else []),
                Text(sentence, size="caption", tone="faint", wrap=True),
                spacing=TINY,
            )
        )
        self.show_value(None)

    def show_value(self, value: float | int | None) -> None:
        setting = self._setting
        shown = value if value is not None else setting.default
        if shown is None:
            shown = self.box.minimum()
        self.box.blockSignals(True)
        self.box.setValue(shown)  # type: ignore[arg-type]
        self.box.blockSignals(False)
        self._slider.blockSignals(True)
        self._slider.setValue(round((shown - setting.least) / (setting.most - setting.least) * _SLIDER_STEPS))
        self._slider.blockSignals(False)

    def _on_typed(self, value: float) -> None:
        setting = self._setting
        is_none = value == setting.default or (setting.default is None and value < setting.least)
        self.changed.emit(setting.name, None if is_none else value)

    def _on_dragged(self, at: int) -> None:
        setting = self._setting
        value = setting.least + (setting.most - setting.least) * at / _SLIDER_STEPS
        self.box.setValue(round(round(value / setting.step) * setting.step, setting.decimals or None))  # type: ignore[arg-type]


def _words(name: str) -> tuple[str, str]:
    """What a setting is called, and what it does, in a line."""
    return {
        "temperature": (
            translate("Sampling", "Temperature"),
            translate("Sampling", "0 takes the likeliest, more is bolder."),
        ),
        "top_p": (
            translate("Sampling", "Top-p"),
            translate("Sampling", "The likeliest words up to this share."),
        ),
        "top_k": (
            translate("Sampling", "Top-k"),
            translate("Sampling", "So many of the likeliest; 0 is all."),
        ),
        "min_p": (
            translate("Sampling", "Min-p"),
            translate("Sampling", "Drops words far below the likeliest."),
        ),
        "repeat_penalty": (
            translate("Sampling", "Repeat penalty"),
            translate("Sampling", "Over 1, words just used come less."),
        ),
        "max_tokens": (
            translate("Sampling", "Longest answer"),
            translate("Sampling", "In tokens. Else the context is the limit."),
        ),
        "seed": (
            translate("Sampling", "Seed"),
            translate("Sampling", "The same number, the same answer."),
        ),
    }[name]
