"""macOS's permission to use the local network: explained before the system asks, and mended where it was refused."""

from __future__ import annotations

from typing import Any, cast

from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices, QGuiApplication

from app.context import Context
from app.look.measures import MEDIUM, SMALL, TINY
from app.node.lan import touch_local_network
from app.widgets.basics import Button, Card, Icon, Text, clear, column, row
from app.wizard.pictures import SystemQuestionPicture
from app.wizard.step import Choice, Guide, StepView


class PermissionStep(StepView):
    def __init__(self, context: Context, guide: Guide) -> None:
        super().__init__(context, guide)
        self._has_asked = False
        self._picture = SystemQuestionPicture()
        self._verdict = Card(padding=MEDIUM)
        self._icon = Icon("info")
        self._words = Text(wrap=True, selectable=True)
        self._steps = column(spacing=TINY)
        self._pane = Button(self.tr("Open System Settings"), self._open_pane, icon="external")
        line = row(column(1, self._icon, None, spacing=0), self._words, spacing=MEDIUM)
        line.setStretch(1, 1)
        self._verdict.column.addLayout(line)
        self._verdict.column.addLayout(self._steps)
        self._verdict.column.addLayout(row(self._pane, None, spacing=SMALL))
        self.body.addLayout(row(None, self._picture, None))
        self.body.addWidget(self._verdict)
        application = cast(QGuiApplication, QGuiApplication.instance())
        application.applicationStateChanged.connect(self._on_application)

    @property
    def parts(self) -> frozenset[str]:
        return frozenset({"permission"})

    @property
    def _permission(self) -> dict[str, Any]:
        found: dict[str, Any] = self.context.state.part("permission", {})
        return found

    def choice(self) -> Choice:
        if self._is_settled:
            return Choice(text=self.tr("Continue"))
        if self._permission.get("state") == "denied" or self._has_asked:
            return Choice(text=self.tr("Check again"), run=self._check)
        return Choice(text=self.tr("Ask now"), run=self._ask)

    def other(self) -> Choice | None:
        return None if self._is_settled else Choice(text=self.tr("Go on without"))

    @property
    def _is_settled(self) -> bool:
        """Nothing is to be asked: it is allowed, or what keeps it from the network is not macOS."""
        return self._permission.get("state") in ("allowed", "routing", "not_applicable")

    def refresh(self) -> None:
        state = self._permission.get("state", "")
        is_denied = state == "denied"
        self._say_for(state)
        tones = {"allowed": ("check", "local"), "denied": ("warning", "danger")}
        icon, tone = tones.get(state, ("info", "text_soft"))
        self._icon.show_icon(icon, tone)
        self._verdict.set_tone("danger" if is_denied else "")
        self._words.setText(self._permission.get("sentence", ""))
        clear(self._steps)
        for number, step in enumerate(self._permission.get("steps", ()), 1):
            line = row(
                column(Text(f"{number}.", tone="soft"), None),
                Text(step, tone="soft", wrap=True),
                spacing=SMALL,
            )
            line.setStretch(1, 1)
            self._steps.addLayout(line)
        self._picture.setVisible(not is_denied and not self._is_settled)
        self._pane.setVisible(is_denied)
        self._verdict.setVisible(self._has_asked or self._is_settled or is_denied)

    def _say_for(self, state: str) -> None:
        if state == "denied":
            self.say(
                self.tr("macOS keeps Baton from your network"),
                self.tr(
                    "So Baton cannot look for the other computer. A switch in System Settings changes that."
                ),
            )
        elif self._is_settled:
            self.say(
                self.tr("Your local network"),
                self.tr("Baton looks for your other computer there. Nothing leaves your home."),
            )
        else:
            self.say(
                self.tr("macOS is going to ask you once"),
                self.tr(
                    "Baton looks for your other computer on the local network, and macOS asks whether it may. Nothing "
                    "leaves your home. Click Allow."
                ),
            )

    def _on_application(self, state: Qt.ApplicationState) -> None:
        """Whoever comes back from System Settings has clicked a switch there."""
        if state is Qt.ApplicationState.ApplicationActive and self._is_shown and self._has_asked:
            self._check()

    def _ask(self) -> None:
        self._has_asked = True
        self._check()

    def _check(self) -> None:
        touch_local_network()
        self.run(self.context.client.post("/permission/check"))
        self.refresh()
        self.guide.refresh()

    def _open_pane(self) -> None:
        if url := self._permission.get("settings_url"):
            QDesktopServices.openUrl(QUrl(url))
