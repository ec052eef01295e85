"""The last step: what is ready, and the way to the first chat."""

from __future__ import annotations

from typing import Any

from app.context import Context, is_there
from app.telemetry import figures
from app.wizard.facts import FactsCard
from app.wizard.pictures import ComputersPicture
from app.wizard.step import Choice, Guide, StepView


class ReadyStep(StepView):
    def __init__(self, context: Context, guide: Guide) -> None:
        super().__init__(context, guide)
        self._picture = ComputersPicture()
        self._facts = FactsCard()
        self.body.addWidget(self._picture)
        self.body.addWidget(self._facts)

    @property
    def parts(self) -> frozenset[str]:
        return frozenset({"peers", "roles", "models", "link", "node"})

    def choice(self) -> Choice:
        return Choice(text=self.tr("Open Chat"), run=self._open_chat)

    def refresh(self) -> None:
        state, peer = self.context.state, self.context.peer
        here = self.context.computer
        models = [model["id"] for model in state.part("models", {}).get("models", []) if not model["problem"]]
        agreed = self._agreed(peer)
        self.say(self.tr("You are ready"), self._what_now(here, peer, is_agreed=agreed is not None))
        if peer is None:
            self._picture.show_computers(here, captions=(self.tr("does all of it"), ""))
        else:
            self._picture.show_computers(
                here,
                peer["name"],
                state="joined",
                captions=self._captions(agreed, peer),
                cable=self._speed(peer),
            )
        self._facts.show_facts(
            [
                (
                    self.tr("Model"),
                    agreed["model"] if agreed else (models[0] if models else self.tr("none yet")),
                ),
                (self.tr("Other computer"), self._about(peer)),
                (self.tr("For programs"), f"{self.context.client.endpoint}/v1"),
            ]
        )

    def _what_now(self, here: str, peer: dict[str, Any] | None, *, is_agreed: bool) -> str:
        if peer is None:
            return self.tr(
                "{} answers by itself. Another computer can join at any time, from the Cluster page."
            ).format(here)
        if is_agreed:
            return self.tr("{0} and {1} answer as one from now on.").format(here, peer["name"])
        return self.tr(
            "{0} and {1} are paired. They answer as one with each model that both have: the Models page copies one."
        ).format(here, peer["name"])

    def _agreed(self, peer: dict[str, Any] | None) -> dict[str, Any] | None:
        all_agreed = self.context.state.part("roles", {}).get("agreed", [])
        return next(
            (each for each in all_agreed if peer is not None and each["peer"] == peer["node_id"]), None
        )

    def _captions(self, agreed: dict[str, Any] | None, peer: dict[str, Any]) -> tuple[str, str]:
        if agreed is None or agreed["prefill"] is None:
            return self.tr("this computer"), ""
        decodes, prefills = self.tr("decodes"), self.tr("prefills")
        return (prefills, decodes) if agreed["decode"] == peer["node_id"] else (decodes, prefills)

    def _about(self, peer: dict[str, Any] | None) -> str:
        if peer is None:
            return ""
        if is_there(peer):
            return self.tr("{} is connected").format(peer["name"])
        return self.tr("{} is away; answers come from here until it is back").format(peer["name"])

    def _speed(self, peer: dict[str, Any]) -> str:
        ceiling = (self.context.state.part("link", {}).get("ceilings") or {}).get(peer["node_id"]) or {}
        speed = min(ceiling.get("send_gbps", 0), ceiling.get("receive_gbps", 0))
        return figures.rate(speed * 1e9 / 8) if speed else ""

    def _open_chat(self) -> None:
        self.guide.finish("chat")
