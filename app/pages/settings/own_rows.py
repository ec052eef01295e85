"""The window's own settings, folders, and what Baton is: the part of the page that needs no node."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QDialog, QFileDialog, QPlainTextEdit, QWidget

from app.context import Context
from app.look.look import Theme, current_look
from app.look.measures import HUGE, MEDIUM, SMALL
from app.node.command import run_baton
from app.node.faults import AppError
from app.own_settings import NOTIFICATIONS, PARTING, THEME, OwnSetting
from app.pages.settings.rows import Row
from app.widgets.basics import Button, Text, column, row
from app.widgets.controls import Segments, Switch
from app.widgets.feedback import Action, Question
from app.words import QT_TRANSLATE_NOOP, translate

_WORDS = {
    "system": QT_TRANSLATE_NOOP("Settings", "System"),
    "light": QT_TRANSLATE_NOOP("Settings", "Light"),
    "dark": QT_TRANSLATE_NOOP("Settings", "Dark"),
    "ask": QT_TRANSLATE_NOOP("Settings", "Ask"),
    "keep": QT_TRANSLATE_NOOP("Settings", "Keep serving"),
    "stop": QT_TRANSLATE_NOOP("Settings", "Stop everything"),
}

# What the window is made of, beside Baton's own code.
_PARTS = (
    *(
        "PySide6-Essentials",
        "torch",
        "numpy",
        "httpx",
        "starlette",
        "uvicorn",
        "tokenizers",
        "gguf",
        "zeroconf",
    ),
    *(
        "cryptography",
        "spake2",
        "keyring",
        "llvmlite",
        "msgspec",
        "psutil",
        "zstandard",
        "jinja2",
        "pyqtgraph",
    ),
    *("markdown-it-py", "mdit-py-plugins", "Pygments", "pypdf", "huggingface_hub", "ifaddr", "wakepy"),
)


def own_rows(context: Context) -> list[Row]:
    """Theme, what closing does, notifications, and start at login."""

    def set_theme(value: object) -> None:
        context.preferences.set(THEME.name, value)
        current_look().set_theme(Theme(value))

    theme = _segments(context, THEME, translate("Settings", "Theme"))
    theme.chosen.connect(set_theme)
    parting_place = QWidget()
    parting = _segments(context, PARTING, translate("Settings", "When the window is closed"))
    parting.chosen.connect(lambda value: context.preferences.set(PARTING.name, value))
    parting_place.setLayout(row(parting, None))
    notifications = Switch(
        translate("Settings", "Notifications"),
        on=bool(context.preferences.get(NOTIFICATIONS.name, NOTIFICATIONS.default)),
    )
    notifications.toggled.connect(lambda on: context.preferences.set(NOTIFICATIONS.name, on))
    return [
        Row(
            translate("Settings", "Theme"),
            translate("Settings", "System follows the light or dark of your computer."),
            theme,
        ),
        Row(
            translate("Settings", "When the window is closed"),
            translate(
                "Settings", "Other programs, and the other computer, can go on using your models without it."
            ),
            parting_place,
            is_wide=True,
        ),
        Row(
            translate("Settings", "Notifications"),
            translate("Settings", "Of long work that is over, while another window is in front."),
            notifications,
        ),
        LoginRow(context),
    ]


def _segments(context: Context, setting: OwnSetting, name: str) -> Segments:
    made = Segments(
        [(one, translate("Settings", _WORDS[one])) for one in setting.choices],
        name=name,
    )
    made.show_value(context.preferences.get(setting.name, setting.default))
    return made


class LoginRow(Row):
    """Start at login: the system's service, installed and removed by `baton service`."""

    def __init__(self, context: Context) -> None:
        self.switch = Switch(translate("Settings", "Start at login"))
        super().__init__(
            self.tr("Start at login"),
            self.tr("Your computer starts Baton's node by itself, and starts it again should it ever end."),
            self.switch,
        )
        self._context = context
        self._is_on = False
        self._note = Text(tone="soft", size="caption", wrap=True)
        self._error = Text(tone="danger", wrap=True)
        for part in (self._note, self._error):
            part.hide()
            self.below.addWidget(part)
        self.switch.setEnabled(False)
        self.switch.clicked.connect(lambda _=False: self._turn(self.switch.isChecked()))

    @property
    def note(self) -> str:
        return self._note.text()

    def look(self) -> None:
        """See how it is now."""
        self._run(["status", "--json"], self._show, good=(0, 1))

    def _show(self, told: str) -> None:
        try:
            status = json.loads(told)
        except ValueError:
            self._failed(AppError(self.tr("Whether Baton starts at login could not be found out.")))
            return
        self._is_on = bool(status["installed"])
        self.switch.setChecked(self._is_on)
        notes = status.get("notes") or []
        # it cannot be had here at all
        self.switch.setEnabled(self._is_on or not notes)
        self._note.setText(notes[0][:1].upper() + notes[0][1:] + "." if notes else "")
        self._note.setVisible(bool(notes))

    def _turn(self, on: bool) -> None:
        self.switch.setChecked(self._is_on)
        if on:
            self._run(["install", "--dry-run"], self._ask)
        else:
            self._confirm(
                self.tr("Stop starting Baton by itself?"),
                self.tr("Baton's node is started anew for the window. Answers that are being written end."),
                self.tr("Stop that"),
                ["uninstall"],
            )

    def _ask(self, told: str) -> None:
        changes = [line.strip().removeprefix("- ") for line in told.splitlines()[1:] if line.strip()]
        sentence = self.tr("This changes your computer:") + "\n" + "\n".join(f"•  {one}" for one in changes)
        sentence += "\n\n" + self.tr("Baton's node is started anew. Answers that are being written end.")
        self._confirm(self.tr("Start Baton at login?"), sentence, self.tr("Start at login"), ["install"])

    def _confirm(self, title: str, sentence: str, yes: str, words: list[str]) -> None:
        if not Question(self.window(), title, sentence, yes=yes, no=self.tr("Cancel")).exec():
            return
        context = self._context
        context.state.expect_back()

        def go(_: object = None) -> None:
            self._run(words, lambda _: self._done(words))

        # The service's node and the one that runs now cannot both have this computer's place.
        context.bridge.run(context.client.post("/stop"), go, go)

    def _done(self, words: list[str]) -> None:
        if words == ["uninstall"]:
            self._context.state.begin()
        self.look()

    def _run(self, words: list[str], on_done: object, *, good: Sequence[int] = (0,)) -> None:
        self.switch.setEnabled(False)
        self._say_error("")
        context = self._context
        context.bridge.run(run_baton(context.command, "service", *words, good=good), on_done, self._failed)  # type: ignore[arg-type]

    def _failed(self, error: AppError) -> None:
        self.switch.setEnabled(True)
        self.switch.setChecked(self._is_on)
        self._say_error(str(error))
        if self._context.state.presence.value != "there":
            self._context.state.begin()

    def _say_error(self, text: str) -> None:
        self._error.setText(text)
        self._error.setVisible(bool(text))


class FolderRow(Row):
    """A folder of Baton's, with a button that opens it."""

    def __init__(self, title: str, sentence: str) -> None:
        self._open = Button(translate("Settings", "Open"), icon="folder")
        self._open.setAccessibleName(translate("Settings", "Open {}").format(title))
        self._path = Text(tone="faint", size="caption", mono=True, selectable=True, wrap=True)
        super().__init__(title, sentence, self._open)
        self.below.addWidget(self._path)
        self.show_folder("")
        self._open.clicked.connect(lambda _=False: self._show_it())

    def show_folder(self, folder: str) -> None:
        self._folder = folder
        self._path.setText(folder)
        self._path.setVisible(bool(folder))
        self._open.setEnabled(bool(folder))

    def _show_it(self) -> None:
        Path(self._folder).mkdir(parents=True, exist_ok=True)
        QDesktopServices.openUrl(QUrl.fromLocalFile(self._folder))


class AboutRow(Row):
    """The version, licences, and a report for a bug."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._report = Button(translate("Settings", "Report a problem…"), self._ask_report)
        licences = Button(translate("Settings", "Licences"), self._show_licences, kind="quiet")
        buttons = QWidget()
        buttons.setLayout(row(self._report, licences, None))
        super().__init__(
            self.tr("Baton {}").format(own_version()),
            self.tr(
                "Two computers answer as one. Open source, under the Apache License 2.0. A report is one file with "
                "logs and settings, for you to look into and attach; prompts, answers and keys are not in it, and "
                "nothing is sent."
            ),
            buttons,
            is_wide=True,
        )

    def _ask_report(self) -> None:
        name = time.strftime("baton-report-%Y%m%d-%H%M%S.zip")
        file, _ = QFileDialog.getSaveFileName(
            self.window(), self.tr("Save the report"), str(Path.home() / name), self.tr("Zip files (*.zip)")
        )
        if file:
            self.write_report(Path(file))

    def write_report(self, file: Path) -> None:
        self._report.setEnabled(False)
        self._report.setText(self.tr("Collecting…"))
        context = self._context
        words = ("report", "--output", str(file), "--json")
        context.bridge.run(run_baton(context.command, *words), lambda _: self._written(file), self._failed)

    def _written(self, file: Path) -> None:
        self._done()
        folder = QUrl.fromLocalFile(str(file.parent))
        self._context.shell.toast(
            self.tr("The report is in {}.").format(file.name),
            Action(text=self.tr("Open the folder"), run=lambda: QDesktopServices.openUrl(folder)),
        )

    def _failed(self, error: AppError) -> None:
        self._done()
        self._context.tell(error)

    def _done(self) -> None:
        self._report.setEnabled(True)
        self._report.setText(self.tr("Report a problem…"))

    def _show_licences(self) -> None:
        Licences(self.window()).exec()


class Licences(QDialog):
    """What Baton is made of, and under which licences, as the packages here say themselves."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle(self.tr("Licences"))
        self.setModal(True)
        self.setMinimumSize(640, 480)
        text = QPlainTextEdit("\n".join(licences()))
        text.setReadOnly(True)
        text.setProperty("mono", True)
        text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        close = Button(self.tr("Close"), self.accept, kind="primary")
        self.setLayout(
            column(
                Text(self.tr("Licences"), size="title"),
                Text(
                    self.tr("Baton is under the Apache License 2.0, and is made with these:"),
                    tone="soft",
                    wrap=True,
                ),
                text,
                row(None, close, spacing=SMALL),
                margin=HUGE,
                spacing=MEDIUM,
            )
        )
        close.setFocus()


def own_version() -> str:
    try:
        return metadata.version("baton")
    except metadata.PackageNotFoundError:
        return ""


def licences() -> list[str]:
    """A line for each package that is there."""
    lines = []
    for name in sorted(_PARTS, key=str.casefold):
        try:
            about = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue
        lines.append(f"{name:<22}{about['Version']:<14}{_licence(about)}")
    return lines


def _licence(about: metadata.PackageMetadata) -> str:
    def told(key: str) -> list[str]:
        return [str(value) for value in about.get_all(key) or []]

    if expression := told("License-Expression"):
        return expression[0]
    if known := [one.rpartition(" :: ")[2] for one in told("Classifier") if one.startswith("License ::")]:
        return ", ".join(known)
    return "".join(told("License")).strip().partition("\n")[0] or translate("Settings", "see its package")
