"""The page Cluster: both computers, the cable between them, and what to do when something is not as it should be."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QTimer
from PySide6.QtGui import QHideEvent, QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QDialog, QSizePolicy, QStackedWidget, QVBoxLayout, QWidget

from app.context import Context, is_there
from app.look.look import current_look
from app.look.measures import LARGE, MEDIUM, SMALL
from app.node.faults import AppError
from app.node.link_report import Check, about, checks
from app.pages.cluster.crashes import CrashCard
from app.pages.cluster.others import OthersCard
from app.pages.cluster.picture import ClusterPicture
from app.pages.cluster.roles import AUTO, RolesCard
from app.pages.cluster.story import Story
from app.pages.cluster.trials import LinkTrial, SelfTest
from app.pages.page import Page
from app.state import NodePresence
from app.telemetry import figures
from app.widgets.basics import Button, Card, Icon, Scrolled, Text, clear, column, row, tab_in_order
from app.widgets.feedback import Action, EmptyState, Question
from app.widgets.findings import FindingCard, PlanDialog, WellCard

# Of the node's state, what this page is made of.
_PARTS = frozenset({"node", "peers", "hosts", "engines", "workers", "joins", "roles", "link", "wake"})

# Times since something happened, and what flows now, go on by themselves.
_TICK_MS = 1000

# What the page shows, by the number in its stack.
_ALONE, _PAIRED, _UNKNOWN = range(3)

_WIDTH = 960
_NARROW = 700


class ClusterPage(Page):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.setAccessibleName(self.tr("Cluster"))
        self._feeds = context.feeds
        self._checks: list[Check] | None = None
        self._n_checks = 0, 0
        self._crashes: object = None
        self._busy_with = ""
        self._lay_out()
        self._ticking = QTimer(self, interval=_TICK_MS)
        self._ticking.timeout.connect(self._tick)
        context.state.changed.connect(self._on_part)
        context.state.presence_changed.connect(self._show)
        self._feeds.changed.connect(self._on_news)
        self._show()

    def shown(self) -> None:
        self._ticking.start()
        self._show()
        self._ask_whether_tuned()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._ticking.stop()

    @property
    def picture(self) -> ClusterPicture:
        return self._picture

    # how it is laid out

    def _lay_out(self) -> None:
        alone = EmptyState(
            "cluster",
            self.tr("One computer so far"),
            self.tr(
                "Join a second one by a cable: it reads long prompts for this computer, and answers begin sooner."
            ),
            Action(text=self.tr("Set up the other computer"), run=lambda: self.context.shell.go("setup")),
        )
        self._stack = QStackedWidget()
        self._stack.addWidget(alone)
        self._stack.addWidget(self._made_body())
        self._stack.addWidget(QWidget())  # until the node has said with whom it is paired
        self.setLayout(column(self._stack, margin=0, spacing=0))

    def _made_body(self) -> QWidget:
        self._picture = ClusterPicture()
        self._away = self._made_away()
        self._ends = QVBoxLayout()
        self._ends.setSpacing(SMALL)
        self._found = QVBoxLayout()
        self._found.setSpacing(SMALL)
        self._tuned = self._made_tuned()
        self._roles = RolesCard(self._wish)
        self._link_trial = LinkTrial(self.context)
        self._self_test = SelfTest(self.context)
        for card in (self._link_trial, self._self_test):
            card.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self._trials = row(self._link_trial, self._self_test, spacing=LARGE)
        self._others = OthersCard(self._use, self._ask_to_unpair)
        self._unpair = Button(self.tr("Unpair"), self._on_unpair, kind="quiet")
        self._paired = Text(size="caption", tone="faint")
        foot = row(self._paired, None, self._unpair, spacing=SMALL)
        self._body = body = Scrolled(width=current_look().px(_WIDTH), margin=24, spacing=LARGE)
        body.column.addWidget(self._picture)
        body.column.addWidget(self._away)
        body.column.addLayout(self._ends)
        # what a test finds comes below the button that was pressed for it
        body.column.addLayout(self._trials)
        body.column.addLayout(self._found)
        body.column.addWidget(self._tuned)
        body.column.addWidget(self._roles)
        body.column.addWidget(self._others)
        body.column.addLayout(foot)
        body.column.addStretch(1)
        return body

    def _made_tuned(self) -> QWidget:
        """What takes back what was set up, also once nothing is left to be found."""
        undo = Button(self.tr("Undo"), lambda: self._open_plan(undo=True), kind="link")
        undo.setAccessibleName(self.tr("Undo what Baton has set up"))
        words = Text(self.tr("Baton has set up this end of the cable"), tone="soft")
        line = row(Icon("check", "local"), words, undo, None, spacing=SMALL)
        line.setContentsMargins(LARGE, 0, 0, 0)
        tuned = QWidget()
        tuned.setLayout(line)
        tuned.hide()
        return tuned

    def _made_away(self) -> Card:
        self._away_words = Text(strong=True, wrap=True, selectable=True)
        self._away_advice = Text(tone="soft", wrap=True)
        self._reconnect = Button(self.tr("Reconnect"), self._call, kind="primary")
        self._wake = Button(self.tr("Wake it"), self._wake_it)
        text = column(self._away_words, self._away_advice, spacing=2)
        line = row(
            column(1, Icon("unplug", "warning"), None, spacing=0),
            text,
            column(row(self._wake, self._reconnect), None, spacing=0),
            spacing=MEDIUM,
        )
        line.setStretch(1, 1)
        card = Card(tone="warning")
        card.column.addLayout(line)
        return card

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        narrow = self.width() < current_look().px(_NARROW)
        self._trials.setDirection(
            QBoxLayout.Direction.TopToBottom if narrow else QBoxLayout.Direction.LeftToRight
        )

    # what is heard

    def _on_part(self, part: str) -> None:
        if part in _PARTS and self.isVisible():
            self._show()

    def _on_news(self, model: str, key: str) -> None:
        if self.isVisible():
            self._show_flow(self._story)

    def _tick(self) -> None:
        story = self._story
        if self._stack.currentIndex() == _PAIRED:
            self._show_computers(story)
            self._show_away(story)
            self._others.show_others(self.context.other_peers, time.time())

    @property
    def _story(self) -> Story:
        presence = self.context.state.presence
        return Story(
            self.context.state,
            self.context.peer,
            time.time(),
            is_running=presence is NodePresence.THERE,
            is_starting=presence is NodePresence.STARTING,
        )

    # what is shown

    def _show(self) -> None:
        story = self._story
        if self.context.peer is None:
            self._stack.setCurrentIndex(_UNKNOWN if self.context.state.part("peers") is None else _ALONE)
            return
        self._stack.setCurrentIndex(_PAIRED)
        self._show_findings(story)
        self._show_computers(story)
        self._show_away(story)
        self._show_crashes(story)
        self._show_roles(story)
        self._others.show_others(self.context.other_peers, time.time())
        self._link_trial.offer(story.why_nothing())
        self._self_test.offer(story.model, self._why_no_test(story))
        for asks_the_node in (self._roles, self._others, self._unpair):
            asks_the_node.setEnabled(story.is_running)
        tab_in_order(self._body.column)
        self._paired.setText(
            self.tr("Paired with {}, whose key begins with {}").format(
                story.peer_name, self.context.peer["fingerprint"][:16]
            )
        )

    def _show_computers(self, story: Story) -> None:
        self._picture.here.show_computer(story.here())
        self._show_flow(story)

    def _show_flow(self, story: Story) -> None:
        if self.context.peer is None:
            return
        cable = story.cable()
        now = figures.rate(self._feeds.goodput_now())
        words = self.tr("now {}").format(now) if cable.is_up else ""
        if cable.carries:
            words = self.tr("ceiling\u00a0{} · now\u00a0{}").format(cable.carries, now)
        self._picture.show_cable(cable, words)
        self._picture.show_checks(*(self._n_checks if cable.is_up else (0, 0)))
        agreed = story.agreed
        to_here = agreed is None or agreed["decode"] == story.here_id
        flows = cable.is_up and self._feeds.is_handing_over()
        self._picture.show_flow(flows, to_here=to_here)
        self._picture.peer.show_computer(story.peer(is_prefilling=flows and to_here))

    def _show_away(self, story: Story) -> None:
        words = story.away()
        self._away.setVisible(bool(words))
        if not words:
            self._busy_with = ""
            return
        self._away_words.setText(words)
        can_wake = story.peer_id in self.context.state.part("wake", {}).get("can_wake", ())
        self._wake.setVisible(can_wake)
        self._reconnect.setEnabled(not self._busy_with)
        self._wake.setEnabled(not self._busy_with)
        self._away_advice.setText(
            self._busy_with
            or self.tr(
                "Answers go on here, and nothing is lost. Look that {} is on and awake, that Baton runs there, and "
                "that the cable is in at both ends."
            ).format(story.peer_name)
        )

    def _show_crashes(self, story: Story) -> None:
        crashes = story.crashes()
        if crashes == self._crashes:
            return
        self._crashes = crashes
        clear(self._ends)
        for crash in crashes:
            self._ends.addWidget(CrashCard(crash, self._load))

    def _show_findings(self, story: Story) -> None:
        report = self.context.state.part("link", {}).get("report")
        is_about_it = report is not None and (report["peer"] or {}).get("node_id") == story.peer_id
        found = checks(report) if report is not None and is_about_it and story.is_peer_there else []
        if found == self._checks:
            return
        self._checks = found
        clear(self._found)
        well = [check for check in found if check.is_well]
        odd = [check for check in found if not check.is_well]
        self._n_checks = len(well), sum(check.tone in ("warning", "danger") for check in odd)
        for check in odd:
            self._found.addWidget(
                FindingCard(
                    check,
                    on_fix=lambda: self._open_plan(undo=False),
                )
            )
        if well:
            self._found.addWidget(self._made_well(well))

    def _made_well(self, well: list[Check]) -> QWidget:
        """In a line how many are well, and each of them when that is asked for."""
        cards = WellCard(well)
        cards.hide()
        n_well = self.tr("{} checks of the cable are well").format(len(well))
        if len(well) == 1:
            n_well = self.tr("1 check of the cable is well")
        toggle = Button(self.tr("Show them"), kind="link")

        def switch() -> None:
            cards.setVisible(cards.isHidden())
            toggle.setText(self.tr("Show them") if cards.isHidden() else self.tr("Hide them"))

        toggle.clicked.connect(switch)
        line = row(Icon("check", "local"), Text(n_well, tone="soft"), toggle, None, spacing=SMALL)
        line.setContentsMargins(LARGE, 0, 0, 0)
        shown = QWidget()
        shown.setLayout(column(line, cards, spacing=SMALL))
        return shown

    def _show_roles(self, story: Story) -> None:
        wishes = self.context.state.part("roles", {}).get("wishes", {})
        wish = wishes.get(story.peer_id, {}).get("prefill", AUTO)
        names = {story.here_id: story.here_name, story.peer_id: story.peer_name}
        why_none = (
            ""
            if story.is_peer_there
            else self.tr("They are agreed once {} is there.").format(story.peer_name)
        )
        self._roles.show_roles(story.agreed, wish, names, why_none)

    def _why_no_test(self, story: Story) -> str:
        if why_nothing := story.why_nothing():
            return why_nothing
        if not story.is_loaded:
            return self.tr("Load a model first: it answers the same prompts both ways.")
        if not story.is_joined:
            if not story.peer().model and story.agreed and story.agreed["decode"] == story.peer_id:
                return self.tr("{} loads the model when something is asked. Ask something first.").format(
                    story.peer_name
                )
            return story.note_of_join() or self.tr("{} does not have the model ready yet.").format(
                story.peer_name
            )
        return ""

    # what is done

    def _do(self, coroutine: Any, done: Callable[[Any], object] = lambda answer: None) -> None:
        self.context.bridge.run(coroutine, done, self._on_error)

    def _on_error(self, error: AppError) -> None:
        self._busy_with = ""
        self._show()
        self.context.tell(error)

    def _wish(self, prefill: str) -> None:
        self._do(self.context.client.post("/roles", {"prefill": prefill}))

    def _use(self, peer: dict[str, Any]) -> None:
        """Have that one prefill, and none of the others by an earlier wish."""

        async def wish() -> None:
            for prefill in (AUTO, peer["node_id"]):
                await self.context.client.post("/roles", {"prefill": prefill})

        self._do(wish())

    def _load(self, model: str) -> None:
        self._do(self.context.client.endpoint_post("/models/load", {"model": model}))

    def _call(self) -> None:
        if (peer := self.context.peer) is None:
            return
        self._be_busy(self.tr("Calling {} at every address that is known of it.").format(peer["name"]))
        self._do(self.context.client.post(f"/peers/{peer['node_id']}/call"))
        QTimer.singleShot(5000, self, self._rest)

    def _wake_it(self) -> None:
        if (peer := self.context.peer) is None:
            return
        self._be_busy(self.tr("Waking {}. That takes up to a minute.").format(peer["name"]))
        self._do(self.context.client.post(f"/peers/{peer['node_id']}/wake"), self._on_woken)

    def _on_woken(self, answer: dict[str, Any]) -> None:
        self._rest()
        name = self.context.peer["name"] if self.context.peer is not None else ""
        self.context.shell.toast(about(str(answer.get("note", "")), name))

    def _be_busy(self, words: str) -> None:
        self._busy_with = words
        self._show_away(self._story)

    def _rest(self) -> None:
        self._busy_with = ""
        self._show()

    def _open_plan(self, *, undo: bool) -> None:
        dialog = PlanDialog(self, self.context, undo=undo)
        dialog.changed.connect(self._link_trial.begin)
        dialog.changed.connect(self._ask_whether_tuned)
        dialog.open()

    def _ask_whether_tuned(self) -> None:
        if self.context.peer is None or self.context.state.presence is not NodePresence.THERE:
            return
        asking = self.context.client.get("/link/tune/undo")
        self.context.bridge.run(asking, self._show_whether_tuned, lambda error: None)

    def _show_whether_tuned(self, answer: dict[str, Any]) -> None:
        self._tuned.setVisible(bool(answer["steps"]))

    def _on_unpair(self) -> None:
        if (peer := self.context.peer) is not None:
            self._ask_to_unpair(peer)

    def _ask_to_unpair(self, peer: dict[str, Any]) -> None:
        told = "" if is_there(peer) else self.tr(" It is away and cannot be told: unpair it there as well.")
        question = Question(
            self,
            self.tr("Unpair {}?").format(peer["name"]),
            self.tr(
                "The two computers trust each other no longer, and this one answers alone. Models and chats stay. To "
                "join them again takes a new code."
            )
            + told,
            yes=self.tr("Unpair"),
            no=self.tr("Keep it"),
            dangerous=True,
        )
        question.finished.connect(
            lambda result: self._remove(peer) if result == QDialog.DialogCode.Accepted else None
        )
        question.open()

    def _remove(self, peer: dict[str, Any]) -> None:
        name = peer["name"]
        self._do(
            self.context.client.delete(f"/peers/{peer['node_id']}"),
            lambda answer: self.context.shell.toast(self.tr("{} is unpaired.").format(name)),
        )
