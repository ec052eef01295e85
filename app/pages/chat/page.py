"""The page Chat: conversations to the left, the one that is open beside them, and where the next message is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from PySide6.QtCore import Qt, QTimer, Signal, Slot
from PySide6.QtGui import (
    QDragEnterEvent,
    QDragLeaveEvent,
    QDropEvent,
    QHideEvent,
    QKeySequence,
    QResizeEvent,
    QShortcut,
)
from PySide6.QtWidgets import QStackedWidget, QWidget

from app.bridge import Job
from app.chats import models as chat_models
from app.chats.gauge import fill_of
from app.chats.keeper import Keeper
from app.chats.model import Chat, Listed, Preset
from app.chats.models import Choice, Readiness
from app.chats.presets import all_presets, name_of
from app.chats.store import Store
from app.context import Context, is_there
from app.look.look import current_look
from app.look.measures import ANSWER_WIDTH, HUGE, LARGE, SMALL
from app.node.faults import AppError
from app.pages.chat.attachments import Attachments
from app.pages.chat.composer import Composer, files_in
from app.pages.chat.conversations import ConversationPane
from app.pages.chat.exchange import Exchange
from app.pages.chat.listing import Listing
from app.pages.chat.open_chat import OpenChat, new_conversation
from app.pages.chat.settings import ChatSettings
from app.pages.chat.transcript.blocks import prepare
from app.pages.chat.transcript.view import Transcript
from app.pages.chat.welcome import Welcome
from app.pages.page import Page
from app.state import NodePresence
from app.widgets.basics import Text, column, row
from app.widgets.feedback import Action, DropHint, Meter

# What is typed is written that much later at most, however long somebody types without a pause.
_DRAFT_MS = 400

# Beside the settings there is no room for the list in a narrower page.
_NARROW = 1000


class ChatPage(Page):
    _not_kept = Signal(object)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._keeper = Keeper(context.data / "chats.db", self._not_kept.emit)
        self._not_kept.connect(self._on_not_kept, Qt.ConnectionType.QueuedConnection)
        self._open: dict[str, OpenChat] = {}
        self._chat = self._opened(Chat(conversation=new_conversation(), messages=()))
        self._choices: Sequence[Choice] = ()
        self._presets: list[Preset] = all_presets(())
        self._own_presets: frozenset[str] = frozenset()
        self._n_ctx: dict[str, int] = {}
        self.is_ready = False
        self._asking_context: Job | None = None
        self._pane = ConversationPane()
        self._transcript = Transcript()
        self._welcome = Welcome()
        self._composer = Composer()
        self._settings = ChatSettings()
        self._loading = _LoadingLine()
        self._listing = Listing(
            context, self._keeper, self._pane, opened=self._open.get, current=lambda: self._chat.id
        )
        self._exchange = Exchange(context, self._keeper, self)
        self._attachments = Attachments(
            context, self._composer, lambda: self._chat, lambda: self._model, self
        )
        self._draft_timer = QTimer(self, singleShot=True, interval=_DRAFT_MS)
        self._draft_timer.timeout.connect(self._keep_draft)
        self.setAcceptDrops(True)
        self._lay_out()
        self._connect()
        self._bind_keys()
        self._show_chat()
        self._on_node()
        self._load()

    # Its parts.

    def _lay_out(self) -> None:
        self._stack = QStackedWidget()
        self._stack.addWidget(self._welcome)
        self._stack.addWidget(self._transcript)
        self._settings.hide()
        writing = QWidget()
        writing.setLayout(column(self._loading, self._composer, spacing=SMALL))
        writing.setMaximumWidth(current_look().px(ANSWER_WIDTH) + 2 * LARGE)
        around = row(spacing=0)
        around.addStretch(1)
        around.addWidget(writing, 1000)
        around.addStretch(1)
        around.setContentsMargins(HUGE, 0, HUGE, LARGE)
        middle = QWidget()
        middle.setLayout(column(self._stack, around, spacing=SMALL))
        middle.layout().setStretch(0, 1)  # type: ignore[union-attr]
        self._hint = DropHint(middle, self.tr("Drop text or PDF files to attach them"))
        self.foot = writing
        whole = row(self._pane, middle, self._settings, spacing=0)
        whole.setStretch(1, 1)
        self.setLayout(whole)
        self.setTabOrder(self._pane, self._composer)

    def _connect(self) -> None:
        pane, composer, transcript = self._pane, self._composer, self._transcript
        pane.opened.connect(self.open_conversation)
        pane.new_wanted.connect(self.new_chat)
        pane.left_search.connect(lambda: self._composer.text.setFocus())
        pane.exported.connect(lambda id_: self._exchange.export_one(id_, pane.title_of(id_)))
        pane.export_all_wanted.connect(self._exchange.export_all)
        pane.import_wanted.connect(self._exchange.ask_import)
        self._listing.deleted.connect(self._on_deleted)
        self._listing.reopened.connect(self.open_conversation)
        self._exchange.imported.connect(self._listing.refresh)
        self._attachments.changed.connect(self._show_fields)
        self._attachments.read.connect(self._on_busy)
        composer.sent.connect(self._send)
        composer.stopped.connect(lambda: self._chat.stop())
        composer.edited.connect(self._on_typed)
        composer.settings_toggled.connect(self._show_settings)
        composer.model_chosen.connect(self._choose_model)
        composer.more_models_wanted.connect(lambda: self.context.shell.go("models"))
        composer.preset_chosen.connect(self._choose_preset)
        composer.preset.edit_wanted.connect(self._edit_instructions)
        transcript.regenerate.connect(lambda id_: self._ask_again(self._chat.regenerate, id_))
        transcript.continue_answer.connect(lambda id_: self._ask_again(self._chat.continue_answer, id_))
        transcript.edited.connect(lambda id_, text, kept: self._chat.edit(id_, text, kept))
        transcript.branch.connect(lambda id_, step: self._chat.turn(id_, step))
        transcript.answer_here.connect(lambda id_: self._chat.answer_here(id_))
        transcript.delete.connect(self._delete_message)
        self._welcome.begun.connect(self._begin)
        self._welcome.attach_wanted.connect(self._begin_with_file)
        self._welcome.models_wanted.connect(lambda: self.context.shell.go("models"))
        settings = self._settings
        settings.system_changed.connect(lambda text: self._chat.change(system=text))
        settings.sampling_changed.connect(lambda sampling: self._chat.change(sampling=sampling))
        settings.preset_kept.connect(self._keep_preset)
        settings.preset_deleted.connect(self._delete_preset)
        settings.closed.connect(lambda: composer.settings.setChecked(False))
        self.context.state.changed.connect(self._on_state)
        self.context.state.presence_changed.connect(self._on_node)

    def _bind_keys(self) -> None:
        self._key("Ctrl+N", self.new_chat)
        self._key("Ctrl+K", self._begin_search)
        self._key("Ctrl+L", self._composer.model.open)
        self._stop_key = self._key("Esc", lambda: self._chat.stop())
        self._stop_key.setEnabled(False)

    def _key(self, keys: str, run: Callable[[], object]) -> QShortcut:
        return QShortcut(QKeySequence(keys), self, run)

    @Slot(object)
    def _on_not_kept(self, error: AppError | None) -> None:
        """A chat that is not kept stays said for as long as it is so."""
        self._listing.say_fault(str(error) if error is not None else "")
        if error is not None:
            self.context.tell(error)
        else:
            self._listing.refresh()

    def end(self) -> None:
        self._keep_draft()
        for chat in self._open.values():
            chat.end()
        self._keeper.close()

    def shown(self) -> None:
        self._composer.text.setFocus()
        if self.is_ready:
            # It may be another day.
            self._listing.refresh()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._keep_draft()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._make_room()

    # Which conversation is open.

    def _load(self) -> None:
        """What was there when the window was closed."""

        async def read() -> tuple[str, list[Listed], list[Preset], Any]:
            listed = await self._keeper.do(Store.listed)
            presets = await self._keeper.do(Store.presets)
            unsent = await self._keeper.do(Store.unsent)
            await asyncio.to_thread(prepare)
            return await self._keeper.do(Store.take_notice), listed, presets, unsent

        def show(read: tuple[str, list[Listed], list[Preset], Any]) -> None:
            notice, listed, presets, unsent = read
            self.is_ready = True
            self._pane.show_listed(listed)
            self._take_presets(presets)
            if notice:
                self.context.shell.toast(notice)
            if unsent is not None and self._chat.is_empty and not self._composer.draft:
                self._go_to(self._opened(Chat(conversation=unsent, messages=())))

        def fail(error: AppError) -> None:
            self.is_ready = True
            self._pane.show_fault(str(error))
            self.context.tell(error)

        self.context.bridge.run(read(), show, fail)

    def new_chat(self) -> None:
        """An empty one; where one is open that nothing was sent in, that one."""
        if not self._chat.is_empty:
            self._go_to(self._empty_chat())
        self._composer.text.setFocus()

    def open_conversation(self, conversation_id: str) -> None:
        if conversation_id == self._chat.id:
            return
        if (there := self._open.get(conversation_id)) is not None:
            self._go_to(there)
            return
        self.context.bridge.run(
            self._keeper.do(Store.chat, conversation_id),
            lambda chat: self._go_to(self._opened(chat)),
            self.context.tell,
        )

    @property
    def chat(self) -> OpenChat:
        """The one that is open."""
        return self._chat

    @property
    def pane(self) -> ConversationPane:
        return self._pane

    @property
    def composer(self) -> Composer:
        return self._composer

    @property
    def attachments(self) -> Attachments:
        return self._attachments

    @property
    def settings(self) -> ChatSettings:
        return self._settings

    @property
    def transcript(self) -> Transcript:
        return self._transcript

    def _opened(self, chat: Chat) -> OpenChat:
        if (there := self._open.get(chat.conversation.id)) is not None:
            return there
        opened = OpenChat(self.context, self._keeper, chat, self)
        self._open[opened.id] = opened
        opened.reset.connect(lambda: self._of(opened, self._show_messages))
        opened.added.connect(lambda shown: self._of(opened, self._show_added, shown))
        opened.replaced.connect(lambda shown: self._of(opened, self._transcript.replace, shown))
        opened.grew.connect(lambda *grown: self._of(opened, self._transcript.append, *grown))
        opened.prefilling.connect(lambda *told: self._of(opened, self._transcript.show_prefill, *told))
        opened.loading_changed.connect(lambda: self._of(opened, self._show_loading))
        opened.changed.connect(lambda: self._of(opened, self._show_fields))
        opened.busy_changed.connect(lambda: self._on_busy(opened))
        opened.listed_changed.connect(lambda: self._listing.refresh())
        return opened

    def _of(self, chat: OpenChat, show: Callable[..., object], *told: object) -> None:
        """Show what happened, if it happened in the conversation that is open."""
        if chat is self._chat:
            show(*told)

    def _go_to(self, chat: OpenChat) -> None:
        self._keep_draft()
        self._settings.settle()
        before, self._chat = self._chat, chat
        self._close_idle(before)
        self._show_chat()
        self._composer.text.setFocus()

    def _empty_chat(self) -> OpenChat:
        """The one that nothing was sent in yet, else a new one that is like the one that is open."""
        for chat in self._open.values():
            if chat.is_empty and chat is not self._chat:
                return chat
        like = self._chat.conversation
        conversation = replace(new_conversation(like.model), sampling=like.sampling, system=like.system)
        return self._opened(Chat(conversation=conversation, messages=()))

    def _close_idle(self, chat: OpenChat) -> None:
        """What answers goes on, and what was begun stays at hand; all else is read again when it is wanted."""
        is_begun = chat.is_empty and chat.has_draft
        if chat is not self._chat and not chat.is_busy and not is_begun and chat.id in self._open:
            del self._open[chat.id]
            chat.end()

    def _show_chat(self) -> None:
        self._show_messages()
        self._composer.show_draft(self._chat.conversation.draft)
        self._show_fields()
        self._show_loading()
        self._show_busy()
        self._pane.show_current(self._chat.id)

    def _show_messages(self) -> None:
        self._transcript.show_all(self._chat.shown())
        if (live := self._chat.live) is not None and self._chat.prefill is not None:
            self._transcript.show_prefill(live, self._chat.prefill)
        self._show_stack()
        self._show_gauge()

    def _show_added(self, shown: Any) -> None:
        self._transcript.add(shown)
        self._show_stack()

    def _show_stack(self) -> None:
        self._stack.setCurrentWidget(self._welcome if self._chat.is_empty else self._transcript)

    def _show_fields(self) -> None:
        conversation = self._chat.conversation
        name = name_of(conversation.system, self._presets) if conversation.system.strip() else ""
        self._composer.preset.show_presets(
            [preset.name for preset in self._presets], name, is_own=bool(conversation.system.strip())
        )
        self._composer.show_files(
            conversation.draft_files, self._chat.n_reading, self._attachments.can_inline
        )
        self._settings.show_system(conversation.system)
        self._settings.show_sampling(conversation.sampling)
        self._show_models()
        self._show_gauge()

    def _show_busy(self) -> None:
        self._stop_key.setEnabled(self._chat.is_answering)
        self._pane.model.show_answering(frozenset(one.id for one in self._open.values() if one.is_answering))
        self._show_composer()
        self._show_gauge()

    def _on_busy(self, chat: OpenChat) -> None:
        self._show_busy()
        self._ask_context()
        self._close_idle(chat)

    # The node and its models.

    def _on_state(self, part: str) -> None:
        if part in ("models", "engines"):
            self._show_models()
            self._ask_context()
        elif part in ("peers", "roles", "hosts"):
            self._show_models()
        elif part in ("downloads", "copies"):
            self._show_welcome()
        elif part == "checks":
            self._show_models()
        elif part == "settings":
            self._show_gauge()

    def _on_node(self) -> None:
        self._n_ctx.clear()
        self._show_models()
        self._show_welcome()
        self._show_composer()

    def _show_models(self) -> None:
        state = self.context.state
        on_peer = chat_models.loaded_on_peer(
            self.context.peer, state.part("roles", {}), state.part("hosts", {})
        )
        self._choices = chat_models.choices(
            state.part("models", {}), state.part("engines", ()), on_peer, state.part("checks", {})
        )
        self._composer.model.show_choices(self._choices, self._model)
        self._show_loading()
        self._show_gauge()
        self._show_welcome()
        self._show_composer()

    @property
    def _model(self) -> str:
        """The one that would answer now."""
        return chat_models.chosen(
            self._choices, self._chat.conversation.model, self.context.preferences.get("model", "")
        )

    def _choose_model(self, model: str) -> None:
        """Whoever chooses a model wants to talk to it: it is loaded at once."""
        self.context.preferences.set("model", model)
        self._chat.change(model=model)
        self.context.bridge.run(
            self.context.client.endpoint_post("/models/load", {"model": model}), None, self.context.tell
        )

    def _ask_context(self) -> None:
        """How much the model reads at once. An engine says so once it is loaded, whichever computer has it."""
        model = self._model
        is_loading = any(one.id == model and one.readiness is Readiness.LOADING for one in self._choices)
        if is_loading:
            # Perhaps with another context than before.
            self._n_ctx.pop(model, None)
        if not model or is_loading or model in self._n_ctx or self._asking_context is not None:
            return

        def learn(slots: list[dict[str, Any]]) -> None:
            self._asking_context = None
            if slots:
                self._n_ctx[model] = int(slots[0]["n_ctx"])
                self._show_gauge()

        self._asking_context = self.context.bridge.run(
            self.context.client.endpoint_get("/slots", model=model), learn, lambda error: learn([])
        )

    def _show_welcome(self) -> None:
        state, peer = self.context.state, self.context.peer
        peer_id = str(peer["node_id"]) if peer is not None and is_there(peer) else ""
        self._welcome.say(
            is_there=state.presence is not NodePresence.STARTING,
            has_models=bool(self._choices) or state.presence is NodePresence.GONE,
            coming=chat_models.coming(state.part("downloads", ()), state.part("copies", ())),
            peer=str(peer["name"]) if peer is not None else "",
            share=chat_models.share_of(self._model, state.part("roles", {}), peer_id=peer_id),
        )

    def _show_composer(self) -> None:
        is_up = self.context.state.presence is NodePresence.THERE
        if is_up and not self._choices:
            hint = self.tr("A model is needed to answer")
        else:
            hint = self.tr("Message, or drop files here")
        self._composer.show_state(
            is_answering=self._chat.is_answering, can_send=is_up and bool(self._choices), hint=hint
        )

    def _show_loading(self) -> None:
        loading, model = self._chat.loading, self._chat.conversation.model
        progress = loading.progress if loading else None
        # the answer is asked for every few seconds, and the node tells as it happens
        for one in self._choices:
            if one.id == model and one.readiness is Readiness.LOADING:
                progress = one.progress
        checked = self.context.state.part("checks", {}).get(model, 0.0)
        self._loading.show_progress(model, progress, checked)
        self._loading.setVisible(loading is not None)

    def _show_gauge(self) -> None:
        conversation, model = self._chat.conversation, self._model
        state = self.context.state
        n_ctx = self._n_ctx.get(model) or chat_models.context_of(
            model, state.part("models", {}), state.part("settings", {})
        )
        self._composer.gauge.show_fill(
            fill_of(
                self._chat.tree.path(),
                draft=self._composer.draft,
                files=conversation.draft_files,
                system=conversation.system,
                n_ctx=n_ctx,
            )
        )

    # Writing.

    def _send(self, text: str) -> None:
        self._draft_timer.stop()
        self._settings.settle()
        files = self._chat.conversation.draft_files
        self._composer.show_draft("")
        self._chat.send(text, files, self._model)

    def _ask_again(self, ask: Callable[[str], object], message_id: str) -> None:
        # The button that was pressed goes, and the focus with it.
        self._composer.text.setFocus()
        ask(message_id)

    def _on_typed(self) -> None:
        if not self._draft_timer.isActive():
            self._draft_timer.start()
        self._show_gauge()

    def _keep_draft(self) -> None:
        self._draft_timer.stop()
        self._chat.change(draft=self._composer.draft)

    def _begin(self, text: str) -> None:
        self._composer.show_draft(text)
        self._on_typed()
        self._composer.text.setFocus()

    def _begin_with_file(self, text: str) -> None:
        self._begin(text)
        self._attachments.ask()

    def _choose_preset(self, name: str) -> None:
        self._chat.change(system=next((one.system for one in self._presets if one.name == name), ""))

    def _edit_instructions(self) -> None:
        self._composer.settings.setChecked(True)
        self._settings.system.setFocus()

    def _keep_preset(self, preset: Preset) -> None:
        self._change_presets(self._keeper.do(Store.keep_preset, preset))
        self.context.shell.toast(self.tr("Kept as {name}.").format(name=preset.name))

    def _delete_preset(self, name: str) -> None:
        self._change_presets(self._keeper.do(Store.delete_preset, name))

    def _change_presets(self, change: Any) -> None:
        async def work() -> list[Preset]:
            await change
            return await self._keeper.do(Store.presets)

        self.context.bridge.run(work(), self._take_presets, self.context.tell)

    def _take_presets(self, own: list[Preset]) -> None:
        self._presets, self._own_presets = all_presets(own), frozenset(preset.name for preset in own)
        self._settings.show_presets(self._presets, self._own_presets)
        self._show_fields()

    def _show_settings(self, visible: bool) -> None:
        self._settings.setVisible(visible)
        self._make_room()

    def _make_room(self) -> None:
        self._pane.setVisible(
            not (self._settings.isVisibleTo(self) and self.width() < current_look().px(_NARROW))
        )

    # Files.

    def show_drop_hint(self, visible: bool) -> None:
        self._hint.setVisible(visible)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if files_in(event.mimeData()):
            event.acceptProposedAction()
            self.show_drop_hint(True)

    def dragLeaveEvent(self, event: QDragLeaveEvent) -> None:
        self.show_drop_hint(False)

    def dropEvent(self, event: QDropEvent) -> None:
        self.show_drop_hint(False)
        event.acceptProposedAction()
        self._attachments.attach(files_in(event.mimeData()))
        self._composer.text.setFocus()

    # The list.

    def _begin_search(self) -> None:
        if not self._pane.isVisibleTo(self):
            self._composer.settings.setChecked(False)
        self._pane.search.setFocus()
        self._pane.search.selectAll()

    def _on_deleted(self, conversation_id: str) -> None:
        if conversation_id == self._chat.id:
            self._go_to(self._empty_chat())

    def _delete_message(self, message_id: str) -> None:
        chat = self._chat
        if (before := chat.delete(message_id)) is None:
            return
        self.context.shell.toast(
            self.tr("The message and what follows it are deleted."),
            Action(text=self.tr("Undo"), run=lambda: self._undelete(chat.id, before)),
        )

    def _undelete(self, conversation_id: str, before: Any) -> None:
        if (chat := self._open.get(conversation_id)) is not None:
            chat.undelete(before)
            return
        ids = [message.id for message in before]
        self._keeper.tell(Store.restore_messages, conversation_id, ids, before.leaf)
        self._listing.refresh()


class _LoadingLine(QWidget):
    """Over the composer while a model is loaded that was asked already."""

    def __init__(self) -> None:
        super().__init__()
        self._words = Text(size="caption", tone="soft")
        self._meter = Meter(4)
        self._meter.setFixedWidth(current_look().px(120))
        self.setLayout(row(self._words, self._meter, None, spacing=SMALL))
        self.hide()

    def show_progress(self, model: str, progress: float | None, checked: float) -> None:
        """`checked` is how far its file is read through, which comes first where its digest is not known yet."""
        words = self.tr("{model} is being loaded, then it answers.").format(model=model)
        if not progress and checked:
            words = self.tr("The file of {model} is being checked, then it answers.").format(model=model)
        share = progress or checked
        self._words.setText(f"{words} {share:.0%}" if share else words)
        self._meter.show_shares((share, "local"))
