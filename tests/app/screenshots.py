"""Takes a picture of every page, dialog and step, in both themes and two sizes: `make screenshots`.

Two real nodes, paired on this computer, with the starter model. Each file of `tests/app/scenes/` brings the window into
the states that are worth looking at, and takes them.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import tempfile
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QDialog, QWidget

from app.context import is_there
from app.look.look import Look, Theme
from app.node.client import NodeClient
from engine.paths import models_dir
from tests.app import scenes
from tests.app.windows import Opened, address_of, opened, wait
from tests.engine.node.nodes import NodeProcess

SIZES = ((1280, 800), (900, 600))
_SETTLE_MS = 120


class Stage:
    """What scenes play on: a window of `studio`, which is paired with `spark`."""

    def __init__(self, look: Look, app: Opened, spark: NodeProcess, folder: Path) -> None:
        self.look, self.app, self.spark, self._folder = look, app, spark, folder

    def shot(self, name: str, widget: QWidget | None = None) -> None:
        """Take the window, or a dialog as it is, in both themes; the window in both sizes as well."""
        shown = widget or self.app.window
        sizes = [None] if isinstance(shown, QDialog) else list(SIZES)
        for theme in (Theme.LIGHT, Theme.DARK):
            self.look.set_theme(theme)
            for size in sizes:
                if size is not None:
                    shown.resize(*size)
                QTest.qWait(_SETTLE_MS)
                suffix = f"-{size[0]}x{size[1]}" if size else ""
                shown.grab().save(str(self._folder / f"{name}{suffix}-{theme.value}.png"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="take the scenes of one file alone")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    look = Look(QApplication([]))
    with tempfile.TemporaryDirectory() as temporary:
        room, flags = Path(temporary), ("--port", "0", "--node-port", "0")
        with (
            NodeProcess(room, "studio", *flags, models=models_dir()) as studio,
            NodeProcess(room, "spark", *flags, models=models_dir()) as spark,
            opened(studio, room / "window") as app,
        ):
            pair(app, spark)
            stage = Stage(look, app, spark, args.folder)
            for found in pkgutil.iter_modules(scenes.__path__):
                if args.only in ("", found.name):
                    importlib.import_module(f"tests.app.scenes.{found.name}").play(stage)


def pair(app: Opened, spark: NodeProcess) -> None:
    """As two people at two computers do, over loopback."""
    theirs = NodeClient(lambda: address_of(spark))

    async def shake_hands() -> None:
        offer = await theirs.post("/pairing/offer")
        await app.client.post("/pairing/join", {"code": offer["code"], "to": f"127.0.0.1:{offer['port']}"})
        await theirs.close()

    app.bridge.run(shake_hands())
    wait(lambda: (peer := app.context.peer) and is_there(peer))


if __name__ == "__main__":
    main()
