"""The window's process, from its first line to its last: one instance, its parts put together and taken apart."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication

from app.bridge import Bridge
from app.context import Context
from app.look.look import Look, Theme
from app.node.client import Address, NodeClient
from app.node.starter import start_node
from app.pages.catalogue import PAGES
from app.preferences import Preferences
from app.single import SingleInstance
from app.state import NodeState
from app.window import MainWindow

# So that Python hears of Ctrl-C while Qt's loop runs.
_SIGNALS_EVERY_MS = 200


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
        self.look.set_theme(Theme(self.preferences.get("theme", Theme.SYSTEM.value)))
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
        self.window.closed.connect(application.quit)

    def open(self) -> None:
        width, height = self.preferences.get("size", [1280, 800])
        self.window.resize(width, height)
        self.window.go(self.preferences.get("page", "chat"))
        self.window.show()
        self.state.begin()

    def come_forward(self) -> None:
        self.window.show()
        self.window.raise_()
        self.window.activateWindow()

    def close(self) -> None:
        if self.window.isVisible():
            self.preferences.set("size", [self.window.width(), self.window.height()])
        self.preferences.set("page", self.window.page_shown)
        self.state.close()
        self.window.hide()
        self.bridge.run(self.client.close())
        self.bridge.close()


def run(host: Host) -> int:
    """Open the window and return when Baton's window is to end; a second start brings the first one forward."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    os.environ.setdefault("QT_ENABLE_HIGHDPI_SCALING", "1")
    application = QApplication(sys.argv[:1])
    single = SingleInstance(str(host.config))
    if single.is_second:
        return 0
    signal.signal(signal.SIGINT, lambda *_: application.quit())
    signal.signal(signal.SIGTERM, lambda *_: application.quit())
    ticking = QTimer(interval=_SIGNALS_EVERY_MS)
    ticking.timeout.connect(lambda: None)
    ticking.start()
    app = App(application, host)
    single.called.connect(app.come_forward)
    app.open()
    # What is there now stays; a collector that went through all of it each time would stop the window for 50 ms.
    gc.freeze()
    try:
        return application.exec()
    finally:
        app.close()
        single.close()
