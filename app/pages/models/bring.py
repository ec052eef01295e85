"""Bringing files of the user's among the models: what was dropped, and whether to link or to copy, asked once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from PySide6.QtWidgets import QWidget

from app.amounts import size_text
from app.look.measures import HUGE, MEDIUM, SMALL
from app.widgets.basics import Button, Text, column, row
from app.widgets.feedback import Dialog

_GGUF = ".gguf"


def models_among(paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """GGUF files, each model once, and what is none. A folder stands for the files in it."""
    models: dict[str, str] = {}
    others: list[str] = []
    for path in map(Path, paths):
        inside = sorted(path.rglob(f"*{_GGUF}")) if path.is_dir() else [path] if path.suffix == _GGUF else []
        if not inside:
            others.append(path.name)
        for file in inside:
            # the parts of a split model stand for one
            first = file.name.split("-000", 1)[0] if "-of-" in file.name else file.name
            models.setdefault(f"{file.parent}/{first}", str(file))
    return list(models.values()), others


class BringDialog(Dialog):
    """Asks how files are to come. `copy` has the answer once it was accepted."""

    def __init__(self, parent: QWidget, files: Sequence[str], *, prefers_copy: bool) -> None:
        title = self.tr("Import {}").format(Path(files[0]).name)
        if len(files) > 1:
            title = self.tr("Import {} models").format(len(files))
        super().__init__(parent, title)
        self.copy = False
        size = sum(_size(file) for file in files)
        self._link = Button(self.tr("Link to it"), lambda: self._answer(copy=False))
        self._copy = Button(self.tr("Copy it"), lambda: self._answer(copy=True))
        preferred = self._copy if prefers_copy else self._link
        preferred.setProperty("kind", "primary")
        preferred.setDefault(True)
        self.setLayout(
            column(
                Text(title, size="title", wrap=True),
                Text(
                    self.tr(
                        "A link takes no room: the file stays where it is, and has to stay there. A copy takes {} "
                        "in Baton's folder, and needs the file no more."
                    ).format(size_text(size)),
                    tone="soft",
                    wrap=True,
                ),
                SMALL,
                row(None, Button(self.tr("Cancel"), self.reject), self._copy, self._link),
                margin=HUGE,
                spacing=MEDIUM,
            )
        )
        preferred.setFocus()

    def _answer(self, *, copy: bool) -> None:
        self.copy = copy
        self.accept()


def _size(file: str) -> int:
    try:
        return Path(file).stat().st_size
    except OSError:
        return 0
