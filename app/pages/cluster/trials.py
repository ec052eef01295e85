"""Two things to try: what the cable carries, and whether both computers compute the same."""

from __future__ import annotations

import time
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QProgressBar, QWidget

from app.bridge import Job
from app.context import Context
from app.look.measures import MEDIUM, SMALL
from app.node.faults import AppError
from app.telemetry import figures
from app.widgets.basics import Button, Card, Text, column, row
from app.words import QT_TRANSLATE_NOOP, translate

# The parts of a probe in their order, as the node names them.
_PARTS = tuple(
    map(
        str,
        (
            QT_TRANSLATE_NOOP("Probe", "interfaces of both computers"),
            QT_TRANSLATE_NOOP("Probe", "path MTU"),
            QT_TRANSLATE_NOOP("Probe", "round trips"),
            QT_TRANSLATE_NOOP("Probe", "goodput to the other computer"),
            QT_TRANSLATE_NOOP("Probe", "goodput from the other computer"),
            QT_TRANSLATE_NOOP("Probe", "bursts after a pause"),
        ),
    )
)


class LinkTrial(Card):
    """Probes the cable: ten seconds, part by part. Follows a probe that somebody else began, too."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._button = Button(self._tr_test(), self.begin, icon="cable")
        self._words = Text(tone="soft", wrap=True)
        self._bar = QProgressBar()
        self._bar.setTextVisible(False)
        self._bar.setRange(0, len(_PARTS))
        self._job: Job | None = None
        self._fault = self._why_not = ""
        super().__init__(
            _head(self.tr("The cable"), self._button), self._words, self._bar, None, spacing=MEDIUM
        )
        self._bar.setAccessibleName(self.tr("Progress of the test"))

    def _tr_test(self) -> str:
        return self.tr("Test link")

    def begin(self) -> None:
        self._fault = ""
        self._button.setEnabled(False)
        peer = self._context.peer
        body = {"peer": peer["node_id"]} if peer is not None and peer["connected"] else {}
        self._job = self._context.bridge.stream(
            self._context.client.lines("/link/probe", body), lambda line: None, self._over, self._on_error
        )

    def _over(self, _: object) -> None:
        self._job = None
        self.show_link(self._context.state.part("link", {}))

    def _on_error(self, error: AppError) -> None:
        self._fault = str(error)
        self._over(None)

    def offer(self, why_not: str) -> None:
        """Why it cannot be tested now; "" where it can."""
        self._why_not = why_not
        self.show_link(self._context.state.part("link", {}))

    def show_link(self, link: dict[str, Any]) -> None:
        part = link.get("probing")
        self._bar.setVisible(bool(part))
        self._button.setEnabled(not part and self._job is None and not self._why_not)
        self._words.set_tone("danger" if self._fault and not part else "soft")
        if part:
            self._bar.setValue(_PARTS.index(part) if part in _PARTS else len(_PARTS) - 1)
            self._words.setText(self.tr("Measuring: {}.").format(translate("Probe", part)))
        elif self._fault:
            self._words.setText(self._fault)
        else:
            self._words.setText(self._why_not or self._last(link.get("report")))

    def _last(self, report: dict[str, Any] | None) -> str:
        peer = report["peer"] if report is not None else None
        # without the other computer only this one's end of the cable was looked at
        if report is None or peer is None:
            return self.tr(
                "Measures what it carries both ways, and finds what slows it down. Takes 10 seconds."
            )
        path = peer.get("path")
        if path is None:
            missing = report["missing"]
            return f"{missing[:1].upper()}{missing[1:]}."
        best = [
            max(path[way]["goodput_gbps"], path[way]["goodput_two_streams_gbps"])
            for way in ("to_peer", "from_peer")
        ]
        at = time.strftime("%H:%M", time.localtime(report["measured_at"]))
        return self.tr("Measured at {}: {:.1f} Gb/s there, {:.1f} Gb/s back.").format(at, *best)


class SelfTest(Card):
    """The same prompts both ways, token for token. `model` is the one that is loaded; "" where none is joined."""

    changed = Signal()

    def __init__(self, context: Context) -> None:
        self._context = context
        self._button = Button(self._tr_begin(), self._on_click, icon="check")
        self._words = Text(tone="soft", wrap=True)
        self._bar = QProgressBar()
        self._bar.setTextVisible(False)
        self._job: Job | None = None
        self._model = ""
        self._why_not = ""
        self._n_prompts, self._rows = 0, 0
        self._outcome, self._tone = "", "soft"
        super().__init__(
            _head(self.tr("Both compute the same"), self._button),
            self._words,
            self._bar,
            None,
            spacing=MEDIUM,
        )
        self._bar.setAccessibleName(self.tr("Progress of the self-test"))
        self._show()

    def _tr_begin(self) -> str:
        return self.tr("Self-test")

    @property
    def text(self) -> str:
        """What it says."""
        return self._words.text()

    def offer(self, model: str, why_not: str) -> None:
        """Which model can be tested now, or why none can."""
        self._model, self._why_not = model, why_not
        self._show()

    def _on_click(self) -> None:
        if self._job is not None:
            self._job.cancel()
            self._end(self.tr("Stopped after {} of {} prompts.").format(self._rows, self._n_prompts), "soft")
            return
        self._n_prompts = self._rows = 0
        self._outcome = ""
        self._job = self._context.bridge.stream(
            self._context.client.lines("/link/selftest", {"model": self._model}),
            self._hear,
            lambda _: self._end(self._outcome, self._tone),
            lambda error: self._end(str(error), "danger"),
        )
        self._show()

    def _hear(self, line: dict[str, Any]) -> None:
        if "prompts" in line:
            self._n_prompts = line["prompts"]
        elif "prompt" in line:
            self._rows += 1
        elif line["passed"]:
            n = figures.count(self._n_prompts)
            self._outcome, self._tone = self.tr("✓ {} prompts, tokens identical.").format(n), "local"
            if "near tie" in line["verdict"]:
                self._outcome = self.tr("✓ {} prompts, tokens identical but for near ties.").format(n)
        else:
            verdict = line["verdict"]
            self._outcome, self._tone = f"{verdict[:1].upper()}{verdict[1:]}.", "danger"
        self._show()

    def _end(self, outcome: str, tone: str) -> None:
        self._job = None
        self._outcome, self._tone = outcome, tone
        self._show()

    def _show(self) -> None:
        runs = self._job is not None
        self._bar.setVisible(runs)
        self._bar.setRange(0, max(1, self._n_prompts))
        self._bar.setValue(self._rows)
        self._button.setText(self.tr("Stop") if runs else self._tr_begin())
        self._button.show_icon("stop" if runs else "check")
        self._button.setEnabled(runs or not self._why_not)
        self._words.set_tone("soft" if runs or not self._outcome else self._tone)
        if runs and self._n_prompts:
            self._words.setText(self.tr("{} of {} prompts compared.").format(self._rows, self._n_prompts))
        elif runs:
            self._words.setText(self.tr("Making the prompts."))
        elif self._outcome:
            self._words.setText(self._outcome)
        else:
            self._words.setText(
                self._why_not
                or self.tr(
                    "Answers the same prompts with and without the other computer, and compares each token."
                )
            )


def _head(title: str, button: Button) -> QWidget:
    head = QWidget()
    head.setLayout(row(column(Text(title, strong=True)), None, button, spacing=SMALL))
    return head
