"""The page Settings: those of the node as it declares them, and the window's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QCoreApplication, QEvent, Qt, QTimer
from PySide6.QtGui import QHideEvent, QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QButtonGroup, QFrame, QHBoxLayout, QVBoxLayout, QWidget

from app.bridge import Job
from app.context import Context
from app.look.look import current_look
from app.look.measures import HUGE, LARGE, MEDIUM, SMALL
from app.pages.page import Page
from app.pages.settings.declared import Declared, Snapshot, read
from app.pages.settings.memory import need_of
from app.pages.settings.own_rows import AboutRow, FolderRow, LoginRow, own_rows
from app.pages.settings.rows import Row, SettingRow
from app.pages.settings.words import group_title
from app.state import NodePresence
from app.widgets.basics import Button, Card, Icon, Scrolled, Text, column, row
from app.widgets.controls import SearchField
from app.widgets.feedback import EmptyState
from app.words import translate

# The memory that a model takes depends on these.
_OF_MEMORY = ("ctx", "slots")

# While a slider moves, the node is asked no more often.
_ASK_AFTER_MS = 80

_WIDTH = 840
_SECTIONS_WIDTH = 216

# A page that is narrower has no list of its sections beside it.
_NARROW = 760
_ANY_WIDTH = 16_777_215  # Qt's own for no limit


class SettingsPage(Page):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._snapshot = Snapshot()
        self._sections: list[_Section] = []
        self._rows: dict[str, SettingRow] = {}
        self._names: list[str] = []
        self._unmade: list[tuple[_Section, list[Declared]]] = []
        self._make_more = QTimer(self, interval=0)
        self._make_more.timeout.connect(self._make_group)
        self._trying: dict[str, Any] = {}
        self._asking: Job | None = None
        self._ask_memory = QTimer(self, singleShot=True, interval=_ASK_AFTER_MS)
        self._ask_memory.timeout.connect(self._ask)
        self._search = SearchField(self.tr("Search settings"), name=self.tr("Search settings"))
        self._search.textChanged.connect(self._filter)
        self._links = QButtonGroup(self)
        self._link_column = QVBoxLayout()
        self._link_column.setSpacing(2)
        self._notice = _Notice()
        self._faults = _Notice()
        self._nothing = EmptyState(
            "search",
            self.tr("Nothing matches"),
            self.tr("No setting has these words in its name or description."),
        )
        self._nothing.hide()
        self._waiting = _Waiting(context)
        self._scrolled = Scrolled(self._notice, self._faults, width=current_look().px(_WIDTH))
        self._own()
        self._lay_out()
        context.state.changed.connect(self._on_changed)
        context.state.presence_changed.connect(self._show_presence)
        self._show()
        self._show_presence()

    def shown(self) -> None:
        self._login.look()
        self._ask_soon()
        QTimer.singleShot(0, self, self._follow)

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._ask_memory.stop()
        for each in self._rows.values():
            each.flush()

    @property
    def rows(self) -> dict[str, SettingRow]:
        """By the names of the settings."""
        self._make_all()
        return self._rows

    def _lay_out(self) -> None:
        self._sections_list = QWidget()
        self._sections_list.setLayout(self._link_column)
        self._link_column.setContentsMargins(0, 0, 0, 0)
        self._side = QFrame()
        self._search_column = column(self._search, self._sections_list, None, spacing=MEDIUM)
        self._side.setLayout(self._search_column)
        right = column(self._scrolled, self._nothing, self._waiting, spacing=0)
        right.setStretch(0, 1)
        self._body = row(self._side, spacing=0)
        self._body.addLayout(right, 1)
        self.setLayout(self._body)
        self._set_narrow(False)
        self._scrolled.verticalScrollBar().valueChanged.connect(self._follow)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        is_narrow = self.width() < current_look().px(_NARROW)
        if is_narrow is not self._is_narrow:
            self._set_narrow(is_narrow)

    def _set_narrow(self, is_narrow: bool) -> None:
        """Without the list of the sections, and with the search above them."""
        self._is_narrow = is_narrow
        self._sections_list.setVisible(not is_narrow)
        width = current_look().px(_SECTIONS_WIDTH)
        self._side.setMinimumWidth(0 if is_narrow else width)
        self._side.setMaximumWidth(_ANY_WIDTH if is_narrow else width)
        self._search_column.setContentsMargins(
            *((HUGE, LARGE, HUGE, 0) if is_narrow else (LARGE, HUGE, 0, LARGE))
        )
        ways = QBoxLayout.Direction
        self._body.setDirection(ways.TopToBottom if is_narrow else ways.LeftToRight)

    # the window's own

    def _own(self) -> None:
        rows = own_rows(self.context)
        self._login = next(each for each in rows if isinstance(each, LoginRow))
        setup = Row(
            self.tr("Set up another computer"),
            self.tr("Find it, bring Baton to it, and pair the two."),
            Button(self.tr("Begin"), lambda: self.context.shell.go("setup")),
        )
        self._folders = {
            "models": FolderRow(self.tr("Models"), self.tr("Where models are kept and looked for.")),
            "logs": FolderRow(self.tr("Logs"), self.tr("What Baton's node and its engines say.")),
            "settings": FolderRow(
                self.tr("Settings"), self.tr("Settings, this computer's identity, and who is trusted.")
            ),
            "chats": FolderRow(self.tr("Chats"), self.tr("Your conversations.")),
        }
        self._own_sections = [
            _Section(self.tr("Window"), [*rows, setup]),
            _Section(self.tr("Folders"), list(self._folders.values())),
            _Section(self.tr("About"), [AboutRow(self.context)]),
        ]
        for section in self._own_sections:
            self._scrolled.column.addWidget(section)
        self._scrolled.column.addStretch(1)
        self._sections = list(self._own_sections)
        self._show_folders()
        self._show_links()

    def _show_folders(self) -> None:
        state = self.context.state
        file = self._snapshot.file
        self._folders["models"].show_folder(str((state.part("models") or {}).get("folder", "")))
        self._folders["logs"].show_folder(str(state.part("node", {}).get("logs", "")))
        self._folders["settings"].show_folder(file.rpartition("/")[0] or file.rpartition("\\")[0])
        self._folders["chats"].show_folder(str(self.context.data))

    # the node's

    def _on_changed(self, part: str) -> None:
        if part == "settings":
            self._show()
        if part in ("node", "models"):
            self._show_folders()
        if part in ("engines", "models", "settings"):
            self._ask_soon()

    def _show(self) -> None:
        self._snapshot = snapshot = read(self.context.state.part("settings"))
        if [one.name for one in snapshot.settings] != self._names:
            self._make_sections()
        for one in snapshot.settings:
            if one.name in self._rows:
                self._rows[one.name].show_setting(one, snapshot)
        self._faults.say("  ".join(_sentence(fault) for fault in snapshot.faults), "warning")
        self._waiting.show_snapshot(snapshot)
        self._show_folders()
        self._show_reachable()
        if self._search.text():
            self._filter()

    def _make_sections(self) -> None:
        """The rows of the first at once; those of the others follow, a section at a time."""
        for section in self._sections:
            if section not in self._own_sections:
                section.setParent(None)
                section.deleteLater()
        self._rows = {}
        self._names = [one.name for one in self._snapshot.settings]
        made = [_Section(group_title(group), ()) for group in self._snapshot.groups()]
        self._unmade = [
            (section, [one for one in self._snapshot.settings if one.group == group])
            for section, group in zip(made, self._snapshot.groups(), strict=True)
        ]
        for place, section in enumerate(made):
            self._scrolled.column.insertWidget(2 + place, section)
        self._sections = [*made, *self._own_sections]
        self._show_links()
        self._make_more.start()
        self._make_group()

    def _make_group(self) -> None:
        """The rows of one section more."""
        if self._unmade:
            section, group = self._unmade.pop(0)
            section.add([self._made(one) for one in group])
            self._show_reachable()
        if not self._unmade:
            self._make_more.stop()
            self._ask_soon()

    def _make_all(self) -> None:
        """For who has to know where each is, or what it says."""
        while self._unmade:
            self._make_group()

    def _made(self, declared: Declared) -> SettingRow:
        models = [
            str(one["id"])
            for one in (self.context.state.part("models") or {}).get("models", [])
            if not one.get("problem")
        ]
        declared = self._snapshot.by_name.get(declared.name, declared)
        self._rows[declared.name] = made = SettingRow(self.context, declared, self._snapshot, models)
        if declared.name in _OF_MEMORY:
            made.trying.connect(lambda value: self._on_trying(declared.name, value))
        return made

    def _show_presence(self) -> None:
        presence = self.context.state.presence
        text = {
            NodePresence.GONE: self.tr(
                "Baton's node does not run, so its settings cannot be changed just now. Those of the window can."
            ),
            NodePresence.STARTING: self.tr(
                "Baton's node is starting. Its settings can be changed in a moment."
            ),
        }.get(presence, "")
        self._notice.say(text, "warning")
        self._show_reachable()

    def _show_reachable(self) -> None:
        is_there = self.context.state.presence is NodePresence.THERE
        for each in self._rows.values():
            each.set_reachable(is_there)
        self._waiting.setEnabled(is_there)

    # memory

    def _ask_soon(self) -> None:
        """Not for a page that nobody sees, whose window may be about to end."""
        if self.isVisible():
            self._ask_memory.start()

    def _on_trying(self, name: str, value: Any) -> None:
        self._trying[name] = value
        self._ask_soon()

    def _ask(self) -> None:
        if self.context.state.presence is not NodePresence.THERE or not self._rows:
            return
        if self._asking is not None:
            self._asking.cancel()
        for name in _OF_MEMORY:
            if name in self._rows and not self._rows[name].is_unsaved:
                self._trying.pop(name, None)
        query = {name: str(value) for name, value in self._trying.items() if value is not None}
        self._asking = self.context.bridge.run(
            self.context.client.get("/settings/memory", **query), self._show_need, lambda _: None
        )

    def _show_need(self, told: dict[str, Any]) -> None:
        preload = self._snapshot.by_name.get("preload")
        need = need_of(told, str(preload.value or "") if preload else "")
        for name in _OF_MEMORY:
            if name in self._rows:
                self._rows[name].show_need(need)

    # finding one's way

    def _show_links(self) -> None:
        while (item := self._link_column.takeAt(0)) is not None:
            if isinstance(widget := item.widget(), Button):
                self._links.removeButton(widget)
                widget.deleteLater()
        for section in self._sections:
            link = Button(section.title, lambda section=section: self._go_to(section), kind="nav")  # type: ignore[misc]
            link.setCheckable(True)
            link.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            self._links.addButton(link)
            self._link_column.addWidget(link)
            section.link = link
        self._follow()

    def _go_to(self, section: _Section) -> None:
        if self._unmade:
            self._make_all()
            QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest.value)
        bar = self._scrolled.verticalScrollBar()
        bar.setValue(self._top_of(section))
        if section.link is not None:
            section.link.setChecked(True)

    def _follow(self) -> None:
        """Mark the section that is in view."""
        bar = self._scrolled.verticalScrollBar()
        shown = [section for section in self._sections if not section.isHidden() and section.link is not None]
        above = [section for section in shown if self._top_of(section) <= bar.value() + HUGE]
        if 0 < bar.maximum() == bar.value():
            above = shown
        found = above[-1] if above else (shown[0] if shown else None)
        if found is not None and found.link is not None:
            found.link.setChecked(True)

    def _top_of(self, section: _Section) -> int:
        return 0 if section is self._sections[0] else max(0, section.y() - HUGE)

    def _filter(self) -> None:
        self._make_all()
        words = self._search.text()
        n_shown = sum(section.filter(words) for section in self._sections)
        self._nothing.setVisible(not n_shown)
        self._scrolled.setVisible(bool(n_shown))
        self._follow()


class _Section(QWidget):
    """A title, and a card of rows."""

    def __init__(self, title: str, rows: Sequence[Row]) -> None:
        super().__init__()
        self.title = title
        self.link: Button | None = None
        self._rows: list[Row] = []
        self._card = Card(padding=0, spacing=0)
        self.setLayout(column(Text(title, size="title"), self._card, spacing=SMALL))
        self.add(rows)

    def add(self, rows: Sequence[Row]) -> None:
        for each in rows:
            self._rows.append(each)
            self._card.column.addWidget(each)
        self._show_rows("")

    def filter(self, words: str) -> int:
        """Show the rows that match, all of them where the title does; how many do."""
        if words.strip() and words.strip().casefold() in self.title.casefold():
            words = ""
        n_found = self._show_rows(words)
        self.setVisible(n_found > 0)
        if self.link is not None:
            self.link.setVisible(n_found > 0)
        return n_found

    def _show_rows(self, words: str) -> int:
        found = [each for each in self._rows if each.matches(words)]
        for each in self._rows:
            each.setVisible(each in found)
            each.line.setVisible(each is not found[0] if found else False)
        return len(found)


class _Notice(Card):
    """A sentence above the settings; hidden without one."""

    def __init__(self) -> None:
        super().__init__(padding=MEDIUM)
        self._text = Text(wrap=True, selectable=True)
        self._icon = Icon("warning", "warning")
        line = row(self._icon, self._text, spacing=MEDIUM)
        line.setStretch(1, 1)
        self.column.addLayout(line)
        self.hide()

    def say(self, text: str, tone: str) -> None:
        self._text.setText(text)
        self.set_tone(tone)
        self.setVisible(bool(text))


class _Waiting(QFrame):
    """What of the changes is not felt yet, and what makes it so."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context
        self._words = Text(strong=True, wrap=True)
        self._detail = Text(tone="soft", size="caption", wrap=True)
        self._reload = Button(self.tr("Reload models now"), self._reload_now, kind="primary")
        self._restart = Button(self.tr("Restart Baton's node"), self._restart_now, kind="primary")
        card = Card(padding=MEDIUM, tone="local")
        line = row(column(self._words, self._detail, spacing=2), self._reload, self._restart, spacing=MEDIUM)
        line.setStretch(0, 1)
        card.column.addLayout(line)
        around = QHBoxLayout()
        card.setMaximumWidth(current_look().px(_WIDTH) - 2 * HUGE)
        around.addStretch(1)
        around.addWidget(card, 1000)
        around.addStretch(1)
        # as far to the left as the cards above, which have a scroll bar beside them
        around.setContentsMargins(HUGE, 0, HUGE + 10, MEDIUM)
        self.setLayout(around)
        self.hide()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        n_reload, n_restart = len(snapshot.waiting("reload")), len(snapshot.waiting("restart"))
        words, detail = "", ""
        if snapshot.is_reloading:
            words = self.tr("Models are being loaded anew")
            detail = self.tr("Answers that run end first; who asks meanwhile waits.")
        elif n_reload and n_restart:
            words = self.tr("Waiting: {} for a reload, {} for a restart").format(
                _changes(n_reload), n_restart
            )
            detail = self.tr("A restart ends answers that are being written, and does both.")
        elif n_restart:
            words = self.tr("Waiting for a restart: {}").format(_changes(n_restart))
            detail = self.tr("Answers that are being written end. The window stays.")
        elif n_reload:
            words = self.tr("Waiting for a reload: {}").format(_changes(n_reload))
            detail = self.tr("Models that are loaded later have them anyway.")
        if snapshot.reload_fault and not snapshot.is_reloading:
            words = words or self.tr("A model did not come back")
            detail = _sentence(snapshot.reload_fault)
        self._words.setText(words)
        self._detail.setText(detail)
        self._reload.setVisible(bool(n_reload) and not n_restart)
        self._reload.setEnabled(not snapshot.is_reloading)
        self._restart.setVisible(bool(n_restart))
        self.setVisible(bool(words))

    def _reload_now(self) -> None:
        context = self._context
        context.bridge.run(context.client.post("/settings/reload"), lambda _: None, context.tell)

    def _restart_now(self) -> None:
        self._context.state.restart(self._context.tell)


def _changes(n: int) -> str:
    return translate("Settings", "1 change") if n == 1 else translate("Settings", "{} changes").format(n)


def _sentence(text: str) -> str:
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith(".") else ".")
