"""The window's process, from its first line to its last: one instance, its parts put together and taken apart."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QSocketNotifier, Qt
from PySide6.QtWidgets import QApplication

from app.bridge import Bridge
from app.context import Context
from app.farewell import Farewell, Parting
from app.look.look import Look, Theme
from app.node.client import Address, NodeClient
from app.node.starter import start_node
from app.own_settings import NOTIFICATIONS, PARTING, THEME
from app.pages.catalogue import PAGES
from app.preferences import Preferences
from app.single import SingleInstance
from app.state import NodePresence, NodeState
from app.tray import Tray
from app.window import MainWindow
from app.wizard.course import Memory

# What a screen's height has to hold beside the window itself: the bar with its title and its border, on most systems.
_TITLE_BAR_PX = 40


@dataclass(frozen=True, kw_only=True)
class Host:
    """What the window is told of the computer by whoever starts it: how to find a node, how to start Baton again, and
    the folders for settings and for what belongs to the user."""

    find: Callable[[], Address | None]
    command: tuple[str, ...]
    config: Path
    data: Path


class App:
    """The parts of the window's process. `close` it once."""

    def __init__(self, application: QApplication, host: Host) -> None:
        application.setApplicationName("Baton")
        application.setOrganizationName("Baton")
        application.setDesktopFileName("baton")
        application.setQuitOnLastWindowClosed(False)
        self.look = Look(application)
        self.preferences = Preferences(host.config / "window.json")
        self.look.set_theme(self.preferences.one_of(THEME.name, Theme, Theme.SYSTEM))
        self.bridge = Bridge()
        self.client = NodeClient(host.find)
        self.state = NodeState(self.bridge, self.client, lambda: start_node(host.command))
        self.context = Context(
            bridge=self.bridge,
            client=self.client,
            state=self.state,
            preferences=self.preferences,
            data=host.data,
            command=host.command,
        )
        self.window = MainWindow(self.context, PAGES)
        self.tray = Tray(self.context)
        self._application = application
        self.window.closed.connect(self.part)
        self.window.quit_asked.connect(self.part_for_good)
        self.window.notified.connect(self._notify)
        self.tray.asked_open.connect(self.come_forward)
        self.tray.asked_quit.connect(self.part_for_good)

    def open(self) -> None:
        width, height = self.preferences.get("width", 1280), self.preferences.get("height", 800)
        room = self.window.screen().availableGeometry().size()
        self.window.resize(min(width, room.width()), min(height, room.height() - _TITLE_BAR_PX))
        page = self.preferences.get("page", "")
        if page not in PAGES or page == "setup":
            page = "chat"
        if Memory(self.preferences).is_over:
            self.window.begin_with(page)
        else:
            self.window.go("setup")
        if self.preferences.get("is_maximized", False):
            self.window.showMaximized()
        else:
            self.window.show()
        self.tray.show()
        self.state.begin()

    def come_forward(self) -> None:
        self.window.setWindowState(self.window.windowState() & ~Qt.WindowState.WindowMinimized)
        self.window.show()
        self.window.raise_()
        self.window.activateWindow()

    def part(self) -> None:
        """The window was closed: Baton goes on in the tray, or ends, with the node or without."""
        choice = self._choose()
        # Without a node nothing is kept for which there had to be a tray.
        if choice is Parting.KEEP and self.tray.is_there and self.state.presence is not NodePresence.GONE:
            self.window.hide()
        elif choice is not None:
            self._end(choice)

    def part_for_good(self) -> None:
        """The user has asked to quit."""
        if (choice := self._choose()) is not None:
            self._end(choice)

    def _choose(self) -> Parting | None:
        """What is to become of the node; None where the user wants to stay after all."""
        remembered = self.preferences.one_of(PARTING.name, Parting, Parting.ASK)
        engines = self.state.part("engines", [])
        if not engines and self.state.presence is not NodePresence.THERE:
            return Parting.KEEP
        if remembered is not Parting.ASK:
            return remembered
        if isinstance(QApplication.activeModalWidget(), Farewell):
            return None  # asked already
        dialog = Farewell(self.window, is_answering=any(engine.get("active") for engine in engines))
        if not dialog.exec():
            return None
        if dialog.is_remembered:
            self.preferences.set(PARTING.name, dialog.choice.value)
        return dialog.choice

    def _end(self, choice: Parting) -> None:
        # `quit` would close the window first, which asks what is to become of the node.
        if choice is Parting.STOP:
            self.state.close()
            self.bridge.run(
                self.client.post("/stop"),
                lambda _: self._application.exit(),
                lambda _: self._application.exit(),
            )
        else:
            self._application.exit()

    def _notify(self, title: str, text: str) -> None:
        if self.preferences.get(NOTIFICATIONS.name, NOTIFICATIONS.default) and not self.tray.notify(
            title, text
        ):
            self._application.alert(self.window)

    def close(self) -> None:
        if self.window.page_shown:  # it was opened, though it may be in the tray now
            self.preferences.set("is_maximized", self.window.isMaximized())
            size = self.window.normalGeometry().size() if self.window.isMaximized() else self.window.size()
            self.preferences.set("width", size.width())
            self.preferences.set("height", size.height())
        self.preferences.set("page", self.window.page_shown)
        self.state.close()
        self.tray.hide()
        self.window.hide()
        self.bridge.close(self.client.close())
        self.window.end()


def run(host: Host) -> int:
    """Open the window and return when Baton's window is to end; a second start brings the first one forward."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    os.environ.setdefault("QT_ENABLE_HIGHDPI_SCALING", "1")
    application = QApplication(sys.argv[:1])
    single = SingleInstance(str(host.config))
    if single.is_second:
        return 0
    signal.signal(signal.SIGINT, lambda *_: application.exit())
    signal.signal(signal.SIGTERM, lambda *_: application.exit())
    waking = _Waking()
    app = App(application, host)
    single.called.connect(app.come_forward)
    app.open()
    try:
        return application.exec()
    finally:
        app.close()
        single.close()
        waking.close()


class _Waking:
    """Has Python hear of a signal while Qt's loop runs: its handlers run when next any Python does."""

    def __init__(self) -> None:
        self._heard, self._told = socket.socketpair()
        for end in (self._heard, self._told):
            end.setblocking(False)
        self._before = signal.set_wakeup_fd(self._told.fileno())
        self._notifier = QSocketNotifier(self._heard.fileno(), QSocketNotifier.Type.Read)
        self._notifier.activated.connect(self._hear)

    def _hear(self) -> None:
        # A loop within the loop may have heard it first.
        with contextlib.suppress(BlockingIOError):
            self._heard.recv(64)

    def close(self) -> None:
        signal.set_wakeup_fd(self._before)
        self._notifier.setEnabled(False)
        self._heard.close()
        self._told.close()
