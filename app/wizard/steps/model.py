"""A model for both: what they have, what can be had, and copying it to the other computer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFileDialog, QHBoxLayout

from app.context import Context
from app.look.measures import LARGE, MEDIUM, SMALL
from app.node.faults import AppError, sentence
from app.widgets.basics import Button, Card, Icon, Text, clear, column, row
from app.widgets.feedback import Tag
from app.widgets.transfer import TransferRow
from app.wizard.library import ModelRow, memory_of, rows
from app.wizard.step import Choice, Guide, StepView


class ModelStep(StepView):
    """Copies and fetches go on when another step is shown."""

    def __init__(self, context: Context, guide: Guide) -> None:
        super().__init__(context, guide)
        self._rows: list[ModelRow] = []
        self._peer = ""
        self._cards: dict[str, _ModelCard] = {}
        self._copied: dict[str, dict[str, Any]] = {}
        self._fetched: dict[str, dict[str, Any]] = {}
        self._list = column(spacing=SMALL)
        self._fault = Text(tone="danger", wrap=True, selectable=True)
        self._busy = Text(tone="soft")
        self.body.addLayout(self._list)
        self.body.addWidget(self._fault)
        self.body.addLayout(
            row(
                Button(self.tr("Use a file of yours…"), self._import, kind="link", icon="folder"),
                LARGE,
                self._busy,
                None,
            )
        )
        self._fault.hide()

    @property
    def parts(self) -> frozenset[str]:
        return frozenset({"models", "downloads", "copies", "peers", "computer"})

    def choice(self) -> Choice:
        usable = any(model.is_usable for model in self._rows)
        return Choice(text=self.tr("Continue"), is_enabled=usable)

    def other(self) -> Choice | None:
        return (
            None
            if any(model.is_usable for model in self._rows)
            else Choice(text=self.tr("Without a model for now"))
        )

    def hear(self, part: str) -> None:
        """What is on its way changes several times a second, and the models only at its end."""
        if part in ("downloads", "copies"):
            self._show_moving()
        else:
            self.refresh()

    def refresh(self) -> None:
        peer = self.context.peer
        self.say(
            self.tr("A model for both") if peer else self.tr("A model"),
            self.tr(
                "Both computers need the same file. Whoever has it can copy it to the other over the cable."
            )
            if peer
            else self.tr(
                "Take one that is here, or get a small one to begin with. You can add others later."
            ),
        )
        if not self._cards:
            self._busy.setText(self.tr("Looking at the models…"))
        self.run(self._ask(), self._show_models, self._on_error)

    async def _ask(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        client = self.context.client
        return await client.get("/models"), await client.get("/models/catalogue")

    def _show_models(self, answer: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
        library, catalogue = answer
        if not self._cards:
            self._busy.setText("")
        memory_bytes = memory_of(self.context.state.part("computer", {}))
        found = rows(library, catalogue, memory_bytes=memory_bytes)
        peer = self.context.peer["name"] if self.context.peer else ""
        if (found, peer) != (self._rows, self._peer) or not self._cards:
            self._rows, self._peer = found, peer
            clear(self._list)
            self._cards = {}
            for model in found:
                self._cards[model.name] = card = _ModelCard(model, memory_bytes, peer, self)
                self._list.addWidget(card)
        self._show_moving()
        self.guide.refresh()

    def _show_moving(self) -> None:
        for told in self.context.state.part("downloads", []):
            self._show_one(told["model"], told, self._fetched)
        for told in self.context.state.part("copies", []):
            if told["begun_here"]:
                self._show_one(told["source"], told, self._copied)

    def _show_one(self, name: str, told: dict[str, Any], known: dict[str, dict[str, Any]]) -> None:
        """A fetch or a copy; `known` are those that were seen to run."""
        card = self._cards.get(name)
        if card is None:
            return
        if told["state"] == "running":
            known[name] = told
            card.begin()
            card.show_progress(told["done_bytes"], told["total_bytes"], told.get("note", ""))
        elif told["state"] == "failed":
            card.show_fault(sentence(told["problem"]))
        elif known.pop(name, None) and told["state"] == "cancelled":
            card.end()

    # what cards ask

    def get(self, model: ModelRow) -> None:
        """Fetch it, or go on where an earlier try stopped."""
        self._fault.hide()
        self._cards[model.name].begin()
        self.context.bridge.stream(
            self.context.client.lines("/models/get", {"model": model.name}),
            lambda told: self._on_fetch(model.name, told),
            lambda _: self.refresh(),
            lambda error: self._on_failed(model.name, error),
        )

    def copy(self, model: ModelRow) -> None:
        """To the other computer, or from there; it goes on without this window."""
        self._fault.hide()
        self._cards[model.name].begin()
        if model.here:
            path, body = "/models/send", {"model": model.name}
        else:
            path, body = "/models/fetch", {"model": model.digest or model.name, "from": model.peers[0]}
        self.context.bridge.stream(
            self.context.client.lines(path, body),
            lambda told: self._on_copy(model.name, told),
            lambda _: self._on_copied(model),
            lambda error: self._on_failed(model.name, error),
        )

    def stop(self, model: ModelRow) -> None:
        """What has come is kept: asked again, it goes on."""
        for kind, known in (("copies", self._copied), ("downloads", self._fetched)):
            if (told := known.get(model.name)) is not None:
                self.context.bridge.run(
                    self.context.client.delete(f"/{kind}/{told['id']}"), on_error=self.context.tell
                )

    # what comes of it

    def _on_fetch(self, name: str, told: dict[str, Any]) -> None:
        self._fetched[name] = told
        if (card := self._cards.get(name)) is not None:
            card.show_progress(told["done_bytes"], told["total_bytes"], told["note"])

    def _on_copy(self, name: str, told: dict[str, Any]) -> None:
        self._copied[name] = told
        if (card := self._cards.get(name)) is not None:
            card.show_progress(told["done_bytes"], told["total_bytes"])

    def _on_copied(self, model: ModelRow) -> None:
        self._copied.pop(model.name, None)
        peer = self.context.peer
        there = peer["name"] if peer else self.tr("the other computer")
        words = self.tr("{0} is on {1} too.").format(model.name, there)
        if not model.here:
            words = self.tr("{} is here too.").format(model.name)
        self.context.shell.notify(self.tr("Model copied"), words)
        self._rows = []
        self.refresh()

    def _on_failed(self, name: str, error: AppError) -> None:
        self._copied.pop(name, None)
        self._fetched.pop(name, None)
        card = self._cards.get(name)
        if card is None:
            self._on_error(error)
        elif getattr(error, "code", "") == "cancelled":
            card.end()
        else:
            card.show_fault(str(error))

    def _on_error(self, error: AppError) -> None:
        self._busy.setText("")
        self._fault.setText(str(error))
        self._fault.show()

    def _import(self) -> None:
        path, _ = QFileDialog.getOpenFileName(
            self, self.tr("A model's file"), str(Path.home()), self.tr("Models (*.gguf)")
        )
        if path:
            self.import_file(path)

    def import_file(self, path: str) -> None:
        """Have a file of the user's among the models; it stays where it is."""
        self._fault.hide()
        self._busy.setText(self.tr("Reading {}…").format(Path(path).name))
        self.context.bridge.stream(
            self.context.client.lines("/models/import", {"path": path}),
            lambda _: self._busy.setText(""),
            lambda _: self.refresh(),
            self._on_error,
        )


class _ModelCard(Card):
    """A model, where it is, and what can be done with it."""

    def __init__(self, model: ModelRow, memory_bytes: float, peer: str, step: ModelStep) -> None:
        super().__init__(padding=MEDIUM)
        self._action: Button | None = None
        about = model.about(memory_bytes)
        tone = "warning" if model.problem or not model.fits else "soft"
        words = column(
            Text(model.title, strong=True), Text(about, size="caption", tone=tone, wrap=True), spacing=2
        )
        line = row(Icon("models", "local" if model.here else "text_soft", 24), words, spacing=MEDIUM)
        line.setStretch(1, 1)
        if model.here and model.peers:
            self._tag(line, self.tr("on both"), "local")
        elif model.here:
            self._tag(line, self.tr("here"), "local")
        elif model.peers:
            self._tag(line, self.tr("on {}").format(model.peers[0]), "peer")
        if model.is_usable and peer and not model.peers:
            self._action = Button(
                self.tr("Copy to {}").format(peer),
                lambda: step.copy(model),
                name=self.tr("Copy {0} to {1}").format(model.name, peer),
            )
        elif model.peers and not model.here and not model.problem:
            self._action = Button(
                self.tr("Copy here"),
                lambda: step.copy(model),
                name=self.tr("Copy {0} from {1}").format(model.name, model.peers[0]),
            )
        elif model.in_catalogue:
            self._action = Button(
                self.tr("Get"),
                lambda: step.get(model),
                icon="download",
                name=self.tr("Get {}").format(model.name),
            )
        if self._action is not None:
            line.addWidget(self._action)
        tone = "peer" if model.here or model.peers else "local"
        self._transfer = TransferRow(lambda: step.stop(model), tone=tone)
        self._transfer.hide()
        self.column.addLayout(line)
        self.column.addWidget(self._transfer)

    def _tag(self, line: QHBoxLayout, text: str, tone: str) -> None:
        line.addWidget(Tag(text, tone), 0, Qt.AlignmentFlag.AlignVCenter)

    def begin(self) -> None:
        self._transfer.show()
        if self._action is not None:
            _hand_over(self._action, self._transfer.stop)
            self._action.hide()

    def end(self) -> None:
        if self._action is not None:
            self._action.show()
            _hand_over(self._transfer.stop, self._action)
        self._transfer.hide()

    def show_progress(self, done_bytes: int, total_bytes: int, note: str = "") -> None:
        self._transfer.show_progress(done_bytes, total_bytes, note)

    def show_fault(self, text: str) -> None:
        if self._action is not None:
            self._action.show()
            _hand_over(self._transfer.stop, self._action)
        self._transfer.show()
        self._transfer.show_fault(text)


def _hand_over(one: Button, other: Button) -> None:
    """The focus goes to the button that takes the place of one that is about to go; Qt would take the next one."""
    if one.hasFocus():
        other.setFocus()
