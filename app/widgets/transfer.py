"""Bytes on their way: a bar, how much is there, how fast, how long yet, and a button that stops it."""

from __future__ import annotations

import time
from collections.abc import Callable

from PySide6.QtWidgets import QWidget

from app.amounts import Pace, duration_text, size_text
from app.look.measures import MEDIUM, TINY
from app.widgets.basics import Button, Text, column, row
from app.widgets.feedback import Meter, announce


class TransferRow(QWidget):
    """`tone` is peer for what goes to or comes from the other computer, else local.

    `on_stop` ends it, by the button `stop`.
    """

    def __init__(self, on_stop: Callable[[], object], *, tone: str = "local") -> None:
        super().__init__()
        self._tone = tone
        self._pace = Pace()
        self._meter = Meter()
        self._words = Text(size="caption", tone="soft", wrap=True)
        self.stop = Button(self.tr("Stop"), on_stop, kind="quiet")
        body = row(column(self._meter, self._words, spacing=TINY), self.stop, spacing=MEDIUM)
        body.setStretch(0, 1)
        self.setLayout(body)
        self.show_progress(0, 0)

    @property
    def text(self) -> str:
        return self._words.text()

    def show_progress(self, done_bytes: int, total_bytes: int, note: str = "") -> None:
        """`total_bytes` 0: it is not known yet."""
        self.stop.show()
        self._words.set_tone("soft")
        if not total_bytes:
            self._meter.show_shares()
            self._words.setText(note or self.tr("Beginning…"))
            return
        self._pace.hear(done_bytes, time.monotonic())
        self._meter.show_shares((done_bytes / total_bytes, self._tone))
        words = [self.tr("{0} of {1}").format(size_text(done_bytes), size_text(total_bytes))]
        if done_bytes >= total_bytes:
            words.append(self.tr("checking that it is right"))
        elif self._pace.per_s > 0:
            words.append(f"{size_text(self._pace.per_s)}/s")
            if (left_s := self._pace.left_s(total_bytes)) is not None:
                words.append(self.tr("{} left").format(duration_text(left_s)))
        self._words.setText(" · ".join(words))
        self.setAccessibleName(self._words.text())

    def show_fault(self, text: str) -> None:
        self.stop.hide()
        self._words.set_tone("danger")
        if text != self._words.text():
            announce(self, text)
        self._words.setText(text)
        self._meter.show_shares()
