"""The cable: measured, judged in plain sentences, and mended where Baton can."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QTimer

from app.bridge import Job
from app.context import Context
from app.look.measures import MEDIUM, SMALL
from app.node.faults import AppError
from app.node.link_report import checks, sentence, summary
from app.telemetry import figures
from app.widgets.basics import Card, Text, clear, column, row
from app.widgets.feedback import Dot
from app.widgets.findings import FindingCard, PlanDialog, WellCard
from app.wizard.pictures import ComputersPicture
from app.wizard.step import Choice, Guide, StepView

_AGAIN_AFTER_MS = 1000


class CableStep(StepView):
    def __init__(self, context: Context, guide: Guide) -> None:
        super().__init__(context, guide)
        self._probe: Job | None = None
        self._report: dict[str, Any] | None = None
        self._has_tuned = False
        self._has_tried_again = False
        self._waits = False
        self._picture = ComputersPicture()
        self._dot = Dot("warning")
        self._state = Text(wrap=True)
        line = row(self._dot, self._state, spacing=MEDIUM)
        line.setStretch(1, 1)
        self._status = Card(padding=MEDIUM)
        self._status.column.addLayout(line)
        self._checks = column(spacing=SMALL)
        self.body.addWidget(self._picture)
        self.body.addWidget(self._status)
        self.body.addLayout(self._checks)
        self.say(
            self.tr("The cable between them"),
            self.tr("Baton measures it both ways. It takes about ten seconds and changes nothing."),
        )

    @property
    def parts(self) -> frozenset[str]:
        return frozenset({"peers", "node"})

    @property
    def _is_probing(self) -> bool:
        return self._probe is not None and self._probe.is_running

    def choice(self) -> Choice:
        return Choice(text=self.tr("Continue"), is_enabled=not self._is_probing)

    def other(self) -> Choice | None:
        return None if self._is_probing else Choice(text=self.tr("Test again"), run=self._test)

    def show_step(self) -> None:
        super().show_step()
        if self._report is None:
            self._test()

    def refresh(self) -> None:
        peer = self.context.peer
        if self._waits and peer is not None and peer.get("connected"):
            self._test()
            return
        name = peer["name"] if peer else self.tr("the other computer")
        self._picture.show_computers(
            self.context.computer,
            name,
            state="joined",
            captions=(self.tr("this computer"), ""),
            cable=self._speed(),
        )

    def _speed(self) -> str:
        path = ((self._report or {}).get("peer") or {}).get("path")
        if not path:
            return self.tr("measuring…") if self._is_probing else ""
        ways = (path["to_peer"], path["from_peer"])
        slower = min(max(way["goodput_gbps"], way["goodput_two_streams_gbps"]) for way in ways)
        trips = path["round_trips"]
        return figures.rate(slower * 1e9 / 8) + (
            f" · {figures.duration(trips['median_ms'])}" if trips else ""
        )

    def _test(self) -> None:
        clear(self._checks)
        self._report = None
        peer = self.context.peer
        self._waits = peer is None or not peer.get("connected")
        if peer is None or self._waits:
            name = peer["name"] if peer else self.tr("The other computer")
            self._say(
                self.tr(
                    "{} is not there now. Start Baton on it and look at the cable; it is measured by itself then."
                ).format(name),
                "warning",
            )
            self.guide.refresh()
            return
        self._say(self.tr("Beginning…"), "warning")
        self._probe = self.stream(
            self.context.client.lines("/link/probe", {"peer": peer["node_id"]}),
            self._hear,
            self._over,
            self._on_error,
        )
        self.refresh()
        self.guide.refresh()

    def _hear(self, said: dict[str, Any]) -> None:
        if part := said.get("part"):
            self._say(self.tr("Now: {}").format(part), "warning")
        elif report := said.get("report"):
            self._show_report(report)

    def _show_report(self, report: dict[str, Any]) -> None:
        self._report = report
        clear(self._checks)
        found = checks(report)
        missing = sentence(report["missing"]) if report["peer"] is not None else ""
        tone = next((check.tone for check in found if check.tone in ("danger", "warning")), "local")
        took = self.tr("{0}. Measured in {1:.0f} s.").format(summary(found), report["took_s"])
        self._say(" ".join(filter(None, (took, missing))), tone)
        for check in found:
            if not check.is_well:
                self._checks.addWidget(
                    FindingCard(check, on_fix=self._fix, on_undo=self._undo if self._has_tuned else None)
                )
        if well := [check for check in found if check.is_well]:
            self._checks.addWidget(WellCard(well))

    def _over(self, _: object) -> None:
        self.refresh()
        self.guide.refresh()

    def _on_error(self, error: AppError) -> None:
        self._say(sentence(str(error)), "danger")
        self._over(None)
        if not self._has_tried_again:
            # Two computers that have just paired may call each other at once, and let go of one of the connections.
            self._has_tried_again = True
            QTimer.singleShot(_AGAIN_AFTER_MS, self, self._test_again)

    def _test_again(self) -> None:
        if self.isVisible() and not self._is_probing:
            self._test()

    def _fix(self) -> None:
        self._open(PlanDialog(self.window(), self.context))

    def _undo(self) -> None:
        self._open(PlanDialog(self.window(), self.context, undo=True))

    def _open(self, dialog: PlanDialog) -> None:
        self._dialog = dialog
        dialog.changed.connect(self._on_tuned)
        dialog.open()

    def _on_tuned(self) -> None:
        self._has_tuned = True

    def _say(self, text: str, tone: str) -> None:
        self._state.setText(text)
        self._dot.show_tone(tone)
