"""The list of conversations, kept up with the store: found, renamed, pinned, and deleted with a way back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from app.bridge import Job
from app.chats.keeper import Keeper
from app.chats.model import Chat, Listed
from app.chats.store import Store
from app.context import Context
from app.pages.chat.conversations import ConversationPane
from app.pages.chat.open_chat import OpenChat
from app.widgets.feedback import Action

_SEARCH_MS = 150


class Listing(QObject):
    """`opened` gives a conversation that is open, `current` the id of the one that is seen.

    `deleted` says that a conversation is gone, `reopened` that the one is back that was seen when it went.
    """

    deleted = Signal(str)
    reopened = Signal(str)

    def __init__(
        self,
        context: Context,
        keeper: Keeper,
        pane: ConversationPane,
        opened: Callable[[str], OpenChat | None],
        current: Callable[[], str],
    ) -> None:
        super().__init__(pane)
        self._context, self._keeper, self._pane = context, keeper, pane
        self._opened, self._current = opened, current
        self._fault = ""
        self._searching: Job | None = None
        self._timer = QTimer(self, singleShot=True, interval=_SEARCH_MS)
        self._timer.timeout.connect(self.refresh)
        pane.searched.connect(lambda _: self._timer.start())
        pane.renamed.connect(lambda id_, title: self._change(id_, title=title, is_named=True))
        pane.pinned.connect(lambda id_, pinned: self._change(id_, pinned=pinned))
        pane.deleted.connect(self.delete)

    def say_fault(self, fault: str) -> None:
        """What stands over the list for as long as it is so; "" takes it away."""
        self._fault = fault
        self._pane.show_fault(fault)

    def refresh(self) -> None:
        """List what there is, or what is searched for."""
        text = self._pane.search.text().strip()
        if self._searching is not None:
            self._searching.cancel()
        if text:
            self._searching = self._context.bridge.run(
                self._keeper.do(Store.search, text), self._pane.show_found, self._context.tell
            )
        else:
            self._searching = self._context.bridge.run(
                self._keeper.do(Store.listed), self._show, self._context.tell
            )

    def _show(self, listed: list[Listed]) -> None:
        self._pane.show_fault(self._fault)
        self._pane.show_listed(listed)

    def _change(self, conversation_id: str, **fields: Any) -> None:
        if (there := self._opened(conversation_id)) is not None:
            there.change(**fields)
            return

        def change(chat: Chat) -> None:
            self._keeper.tell(Store.keep, replace(chat.conversation, **fields))
            self.refresh()

        self._context.bridge.run(self._keeper.do(Store.chat, conversation_id), change, self._context.tell)

    def delete(self, conversation_id: str) -> None:
        was_seen = conversation_id == self._current()
        if (there := self._opened(conversation_id)) is not None:
            there.stop()
        self._keeper.tell(Store.delete, conversation_id)
        self.deleted.emit(conversation_id)
        self.refresh()

        def undo() -> None:
            self._keeper.tell(Store.restore, conversation_id)
            self.refresh()
            if was_seen:
                self.reopened.emit(conversation_id)

        self._context.shell.toast(
            self.tr("The conversation is deleted."), Action(text=self.tr("Undo"), run=undo)
        )
