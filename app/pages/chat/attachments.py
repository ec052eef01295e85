"""The files beside a draft: chosen or dropped, read, counted in tokens, and put in the message or taken out again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QFileDialog, QWidget

from app.chats.attaching import MAX_INLINE_CHARS, pasted_file, read_file
from app.chats.counting import count_tokens
from app.chats.faults import BadFile
from app.chats.model import File
from app.context import Context
from app.node.faults import AppError
from app.pages.chat.composer import Composer
from app.pages.chat.open_chat import OpenChat


class Attachments(QObject):
    """Of the conversation that is open, which `chat` gives; `model` gives who would answer, "" for nobody.

    `changed` says that there are others beside the draft that is seen, `read` that one of a conversation was read.
    """

    changed = Signal()
    read = Signal(object)

    def __init__(
        self,
        context: Context,
        composer: Composer,
        chat: Callable[[], OpenChat],
        model: Callable[[], str],
        parent: QWidget,
    ) -> None:
        super().__init__(parent)
        self._context, self._composer, self._over = context, composer, parent
        self._chat, self._model = chat, model
        self.can_inline: set[str] = set()
        composer.attach_wanted.connect(self.ask)
        composer.files_given.connect(self.attach)
        composer.text_given.connect(self.attach_text)
        composer.file_removed.connect(self._remove)
        composer.file_inlined.connect(self._put_inline)

    def ask(self) -> None:
        names, _ = QFileDialog.getOpenFileNames(
            self._over, self.tr("Attach files"), "", self.tr("Text and PDF files (*);;PDF files (*.pdf)")
        )
        self.attach([Path(name) for name in names])

    def attach(self, paths: Sequence[Path]) -> None:
        """Read them and put them beside the draft; what cannot be read is said, of all of them at once."""
        faults: list[str] = []
        left = list(paths)

        def over(path: Path, fault: str) -> None:
            left.remove(path)
            faults.extend([fault] if fault else ())
            if faults and not left:
                self._context.shell.toast("\n".join(faults))

        for path in paths:
            self._read(self._chat(), path, lambda fault, path=path: over(path, fault))  # type: ignore[misc]

    def attach_text(self, text: str) -> None:
        """Put a long text beside the draft that was pasted into it; a click has it in the message instead."""
        chat = self._chat()
        files = chat.conversation.draft_files
        try:
            file = pasted_file(text, self.tr("Pasted text"), [one.name for one in files])
        except BadFile as error:
            self._context.tell(error)
            return
        chat.change_draft_files([*files, file])
        self._count(chat, file)
        if len(text) <= MAX_INLINE_CHARS:
            self.can_inline.add(file.id)
        self.changed.emit()

    def _put_inline(self, file_id: str) -> None:
        file = next((one for one in self._chat().conversation.draft_files if one.id == file_id), None)
        if file is not None:
            self._remove(file_id)
            self._composer.text.insertPlainText(file.text)
            self._composer.text.setFocus()

    def _read(self, chat: OpenChat, path: Path, on_over: Callable[[str], object]) -> None:
        """`on_over` is told "", or why the file cannot be attached."""

        def done(file: File | None) -> None:
            chat.n_reading -= 1
            if file is not None:
                chat.change_draft_files([*chat.conversation.draft_files, file])
                self._count(chat, file)
            self.read.emit(chat)
            self.changed.emit()

        def succeed(file: File) -> None:
            done(file)
            on_over("")

        def fail(error: AppError) -> None:
            done(None)
            on_over(str(error))

        chat.n_reading += 1
        self.changed.emit()
        self._context.bridge.run(asyncio.to_thread(read_file, path), succeed, fail)

    def _count(self, chat: OpenChat, file: File) -> None:
        """Ask the model's own tokenizer how large it is. Without a model its size in bytes stands there."""
        if not (model := self._model()):
            return

        def show(n_tokens: int) -> None:
            files = chat.conversation.draft_files
            if file in files and not chat.is_over:
                counted = replace(file, n_tokens=n_tokens)
                chat.change_draft_files([counted if one == file else one for one in files])

        self._context.bridge.run(
            count_tokens(self._context.client, model, file.text), show, lambda error: None
        )

    def _remove(self, file_id: str) -> None:
        files = self._chat().conversation.draft_files
        self._chat().change_draft_files([file for file in files if file.id != file_id])
