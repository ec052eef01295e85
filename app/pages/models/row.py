"""One model in the library's list: what it is, where it is, whom it fits, and what can be done with it."""

from __future__ import annotations

from typing import Protocol

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QHBoxLayout, QMenu, QVBoxLayout, QWidget

from app.amounts import size_text
from app.look.measures import MEDIUM, SMALL, TINY
from app.node.faults import sentence
from app.pages.models.rows import Memory, ModelRow, State, tokens_text
from app.pages.models.words import fit_words
from app.widgets.basics import Button, Icon, Text, clear, column, row, set_property
from app.widgets.controls import ChoosableRow, Menu
from app.widgets.elided import ElidedText
from app.widgets.feedback import Dot, Meter, Tag


class Doer(Protocol):
    """Does what is clicked in a row."""

    def load(self, model: ModelRow) -> None: ...

    def unload(self, model: ModelRow) -> None: ...

    def send(self, model: ModelRow) -> None: ...

    def copy_here(self, model: ModelRow) -> None: ...

    def reveal(self, model: ModelRow) -> None: ...

    def remove(self, model: ModelRow) -> None: ...


class LibraryRow(ChoosableRow):
    """One model, with what can be done with it."""

    def __init__(self, doer: Doer) -> None:
        super().__init__()
        self._doer = doer
        self.model = ModelRow(model_id="")
        self._shown: object = None
        self._icon = Icon("models", "local", 20)
        self._name = ElidedText(strong=True)
        self._tags = QHBoxLayout()
        self._tags.setSpacing(TINY)
        self._facts = ElidedText(size="caption", tone="soft")
        self._dot = Dot()
        self._fit = Text(size="caption", tone="soft", wrap=True)
        self._meter = Meter(4)
        self._action = Button()
        self._action.setMinimumWidth(108)
        self._action.clicked.connect(self._act)
        self._more = Button(kind="icon", icon="more", name=self.tr("More"))
        self._more.clicked.connect(self._show_menu)
        keeps = self._more.sizePolicy()
        keeps.setRetainSizeWhenHidden(True)
        self._more.setSizePolicy(keeps)
        self._lay_out()

    def _lay_out(self) -> None:
        first = row(self._name, self._tags, None, spacing=SMALL)
        first.setStretch(0, 0)
        last = row(column(3, self._dot, None, spacing=0), self._fit, spacing=SMALL)
        last.setStretch(1, 1)
        words = QVBoxLayout()
        words.setSpacing(2)
        words.setContentsMargins(0, 0, 0, 0)
        words.addLayout(first)
        words.addWidget(self._facts)
        words.addLayout(last)
        words.addWidget(self._meter)
        body = row(self._icon, words, SMALL, self._action, self._more, spacing=MEDIUM)
        body.setStretch(1, 1)
        body.setContentsMargins(MEDIUM, SMALL, SMALL, SMALL)
        body.setAlignment(self._icon, Qt.AlignmentFlag.AlignTop)
        self.setLayout(body)

    def show_model(self, model: ModelRow, here: Memory, there: Memory | None, peer: str, fault: str) -> None:
        """`there` is None while the other computer is away; `peer` is its name, "" where none is paired."""
        told = (model, here, there, peer, fault)
        if told == self._shown:
            return
        self._shown, self.model, self._peer, self._peer_is_there = told, model, peer, there is not None
        self._icon.show_icon("models", "local" if model.here else "peer")
        self._name.say(model.model_id)
        self._show_tags(model, here.name, peer)
        facts = [*model.facts, size_text(model.size_bytes)]
        if model.n_ctx_train:
            facts.append(self.tr("{} context").format(tokens_text(model.n_ctx_train)))
        self._facts.say(" · ".join(facts))
        words, tone = self._state_words(model, here, there, fault)
        self._fit.setText(words)
        self._fit.set_tone("danger" if tone == "danger" else "soft")
        self._dot.show_tone(tone or "text_faint")
        self._dot.setVisible(bool(words))
        self._fit.setVisible(bool(words))
        self._meter.setVisible(model.state is State.LOADING)
        self._meter.show_shares((model.progress or model.checked, "local"))
        self._show_action(model)
        self.setAccessibleName(f"{model.model_id}. {self._facts.full_text}. {words}")

    @property
    def tab_stops(self) -> tuple[QWidget, ...]:
        return self, self._action, self._more

    def set_chosen(self, is_chosen: bool) -> None:
        set_property(self, "chosen", is_chosen)

    def _show_tags(self, model: ModelRow, here: str, peer: str) -> None:
        clear(self._tags)
        if model.state is State.LOADED:
            self._tags.addWidget(Tag(self.tr("loaded"), "local"))
        if model.here and peer:
            self._tags.addWidget(Tag(here, "local"))
        if model.there:
            self._tags.addWidget(Tag(peer, "peer"))
        if model.program:
            self._tags.addWidget(Tag(model.program))

    def _state_words(
        self, model: ModelRow, here: Memory, there: Memory | None, fault: str
    ) -> tuple[str, str]:
        """What matters most just now, and its tone."""
        if model.problem:
            # which file it is, its row says
            why = sentence(model.problem.removeprefix(f"{model.path}: "))
            return self.tr("Cannot be run. {}").format(why), "danger"
        if model.state is State.FAILED or fault:
            return self.tr("Could not be loaded. {}").format(sentence(fault or model.fault)), "danger"
        if model.state is State.LOADING:
            if not model.progress and model.checked:
                return self.tr("Checking the file, {:.0f} %").format(100 * model.checked), "local"
            if not model.progress:
                return self.tr("Loading"), "local"
            return self.tr("Loading, {:.0f} %").format(100 * model.progress), "local"
        if model.state is State.LOADED:
            return self.tr("Ready to answer"), "local"
        if model.answers_on:
            return self.tr("Ready to answer on {}").format(model.answers_on), "peer"
        if model.state is State.COMING:
            return self.tr("On its way here from {}").format(self._peer), "peer"
        return fit_words(model.needed_bytes, here, there)

    def _show_action(self, model: ModelRow) -> None:
        is_loaded = model.state in (State.LOADED, State.LOADING)
        word = self.tr("Load")
        if is_loaded:
            word = self.tr("Unload") if model.state is State.LOADED else self.tr("Cancel")
        if not model.here:
            word = self.tr("Copy here")
        self._action.setText(word)
        self._action.setAccessibleName(f"{word} {model.model_id.strip()}")
        self._action.setVisible(not model.problem or is_loaded)
        self._action.setEnabled(model.here or (self._peer_is_there and model.state is not State.COMING))
        self._more.setAccessibleName(self.tr("More for {}").format(model.model_id))
        self._more.setVisible(model.here)

    def _act(self) -> None:
        if not self.model.here:
            self._doer.copy_here(self.model)
        elif self.model.state in (State.LOADED, State.LOADING):
            self._doer.unload(self.model)
        else:
            self._doer.load(self.model)

    def menu(self) -> QMenu:
        """What else can be done with it."""
        model, menu = self.model, Menu(self)
        if self._peer and not model.problem:
            send = menu.addAction(self.tr("Copy to {}").format(self._peer), lambda: self._doer.send(model))
            send.setEnabled(self._peer_is_there and not model.there)
        menu.addAction(self.tr("Show in folder"), lambda: self._doer.reveal(model))
        menu.addSeparator()
        word = self.tr("Remove the link…") if model.is_link else self.tr("Remove…")
        remove = menu.addAction(word, lambda: self._doer.remove(model))
        if model.program:
            remove.setText(self.tr("Kept by {}, remove it there").format(model.program))
        remove.setEnabled(not model.program and model.state in (State.IDLE, State.FAILED))
        return menu

    def _show_menu(self) -> None:
        self.menu().popup(self._more.mapToGlobal(self._more.rect().bottomLeft()))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Menu:
            self._show_menu()
        else:
            super().keyPressEvent(event)
