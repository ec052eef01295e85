"""What is listened to for as long as somebody looks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QWidget

from app.bridge import Job
from app.context import Context
from app.state import NodePresence

Event = tuple[str, dict[str, Any]]


class Following(QWidget):
    """Hears a feed of the node while it is shown and the node is there; each time from its beginning."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context
        self._job: Job | None = None
        context.state.presence_changed.connect(self._listen)

    def feed(self) -> AsyncGenerator[Event, None]:
        raise NotImplementedError

    def hear(self, event: Event) -> None:
        raise NotImplementedError

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._listen()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._deafen()

    def _listen(self) -> None:
        self._deafen()
        if self.isVisible() and self._context.state.presence is NodePresence.THERE:
            self._job = self._context.bridge.stream(self.feed(), self.hear, on_error=lambda _: None)

    def _deafen(self) -> None:
        if self._job is not None:
            self._job.cancel()
            self._job = None
