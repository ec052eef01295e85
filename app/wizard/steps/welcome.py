"""The first step: what Baton does, and what this computer brings along."""

from __future__ import annotations

from PySide6.QtWidgets import QApplication, QLineEdit

from app.amounts import memory_text
from app.context import Context
from app.look.look import current_look
from app.look.measures import HUGE, MEDIUM, SMALL
from app.node.faults import AppError
from app.widgets.basics import Button, Card, Icon, Text, row
from app.wizard.facts import FactsCard
from app.wizard.pictures import ComputersPicture
from app.wizard.step import Choice, Guide, StepView
from app.wizard.words import good_at

# The node takes no longer ones.
_MAX_NAME = 40


class WelcomeStep(StepView):
    def __init__(self, context: Context, guide: Guide) -> None:
        super().__init__(context, guide)
        self.say(
            self.tr("Welcome to Baton"),
            self.tr(
                "Baton makes two home computers answer as one: one reads the prompt, the other writes the answer. "
                "This is the computer you are at."
            ),
        )
        self._picture = ComputersPicture()
        self._name = QLineEdit()
        self._name.setAccessibleName(self.tr("Name of this computer"))
        self._name.setMaxLength(_MAX_NAME)
        self._name.editingFinished.connect(self._on_name)
        label = Text(self.tr("Name"), tone="soft")
        label.setBuddy(self._name)
        label.setFixedWidth(current_look().px(104))
        self._facts = FactsCard()
        self._good_at = Text(wrap=True)
        self._limit = Card(spacing=SMALL)
        self._limit_text = Text(tone="soft", wrap=True)
        self._command = QLineEdit()
        self._command.setReadOnly(True)
        self._command.setAccessibleName(self.tr("Command that raises the limit"))
        copy = Button(self.tr("Copy"), self._copy, icon="copy")
        self._limit.column.addWidget(self._limit_text)
        self._limit.column.addLayout(row(self._command, copy))
        note = row(Icon("bolt", "local"), self._good_at, spacing=MEDIUM)
        note.setStretch(1, 1)
        self.body.addWidget(self._picture)
        self._facts.column.insertLayout(0, row(label, self._name, spacing=HUGE))
        self.body.addWidget(self._facts)
        self.body.addLayout(note)
        self.body.addWidget(self._limit)

    @property
    def parts(self) -> frozenset[str]:
        return frozenset({"computer", "roles", "node", "settings"})

    def choice(self) -> Choice:
        return Choice(text=self.tr("Continue"))

    def refresh(self) -> None:
        state = self.context.state
        computer = state.part("computer")
        if computer is None:
            return
        roles = state.part("roles", {})
        self._picture.show_computers(self.context.computer, captions=(self.tr("this computer"), ""))
        self._show_name()
        memory = memory_text(computer["memory_bytes"])
        if free := roles.get("memory", {}).get("free_bytes"):
            memory = self.tr("{0}, {1} free now").format(memory, memory_text(free))
        limit = computer["gpu_limit_bytes"]
        self._facts.show_facts(
            [
                (
                    self.tr("Processor"),
                    self.tr("{0}, {1} cores").format(computer["processor"], computer["n_cores"]),
                ),
                (self.tr("Graphics"), computer["gpu"] or self.tr("none that Baton can use")),
                (self.tr("Memory"), memory),
                (self.tr("For the GPU"), memory_text(limit) if limit else ""),
            ]
        )
        self._good_at.setText(good_at(computer, roles))
        command = computer["raise_gpu_limit"]
        self._limit.setVisible(bool(command))
        if command:
            self._limit_text.setText(
                self.tr(
                    "macOS lets the GPU have {0} of {1}. For larger models, paste this in a terminal; "
                    "it lasts until the next start."
                ).format(memory_text(limit), memory_text(computer["memory_bytes"]))
            )
            self._command.setText(command)

    def _show_name(self) -> None:
        """A name that was given when the node was started holds until it is started otherwise."""
        found = self.context.state.part("settings", {}).get("settings", [])
        source = next((each["source"] for each in found if each["name"] == "name"), "flag")
        self._name.setEnabled(source in ("file", "default"))
        if not self._name.hasFocus():
            self._name.setText(self.context.computer)

    def _on_name(self) -> None:
        name = self._name.text().strip()
        if name and name != self.context.computer:
            # By a click on Continue, too: so it is not of this step alone.
            self.context.bridge.run(
                self.context.client.patch("/settings", {"name": name}), None, self._on_refused
            )

    def _on_refused(self, error: AppError) -> None:
        self._name.setText(self.context.computer)
        self.context.tell(error)

    def _copy(self) -> None:
        QApplication.clipboard().setText(self._command.text())
        self.context.shell.toast(self.tr("Copied"))
