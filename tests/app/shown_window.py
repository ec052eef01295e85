"""The program `baton` as its user starts it, which says when its window has been painted, and when its page has:
started by bench_window.

With `--pages` it opens each page then, and says how much memory it holds. Each is a line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PySide6.QtWidgets import QWidget

    from app.main import App

PAGE_MS = 700


def main() -> int:
    # as the program does: nothing of Qt is imported before it is wanted
    pages = "--pages" in sys.argv
    del sys.argv[1:]
    from app import main as program

    opened = program.App.open

    def open_it(self: program.App) -> None:
        opened(self)
        _when_painted(self.window, lambda: _tell_of_page(self, pages))

    program.App.open = open_it  # type: ignore[method-assign]
    from app.__main__ import main as start

    return start()


def _tell_of_page(app: App, looks_at_all: bool) -> None:
    from PySide6.QtCore import QTimer

    def made() -> None:
        page = app.window.page(app.window.page_shown)
        _when_painted(page, lambda: _look_at_all(app) if looks_at_all else None)

    QTimer.singleShot(0, made)


def _when_painted(widget: QWidget, then: Callable[[], object]) -> None:
    """Say what was computed until then, and go on."""
    from PySide6.QtCore import QEvent, QObject, QTimer

    class Painted(QObject):
        def eventFilter(self, watched: QObject, event: QEvent) -> bool:
            if event.type() is QEvent.Type.Paint:
                watched.removeEventFilter(self)
                QTimer.singleShot(0, tell)
            return False

    def tell() -> None:
        _say(computed_s=time.process_time())
        then()

    widget.installEventFilter(Painted(widget))


def _look_at_all(app: App) -> None:
    import psutil
    from PySide6.QtCore import QTimer

    from app.pages.catalogue import PAGES

    names = list(PAGES)

    def go_on() -> None:
        if names:
            app.window.go(names.pop(0))
            QTimer.singleShot(PAGE_MS, go_on)
        else:
            memory = psutil.Process().memory_full_info()
            _say(rss_bytes=memory.rss, uss_bytes=memory.uss)

    go_on()


def _say(**told: float) -> None:
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    sys.exit(main())
