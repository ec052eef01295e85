"""One conversation that is open: what is sent and answered in it, its versions, and that all of it is kept.

On the GUI thread. It goes on answering when another conversation is looked at.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from PySide6.QtCore import QObject, Signal

from app.bridge import Job
from app.chats.answering import Answering, Ended, Event, Grew, Loading, NotKept, Prefilling, Question
from app.chats.keeper import Keeper
from app.chats.model import Chat, Conversation, File, Message, new_id
from app.chats.models import computers_for
from app.chats.store import Store
from app.chats.titles import title_of
from app.chats.tree import Tree
from app.context import Context, is_there
from app.node.faults import AppError
from app.node.link_report import sentence
from app.pages.chat.shown import shown_of
from app.pages.chat.transcript.model import Prefill, Shown

# Of an answer that took longer the user is told, if he has gone elsewhere.
_LONG_S = 15.0


class OpenChat(QObject):
    """Signals carry what the transcript has to show: a Shown, a message's id, or pieces of its text.

    `n_reading` files are being read for its draft. `is_over`: it was closed.
    """

    reset = Signal()
    added = Signal(object)
    replaced = Signal(object)
    grew = Signal(str, str, str)
    prefilling = Signal(str, object)
    loading_changed = Signal()
    busy_changed = Signal()
    changed = Signal()
    listed_changed = Signal()

    def __init__(self, context: Context, keeper: Keeper, chat: Chat, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._context, self._keeper = context, keeper
        self.conversation = chat.conversation
        self.tree = Tree(chat.messages, chat.conversation.leaf)
        self.loading: Loading | None = None
        self.prefill: Prefill | None = None
        self.n_reading = 0
        self._live: str | None = None
        self._answering: Answering | None = None
        self._job: Job | None = None
        self._asked_at = 0.0
        self._asks_again = False
        self._unkept: list[str] = []
        self.is_over = False

    def end(self) -> None:
        """It is closed; what is still being kept for it says nothing here any more, and what could not be is left to
        the keeper, which tries again."""
        self.is_over = True
        self._leave_to_keeper(self._unkept)
        self.deleteLater()

    @property
    def id(self) -> str:
        return self.conversation.id

    @property
    def is_answering(self) -> bool:
        return self._live is not None

    @property
    def is_busy(self) -> bool:
        """Something of it goes on or is nowhere else yet, so that it has to stay open."""
        return self.is_answering or self.n_reading > 0 or bool(self._unkept)

    @property
    def is_empty(self) -> bool:
        return not len(self.tree)

    @property
    def has_draft(self) -> bool:
        return bool(self.conversation.draft or self.conversation.draft_files)

    def shown(self) -> list[Shown]:
        return [self._shown(message) for message in self.tree.path()]

    @property
    def live(self) -> str | None:
        """The message that is being answered."""
        return self._live

    def change(self, **fields: Any) -> None:
        """Of the conversation's own fields; kept without being waited for."""
        changed = replace(self.conversation, **fields)
        if changed == self.conversation:
            return
        is_listed_anew = (changed.title, changed.pinned) != (
            self.conversation.title,
            self.conversation.pinned,
        )
        self.conversation = changed
        self._keeper.tell(Store.keep, changed)
        self.changed.emit()
        if is_listed_anew:
            self.listed_changed.emit()

    def change_draft_files(self, files: Sequence[File]) -> None:
        self.change(draft_files=tuple(files))
        self._keeper.tell(Store.keep_draft_files, self.id, tuple(files))

    # What the user does.

    def send(self, text: str, files: Sequence[File], model: str) -> None:
        asked = self._message("user", self.tree.leaf, text=text, files=tuple(files))
        if self.is_empty and not self.conversation.is_named:
            title = title_of(text, [file.name for file in files])
        else:
            title = self.conversation.title
        self.change(title=title, model=model, draft="", draft_files=())
        self._keeper.tell(Store.keep, self.conversation)
        self.tree.add(asked)
        self.added.emit(self._shown(asked))
        self._answer_anew(asked.id, [asked])

    def regenerate(self, answer_id: str) -> None:
        """Another answer beside that one."""
        if self._may_ask(answer_id) and (parent := self.tree[answer_id].parent) is not None:
            self._answer_anew(parent, [])
            self.reset.emit()

    def edit(self, message_id: str, text: str, kept: Collection[int]) -> None:
        """Another question beside that one, which is asked, with those of its files that have their places in `kept`;
        an answer is changed in its place."""
        if not self._may_ask(message_id):
            return
        message = self.tree[message_id]
        if message.role == "assistant":
            self._keep_answer(self.tree.change(message_id, text=text))
            self.replaced.emit(self._shown(self.tree[message_id]))
            return
        files = tuple(replace(file, id=new_id()) for at, file in enumerate(message.files) if at in kept)
        asked = self._message("user", message.parent, text=text, files=files)
        self.tree.add(asked)
        self._answer_anew(asked.id, [asked])
        self.reset.emit()

    def continue_answer(self, answer_id: str) -> None:
        """Go on where the answer ended."""
        if self._may_ask(answer_id) and answer_id == self.tree.leaf:
            self._ask(self.tree.change(answer_id, note=""), goes_on=bool(self.tree[answer_id].text))
            self.replaced.emit(self._shown(self.tree[answer_id]))

    def answer_here(self, answer_id: str) -> None:
        """Leave the other computer out of the prompt that is being read."""
        if answer_id == self._live:
            self._asks_again = True
            self.stop()

    def stop(self) -> None:
        if self._answering is not None:
            self._answering.stop()

    def turn(self, message_id: str, step: int) -> None:
        """Show another version."""
        if message_id in self.tree and (leaf := self.tree.sibling(message_id, step)) is not None:
            self._show(leaf)

    def delete(self, message_id: str) -> Tree | None:
        """A message and all that follows it, in all versions; what there was before, for `undelete`."""
        if message_id not in self.tree or self.is_answering:
            return None
        before = Tree(self.tree, self.tree.leaf)
        gone = self.tree.remove(message_id)
        self._keeper.tell(Store.delete_messages, self.id, gone, self.tree.leaf)
        self.reset.emit()
        self.listed_changed.emit()
        return before

    def undelete(self, before: Tree) -> None:
        """Bring back what `before` had; what came since stays."""
        gone = [message.id for message in before if message.id not in self.tree]
        since = [message for message in self.tree if message.id not in before]
        self.tree = Tree([*before, *since], before.leaf)
        self._keeper.tell(Store.restore_messages, self.id, gone, self.tree.leaf)
        self.reset.emit()
        self.listed_changed.emit()

    # Asking.

    def _may_ask(self, message_id: str) -> bool:
        return message_id in self.tree and not self.is_answering

    def _answer_anew(self, parent: str, before: Iterable[Message]) -> None:
        """A new answer to `parent`; `before` are messages that are not kept yet either."""
        answer = self._message("assistant", parent, model=self.conversation.model)
        self.tree.add(answer)
        self._keep_new([*before, answer])
        self._ask(answer)
        self.added.emit(self._shown(answer))

    def _ask(self, answer: Message, *, goes_on: bool = False, prefill: str = "auto") -> None:
        peer = self._context.peer
        question = Question(
            answer=answer,
            messages=self.tree.path(answer.parent),
            system=self.conversation.system,
            sampling=self.conversation.sampling,
            model=self.conversation.model,
            goes_on=goes_on,
            prefill=prefill,
            computers=computers_for(
                self.conversation.model,
                self._context.state.part("roles", {}),
                here=self._context.computer,
                peer=str(peer["name"]) if peer else "",
                peer_id=str(peer["node_id"]) if peer and is_there(peer) else "",
            ),
        )
        self._live = answer.id
        self._asked_at = time.monotonic()
        self._answering = Answering(self._context.client, self._keeper, question)
        self._job = self._context.bridge.stream(
            self._answering.events(), self._hear, on_error=self._on_mistake
        )
        self.busy_changed.emit()

    def _hear(self, event: Event) -> None:
        live = self._live
        if live is None:
            return
        match event:
            case Loading():
                self._set_loading(event)
            case Prefilling():
                self._set_loading(None)
                self.prefill = event.prefill
                self.prefilling.emit(live, event.prefill)
            case Grew():
                self._set_loading(None)
                self._grow(live, event)
            case NotKept():
                self._context.tell(event.error)
            case Ended():
                self._end(event.answer)

    def _grow(self, live: str, event: Grew) -> None:
        if live not in self.tree:
            return
        message = self.tree[live]
        if event.is_anew:
            self.replaced.emit(
                self._shown(self.tree.change(live, text=event.text, reasoning=event.reasoning))
            )
            return
        self.tree.change(live, text=message.text + event.text, reasoning=message.reasoning + event.reasoning)
        self.grew.emit(live, event.text, event.reasoning)

    def _end(self, answer: Message) -> None:
        asks_again, self._asks_again = self._asks_again, False
        self._live = self._answering = self._job = None
        self.prefill = None
        self._set_loading(None)
        self.prefilling.emit(answer.id, None)
        if answer.id in self.tree:
            self.tree.change(
                answer.id,
                text=answer.text,
                reasoning=answer.reasoning,
                reasoning_s=answer.reasoning_s,
                note=answer.note,
                stats=answer.stats,
                model=answer.model,
            )
            if self._unkept:
                self._keep_new([])
            if asks_again and not answer.text:
                self._ask(self.tree.change(answer.id, note=""), prefill="local")
            self.replaced.emit(self._shown(self.tree[answer.id]))
        if not self.is_answering and time.monotonic() - self._asked_at > _LONG_S:
            words = sentence(answer.note) if answer.note else self.tr("The answer is there.")
            self._context.shell.notify(self.conversation.title, words)
        self.busy_changed.emit()

    def _on_mistake(self, error: AppError) -> None:
        if self._live is not None and self._live in self.tree:
            self._end(replace(self.tree[self._live], note=str(error)))

    def _set_loading(self, loading: Loading | None) -> None:
        if loading != self.loading:
            self.loading = loading
            self.loading_changed.emit()

    # Keeping.

    def _show(self, leaf: str) -> None:
        self.tree.leaf = leaf
        self._keeper.tell(Store.show, self.id, leaf)
        self.reset.emit()

    def _keep_new(self, messages: Iterable[Message]) -> None:
        """Keep new messages; what could not be kept is tried again when the answer has ended, and at the end."""
        tried = [*self._unkept, *(message.id for message in messages)]
        self._unkept = []
        kept = [self.tree[one] for one in tried if one in self.tree]

        def on_error(error: AppError) -> None:
            if self.is_over:
                self._leave_to_keeper(tried)
            else:
                self._unkept = [*tried, *self._unkept]
                self._context.tell(error)

        def on_kept(_: object) -> None:
            if not self.is_over:
                self.listed_changed.emit()

        self._context.bridge.run(self._keeper.do(Store.add, self.id, *kept), on_kept, on_error)

    def _leave_to_keeper(self, unkept: Sequence[str]) -> None:
        if messages := [self.tree[one] for one in unkept if one in self.tree]:
            self._keeper.tell(Store.add, self.id, *messages)

    def _keep_answer(self, answer: Message) -> None:
        self._context.bridge.run(self._keeper.do(Store.change_answer, answer), None, self._context.tell)

    def _message(self, role: Any, parent: str | None, **fields: Any) -> Message:
        return Message(id=new_id(), parent=parent, role=role, created=time.time(), **{"text": "", **fields})

    def _shown(self, message: Message) -> Shown:
        return shown_of(self.tree, message, live=self._live)


def new_conversation(model: str = "") -> Conversation:
    now = time.time()
    return Conversation(id=new_id(), created=now, updated=now, model=model)
