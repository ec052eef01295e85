"""What the link doctor found, and the dialog that shows what mending it would change before it is changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPlainTextEdit, QSizePolicy, QWidget

from app.bridge import Job
from app.context import Context
from app.look.measures import HUGE, MEDIUM, SMALL, TINY
from app.node.faults import AppError, NodeRefused
from app.node.link_report import Check, sentence
from app.widgets.basics import Button, Card, Icon, Text, clear, column, row
from app.widgets.feedback import Dialog

_ICONS = {"local": "check", "warning": "warning", "danger": "warning", "": "info"}


class FindingCard(Card):
    """One finding: what, why, and what to do. Buttons stand where there is something to click for it.

    `on_fix` is offered only for what tuning mends; `on_undo` for what it has changed.
    """

    def __init__(
        self,
        check: Check,
        *,
        on_fix: Callable[[], object] | None = None,
        on_undo: Callable[[], object] | None = None,
    ) -> None:
        super().__init__()
        self.check = check
        parts: list[QWidget] = [Text(check.what, strong=True, wrap=True, selectable=True)]
        parts += [Text(text, tone="soft", wrap=True) for text in (check.why, check.fix) if text]
        buttons = QHBoxLayout()
        buttons.setSpacing(SMALL)
        if on_fix is not None and check.is_tunable:
            buttons.addWidget(Button(self.tr("Fix"), on_fix, name=self.tr("Fix: {}").format(check.what)))
        if on_undo is not None:
            buttons.addWidget(Button(self.tr("Undo"), on_undo, kind="quiet"))
        icon = Icon(_ICONS[check.tone], check.tone or "text_soft")
        body = row(column(1, icon, None, spacing=0), column(*parts, spacing=TINY), buttons, spacing=MEDIUM)
        body.setStretch(1, 1)
        body.setAlignment(buttons, Qt.AlignmentFlag.AlignTop)
        self.column.addLayout(body)
        self.setAccessibleName(check.what)


class WellCard(Card):
    """All that was found to be well, a line each with its number."""

    def __init__(self, checks: Sequence[Check]) -> None:
        lines = [row(Icon("check", "local"), Text(check.what, wrap=True), spacing=MEDIUM) for check in checks]
        for line in lines:
            line.setStretch(1, 1)
        super().__init__(*lines)


class PlanDialog(Dialog):
    """What tuning this computer's end of the cable would change, step by step; `changed` once it has, or was undone.

    With `undo` it shows what takes the changes back.
    """

    changed = Signal()

    def __init__(self, parent: QWidget, context: Context, *, undo: bool = False) -> None:
        title = self.tr("Undo on {}") if undo else self.tr("Fix the cable on {}")
        title = title.format(context.computer)
        super().__init__(parent, title, width=560)
        self._context, self._undo = context, undo
        self._job: Job | None = None
        self._sentence = Text(tone="soft", wrap=True)
        self._steps = QPlainTextEdit()
        self._steps.setReadOnly(True)
        self._steps.setProperty("kind", "bare")
        self._steps.setProperty("mono", "true")
        self._steps.setTabChangesFocus(True)
        self._steps.setAccessibleName(self.tr("Steps"))
        self._steps.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self._frame = QFrame()
        self._frame.setProperty("kind", "sunken")
        self._frame.setLayout(row(self._steps, margin=MEDIUM))
        self._frame.setMinimumHeight(120)
        self._notes = column(spacing=SMALL)
        self._close = Button(self.tr("Cancel"), self.reject)
        self._apply = Button(
            self.tr("Undo it") if undo else self.tr("Change it"), self._on_apply, kind="primary"
        )
        self.setLayout(
            column(
                Text(title, size="title"),
                self._sentence,
                self._frame,
                self._notes,
                SMALL,
                row(None, self._close, self._apply),
                margin=HUGE,
                spacing=MEDIUM,
            )
        )
        self._ask()

    def done(self, result: int) -> None:
        """What is asked of the system goes on: its own question is still open, and only it can be told no."""
        if self._job is not None:
            self._job.cancel()
        super().done(result)

    def _ask(self) -> None:
        self._say(self.tr("Looking at the cable…"))
        path = "/link/tune/undo" if self._undo else "/link/tune"
        self._job = self._context.bridge.run(self._context.client.get(path), self._show_plan, self._on_error)

    def _show_plan(self, plan: dict[str, Any]) -> None:
        steps = plan["steps"]
        if plan.get("blocked"):
            self._say(
                self.tr(
                    "Baton has changed this cable before in another way. Undo that first, then fix it again."
                )
            )
        elif not steps and self._undo:
            self._say(self.tr("Nothing is changed here that could be undone."))
        elif not steps:
            self._say(
                self._for_there(self.tr("This end of the cable is set up well, nothing has to change here."))
            )
        else:
            words = self.tr("Your system asks for its administrator once. These steps put everything back.")
            if not self._undo:
                words = self._for_there(
                    self.tr("Your system asks for its administrator once. All of it can be undone.")
                )
            self._say(words, steps=steps, can_apply=True)
            for note in plan.get("plan", {}).get("notes", ()):
                line = row(Icon("info"), Text(sentence(note), tone="soft", wrap=True), spacing=SMALL)
                line.setStretch(1, 1)
                self._notes.addLayout(line)

    def _for_there(self, words: str) -> str:
        peer = self._context.peer
        if peer is None:
            return words
        return words + " " + self.tr("Do the same on {}: in Baton's Cluster page there.").format(peer["name"])

    def _on_apply(self) -> None:
        action = "undo" if self._undo else "apply"
        self._apply.setEnabled(False)
        self._sentence.setText(
            self.tr("Your system asks whether Baton may. Nothing changes until you say yes.")
        )
        self._job = self._context.bridge.stream(
            self._context.client.lines("/link/tune", {"action": action}), self._on_done, None, self._on_error
        )

    def _on_done(self, answer: dict[str, Any]) -> None:
        self._say(
            self.tr("It is undone.")
            if self._undo
            else self.tr("It is done. Test the cable once more to see it."),
            steps=answer["steps"],
        )
        self.changed.emit()

    def _on_error(self, error: AppError) -> None:
        if isinstance(error, NodeRefused) and error.code == "no_cable":
            text = self.tr(
                "No direct cable joins the two computers. Plug one in between their fastest ports."
            )
            self._say(text, tone="danger")
        else:
            self._say(sentence(str(error)), tone="danger")

    def _say(
        self, text: str, *, steps: Sequence[str] = (), can_apply: bool = False, tone: str = "soft"
    ) -> None:
        self._sentence.setText(text)
        self._sentence.set_tone(tone)
        self._steps.setPlainText("\n".join(steps))
        self._frame.setVisible(bool(steps))
        clear(self._notes)
        self._apply.setVisible(can_apply)
        self._apply.setEnabled(can_apply)
        self._close.setText(self.tr("Cancel") if can_apply else self.tr("Close"))
        self.fit()
