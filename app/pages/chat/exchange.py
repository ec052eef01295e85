"""Conversations to a file and back, asked for by dialogs: JSON, which can be imported again, or Markdown to read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QFileDialog, QWidget

from app.chats.faults import BadFile
from app.chats.keeper import Keeper
from app.chats.model import Chat
from app.chats.store import Store
from app.chats.transfer import from_json, read_export, to_json, to_markdown
from app.context import Context
from app.words import translate


class Exchange(QObject):
    """Says `imported` when there are new conversations. What went well is a toast, what did not is told."""

    imported = Signal()

    def __init__(self, context: Context, keeper: Keeper, parent: QWidget) -> None:
        super().__init__(parent)
        self._context = context
        self._keeper = keeper
        self._over = parent

    def export_one(self, conversation_id: str, title: str) -> None:
        async def read() -> list[Chat]:
            return [await self._keeper.do(Store.chat, conversation_id)]

        self._export(read, title or self.tr("Conversation"))

    def export_all(self) -> None:
        async def read() -> list[Chat]:
            return await self._keeper.do(Store.all_chats)

        self._export(read, self.tr("Baton chats"))

    def _export(self, read: Callable[[], Awaitable[list[Chat]]], name: str) -> None:
        safe = "".join(letter if letter.isalnum() or letter in " -_" else " " for letter in name).strip()
        safe = safe or self.tr("Conversation")
        json_kind = self.tr("JSON, to import again (*.json)")
        markdown_kind = self.tr("Markdown, to read (*.md)")
        chosen, kind = QFileDialog.getSaveFileName(
            self._over,
            self.tr("Export"),
            f"{safe}.json",
            f"{json_kind};;{markdown_kind}",
        )
        if not chosen:
            return
        path = Path(chosen)
        if path.suffix.lower() not in (".json", ".md"):
            path = path.with_name(path.name + (".json" if kind == json_kind else ".md"))
        write = to_markdown if path.suffix.lower() == ".md" else to_json

        async def work() -> None:
            chats = await read()
            await asyncio.to_thread(_write, path, write, chats)

        self._context.bridge.run(
            work(),
            lambda _: self._context.shell.toast(self.tr("Exported to {name}.").format(name=path.name)),
            self._context.tell,
        )

    def ask_import(self) -> None:
        name, _ = QFileDialog.getOpenFileName(
            self._over, self.tr("Import"), "", self.tr("JSON files (*.json);;All files (*)")
        )
        if name:
            self.import_file(Path(name))

    def import_file(self, path: Path) -> None:
        async def work() -> list[Chat]:
            chats = await asyncio.to_thread(lambda: from_json(read_export(path), path.name))
            await self._keeper.do(Store.take_in, chats)
            return chats

        def done(chats: list[Chat]) -> None:
            self.imported.emit()
            words = (
                self.tr("1 conversation is imported.")
                if len(chats) == 1
                else self.tr("{n} conversations are imported.")
            )
            self._context.shell.toast(words.format(n=len(chats)))

        self._context.bridge.run(work(), done, self._context.tell)


def _write(path: Path, write: Callable[[Sequence[Chat]], str], chats: Sequence[Chat]) -> None:
    """Whole, or not at all."""
    unfinished = path.with_name(f"{path.name}.part")
    try:
        unfinished.write_text(write(chats), "utf-8")
        unfinished.replace(path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        words = translate("Exchange", "{file} cannot be written: {fault}. Choose another folder.")
        raise BadFile(words.format(file=path, fault=error.strerror)) from error
