"""An engine or worker that ended: what happened, what Baton does about it, and its last words."""

from __future__ import annotations

import time
from collections.abc import Callable

from PySide6.QtWidgets import QFrame

from app.look.measures import MEDIUM, SMALL
from app.node.link_report import sentence
from app.pages.cluster.story import Crash
from app.widgets.basics import Button, Card, Icon, Text, column, row


class CrashCard(Card):
    """`on_load` loads the model again, where that does not come by itself."""

    def __init__(self, crash: Crash, on_load: Callable[[str], object]) -> None:
        super().__init__(
            tone="" if crash.is_back else "danger" if crash.is_final else "warning", spacing=SMALL
        )
        self.crash = crash
        what = self.tr("The engine of {}") if crash.what == "engine" else self.tr("The worker of {}")
        at = time.strftime("%H:%M", time.localtime(crash.at_s))
        head = self.tr("{} ended at {}").format(what.format(crash.model), at)
        icon = Icon(
            "info" if crash.is_back else "warning", "text_soft" if crash.is_back else self._hue(crash)
        )
        text = column(
            Text(head, strong=True, wrap=True),
            Text(
                f"{sentence(crash.reason)} {self._what_now(crash)}", tone="soft", wrap=True, selectable=True
            ),
            spacing=2,
        )
        buttons = row(spacing=SMALL)
        self._log = QFrame()
        self._log.setProperty("kind", "sunken")
        lines = Text("\n".join(crash.log), size="caption", mono=True, selectable=True, wrap=True)
        lines.setAccessibleName(self.tr("Last lines of its log"))
        self._log.setLayout(column(lines, margin=MEDIUM))
        self._log.setVisible(bool(crash.log) and not crash.is_back)
        self._toggle = Button(kind="quiet")
        self._toggle.clicked.connect(self._switch)
        self._toggle.setVisible(bool(crash.log))
        self._name_toggle()
        buttons.addWidget(self._toggle)
        if crash.is_final and crash.what == "engine":
            buttons.addWidget(Button(self.tr("Load it again"), lambda: on_load(crash.model)))
        line = row(column(1, icon, None, spacing=0), text, buttons, spacing=MEDIUM)
        line.setStretch(1, 1)
        self.column.addLayout(line)
        self.column.addWidget(self._log)
        self.setAccessibleName(head)

    @staticmethod
    def _hue(crash: Crash) -> str:
        return "danger" if crash.is_final else "warning"

    def _what_now(self, crash: Crash) -> str:
        if crash.is_back:
            return self.tr("It was started again and runs.")
        if crash.is_final:
            return self.tr("Starting it again would end the same way.")
        times = self.tr(" It has ended {} times.").format(crash.n_ends) if crash.n_ends > 1 else ""
        return self.tr("It is being started again.") + times

    def _switch(self) -> None:
        self._log.setVisible(self._log.isHidden())
        self._name_toggle()

    def _name_toggle(self) -> None:
        self._toggle.setText(self.tr("Show its log") if self._log.isHidden() else self.tr("Hide its log"))
