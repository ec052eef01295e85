"""What happens when the window is closed: whether Baton goes on serving, asked once and remembered if wished."""

from __future__ import annotations

from enum import Enum

from PySide6.QtWidgets import QCheckBox, QWidget

from app.look.measures import HUGE, MEDIUM, SMALL
from app.widgets.basics import Button, Text, column, row
from app.widgets.feedback import Dialog


class Parting(Enum):
    ASK = "ask"
    KEEP = "keep"
    STOP = "stop"


class Farewell(Dialog):
    """Asks; `choice` is KEEP or STOP once it was accepted, `is_remembered` whether it is to be so from now on."""

    def __init__(self, parent: QWidget, *, is_answering: bool) -> None:
        super().__init__(parent, self.tr("Close Baton"), width=460)
        self.choice = Parting.ASK
        sentence = self.tr(
            "Other programs, and the other computer, can go on using your models while the window is closed. "
            "Stopping unloads them and frees their memory."
        )
        if is_answering:
            sentence = self.tr("An answer is being written just now, and stopping ends it. ") + sentence
        self._always = QCheckBox(self.tr("Do this every time"))
        keep = Button(self.tr("Keep serving"), lambda: self._choose(Parting.KEEP), kind="primary")
        stop = Button(self.tr("Stop everything"), lambda: self._choose(Parting.STOP))
        self.setLayout(
            column(
                Text(self.tr("Keep serving in the background?"), size="title"),
                Text(sentence, tone="soft", wrap=True),
                self._always,
                SMALL,
                row(None, Button(self.tr("Cancel"), self.reject), stop, keep),
                margin=HUGE,
                spacing=MEDIUM,
            )
        )
        keep.setDefault(True)
        keep.setFocus()

    @property
    def is_remembered(self) -> bool:
        return self._always.isChecked()

    def _choose(self, choice: Parting) -> None:
        self.choice = choice
        self.accept()
