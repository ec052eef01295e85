"""The node's log and its engines', as it is written: filtered, held still, copied, and where its files are."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable

from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QApplication, QPlainTextEdit, QStackedLayout, QWidget

from app.context import Context
from app.look.look import current_look
from app.look.measures import SMALL
from app.pages.server.following import Event, Following
from app.pages.server.logbook import LEVELS, MAX_LINES, Line, LogBook
from app.state import NodePresence
from app.widgets.basics import Button, row
from app.widgets.controls import SearchField, Segments
from app.widgets.feedback import EmptyState

_BEGIN_WITH = 1000

# A source that is longer is cut, so that texts begin under each other.
_SOURCE_CHARS = 18

_TONES = {"warning": "warning", "error": "danger", "info": "text"}


class LogView(Following):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.book = LogBook()
        self._search = SearchField(self.tr("Filter"), name=self.tr("Filter the log"))
        self._search.setMaximumWidth(current_look().px(220))
        self._search.textChanged.connect(self._filter)
        words = {"info": self.tr("All"), "warning": self.tr("Warnings"), "error": self.tr("Errors")}
        self._levels = Segments([(level, words[level]) for level in LEVELS], name=self.tr("Level"))
        self._levels.show_value(LEVELS[0])
        self._levels.chosen.connect(lambda _: self._filter())
        self._pause = Button(kind="icon", icon="pause", name=self.tr("Hold the log still"))
        self._pause.clicked.connect(lambda _=False: self._turn_pause())
        self._copy = Button(kind="icon", icon="copy", name=self.tr("Copy what is shown"))
        self._copy.clicked.connect(lambda _=False: self._copy_all())
        self._folder = Button(kind="icon", icon="folder", name=self.tr("Open the folder of the logs"))
        self._folder.clicked.connect(lambda _=False: self._open_folder())
        self.tools = QWidget()
        self.tools.setLayout(
            row(self._search, self._levels, self._pause, self._copy, self._folder, spacing=SMALL)
        )
        self._text = QPlainTextEdit()
        self._text.setReadOnly(True)
        self._text.setProperty("kind", "bare")
        self._text.setProperty("mono", True)
        self._text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self._text.setMaximumBlockCount(MAX_LINES)
        self._text.setTabChangesFocus(True)
        self._text.setAccessibleName(self.tr("Log"))
        self._empty = EmptyState("file", "", "")
        self._stack = QStackedLayout(self)
        self._stack.setContentsMargins(0, 0, 0, 0)
        self._stack.addWidget(self._empty)
        self._stack.addWidget(self._text)
        context.state.presence_changed.connect(self._show_empty)
        current_look().changed.connect(self._fill)
        self._show_empty()

    @property
    def text(self) -> str:
        return self._text.toPlainText()

    def feed(self) -> AsyncGenerator[Event, None]:
        return self._context.client.logs(_BEGIN_WITH)

    def hear(self, event: Event) -> None:
        kind, data = event
        if kind == "all":
            self.book.begin(data["lines"])
            if not self.book.is_paused:
                self._fill()
        else:
            self._append(self.book.add(data["lines"]))
        self._show_empty()
        self._show_pause()

    def _filter(self) -> None:
        self.book.words = self._search.text()
        self.book.level = str(self._levels.value)
        self._fill()
        self._show_empty()

    def _fill(self) -> None:
        self._text.clear()
        self._append(self.book.shown(), to_end=True)

    def _append(self, lines: Iterable[Line], *, to_end: bool = False) -> None:
        """Keep the end in view, unless the user has scrolled away from it."""
        bar = self._text.verticalScrollBar()
        follows = to_end or bar.value() >= bar.maximum() - 2
        cursor = QTextCursor(self._text.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.beginEditBlock()
        for line in lines:
            if not self._text.document().isEmpty():
                cursor.insertBlock()
            self._insert(cursor, line)
        cursor.endEditBlock()
        if follows:
            bar.setValue(bar.maximum())

    def _insert(self, cursor: QTextCursor, line: Line) -> None:
        look = current_look()
        faint, plain = QTextCharFormat(), QTextCharFormat()
        faint.setForeground(look.colour("text_faint"))
        plain.setForeground(look.colour(_TONES[line.level]))
        source = line.source.removeprefix("serve-").removeprefix("worker-")
        source = source if len(source) <= _SOURCE_CHARS else f"{source[: _SOURCE_CHARS - 1]}…"
        cursor.insertText(f"{line.clock}  {source:<{_SOURCE_CHARS}}  ", faint)
        # never by colour alone
        mark = {"warning": self.tr("Warning: "), "error": self.tr("Error: ")}.get(line.level, "")
        cursor.insertText(f"{mark}{line.text}", plain)

    def _turn_pause(self) -> None:
        if self.book.is_paused:
            self.book.go_on()
            self._fill()
        else:
            self.book.is_paused = True
        self._show_pause()

    def _show_pause(self) -> None:
        held = self.book.is_paused
        self._pause.show_icon("play" if held else "pause", "local" if held else "text_soft")
        name = self.tr("Hold the log still")
        if held:
            name = self.tr("Go on: {} lines have come since").format(self.book.n_held)
        self._pause.setToolTip(name)
        self._pause.setAccessibleName(name)

    def _copy_all(self) -> None:
        lines = self.book.shown()
        QApplication.clipboard().setText("\n".join(line.plain for line in lines))
        self._context.shell.toast(self.tr("{} lines copied.").format(len(lines)))

    def _open_folder(self) -> None:
        folder = str(self._context.state.part("node", {}).get("logs", ""))
        if folder:
            QDesktopServices.openUrl(QUrl.fromLocalFile(folder))

    def _show_empty(self) -> None:
        is_there = self._context.state.presence is NodePresence.THERE
        if not self.book.n_lines and not is_there:
            self._empty.say(
                self.tr("No log"),
                self.tr("Baton's node does not run. Once it does, what it and its engines say is here."),
            )
        elif not self.book.n_lines:
            self._empty.say(
                self.tr("Nothing to report"),
                self.tr("What Baton's node and its engines log appears here as it happens."),
            )
        elif self._text.document().isEmpty():
            self._empty.say(
                self.tr("Nothing matches"), self.tr("No line of the log has these words at this level.")
            )
        self._stack.setCurrentIndex(0 if self._text.document().isEmpty() else 1)
        self._text.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
