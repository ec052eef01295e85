"""The other paired computers, where there are more than one: how each is, and how to work with it instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from PySide6.QtWidgets import QWidget

from app.context import is_there
from app.look.measures import MEDIUM, SMALL
from app.node.link_report import about
from app.telemetry import figures
from app.widgets.basics import Button, Card, Line, Text, column, row
from app.widgets.elided import ElidedText
from app.widgets.feedback import Dot

Peer = dict[str, Any]


class OthersCard(Card):
    """`on_use` is called with the one that is to prefill, `on_unpair` with the one that is to go."""

    def __init__(self, on_use: Callable[[Peer], object], on_unpair: Callable[[Peer], object]) -> None:
        super().__init__(spacing=SMALL)
        self._on_use, self._on_unpair = on_use, on_unpair
        self._rows: dict[str, _Other] = {}
        self.setAccessibleName(self.tr("Other paired computers"))
        self.column.addWidget(Text(self.tr("Other paired computers"), strong=True))
        about = self.tr("One at a time prefills for this computer. To work with another, choose it.")
        self.column.addWidget(Text(about, tone="soft", wrap=True))
        self.hide()

    def show_others(self, others: Sequence[Peer], now_s: float) -> None:
        there = {peer["node_id"] for peer in others}
        for node_id in [each for each in self._rows if each not in there]:
            self._rows.pop(node_id).deleteLater()
        for peer in others:
            if peer["node_id"] not in self._rows:
                self._rows[peer["node_id"]] = made = _Other(peer["name"], self._on_use, self._on_unpair)
                self.column.addWidget(made)
            self._rows[peer["node_id"]].show_peer(peer, now_s)
        self.setVisible(bool(others))


class _Other(QWidget):
    def __init__(
        self, name: str, on_use: Callable[[Peer], object], on_unpair: Callable[[Peer], object]
    ) -> None:
        super().__init__()
        self._peer: Peer = {}
        self._dot = Dot()
        self._state = Text(size="caption", tone="soft")
        self._why = Text(size="caption", tone="soft", wrap=True, selectable=True)
        self._use = Button(
            self.tr("Use this one"), lambda: on_use(self._peer), name=self.tr("Use {}").format(name)
        )
        self._use.setToolTip(self.tr("{} prefills for this computer from now on").format(name))
        unpair = Button(
            self.tr("Unpair"),
            lambda: on_unpair(self._peer),
            kind="quiet",
            name=self.tr("Unpair {}").format(name),
        )
        line = row(
            self._dot, ElidedText(name, strong=True), self._state, None, self._use, unpair, spacing=MEDIUM
        )
        self.setLayout(column(Line(), line, self._why, spacing=SMALL))

    def show_peer(self, peer: Peer, now_s: float) -> None:
        self._peer = peer
        self._dot.show_tone("local" if is_there(peer) else "warning")
        self._use.setEnabled(is_there(peer))
        why = "" if is_there(peer) else about(peer["note"], peer["name"])
        self._why.setText(why)
        self._why.setVisible(bool(why))
        away = figures.passed(now_s - peer["since"])
        self._state.setText(self.tr("connected") if is_there(peer) else self.tr("away for {}").format(away))
