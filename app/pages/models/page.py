"""The page Models: the library of both computers, what is on its way, and where to get more."""

from __future__ import annotations

import enum
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from PySide6.QtCore import Qt, QTimer, QUrl
from PySide6.QtGui import (
    QDesktopServices,
    QDragEnterEvent,
    QDragLeaveEvent,
    QDropEvent,
    QKeySequence,
    QResizeEvent,
    QShortcut,
    QShowEvent,
)
from PySide6.QtWidgets import QFileDialog, QSizePolicy, QStackedWidget, QVBoxLayout, QWidget

from app.amounts import size_text
from app.chats.models import loaded_on_peer
from app.context import Context, is_there
from app.look.look import current_look
from app.look.measures import HUGE, MEDIUM
from app.node.faults import AppError, sentence
from app.pages.models.bring import BringDialog, models_among
from app.pages.models.get import WIDTH, GetView
from app.pages.models.library import LibraryView
from app.pages.models.rows import Memory, ModelRow, State, memory_here, memory_there, rows_of
from app.pages.models.transit_list import TransitList
from app.pages.models.transits import Kind, Transit, transits_of
from app.pages.page import Page
from app.state import NodePresence
from app.widgets.basics import column
from app.widgets.controls import Segments
from app.widgets.feedback import Action, DropHint, EmptyState, Question

# Of parts of which several change at once, one look is enough.
_SETTLE_MS = 60

_LOOKED_AT = ("models", "engines", "peers", "node", "computer", "roles", "hosts")
_MOVING = ("downloads", "copies")


class View(enum.Enum):
    LIBRARY = "library"
    GET = "get"


class ModelsPage(Page):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._library: dict[str, Any] | None = None
        self._catalogue: list[dict[str, Any]] = []
        self._models: list[ModelRow] = []
        self._transits: list[Transit] = []
        self._faults: dict[str, str] = {}
        self._states: dict[str, str] = {}
        self._importing: dict[str, Transit] = {}
        self.views = Segments(
            [(View.LIBRARY, self.tr("Library")), (View.GET, self.tr("Get models"))], name=self.tr("Show")
        )
        self.views.show_value(View.LIBRARY)
        self.views.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.views.chosen.connect(self.show_view)
        self.library = LibraryView(context, self, self.reveal)
        self.library.arranged.connect(self._align)
        self.library.asked_get.connect(lambda: self.show_view(View.GET))
        self.library.asked_search.connect(self._search)
        self.library.asked_import.connect(self._choose_files)
        self.get = GetView(context)
        self.get.asked.connect(self.fetch)
        self._waiting = EmptyState(
            "models",
            self.tr("Looking for models"),
            self.tr("They are listed as soon as Baton's node runs on this computer."),
        )
        self.transits = TransitList(self)
        self._stack = QStackedWidget()
        self._drop = DropHint(self, self.tr("Drop a GGUF file to have it among the models"))
        self._lay_out()
        self._look_soon = QTimer(self, singleShot=True, interval=_SETTLE_MS)
        self._look_soon.timeout.connect(self._look)
        context.state.changed.connect(self._on_changed)
        context.state.presence_changed.connect(self._on_presence)
        self.setAcceptDrops(True)
        QShortcut(QKeySequence.StandardKey.Find, self, self._find)
        QShortcut(QKeySequence.StandardKey.Refresh, self, self._look)

    def _lay_out(self) -> None:
        for part in (self._waiting, self.library, self.get):
            self._stack.addWidget(part)
        moving = QWidget()
        moving.setLayout(column(self.transits))
        self._moving = moving
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(moving)
        layout.addWidget(self._stack, 1)
        moving.hide()

    def header(self) -> QWidget:
        return self.views

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._align()

    def _align(self) -> None:
        """What is on its way stands over what is below it, and is no wider."""
        reach = current_look().px(WIDTH) if self.views.value is View.GET else self.library.reach
        side = HUGE + max(0, (self.width() - reach) // 2)
        self._moving.layout().setContentsMargins(side, MEDIUM, side, 0)  # type: ignore[union-attr]

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._look_soon.start()

    def show_view(self, view: object) -> None:
        self.views.show_value(view)
        self._show_stack()
        if view is View.GET:
            self.get.field.setFocus()

    def _show_stack(self) -> None:
        """Nothing can be said before the node has."""
        is_known = self._library is not None
        shown = self.library if is_known else self._waiting
        self._stack.setCurrentWidget(self.get if self.views.value is View.GET else shown)
        self._align()

    def _search(self, words: str) -> None:
        self.show_view(View.GET)
        self.get.field.setText(words)
        self.get.search()

    # what the node tells

    def _on_changed(self, part: str) -> None:
        if part in _MOVING:
            self._show_transits()
        elif part == "checks":
            self._show_models()
        elif part in _LOOKED_AT:
            if part in ("engines", "roles", "hosts"):
                self._show_models()
            self._look_soon.start()

    def _on_presence(self) -> None:
        if self.context.state.presence is NodePresence.THERE:
            self._look_soon.start()

    def _look(self) -> None:
        """Nobody looks for a page that is not seen; it is when it comes into view."""
        if self.isVisible() and self.context.state.presence is NodePresence.THERE:
            self.context.bridge.run(self._ask(), self._on_told, self._on_look_error)

    async def _ask(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        client = self.context.client
        return await client.get("/models"), await client.get("/models/catalogue")

    def _on_look_error(self, error: AppError) -> None:
        if self.context.state.presence is NodePresence.THERE:
            self.context.tell(error)

    def _on_told(self, told: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
        self._library, self._catalogue = told
        self._show_stack()
        self._show_models()
        self._show_transits()

    def _show_models(self) -> None:
        if self._library is None:
            return
        peer = self.context.peer
        engines = self.context.state.part("engines", [])
        coming = {each.source for each in self._transits if each.kind is Kind.COPY_IN and each.is_running}
        state = self.context.state
        self._models = rows_of(
            self._library,
            engines,
            peer["node_id"] if peer else "",
            coming,
            loaded_on_peer(peer, state.part("roles", {}), state.part("hosts", {})),
            state.part("checks", {}),
        )
        for model in self._models:
            if model.state in (State.LOADED, State.LOADING):
                self._faults.pop(model.model_id, None)
        here, there = self._memories()
        notes = [sentence(each) for each in self._library["here"].get("notes", ())]
        self.library.show_models(self._models, here, there, self._faults, notes)
        self.get.show_known(self._models, self._transits, self._catalogue, here, there)

    def _memories(self) -> tuple[Memory, Memory | None]:
        assert self._library is not None
        computer = self.context.state.part("computer", {})
        peer = self.context.peer
        here = memory_here(self._library, computer, self.context.computer)
        return here, memory_there(self._library, peer["node_id"]) if peer and is_there(peer) else None

    def _show_transits(self) -> None:
        state = self.context.state
        downloads, copies = state.part("downloads", []), state.part("copies", [])
        unfinished = (self._library or {"here": {}})["here"].get("unfinished", ())
        names = {told["name"] for told in self._catalogue}
        found = transits_of(downloads, copies, unfinished, names)
        had, self._transits = self._transits, [*self._importing.values(), *found]
        self.transits.show_transits(self._transits)
        self._moving.setVisible(bool(self._transits))
        self._tell_ends([*downloads, *copies])
        if [(each.key, each.is_running) for each in had] != [
            (each.key, each.is_running) for each in self._transits
        ]:
            self._show_models()
        if self._library is not None:
            here, there = self._memories()
            self.get.show_known(self._models, self._transits, self._catalogue, here, there)

    def _tell_ends(self, told: list[dict[str, Any]]) -> None:
        """What ended since the last look is told, and the list looked at again."""
        for each in told:
            before = self._states.get(each["id"])
            self._states[each["id"]] = each["state"]
            if before != "running" or each["state"] == "running":
                continue
            self._look_soon.start()
            name = each.get("model_id") or each["model"]
            if each["state"] == "done":
                words = self.tr("{} is here").format(name)
                if each.get("direction") == "out":
                    words = self.tr("{0} is on {1} too").format(name, each["peer"])
                self.context.shell.toast(words)
                self.context.shell.notify(words, self.tr("It can be loaded now."))
            elif each["state"] == "failed":
                self.context.shell.notify(self.tr("{} did not come").format(name), each["problem"])

    # what is clicked in a row

    def load(self, model: ModelRow) -> None:
        self._faults.pop(model.model_id, None)
        self.context.bridge.run(
            self.context.client.endpoint_post("/models/load", {"model": model.model_id}),
            on_error=lambda error: self._on_load_error(model, error),
        )

    def _on_load_error(self, model: ModelRow, error: AppError) -> None:
        self._faults[model.model_id] = str(error)
        self._show_models()

    def unload(self, model: ModelRow) -> None:
        """Asks first where answers would break off."""
        engines = self.context.state.part("engines", [])
        if not any(one["model"] == model.model_id and one.get("active") for one in engines):
            self._unload(model)
            return
        question = Question(
            self,
            self.tr("Unload {}?").format(model.model_id),
            self.tr("It is answering just now. Answers that are being written end where they are."),
            yes=self.tr("Unload it"),
            no=self.tr("Keep it"),
            dangerous=True,
        )
        question.accepted.connect(lambda: self._unload(model))
        question.open()

    def _unload(self, model: ModelRow) -> None:
        self.context.bridge.run(
            self.context.client.post("/models/unload", {"model": model.model_id}), on_error=self.context.tell
        )

    def send(self, model: ModelRow) -> None:
        """Copy it to the paired computer; asked again, it goes on where it stopped."""
        if (peer := self.context.peer) is not None:
            self._copy("/models/send", {"model": model.model_id, "to": peer["node_id"]})

    def copy_here(self, model: ModelRow) -> None:
        """Copy it from the paired computer; it goes on without this window."""
        if (peer := self.context.peer) is not None:
            self._copy(
                "/models/fetch", {"model": model.digest or model.model_id.strip(), "from": peer["node_id"]}
            )

    def _copy(self, path: str, body: dict[str, Any]) -> None:
        self._follow(path, body)

    def _follow(self, path: str, body: dict[str, str]) -> None:
        """Have the node begin a fetch or a copy. What began is told by its row; what could not begin has none."""
        began: list[object] = []

        def on_error(error: AppError) -> None:
            if getattr(error, "code", "") != "cancelled" and not began:
                self.context.tell(error)

        self.context.bridge.stream(self.context.client.lines(path, body), began.append, None, on_error)

    def reveal(self, model: ModelRow) -> None:
        QDesktopServices.openUrl(QUrl.fromLocalFile(str(Path(model.path).parent)))

    def remove(self, model: ModelRow) -> None:
        """Asked first. Of a link only the link goes."""
        if model.is_link:
            sentence = self.tr("The link in Baton's folder is deleted. The file itself stays where it is.")
        else:
            sentence = self.tr("Its file is deleted from this computer, which frees {}.").format(
                size_text(model.size_bytes)
            )
            if model.there:
                peer = self.context.peer
                sentence += " " + self.tr("{} keeps its own.").format(
                    peer["name"] if peer else self.tr("The other computer")
                )
        question = Question(
            self,
            self.tr("Remove {}?").format(model.model_id),
            sentence,
            yes=self.tr("Remove the link") if model.is_link else self.tr("Remove the file"),
            no=self.tr("Keep it"),
            dangerous=True,
        )
        question.accepted.connect(lambda: self._remove(model))
        question.open()

    def _remove(self, model: ModelRow) -> None:
        self.context.bridge.run(
            self.context.client.delete(f"/models/{quote(model.model_id)}"),
            lambda _: self._look(),
            self.context.tell,
        )

    # what is on its way

    def fetch(self, source: str) -> None:
        """Get a model of the catalogue or the hub, or go on with it; it goes on without this window."""
        self._follow("/models/get", {"model": source})

    def pause(self, transit: Transit) -> None:
        kind = "downloads" if transit.kind is Kind.DOWNLOAD else "copies"
        self._delete(f"/{kind}/{transit.key}")

    def resume(self, transit: Transit) -> None:
        match transit.kind:
            case Kind.COPY_OUT:
                self._copy("/models/send", {"model": transit.source, "to": transit.peer_id})
            case Kind.COPY_IN:
                self._copy("/models/fetch", {"model": transit.source, "from": transit.peer_id})
            case _:
                self.fetch(transit.source)

    def discard(self, transit: Transit) -> None:
        match transit.kind:
            case Kind.DOWNLOAD:
                self._delete(f"/downloads/{transit.key}?discard=true")
            case Kind.LEFT:
                self._delete(f"/models/{quote(transit.name)}")
            case Kind.COPY_OUT | Kind.COPY_IN:
                self._delete(f"/copies/{transit.key}?discard=true")
            case Kind.IMPORT:
                self._importing.pop(transit.key, None)
                self._show_transits()

    def _delete(self, path: str) -> None:
        self.context.bridge.run(self.context.client.delete(path), lambda _: self._look(), self.context.tell)

    # files of the user's

    def _choose_files(self) -> None:
        files, _ = QFileDialog.getOpenFileNames(
            self, self.tr("Import models"), str(Path.home()), self.tr("Models (*.gguf)")
        )
        if files:
            self.bring(files)

    def bring(self, paths: list[str]) -> None:
        """Have files of the user's among the models, after one question for all of them."""
        files, others = models_among(paths)
        if not files:
            self.context.shell.toast(
                self.tr("{} is no GGUF file. Baton runs models in that format alone.").format(others[0])
            )
            return
        dialog = BringDialog(self, files, prefers_copy=self.context.preferences.get("import_copies", False))
        dialog.accepted.connect(lambda: self._bring(files, copy=dialog.copy))
        dialog.open()

    def _bring(self, files: list[str], *, copy: bool) -> None:
        self.context.preferences.set("import_copies", copy)
        for file in files:
            key = f"import {file}"
            self._show_import(key, Transit(key=key, kind=Kind.IMPORT, name=Path(file).name, state="running"))
            self.context.bridge.stream(
                self.context.client.lines("/models/import", {"path": file, "copy": copy}),
                partial(self._on_import, key),
                None,
                partial(self._on_import_error, key),
            )

    def _show_import(self, key: str, transit: Transit) -> None:
        self._importing[key] = transit
        self._show_transits()

    def _on_import(self, key: str, told: dict[str, Any]) -> None:
        if "id" not in told:
            was = self._importing[key]
            self._show_import(
                key,
                Transit(
                    key=key,
                    kind=Kind.IMPORT,
                    name=was.name,
                    state="running",
                    done_bytes=told["done_bytes"],
                    total_bytes=told["total_bytes"],
                ),
            )
            return
        self._importing.pop(key, None)
        self._show_transits()
        self._look()
        self.context.shell.toast(
            self.tr("{} is here").format(told["id"]),
            Action(text=self.tr("Look into it"), run=lambda: self._look_into(told["id"])),
        )

    def _look_into(self, model_id: str) -> None:
        self.show_view(View.LIBRARY)
        self.library.filter.clear()
        self.library.choose((model_id, True))

    def _on_import_error(self, key: str, error: AppError) -> None:
        was = self._importing[key]
        self._show_import(
            key, Transit(key=key, kind=Kind.IMPORT, name=was.name, state="failed", problem=str(error))
        )

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if event.mimeData().hasUrls():
            event.acceptProposedAction()
            self._drop.show()

    def dragLeaveEvent(self, event: QDragLeaveEvent) -> None:
        self._drop.hide()

    def dropEvent(self, event: QDropEvent) -> None:
        self._drop.hide()
        event.acceptProposedAction()
        paths = [url.toLocalFile() for url in event.mimeData().urls() if url.isLocalFile()]
        if paths:
            # the program that the file comes from waits until this returns
            QTimer.singleShot(0, lambda: self.bring(paths))

    def _find(self) -> None:
        if self._stack.currentWidget() is self.library:
            self.library.focus_filter()
        else:
            self.get.field.setFocus(Qt.FocusReason.ShortcutFocusReason)
