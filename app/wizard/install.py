"""Putting Baton on a computer that has none: a line to paste there, or over ssh where that asks nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication, QLineEdit, QPlainTextEdit, QWidget

from app.amounts import duration_text
from app.bridge import Job
from app.look.measures import LARGE, MEDIUM, SMALL, TINY
from app.node.faults import AppError
from app.node.link_report import sentence
from app.widgets.basics import Button, Card, Text, clear, column, row
from app.widgets.feedback import Dot
from app.wizard.found import Candidate
from app.words import translate

if TYPE_CHECKING:
    from app.wizard.steps.find import FindStep


class InstallView(QWidget):
    """The line is made when this comes into view, and works until it goes."""

    def __init__(self, step: FindStep) -> None:
        super().__init__()
        self._step = step
        self._left_s = 0.0
        self._line_job: Job | None = None
        self._ssh_job: Job | None = None
        self._clock = QTimer(self, interval=1000)
        self._clock.timeout.connect(self._tick)
        self._ready = _ReadyCard(step)
        self._make_line_card()
        self._make_ssh_card()
        self.setLayout(column(self._ready, self._by_line, self._by_ssh, spacing=MEDIUM))
        self.layout().setContentsMargins(0, 0, 0, 0)  # type: ignore[union-attr]

    def _make_line_card(self) -> None:
        self._line = QPlainTextEdit()
        self._line.setReadOnly(True)
        self._line.setProperty("mono", "true")
        self._line.setTabChangesFocus(True)
        self._line.setFixedHeight(96)
        self._line.setAccessibleName(self.tr("Line to paste in a terminal there"))
        self._copy = Button(self.tr("Copy the line"), self._on_copy, kind="primary", icon="copy")
        self._anew = Button(self.tr("Make a new line"), self.begin)
        self._dot = Dot("warning")
        self._state = Text(tone="soft", wrap=True)
        state = row(self._dot, self._state, spacing=SMALL)
        state.setStretch(1, 1)
        self._by_line = Card(
            Text(self.tr("Paste one line there"), size="title"),
            Text(
                self.tr(
                    "Open a terminal on the other computer, paste this line, and press Enter. At the end it shows "
                    "a code."
                ),
                tone="soft",
                wrap=True,
            ),
            self._line,
            row(self._copy, self._anew, None),
            state,
            spacing=SMALL,
        )

    def _make_ssh_card(self) -> None:
        self._target = QLineEdit()
        self._target.setPlaceholderText(self.tr("me@spark.local"))
        self._target.setAccessibleName(self.tr("User and computer, as ssh calls it"))
        self._target.returnPressed.connect(self._on_ssh)
        self._go = Button(self.tr("Set it up"), self._on_ssh)
        self._done = column(spacing=TINY)
        self._ssh_fault = Text(tone="danger", wrap=True, selectable=True)
        self._by_ssh = Card(
            Text(self.tr("Or over ssh"), size="title"),
            Text(
                self.tr(
                    "If ssh gets there from this computer without asking for a password, Baton does all of it."
                ),
                tone="soft",
                wrap=True,
            ),
            row(self._target, self._go),
            self._done,
            self._ssh_fault,
            spacing=SMALL,
        )
        self._ssh_fault.hide()

    def begin(self) -> None:
        """Have a line made that works from now on."""
        self.stop()
        self._line.setPlainText("")
        self._say(self.tr("Making the line…"), "warning")
        self._copy.setEnabled(False)
        self._anew.hide()
        self._line_job = self._step.stream(
            self._step.context.client.lines("/setup/line"), self._on_line, None, self._on_line_error
        )

    def stop(self) -> None:
        self._clock.stop()
        for job in (self._line_job, self._ssh_job):
            if job is not None:
                job.cancel()

    def show_ready(self, candidate: Candidate | None) -> None:
        """A computer shows a code: most likely the one that Baton was just put on."""
        self._ready.show_candidate(candidate)

    # the line

    def _on_line(self, said: dict[str, Any]) -> None:
        if "line" in said:
            self._line.setPlainText(said["line"])
            self._copy.setEnabled(True)
            self._left_s = float(said["works_for_s"])
            self._clock.start()
            self._tick()
        elif taken_by := said.get("taken_by"):
            self._clock.stop()
            self._say(
                self.tr(
                    "{} has it and installs Baton. That takes some minutes; then it shows a code."
                ).format(taken_by),
                "local",
            )
            self._anew.show()

    def _on_line_error(self, error: AppError) -> None:
        self._clock.stop()
        self._line.setPlainText("")
        self._copy.setEnabled(False)
        self._say(_plain(error), "danger")
        self._anew.show()

    def _tick(self) -> None:
        self._left_s = max(0.0, self._left_s - 1)
        self._say(
            self.tr("It works once, for {} more, while this page is open.").format(
                duration_text(self._left_s)
            ),
            "warning",
        )

    def _say(self, text: str, tone: str) -> None:
        self._state.setText(text)
        self._dot.show_tone(tone)

    def _on_copy(self) -> None:
        QApplication.clipboard().setText(self._line.toPlainText())
        self._step.context.shell.toast(self.tr("Copied. Paste it in a terminal on the other computer."))

    # ssh

    def _on_ssh(self) -> None:
        target = self._target.text().strip()
        self._ssh_fault.hide()
        clear(self._done)
        if not target:
            self._target.setFocus()
            return
        self._go.setEnabled(False)
        self._add_line(self.tr("Calling {}…").format(target))
        self._ssh_job = self._step.stream(
            self._step.context.client.lines("/setup/ssh", {"target": target}),
            self._on_said,
            lambda _: self._go.setEnabled(True),
            self._on_ssh_error,
        )

    def _on_said(self, said: dict[str, Any]) -> None:
        if doing := said.get("doing"):
            self._add_line(sentence(str(doing)))
        elif paired := said.get("paired"):
            self._add_line(self.tr("{} is paired.").format(paired["name"]))
            self._step.guide.go_on()

    def _on_ssh_error(self, error: AppError) -> None:
        self._go.setEnabled(True)
        self._ssh_fault.setText(
            self.tr("{} If ssh asks for a password there, paste the line instead.").format(_plain(error))
        )
        self._ssh_fault.show()

    def _add_line(self, text: str) -> None:
        self._done.addWidget(Text(text, tone="soft", wrap=True))


class _ReadyCard(Card):
    """Who shows a code now."""

    def __init__(self, step: FindStep) -> None:
        super().__init__(tone="peer", padding=MEDIUM)
        self._candidate: Candidate | None = None
        self._words = Text(strong=True)
        self._step = step
        button = Button(self.tr("Pair"), self._on_pair, kind="primary")
        self.column.addLayout(row(Dot("peer"), self._words, None, button, spacing=LARGE))
        self.hide()

    def _on_pair(self) -> None:
        if self._candidate is not None:
            self._step.choose(self._candidate)

    def show_candidate(self, candidate: Candidate | None) -> None:
        self._candidate = candidate
        self.setVisible(candidate is not None)
        if candidate is not None:
            self._words.setText(self.tr("{} is ready and shows a code.").format(candidate.name))


def _plain(error: AppError) -> str:
    """Without the flags that somebody at a terminal would be told of."""
    if getattr(error, "code", "") == "no_address":
        return translate(
            "Install",
            "This computer has no address on a home network. Plug the cable in, then make a new line.",
        )
    return sentence(str(error))
