"""Pairing by a code: shown here and typed there, or the other way round."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QLineEdit, QWidget

from app.bridge import Job
from app.context import Context
from app.look.measures import MEDIUM, SMALL, TINY
from app.node.faults import AppError, NodeRefused
from app.widgets.basics import Button, Card, Icon, Text, column, row
from app.widgets.code import CodeField, CodeView
from app.widgets.controls import Segments
from app.widgets.feedback import Action, Dot, announce
from app.wizard.course import Step
from app.wizard.facts import FactsCard
from app.wizard.pictures import ComputersPicture
from app.wizard.step import Choice, Guide, StepView, Target
from app.wizard.words import pairing_fault, short_fingerprint

_LIFETIME_S = 300.0


class PairStep(StepView):
    def __init__(self, context: Context, guide: Guide) -> None:
        super().__init__(context, guide)
        self._paired: dict[str, Any] | None = None
        self._offer: Job | None = None
        self._joining: Job | None = None
        self._picture = ComputersPicture()
        self._way = Segments(
            [("show", self.tr("Show a code here")), ("type", self.tr("Type the code from there"))],
            name=self.tr("Way"),
        )
        self._way.chosen.connect(lambda _: self._begin())
        self._showing, self._typing, self._fault = (
            self._make_showing(),
            self._make_typing(),
            _Fault(),
        )
        self._success = _Success(self)
        self.body.addWidget(self._picture)
        self.body.addLayout(row(None, self._way, None))
        for part in (self._fault, self._showing, self._typing, self._success):
            self.body.addWidget(part)

    def _make_showing(self) -> QWidget:
        self._code = CodeView()
        self._code.expired.connect(lambda: self._show_fault("expired", ""))
        self._where = Text(tone="soft", wrap=True)
        self._addresses = Text(size="caption", tone="faint", wrap=True, selectable=True)
        for text in (self._where, self._addresses):
            text.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        return _box(self._code, self._where, self._addresses)

    def _make_typing(self) -> QWidget:
        self._field = CodeField()
        self._field.returnPressed.connect(self._join)
        self._field.textChanged.connect(lambda _: self.guide.refresh())
        self._field.textEdited.connect(lambda _: self._end_joining())
        self._address = QLineEdit()
        self._address.setPlaceholderText(self.tr("Found by itself; or an address that stands under the code"))
        self._address.setAccessibleName(self.tr("Address of the other computer"))
        self._address.returnPressed.connect(self._join)
        self._busy = Text(tone="soft")
        label = Text(self.tr("Address"), tone="soft")
        label.setBuddy(self._address)
        return _box(
            SMALL,
            row(None, self._field, None),
            SMALL,
            row(label, self._address, spacing=MEDIUM),
            row(None, self._busy, None),
        )

    # what the frame asks

    @property
    def parts(self) -> frozenset[str]:
        return frozenset({"peers", "node"})

    def choice(self) -> Choice | None:
        if self._paired is not None:
            peers = self.context.state.part("peers", [])
            is_known = any(peer["node_id"] == self._paired["node_id"] for peer in peers)
            return Choice(text=self.tr("Continue"), is_enabled=is_known)
        if self._way.value == "type":
            return Choice(
                text=self.tr("Pair"),
                run=self._join,
                is_enabled=self._field.is_complete and self._joining is None,
            )
        return None

    def show_step(self) -> None:
        self._paired = None
        self._way.show_value("type" if self.guide.target.shows_code else "show")
        target = self.guide.target
        self._address.setText("" if target.node_id else target.name)
        self._begin()
        super().show_step()

    def leave(self) -> None:
        self._code.clear()
        super().leave()

    @property
    def _there(self) -> str:
        return self.guide.target.name

    def _begin(self) -> None:
        """Show a new code, or wait for one to be typed; whatever was begun before ends."""
        self._fault.hide()
        self._end_offer()
        self._end_joining()
        is_typing = self._way.value == "type"
        if is_typing:
            self._field.clear()
            self._field.show_wrong(False)
            self._field.setFocus()
        else:
            self._offer = self.stream(
                self.context.client.lines("/pairing/offer", {"watch": True}),
                self._on_offer,
                None,
                self._on_error,
            )
        self._show_parts()

    def _end_joining(self) -> None:
        """With the code that was typed before: it would make void the one that is shown now."""
        if self._joining is not None:
            self._joining.cancel()
            self._joining = None
            self._show_parts()

    def _end_offer(self) -> None:
        """The code ends with the stream that watches it."""
        self._code.clear()
        if self._offer is not None:
            self._offer.cancel()
            self._offer = None

    def _show_parts(self) -> None:
        is_over, is_typing = self._paired is not None, self._way.value == "type"
        self._way.setVisible(not is_over)
        self._showing.setVisible(not is_over and not is_typing and not self._fault.is_final)
        self._typing.setVisible(not is_over and is_typing)
        self._success.setVisible(is_over)
        self._busy.setText(self.tr("Pairing…") if self._joining is not None else "")
        there = self._there or self.tr("the other computer")
        if not is_over:
            self.say(
                self.tr("Pair the two"),
                self.tr(
                    "One computer shows a code, the other types it. So both know that they mean each other."
                ),
            )
        self._picture.show_computers(
            self.context.computer,
            self._paired["name"] if self._paired else there,
            state="locked" if is_over else "found",
            captions=(self.tr("this computer"), self.tr("paired") if is_over else ""),
        )
        self.guide.refresh()

    # showing

    def _on_offer(self, said: dict[str, Any]) -> None:
        if "code" in said:
            self._code.show_code(said["code"], float(said["expires_in_s"]), _LIFETIME_S)
            there = self._there or self.tr("the other computer")
            self._where.setText(
                self.tr("Type it on {}: open Baton there, and choose “Type the code from there”.").format(
                    there
                )
            )
            addresses = ", ".join(said["addresses"])
            hints = [self.tr("In a terminal there: baton pair {}").format(said["code"])]
            if addresses:
                hints.append(self.tr("This computer’s address, if it is not found: {}").format(addresses))
            self._addresses.setText("\n".join(hints))
        elif "paired" in said:
            self._on_paired(said)

    # typing

    def _join(self) -> None:
        if not self._field.is_complete or self._joining is not None:
            return
        self._fault.hide()
        self._field.show_wrong(False)
        body = {"code": self._field.code}
        if to := self._address.text().strip() or self._target_address():
            body["to"] = to
        self._joining = self.run(
            self.context.client.post("/pairing/join", body), self._on_paired, self._on_error
        )
        self._show_parts()

    def _target_address(self) -> str:
        """Where the chosen computer takes a code now."""
        found = self.context.state.part("discovery", {}).get("found", [])
        node_id = self.guide.target.node_id
        now = next((each for each in found if node_id and each["node_id"] == node_id), None)
        addresses = now["pairing_addresses"] if now is not None else []
        return str(addresses[0]) if addresses else ""

    # both

    def _on_paired(self, said: dict[str, Any]) -> None:
        self._joining = None
        self._paired = said["paired"]
        self._code.clear()
        self._fault.hide()
        name = said["paired"]["name"]
        self.say(
            self.tr("{} is paired").format(name),
            self.tr("Only these two computers can read what passes between them."),
        )
        self._success.show_pair(said["paired"], self.context.state.part("node", {}))
        self._show_parts()

    def _on_error(self, error: AppError) -> None:
        self._joining = None
        code = error.code if isinstance(error, NodeRefused) else ""
        if code in ("wait", "wrong_code"):
            # How long yet is known to the node alone.
            self.run(
                self.context.client.get("/pairing"),
                lambda told: self._show_fault(code, str(error), wait_s=float(told["wait_s"])),
            )
        else:
            self._show_fault(code, str(error))

    def _set_it_up(self) -> None:
        self.guide.target = Target(name=self._there, needs_baton=True)
        self.guide.go_to(Step.FIND)

    def _show_fault(self, code: str, message: str, *, wait_s: float = 0.0) -> None:
        is_typing = self._way.value == "type"
        title, sentence = pairing_fault(code, message, name=self._there, wait_s=wait_s)
        if not is_typing and code == "wrong_code":
            title = self.tr("A wrong code was typed.")
            sentence = self.tr(
                "This one is void, as a code is good for one try. Show a new one, and type it with care."
            )
        self._end_offer()
        way_out = None if is_typing else Action(text=self.tr("Show a new code"), run=self._begin)
        if code == "version":
            way_out = Action(text=self.tr("Put this version there"), run=self._set_it_up)
        self._fault.show_fault(title, sentence, way_out, wait_s=wait_s, is_final=not is_typing)
        self._field.show_wrong(is_typing and code in ("wrong_code", "no_code"))
        self._field.selectAll()
        self._show_parts()


class _Fault(Card):
    """Why it did not work, and what to do; after a wrong code its button waits as long as the node does."""

    def __init__(self) -> None:
        super().__init__(tone="warning", padding=MEDIUM)
        self.is_final = False
        self._left_s = 0.0
        self._way_out: Action | None = None
        self._title = Text(strong=True, wrap=True)
        self._sentence = Text(wrap=True)
        self._again = Button("", self._act)
        self._clock = QTimer(self, interval=1000)
        self._clock.timeout.connect(self._tick)
        line = row(
            column(1, Icon("warning", "warning"), None, spacing=0),
            column(self._title, self._sentence, spacing=2),
            self._again,
            spacing=MEDIUM,
        )
        line.setStretch(1, 1)
        self.column.addLayout(line)
        super().hide()

    def show_fault(
        self, title: str, sentence: str, way_out: Action | None, *, wait_s: float, is_final: bool
    ) -> None:
        self._title.setText(title)
        self._sentence.setText(sentence)
        self._way_out, self._left_s, self.is_final = way_out, wait_s, is_final
        self._again.setVisible(way_out is not None)
        self.setAccessibleName(f"{title} {sentence}")
        announce(self, f"{title} {sentence}")
        self.show()
        self._clock.start()
        self._say()

    def hide(self) -> None:
        self.is_final = False
        self._clock.stop()
        super().hide()

    def _act(self) -> None:
        if self._way_out is not None:
            self._way_out.run()

    def _tick(self) -> None:
        self._left_s -= 1
        self._say()
        if self._left_s <= 0:
            self._clock.stop()

    def _say(self) -> None:
        waits = self._left_s > 0
        self._again.setEnabled(not waits)
        left = self.tr(" in {} s").format(int(self._left_s) + 1) if waits else ""
        self._again.setText(f"{self._way_out.text}{left}" if self._way_out is not None else "")


class _Success(QWidget):
    """Whom this computer is paired with, by the fingerprints of both; and a newer version for the older one."""

    def __init__(self, step: PairStep) -> None:
        super().__init__()
        self._step = step
        self._facts = FactsCard()
        self._note = Text(size="caption", tone="faint", wrap=True)
        self._note.setText(
            self.tr("These are the beginnings of both fingerprints. They are the same on both computers.")
        )
        self._peer_name = ""
        self._dot = Dot("warning")
        self._words = Text(wrap=True)
        self._update = Button(self.tr("Update it"), self._on_update)
        line = row(self._dot, self._words, self._update, spacing=MEDIUM)
        line.setStretch(1, 1)
        self._versions = Card(padding=MEDIUM)
        self._versions.column.addLayout(line)
        self.setLayout(column(self._facts, self._note, TINY, self._versions, spacing=SMALL))
        self._versions.hide()

    def show_pair(self, paired: dict[str, Any], node: dict[str, Any]) -> None:
        self._peer_name = paired["name"]
        self._facts.show_facts(
            [
                (str(node.get("name", "")), short_fingerprint(str(node.get("fingerprint", "")))),
                (paired["name"], short_fingerprint(paired["fingerprint"])),
                (self.tr("System there"), paired.get("platform", "")),
            ]
        )
        self._versions.setVisible(bool(paired.get("note")))
        self._update.show()
        self._dot.show_tone("warning")
        self._words.setText(
            self.tr("{} has another version of Baton. Both should have the same.").format(paired["name"])
        )

    def _on_update(self) -> None:
        self._update.hide()
        self._words.setText(
            self.tr("Sending this version to {}. It may take minutes.").format(self._peer_name)
        )
        self._step.stream(
            self._step.context.client.lines("/setup/update", {"peer": self._peer_name}),
            self._on_updated,
            None,
            self._on_update_error,
        )

    def _on_updated(self, said: dict[str, Any]) -> None:
        self._dot.show_tone("local")
        self._words.setText(
            self.tr("{0} has Baton {1} now, and starts anew.").format(
                self._peer_name, said.get("version", "")
            )
        )

    def _on_update_error(self, error: AppError) -> None:
        self._update.show()
        self._dot.show_tone("danger")
        self._words.setText(str(error))


def _box(*parts: Any) -> QWidget:
    """Parts that come and go together."""
    box = QWidget()
    box.setLayout(column(*parts, spacing=MEDIUM))
    return box
