"""Finding the other computer: those that are there, an address by hand, and putting Baton on one that has none."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLineEdit, QWidget

from app.context import Context
from app.look.measures import LARGE, MEDIUM, SMALL, TINY
from app.node.faults import AppError
from app.widgets.basics import Button, Card, Icon, Text, clear, column, row, set_property
from app.widgets.feedback import Tag
from app.wizard.course import Step
from app.wizard.found import Candidate, candidates, networks
from app.wizard.install import InstallView
from app.wizard.pictures import ComputersPicture
from app.wizard.step import Choice, Guide, StepView, Target


class FindStep(StepView):
    def __init__(self, context: Context, guide: Guide) -> None:
        super().__init__(context, guide)
        self._found: list[Candidate] | None = None
        self._is_installing = False
        self._picture = ComputersPicture()
        self._list = column(spacing=SMALL)
        self._empty = self._make_empty()
        self._address = QLineEdit()
        self._address.setPlaceholderText(self.tr("Address, such as 10.71.17.2 or spark.local"))
        self._address.setAccessibleName(self.tr("Address of the other computer"))
        self._address.returnPressed.connect(self._add)
        self._fault = Text(tone="danger", wrap=True)
        self._install = InstallView(self)
        self._search = QWidget()
        self._search.setLayout(
            column(
                self._picture,
                self._list,
                self._empty,
                row(self._address, Button(self.tr("Look there"), self._add)),
                self._fault,
                row(
                    Button(self.tr("Baton is not on it yet"), self._show_install, kind="link"),
                    LARGE,
                    Button(
                        self.tr("I have a code"), lambda: self._pair(Target(shows_code=True)), kind="link"
                    ),
                    None,
                ),
            )
        )
        self.body.addWidget(self._search)
        self.body.addWidget(self._install)
        self._fault.hide()
        self._install.hide()

    def _make_empty(self) -> Card:
        self._networks = Text(size="caption", tone="faint", wrap=True)
        hints = (
            (
                "cable",
                self.tr(
                    "Join both computers by a cable between their fastest ports, or by the same network."
                ),
            ),
            (
                "baton",
                self.tr("Start Baton on the other computer. It appears here by itself, within seconds."),
            ),
            (
                "lock",
                self.tr(
                    "A guest network or a VPN keeps computers apart. Leave it, or type the address below."
                ),
            ),
        )
        card = Card(Text(self.tr("Nobody was found yet"), strong=True), TINY, spacing=SMALL)
        for icon, hint in hints:
            line = row(Icon(icon), Text(hint, tone="soft", wrap=True), spacing=MEDIUM)
            line.setStretch(1, 1)
            card.column.addLayout(line)
        card.column.addWidget(self._networks)
        return card

    @property
    def parts(self) -> frozenset[str]:
        return frozenset({"discovery", "peers", "node"})

    def choice(self) -> Choice | None:
        if self._is_installing:
            return Choice(text=self.tr("Look for it"), run=self._show_search)
        return None

    def other(self) -> Choice | None:
        if self._is_installing:
            return None
        return Choice(text=self.tr("Use this computer alone for now"), run=self._go_alone)

    def show_step(self) -> None:
        self.guide.memory.is_alone = False
        super().show_step()
        if self.guide.target.needs_baton:
            self.guide.target = Target()
            self._show_install()
        else:
            self._show_search()

    def go_back(self) -> bool:
        was_installing = self._is_installing
        if was_installing:
            self._show_search()
        return was_installing

    def leave(self) -> None:
        self._install.stop()
        super().leave()

    def refresh(self) -> None:
        state = self.context.state
        discovery = state.part("discovery", {})
        own_id = state.part("node", {}).get("node_id", "")
        found = candidates(discovery, state.part("peers", []), own_id)
        # an address that somebody typed is nobody yet
        one = next((each for each in found if each.answers), None)
        self._picture.show_computers(
            self.context.computer,
            one.name if one else self.tr("the other computer"),
            state="found" if one else "sought",
            captions=(self.tr("this computer"), self.tr("found") if one else self.tr("looking…")),
        )
        if found != self._found:
            self._found = found
            clear(self._list)
            for candidate in found:
                self._list.addWidget(_CandidateCard(candidate, self._choose, self._forget))
        self._empty.setVisible(one is None)
        looking_on = ", ".join(networks(discovery))
        self._networks.setText(
            self.tr("Looking on {}.").format(looking_on)
            if looking_on
            else self.tr("This computer is on no network now. Plug the cable in, or join a network.")
        )
        self._install.show_ready(next((each for each in found if each.shows_code), None))

    def choose(self, candidate: Candidate) -> None:
        self._choose(candidate)

    def _choose(self, candidate: Candidate) -> None:
        self._pair(Target(name=candidate.name, node_id=candidate.node_id, shows_code=candidate.shows_code))

    def _pair(self, target: Target) -> None:
        self.guide.target = target
        self.guide.go_to(Step.PAIR)

    def _go_alone(self) -> None:
        self.guide.memory.is_alone = True
        self.guide.go_on()

    def _add(self) -> None:
        address = self._address.text().strip()
        self._fault.hide()
        if not address:
            self._address.setFocus()
            return
        set_property(self._address, "state", "")
        self.run(
            self.context.client.post("/discovery/manual", {"address": address}),
            self._on_added,
            self._on_refused,
        )

    def _on_added(self, answer: dict[str, str]) -> None:
        self._address.clear()

    def _forget(self, candidate: Candidate) -> None:
        """Look no more at the address that was typed."""
        path = f"/discovery/manual/{quote(candidate.typed, safe='')}"
        self.run(self.context.client.delete(path), lambda _: None, self._on_refused)

    def _on_refused(self, error: AppError) -> None:
        set_property(self._address, "state", "wrong")
        self._fault.setText(str(error))
        self._fault.show()

    def _show_install(self) -> None:
        self.say(
            self.tr("Put Baton on the other computer"),
            self.tr(
                "It gets this very version, over your own network. It needs Python 3.11 there, and a few minutes."
            ),
        )
        self._switch(is_installing=True)
        self._install.begin()

    def _show_search(self) -> None:
        self._install.stop()
        self.say(
            self.tr("Find the other computer"),
            self.tr("Start Baton there as well. Both find each other by themselves."),
        )
        self._switch(is_installing=False)

    def _switch(self, *, is_installing: bool) -> None:
        self._is_installing = is_installing
        self._search.setVisible(not is_installing)
        self._install.setVisible(is_installing)
        self.guide.refresh()


class _CandidateCard(Card):
    """A computer that was found, with the button to pair with it."""

    def __init__(
        self,
        candidate: Candidate,
        on_choose: Callable[[Candidate], object],
        on_forget: Callable[[Candidate], object],
    ) -> None:
        super().__init__(padding=MEDIUM)
        button = Button(
            self.tr("Pair"),
            lambda: on_choose(candidate),
            kind="primary" if candidate.shows_code else "",
            name=self.tr("Pair with {}").format(candidate.name),
        )
        words = column(
            Text(candidate.name, strong=True),
            Text(candidate.about, size="caption", tone="soft"),
            spacing=2,
        )
        parts = row(Icon("computer", "peer", 24), words, None, spacing=MEDIUM)
        if candidate.shows_code:
            parts.addWidget(Tag(self.tr("shows a code"), "peer"), 0, Qt.AlignmentFlag.AlignVCenter)
        if candidate.typed:
            forget = Button(
                "",
                lambda: on_forget(candidate),
                kind="icon",
                icon="close",
                name=self.tr("Look no more at {}").format(candidate.typed),
            )
            parts.addWidget(forget)
        parts.addWidget(button)
        self.column.addLayout(parts)
