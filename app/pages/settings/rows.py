"""A row for each setting: what it is, its control, what its value means, and what became of a change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QSize, Qt, QTimer, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QWidget

from app.bridge import Job
from app.context import Context
from app.look.measures import LARGE, MEDIUM, SMALL, TINY
from app.node.faults import AppError, NodeGone, sentence
from app.pages.settings.controls import Control, SecretControl, SliderControl, control_for
from app.pages.settings.declared import Declared, Snapshot, read, stops
from app.pages.settings.explain import explanation, need_text
from app.pages.settings.memory import Need
from app.pages.settings.words import title_of, without
from app.widgets.basics import Button, Line, Text, column, row
from app.widgets.feedback import Meter, Tag
from app.words import translate

# While somebody types or slides, nothing is kept.
SAVE_AFTER_MS = 500


class Row(QWidget):
    """Title and sentence, with a control beside them or below, and whatever else stands under that."""

    def __init__(self, title: str, sentence: str, control: QWidget, *, is_wide: bool = False) -> None:
        super().__init__()
        self._words = f"{title} {sentence}".casefold()
        self.line = Line()
        self.tag = Tag("")
        self.tag.hide()
        self.reset = Button(
            kind="icon", icon="refresh", name=self.tr("Reset {} to its default").format(title)
        )
        # no taller than its title, whose sentence would move
        self.reset.setProperty("scale", "small")
        self.reset.setIconSize(QSize(16, 16))
        self.reset.hide()
        self.sentence = Text(sentence, tone="soft", wrap=True)
        if not sentence:
            self.sentence.hide()
        head = row(Text(title, strong=True), self.tag, None, self.reset, spacing=SMALL)
        head.setAlignment(self.tag, Qt.AlignmentFlag.AlignVCenter)
        self.below = column(spacing=SMALL)
        body = column(spacing=SMALL)
        if is_wide:
            body.addLayout(column(head, self.sentence, spacing=TINY))
            body.addWidget(control)
        else:
            beside = row(column(head, self.sentence, spacing=TINY), control, spacing=LARGE)
            beside.setStretch(0, 1)
            beside.setAlignment(control, Qt.AlignmentFlag.AlignVCenter)
            body.addLayout(beside)
        body.addLayout(self.below)
        body.setContentsMargins(LARGE, MEDIUM, LARGE, MEDIUM)
        self.setLayout(column(self.line, body, spacing=0))

    def matches(self, words: str) -> bool:
        return all(word in self._words for word in words.casefold().split())


class SettingRow(Row):
    """One setting of the node. A change is kept at once; what could not be kept stays in the control, with the reason.

    `trying` is sent with a value that is being tried out, before it is kept.
    """

    trying = Signal(object)

    def __init__(
        self, context: Context, declared: Declared, snapshot: Snapshot, models: Sequence[str]
    ) -> None:
        placeholder = _placeholder(declared, context, snapshot)
        self.control: Control = control_for(
            declared,
            stops=stops(declared, slots=snapshot.number("slots", 0)),
            models=models,
            placeholder=placeholder,
        )
        title = title_of(declared)
        about = without(title, declared.sentence)
        super().__init__(title, about, self.control, is_wide=self.control.is_wide)
        self.declared = declared
        self._context, self._snapshot = context, snapshot
        self._unsaved = self._is_wrong = False
        self._value: Any = None
        self._job: Job | None = None
        self._n_ctx_train = 0
        self._save = QTimer(self, singleShot=True, interval=SAVE_AFTER_MS)
        self._save.timeout.connect(self._send)
        self._explanation = Text(tone="soft", wrap=True, size="caption")
        self._meter = Meter()
        self._need = Text(size="caption", wrap=True)
        self._source = Text(tone="soft", wrap=True, size="caption")
        self._error = Text(tone="danger", wrap=True)
        for part in (self._explanation, self._meter, self._need, self._source, self._error):
            part.hide()
            self.below.addWidget(part)
        self.control.edited.connect(self._on_edited)
        self.control.wrong.connect(self._on_wrong)
        self.reset.clicked.connect(lambda _=False: self._reset())
        if isinstance(self.control, SliderControl):
            self.control.moved.connect(self._on_trying)
        elif isinstance(self.control, SecretControl):
            self.control.asked.connect(lambda: context.shell.go("server"))
        self.show_setting(declared, snapshot)

    @property
    def error(self) -> str:
        return self._error.text()

    @property
    def is_unsaved(self) -> bool:
        return self._unsaved

    def matches(self, words: str) -> bool:
        return self.declared.matches(words, title_of(self.declared))

    def show_setting(self, declared: Declared, snapshot: Snapshot) -> None:
        """As the node has it now; what the user is just changing stays as it is in the control."""
        self.declared, self._snapshot = declared, snapshot
        if not self._unsaved:
            self.control.show_value(declared)
            self._explain(declared.value)
        if isinstance(self.control, SliderControl):
            self._show_stops()
        self.reset.setVisible(declared.can_be_reset and not declared.fixed_by)
        self._source.setVisible(bool(declared.fixed_by))
        self._source.setText(
            self.tr(
                "{} was given when Baton's node was started, and goes first. Start it without to change this here."
            ).format(declared.fixed_by)
        )
        waits = {"reload": self.tr("after a reload"), "restart": self.tr("after a restart")}
        self.tag.setVisible(declared.waits_for in waits)
        self.tag.say(waits.get(declared.waits_for, ""), "warning")

    def set_reachable(self, is_there: bool) -> None:
        """Whether the node is there; what was not kept while it was not is kept now."""
        can_change = is_there and not self.declared.fixed_by
        self.control.setEnabled(can_change)
        self.reset.setEnabled(can_change)
        if can_change and self._unsaved and not self._is_wrong:
            self._send()

    def show_need(self, need: Need | None) -> None:
        """The memory of a model with the value that is shown; for settings that it depends on."""
        self._meter.setVisible(need is not None)
        self._need.setVisible(need is not None)
        if need is None:
            return
        self._meter.show_shares((need.share, need.tone))
        self._need.setText(need_text(need))
        self._need.set_tone("soft" if need.fit == "fits" else need.tone)
        if need.n_ctx_train != self._n_ctx_train:
            self._n_ctx_train = need.n_ctx_train
            if isinstance(self.control, SliderControl):
                self._show_stops()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Escape takes back what was typed and is not kept."""
        if event.key() == Qt.Key.Key_Escape and self._unsaved:
            self._take_back()
        else:
            super().keyPressEvent(event)

    def _take_back(self) -> None:
        self._save.stop()
        if self._job is not None:
            self._job.cancel()
        self._unsaved = self._is_wrong = False
        self._say_error("")
        self.show_setting(self.declared, self._snapshot)

    def flush(self) -> None:
        """Keep now what would be kept in a moment."""
        if self._save.isActive():
            self._save.stop()
            self._send()

    def _show_stops(self) -> None:
        assert isinstance(self.control, SliderControl)
        found = stops(self.declared, n_ctx_train=self._n_ctx_train, slots=self._snapshot.number("slots", 0))
        self.control.show_stops(found)
        if not self._unsaved:
            self.control.show_value(self.declared)

    def _on_trying(self, value: Any) -> None:
        self._explain(value)
        self.trying.emit(value)

    def _on_edited(self, value: Any) -> None:
        self._unsaved, self._is_wrong, self._value = True, False, value
        self._say_error("")
        self._explain(value)
        self._save.start()

    def _on_wrong(self, fault: str) -> None:
        self._save.stop()
        self._unsaved = self._is_wrong = True
        low, high = self.declared.minimum, self.declared.maximum
        if fault == "no number":
            self._say_error(self.tr("A number is needed here. Nothing was changed."))
        elif fault == "too small" and low is not None:
            self._say_error(self.tr("{:,.0f} is the least. Nothing was changed.").format(low))
        elif high is not None:
            self._say_error(self.tr("{:,.0f} is the most. Nothing was changed.").format(high))

    def _reset(self) -> None:
        self._unsaved, self._is_wrong, self._value = True, False, None
        self._save.stop()
        self._say_error("")
        self._send()

    def _send(self) -> None:
        if self._error.text():
            self._say_error("")
        value = self._value
        if self._job is not None:
            self._job.cancel()
        change = {self.declared.name: value}
        self._job = self._context.bridge.run(
            self._context.client.patch("/settings", change),
            lambda told: self._kept(value, told),
            self._on_error,
        )

    def _kept(self, value: Any, told: Any) -> None:
        if self._value == value and not self._save.isActive():
            self._unsaved = False
            snapshot = read(told)
            self.show_setting(snapshot.by_name.get(self.declared.name, self.declared), snapshot)

    def _on_error(self, error: AppError) -> None:
        if isinstance(error, NodeGone):
            self._say_error(self.tr("Not kept yet: Baton's node does not answer. It is kept once it does."))
        else:
            # the control shows what was asked for
            self._say_error(sentence(str(error).rpartition(f"{self._value}: ")[2]))

    def _say_error(self, text: str) -> None:
        self._error.setText(text)
        self._error.setVisible(bool(text))
        self.control.show_wrong(bool(text))

    def _explain(self, value: Any) -> None:
        text = explanation(self.declared.name, value, self._snapshot)
        self._explanation.setText(text)
        self._explanation.setVisible(bool(text))


def _placeholder(declared: Declared, context: Context, snapshot: Snapshot) -> str:
    """What stands where a setting has no value of its own: what Baton takes then."""
    match declared.name:
        case "name":
            return context.computer
        case "preload":
            return translate("Settings", "None: each when it is asked for")
        case "models" if declared.value is None and declared.waits_for == "nothing":
            return str((context.state.part("models") or {}).get("folder", ""))
    return translate("Settings", "automatic")
