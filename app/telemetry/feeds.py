"""Follows every loaded model's engine, and writes its ledger. On the GUI thread; pages listen to `changed`.

Of a computer that prefills it is the other one's engine that is followed, which knows of the whole request. When the
roles change, so does whom is followed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from app.bridge import Bridge, Job
from app.node.client import NodeClient
from app.node.faults import AppError
from app.state import NodePresence, NodeState
from app.telemetry.ledger import Ledger, Record
from app.telemetry.sides import UNKNOWN, Sides

# An engine that has just begun may not listen yet, and one that ended is told of a moment later.
_AGAIN_AFTER_MS = 1500

# Parts of the node's state that tell which engines there are, and who does what.
_PARTS = frozenset({"node", "engines", "workers", "joins", "roles", "peers"})


class Feeds(QObject):
    """`changed` names the model of which something is new, and the key of its record, or "" for slots and link.

    `models_changed` is sent when an engine is followed that was not, or the other way round.
    """

    changed = Signal(str, str)
    models_changed = Signal()

    def __init__(
        self,
        bridge: Bridge,
        client: NodeClient,
        state: NodeState,
        clock: Callable[[], float] = time.time,
        sides: Callable[[str], Sides] = lambda model: UNKNOWN,
    ) -> None:
        """`sides` says of a model who prefills and who decodes now."""
        super().__init__(state)
        self._bridge, self._client, self._state, self._clock = bridge, client, state, clock
        self._sides = sides
        self._jobs: dict[str, Job] = {}
        self._places: dict[str, str] = {}
        self.ledgers: dict[str, Ledger] = {}
        self._again = QTimer(self, singleShot=True, interval=_AGAIN_AFTER_MS)
        self._again.timeout.connect(self._follow)
        state.changed.connect(self._on_part)
        state.presence_changed.connect(self._follow)
        self._follow()

    @property
    def now_s(self) -> float:
        """Unix time, as the ledgers count."""
        return self._clock()

    @property
    def models(self) -> list[str]:
        """Those that are followed now."""
        return list(self._jobs)

    def records(self) -> list[tuple[str, str, Record]]:
        """Model, key and record of every request, the newest first."""
        found = [
            (model, key, record)
            for model, ledger in self.ledgers.items()
            for key, record in ledger.records.items()
        ]
        return sorted(found, key=lambda item: item[2].asked_s, reverse=True)

    def is_handing_over(self) -> bool:
        """Whether KV is on its way over the cable just now."""
        return any(ledger.is_handing_over for ledger in self.ledgers.values())

    def goodput_now(self) -> float:
        """Bytes a second over the cable, lately."""
        return sum(ledger.goodput.now(self.now_s) for ledger in self.ledgers.values())

    def is_still(self) -> bool:
        """Whether nothing has come over the cable for the last minute."""
        return all(ledger.goodput.is_empty(self.now_s) for ledger in self.ledgers.values())

    def _on_part(self, part: str) -> None:
        if part in _PARTS:
            self._follow()

    def _follow(self) -> None:
        wanted = self._wanted()
        moved = [model for model in self._jobs if model in wanted and wanted[model] != self._places[model]]
        for model in moved:
            self._jobs.pop(model).cancel()
            self._leave(model, self.tr("it ran on while the roles changed, and its end was not heard"))
        gone = [model for model in self._jobs if model not in wanted]
        for model in gone:
            self._jobs.pop(model).cancel()
            self._leave(model, self.tr("its engine ended"))
        new = [model for model in wanted if model not in self._jobs]
        for model in new:
            self.ledgers.setdefault(model, Ledger(model))
            self._places[model] = wanted[model]
        for model, ledger in self.ledgers.items():
            ledger.sides = self._sides(model)
        for model in new:
            self._jobs[model] = self._bridge.stream(
                self._client.endpoint_events(model),
                partial(self._hear, model),
                partial(self._ended, model),
                partial(self._ended, model),
            )
        if gone or new:
            self.models_changed.emit()

    def _wanted(self) -> dict[str, str]:
        """Models with an engine that can be asked, and where it is: on the computer of that name, which this one
        prefills for, or "" for here. An engine that is left over here from other roles is asked nothing any more."""
        if self._state.presence is not NodePresence.THERE:
            return {}
        here = {each["model"]: "" for each in self._state.part("engines", []) if each["state"] == "ready"}
        workers = self._state.part("workers", [])
        there = {each["model"]: each["for"] for each in workers if each["link"].get("connected")}
        return {**here, **there}

    def _hear(self, model: str, event: tuple[str, dict[str, Any]]) -> None:
        name, data = event
        if "error" in data and name == "message":
            return  # how a stream ends that cannot go on; its end follows
        key = self.ledgers[model].hear(name, data, self._clock())
        self.changed.emit(model, key)

    def _ended(self, model: str, why: AppError | None) -> None:
        if self._jobs.pop(model, None) is not None:
            self._leave(model, self.tr("its engine ended"))
            self._again.start()

    def _leave(self, model: str, why: str) -> None:
        self.ledgers[model].leave(why)
        self.changed.emit(model, "")
