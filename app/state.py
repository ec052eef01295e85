"""What the node says of itself, kept up to date: the parts of its `/state` by name, and whether it is there.

On the GUI thread. Pages read `part` and listen to `changed`; nobody polls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any

from PySide6.QtCore import QObject, Signal

from app.bridge import Bridge, Job
from app.node.client import NodeClient
from app.node.faults import AppError, NodeGone
from app.words import translate

# A node needs about half a second to start; a computer that is busy, more.
_LOOK_EVERY_S = 0.1
_START_WITHIN_S = 30.0
_AGAIN_AFTER_S = 1.0

# Lists of what ends with the node.
_RUNS_BY_THE_NODE = ("engines", "workers", "joins", "downloads", "copies")


class NodePresence(Enum):
    STARTING = "starting"
    THERE = "there"
    GONE = "gone"


class NodeState(QObject):
    """`changed` names a part whose data are new; `presence_changed` says that the node came or went."""

    changed = Signal(str)
    presence_changed = Signal()

    def __init__(
        self,
        bridge: Bridge,
        client: NodeClient,
        start: Callable[[], AbstractContextManager[Callable[[], str]]],
        parent: QObject | None = None,
    ) -> None:
        """`start` starts a node, and gives what tells why that has ended: "" while it runs."""
        super().__init__(parent)
        self._bridge, self._client, self._start = bridge, client, start
        self._parts: dict[str, Any] = {}
        self._job: Job | None = None
        self._back_by_s = 0.0
        self.presence = NodePresence.STARTING
        self.fault = ""

    def part(self, name: str, default: Any = None) -> Any:
        """A part as the node told it last, without what runs no more since it is gone; `default` before it has."""
        return self._parts.get(name, default)

    def begin(self, *, start: bool = True) -> None:
        """Follow the node that runs; where none does, start one first, if `start`."""
        self._follow(start)

    def restart(self, on_error: Callable[[AppError], object]) -> None:
        """Have the node end and start again as it was started. Meanwhile it counts as starting, and not as gone."""
        self.expect_back()
        self._bridge.run(self._client.post("/restart"), lambda _: None, on_error)

    def expect_back(self) -> None:
        """The node is about to end and to be started again: it counts as starting for as long as that may take."""
        self._back_by_s = time.monotonic() + _START_WITHIN_S

    def close(self) -> None:
        if self._job is not None:
            self._job.cancel()

    def _follow(self, start: bool) -> None:
        if self._job is not None:
            self._job.cancel()
        self._be(NodePresence.STARTING)
        self._job = self._bridge.stream(
            self._news(start), self._hear, lambda _: self._lost(""), self._on_error
        )

    async def _news(self, start: bool) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """Of the node that runs now, until it ends."""
        if not self._client.look():
            if not start:
                raise NodeGone(translate("Node", "Baton's node on this computer has ended."))
            with self._start() as why_ended:
                await self._started(why_ended)
        async for event in self._client.events():
            yield event

    async def _started(self, why_ended: Callable[[], str]) -> None:
        """Return once a node is there."""
        try:
            async with asyncio.timeout(_START_WITHIN_S):
                while not self._client.look():
                    if why := why_ended():
                        raise NodeGone(
                            translate("Node", "Baton's node did not start: {}.").format(why.rstrip("."))
                        )
                    await asyncio.sleep(_LOOK_EVERY_S)
        except TimeoutError:
            raise NodeGone(
                translate(
                    "Node",
                    "Baton's node did not start. `baton node` in a terminal says why, and so does its log.",
                )
            ) from None

    def _hear(self, event: tuple[str, dict[str, Any]]) -> None:
        _, parts = event
        self._parts.update(parts)
        if self.presence is not NodePresence.THERE:
            self._back_by_s = 0.0
            self._be(NodePresence.THERE)
        for name in parts:
            self.changed.emit(name)

    def _on_error(self, error: AppError) -> None:
        self._lost(str(error))

    def _lost(self, fault: str) -> None:
        self.fault = fault or translate("Node", "Baton's node on this computer has ended.")
        comes_within_s = self._back_by_s - time.monotonic()
        self._be(NodePresence.STARTING if comes_within_s > 0 else NodePresence.GONE)
        self._forget_what_ran()
        self._job = self._bridge.run(
            _until_there(self._client, comes_within_s), lambda _: self._follow(False), self._not_back
        )

    def _not_back(self, _: AppError) -> None:
        self._back_by_s = 0.0
        self._lost(
            translate("Node", "Baton's node on this computer has ended, and did not come back by itself.")
        )

    def _forget_what_ran(self) -> None:
        ended: dict[str, Any] = {name: [] for name in _RUNS_BY_THE_NODE if self._parts.get(name)}
        if any(peer.get("connected") for peer in self._parts.get("peers", ())):
            ended["peers"] = [{**peer, "connected": False} for peer in self._parts["peers"]]
        self._parts.update(ended)
        for name in ended:
            self.changed.emit(name)

    def _be(self, presence: NodePresence) -> None:
        if presence is not self.presence:
            self.presence = presence
            self.presence_changed.emit()


async def _until_there(client: NodeClient, within_s: float) -> None:
    """Return once a node runs: a service may start it again, or a person. Raises NodeGone when one that was expected
    is late; `within_s` of 0 or less expects none."""
    try:
        async with asyncio.timeout(within_s if within_s > 0 else None):
            while True:
                await asyncio.sleep(_AGAIN_AFTER_S)
                if client.look():
                    return
    except TimeoutError:
        raise NodeGone(translate("Node", "Baton's node did not come back.")) from None
