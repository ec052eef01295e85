"""Every page is made without a window of its own flashing up: nothing is shown before it has its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QEvent, QObject
from PySide6.QtWidgets import QApplication, QWidget

from app.pages.catalogue import PAGES
from app.window import MainWindow
from engine import config
from tests.app.two_computers import pretend, two_computers
from tests.app.windows import wait


class _Windows(QObject):
    """Names each widget that is shown as a window."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[str] = []

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() is QEvent.Type.Show and isinstance(watched, QWidget) and watched.isWindow():
            self.shown.append(type(watched).__name__)
        return False


def declared(setting: config.Setting) -> dict[str, Any]:
    return {
        **{"name": setting.name, "group": setting.group, "type": setting.kind.__name__, "help": setting.help},
        **{"minimum": setting.minimum, "maximum": setting.maximum, "choices": list(setting.choices)},
        **{"default": setting.default, "value": None if setting.is_secret else setting.default},
        "is_secret": setting.is_secret,
    }


@pytest.mark.parametrize("name", PAGES)
def test_nothing_of_a_page_is_a_window_of_its_own(tmp_path: Path, qapp: QApplication, name: str) -> None:
    windows = _Windows()
    with two_computers(tmp_path) as context:
        pretend(context, settings={"settings": [declared(one) for one in config.NODE_SETTINGS]})
        window = MainWindow(context, PAGES)
        qapp.installEventFilter(windows)
        try:
            window.show()
            window.go(name)
            wait(lambda: window.page(name).isVisible())
        finally:
            qapp.removeEventFilter(windows)
            window.hide()
            window.end()
            window.deleteLater()
    assert windows.shown == ["MainWindow"]
