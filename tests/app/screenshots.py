"""Takes a picture of every page, dialog and step, in both themes and two sizes: `make screenshots`.

No node runs: `tests/app/staged_node.py` has what it would say, at a time that stands still, so that a picture changes
only where the window does. Each file of `tests/app/scenes/` brings a window of its own into the states that are worth
looking at, and takes them. The chosen few are for the README.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ["TZ"] = "UTC"

from PySide6.QtCore import QPoint
from PySide6.QtGui import QFontDatabase, QImage, QPainter
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QDialog, QWidget

from app.look.look import Look, Theme
from app.pages.chat.transcript import highlight
from app.state import NodePresence
from tests.app import scenes
from tests.app.staged_node import StagedClient, staged_parts
from tests.app.windows import Opened, wait

SIZES = ((1280, 800), (900, 600))
THEMES = (Theme.LIGHT, Theme.DARK)

# Saturday, 14 March 2026, in the afternoon.
NOW_S = 1_773_498_300.0

# A family that stands in for the system's, so that pictures do not depend on whose computer they are taken on.
_FONT = "Inter"

_LOOK_EVERY_MS = 15
_STILL_WITHIN = 80

# Those that the README shows.
CHOSEN = (
    "cluster-idle-1280x800-light",
    "telemetry-handoff-1280x800-dark",
    "chat-conversation-1280x800-light",
    "chat-handoff-1280x800-dark",
    "models-library-1280x800-dark",
    "wizard-4-pair-show-1280x800-light",
)


class StagedWindow(Opened):
    """A window of `studio`, which is paired with `spark`; neither is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts = staged_parts(folder)
        self.staged = StagedClient(self.parts)
        self._put_together(self.staged, folder)
        self.context.feeds._clock = lambda: NOW_S

    def tell(self, **parts: object) -> None:
        """As if the node had said so; all other parts are as they were at first."""
        self.state._hear(("changed", {**self.parts, **parts}))

    def lose_node(self) -> None:
        self.staged.is_there = False
        self.state.close()
        self.state._lost("")

    def find_node(self) -> None:
        self.staged.is_there = True
        self.state.begin(start=False)
        wait(lambda: self.state.presence is NodePresence.THERE)


class Stage:
    """What a scene plays on."""

    def __init__(self, look: Look, app: StagedWindow, folder: Path) -> None:
        self.look, self.app, self._folder = look, app, folder

    def shot(self, name: str, widget: QWidget | None = None, over: Sequence[QWidget] = ()) -> None:
        """Take the window in both sizes, or a dialog as it is.

        `over` are menus and the like that stand open over it.
        """
        shown = widget or self.app.window
        for size in [None] if isinstance(shown, QDialog) or over else SIZES:
            if size is not None:
                shown.resize(*size)
            suffix = f"-{size[0]}x{size[1]}" if size else ""
            file = self._folder / f"{name}{suffix}-{self.look.theme.value}.png"
            assert _still(shown, over).save(str(file))


def _still(widget: QWidget, over: Sequence[QWidget]) -> QImage:
    """The picture of it once nothing in it moves any more."""
    last = QImage()
    for _ in range(_STILL_WITHIN):
        QTest.qWait(_LOOK_EVERY_MS)
        now = _picture(widget, over)
        if now == last:
            return now
        last = now
    raise AssertionError("it does not stand still")


def _picture(widget: QWidget, over: Sequence[QWidget]) -> QImage:
    picture = widget.grab()
    painter = QPainter(picture)
    for each in over:
        painter.drawPixmap(each.mapToGlobal(QPoint(0, 0)) - widget.mapToGlobal(QPoint(0, 0)), each.grab())
    painter.end()
    return picture.toImage()


@contextmanager
def stage(look: Look, folder: Path) -> Iterator[Stage]:
    """A window with which nothing was done yet."""
    with tempfile.TemporaryDirectory() as room:
        app = StagedWindow(Path(room))
        try:
            app.begin()
            assert app.state.presence is NodePresence.THERE
            wait(lambda: app.context.peer)
            yield Stage(look, app, folder)
        finally:
            app.close()


def still_clock() -> None:
    """What is said to have been ten minutes ago is so in every picture."""
    time.tzset()
    time.time = lambda: NOW_S


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="take the scenes of one file alone")
    parser.add_argument("--chosen", type=Path, help="the folder for those that are shown in the README")
    parser.add_argument("--text", type=float, default=1.0, help="how much larger than usual text is")
    parser.add_argument("--theme", choices=[theme.value for theme in THEMES], help="take one theme alone")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.theme is not None:
        take(args.folder, Theme(args.theme), args.only, args.text)
        return
    # Each in a process of its own: a change of theme costs more than all else.
    words = [
        sys.executable,
        "-m",
        "tests.app.screenshots",
        str(args.folder),
        "--only",
        args.only,
        "--text",
        str(args.text),
    ]
    taking = [subprocess.Popen([*words, "--theme", theme.value]) for theme in THEMES]
    if any([process.wait() for process in taking]):
        sys.exit("not all pictures could be taken")
    if args.chosen is not None:
        keep_chosen(args.folder, args.chosen)


def take(folder: Path, theme: Theme, only: str, text: float) -> None:
    still_clock()
    application = QApplication([])
    application.setCursorFlashTime(0)
    look = Look(application, family=_FONT if _FONT in QFontDatabase.families() else "", scale=text)
    look.set_theme(theme)
    # by itself the window shows code without colours until they are known
    for language in ("bash", "python"):
        highlight.load(language)
    for found in pkgutil.iter_modules(scenes.__path__):
        if only in ("", found.name):
            with stage(look, folder) as scene:
                importlib.import_module(f"tests.app.scenes.{found.name}").play(scene)


def keep_chosen(taken: Path, folder: Path) -> None:
    """Packed as tightly as can be: they are kept among the sources."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in CHOSEN:
        picture = QImage(str(taken / f"{name}.png")).convertToFormat(QImage.Format.Format_RGB888)
        assert picture.save(str(folder / f"{name}.png"), quality=0)


if __name__ == "__main__":
    main()
