"""The icon in the system's tray: Baton's state at a glance, and a way back to the window, or to the end."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QAction, QIcon
from PySide6.QtWidgets import QMenu, QSystemTrayIcon

from app.context import Context, is_there
from app.look.look import current_look
from app.state import NodePresence

_SIZE = 22

# Panels are light or dark whatever the window is: each of these is seen on either.
HUES = {"": "#238a80", "warning": "#b87514", "danger": "#d64b41"}


class Tray(QObject):
    """Hidden where the system has no tray. `asked_open` and `asked_quit` by the user's hand."""

    asked_open = Signal()
    asked_quit = Signal()

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context
        self._icon = QSystemTrayIcon(self)
        self._menu = QMenu()
        self._words = QAction("")
        self._words.setEnabled(False)
        self._menu.addAction(self._words)
        self._menu.addSeparator()
        self._menu.addAction(self.tr("Open Baton"), self.asked_open.emit)
        self._menu.addAction(self.tr("Quit"), self.asked_quit.emit)
        self._icon.setContextMenu(self._menu)
        self._icon.activated.connect(self._on_activated)
        self._icon.messageClicked.connect(self.asked_open)
        context.state.changed.connect(self._on_changed)
        context.state.presence_changed.connect(self._show)
        current_look().changed.connect(self._show)
        self._show()

    @property
    def is_there(self) -> bool:
        return QSystemTrayIcon.isSystemTrayAvailable()

    @property
    def words(self) -> str:
        return self._words.text()

    def show(self) -> None:
        if self.is_there:
            self._icon.show()

    def hide(self) -> None:
        self._icon.hide()

    def notify(self, title: str, text: str) -> bool:
        """Tell somebody who is elsewhere; whether the system can."""
        if not (self.is_there and QSystemTrayIcon.supportsMessages()):
            return False
        self._icon.showMessage(title, text, current_look().icon("baton", "local", 64))
        return True

    def _on_activated(self, reason: QSystemTrayIcon.ActivationReason) -> None:
        # macOS opens the menu itself on a click.
        if reason is QSystemTrayIcon.ActivationReason.Trigger:
            self.asked_open.emit()

    def _on_changed(self, part: str) -> None:
        if part in ("node", "peers", "engines"):
            self._show()

    def _show(self) -> None:
        words, tone = self._described()
        self._words.setText(words)
        self._icon.setToolTip(self.tr("Baton: {}").format(words))
        icon = QIcon(current_look().pixmap("baton", HUES[tone], _SIZE))
        # macOS draws a mask in whatever colour its menu bar has.
        icon.setIsMask(not tone)
        self._icon.setIcon(icon)

    def _described(self) -> tuple[str, str]:
        state, peer = self._context.state, self._context.peer
        if state.presence is NodePresence.GONE:
            return self.tr("not running"), "danger"
        if state.presence is NodePresence.STARTING:
            return self.tr("starting"), ""
        ready = [engine["model"] for engine in state.part("engines", []) if engine.get("state") == "ready"]
        serving = self.tr("serving {0}").format(", ".join(ready)) if ready else self.tr("ready")
        if peer is None:
            return serving, ""
        if is_there(peer):
            return self.tr("{0}, with {1}").format(serving, peer["name"]), ""
        return self.tr("{0}; {1} is away").format(serving, peer["name"]), "warning"
