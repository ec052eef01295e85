"""Who prefills and who decodes: what was agreed and why, what was measured, and another wish."""

from __future__ import annotations

from typing import Any

from app.amounts import rate_text
from app.bridge import Job
from app.context import Context
from app.look.measures import MEDIUM
from app.node.faults import AppError
from app.node.link_report import sentence
from app.widgets.basics import Button, Card, Icon, Text, row
from app.widgets.controls import Segments
from app.wizard.facts import FactsCard
from app.wizard.pictures import ComputersPicture
from app.wizard.step import Choice, Guide, StepView


class RolesStep(StepView):
    def __init__(self, context: Context, guide: Guide) -> None:
        super().__init__(context, guide)
        self._measuring: Job | None = None
        self._segments_for: tuple[str, str] = ("", "")
        self._picture = ComputersPicture()
        self._why = Text(wrap=True)
        self._icon = Icon("info")
        line = row(self._icon, self._why, spacing=MEDIUM)
        line.setStretch(1, 1)
        self._reason = Card(padding=MEDIUM)
        self._reason.column.addLayout(line)
        self._facts = FactsCard()
        self._wish_place = row()
        self._measure = Button(self.tr("Measure now"), self._on_measure, icon="bolt")
        self._note = Text(tone="soft", wrap=True)
        measuring = row(self._measure, self._note, None, spacing=MEDIUM)
        self.body.addWidget(self._picture)
        self.body.addWidget(self._reason)
        self.body.addWidget(self._facts)
        self.body.addLayout(self._wish_place)
        self.body.addLayout(measuring)
        self._note.hide()
        self.say(
            self.tr("Who does what"),
            self.tr(
                "One computer reads the prompt (it prefills), the other writes the answer (it decodes). Baton decides "
                "by what both were measured to do."
            ),
        )

    @property
    def parts(self) -> frozenset[str]:
        return frozenset({"roles", "peers", "node", "models"})

    @property
    def _agreed(self) -> dict[str, Any] | None:
        """Of the model that both have; where there are several, the one that both are measured with."""
        peer = self.context.peer
        agreed = [
            each
            for each in self.context.state.part("roles", {}).get("agreed", [])
            if peer is not None and each["peer"] == peer["node_id"]
        ]
        return max(
            agreed, key=lambda each: sum(way["total_s"] is not None for way in each["ways"]), default=None
        )

    def refresh(self) -> None:
        peer, agreed = self.context.peer, self._agreed
        if peer is None:
            return
        here_id = self.context.state.part("node", {}).get("node_id", "")
        names = {here_id: self.context.computer, peer["node_id"]: peer["name"]}
        self._picture.show_computers(
            names[here_id],
            peer["name"],
            state="joined",
            captions=(self._role(agreed, here_id), self._role(agreed, peer["node_id"])),
            cable=agreed["model"] if agreed else "",
        )
        self._facts.setVisible(agreed is not None)
        self._measure.setVisible(
            agreed is not None and (self._measuring is None or not self._measuring.is_running)
        )
        self._show_wish(names, here_id, peer["node_id"])
        if agreed is None:
            self._why.setText(
                self.tr(
                    "Roles are agreed for each model that both computers have, and there is none yet. Baton does it by "
                    "itself as soon as there is one."
                )
            )
            return
        self._why.setText(f"{agreed['reason']}.")
        self._icon.show_icon("check" if not agreed["is_wish"] else "info", "local")
        self._facts.show_facts(self._measured(agreed, names))

    def _role(self, agreed: dict[str, Any] | None, node_id: str) -> str:
        if agreed is None:
            return ""
        if agreed["decode"] == node_id:
            return self.tr("decodes") if agreed["prefill"] else self.tr("does all of it")
        return self.tr("prefills") if agreed["prefill"] == node_id else self.tr("waits")

    def _measured(self, agreed: dict[str, Any], names: dict[str, str]) -> list[tuple[str, str]]:
        """How long each way takes, as far as it is known, and what this computer was measured to do."""
        facts = []
        measured = self.context.state.part("roles", {}).get("measured", {}).get(agreed["model"])
        if measured:
            speeds = self.tr("reads {0}, writes {1}").format(
                rate_text(measured["prefill_tokens_per_s"]), rate_text(measured["decode_tokens_per_s"])
            )
            facts.append((self.context.computer, speeds))
        for way in agreed["ways"]:
            if way["prefill"] == way["decode"]:
                name = self.tr("{} alone").format(names.get(way["decode"], ""))
            else:
                name = self.tr("{0}, then {1}").format(
                    names.get(way["prefill"], ""), names.get(way["decode"], "")
                )
            facts.append((name, self._time(way)))
        question = self.tr("{0:,} tokens, answer of {1}").format(
            agreed["prompt_tokens"], agreed["answer_tokens"]
        )
        return [(self.tr("For"), question), *facts]

    def _time(self, way: dict[str, Any]) -> str:
        if way["obstacle"]:
            return sentence(way["obstacle"])
        if way["total_s"] is None:
            return self.tr("not measured yet")
        return self.tr("{0:.1f} s, first word after {1:.1f} s").format(way["total_s"], way["first_token_s"])

    def _show_wish(self, names: dict[str, str], here_id: str, peer_id: str) -> None:
        wish = self.context.state.part("roles", {}).get("wishes", {}).get(peer_id, {}).get("prefill", "auto")
        if self._segments_for != (here_id, peer_id):
            self._segments_for = (here_id, peer_id)
            self._segments = Segments(
                [
                    ("auto", self.tr("Baton decides")),
                    (peer_id, self.tr("{} prefills").format(names[peer_id])),
                    (here_id, self.tr("{} prefills").format(names[here_id])),
                ],
                name=self.tr("Roles"),
            )
            self._segments.chosen.connect(self._on_wish)
            while (item := self._wish_place.takeAt(0)) is not None:
                if (old := item.widget()) is not None:
                    old.deleteLater()
            self._wish_place.addWidget(self._segments)
            self._wish_place.addStretch(1)
        self._segments.show_value(wish)

    def _on_wish(self, prefill: object) -> None:
        wish = self.context.client.post("/roles", {"prefill": str(prefill)})
        self.context.bridge.run(wish, on_error=self.context.tell)

    def _on_measure(self) -> None:
        agreed = self._agreed
        if agreed is None:
            return
        self._measure.hide()
        self._say(
            self.tr("Measuring {} on this computer. It takes some seconds.").format(agreed["model"]), "soft"
        )
        self._measuring = self.stream(
            self.context.client.lines("/models/measure", {"model": agreed["model"]}),
            lambda _: None,
            self._on_measured,
            self._on_error,
        )

    def _on_measured(self, _: object) -> None:
        peer = self.context.peer
        name = peer["name"] if peer else ""
        self._say(
            self.tr("Measured. {} measures itself when it is idle; the roles follow by themselves.").format(
                name
            ),
            "soft",
        )
        self.refresh()

    def _on_error(self, error: AppError) -> None:
        self._say(sentence(str(error)), "danger")
        self.refresh()

    def _say(self, text: str, tone: str) -> None:
        self._note.setText(text)
        self._note.set_tone(tone)
        self._note.show()

    def choice(self) -> Choice:
        return Choice(text=self.tr("Continue"))
