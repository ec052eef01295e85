"""The page Chat: empty, writing, streaming, with files and settings, searched, and when something goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLineEdit, QMenu

from app.chats.keeper import Keeper
from app.chats.model import Chat, Conversation, File, Message, Preset, Sampling
from app.chats.store import Store
from app.node.faults import NodeRefused
from app.pages.chat.page import ChatPage
from app.pages.chat.transcript.model import Stats
from app.widgets.feedback import Toast
from tests.app.screenshots import NOW_S, Stage
from tests.app.staged_node import END, MODEL, SMALL
from tests.app.telemetry.timelines import Handoff, snapshot
from tests.app.two_computers import engine
from tests.app.windows import wait

_DAY_S = 86_400.0

_TITLES = (
    ("Kernel log", 0.1, True),
    ("Tax question: what can be written off?", 0.2, False),
    ("Names for a small boat", 0.3, False),
    ("Why does the build fail on Tuesdays?", 1.0, False),
    ("Letter to the landlord", 1.1, False),
    ("Regex for dates", 3.0, False),
    ("Holiday in the Dolomites, by train", 5.0, False),
    ("A proof that there are infinitely many primes", 12.0, False),
    ("Recipe without eggs", 20.0, False),
    ("Moving house: what to do when", 80.0, False),
)

_QUESTION = "Summarise the attached log, and say what to look at first."

_ANSWER = """The kernel stopped in `net_rx_action` because a **null pointer** was read, about two seconds after \
the link to `eth2` came up.

1. The driver `mlx5_core` was loaded twice, by hand and by `udev`.
2. The second probe freed the receive ring of the first.
3. The next packet used it.

Look at this first:

```bash
journalctl -k -b -1 | grep -E "mlx5|net_rx"
modprobe -r mlx5_core && modprobe mlx5_core
```

If it comes again, boot with `module_blacklist=mlx5_core` and load it by hand once.
"""

_STORY = """Old Marta kept the light on Skerry Point for forty years, and for the last two of them she had help: \
one computer by the window, which read the whole sea, and one by the stove, which spoke.

The first had no patience for words. It took the logs, the tides and the letters of a hundred winters at one glance"""


def play(stage: Stage) -> None:
    app = stage.app
    page = app.page("chat")
    assert isinstance(page, ChatPage)
    wait(lambda: MODEL in page.composer.model.words and page.is_ready)
    stage.shot("chat-empty")
    _play_kept(stage, page)
    _play_asking(stage, page)
    _play_faults(stage, page)


def _play_kept(stage: Stage, page: ChatPage) -> None:
    app = stage.app
    ids = _fill(app.context.data / "chats.db")
    page.shown()
    wait(lambda: page.pane.model.rowCount() > 10)
    page.open_conversation(ids[0])
    wait(lambda: page.chat.id == ids[0])
    stage.shot("chat-conversation")
    at = app.window.mapToGlobal(QPoint(392, 328))
    _menu(stage, "chat-menu-conversation", lambda: page.pane.menu_of(ids[3]).popup(at))
    at = app.window.mapToGlobal(QPoint(372, 100))
    _menu(stage, "chat-menu-list", lambda: page.pane.more_menu().popup(at))
    _menu(stage, "chat-menu-models", page.composer.model.open)
    _menu(stage, "chat-menu-instructions", page.composer.preset.open)
    page.pane.rename(ids[4])
    stage.shot("chat-rename")
    (editor,) = page.pane.view.findChildren(QLineEdit)
    QTest.keyClick(editor, Qt.Key.Key_Escape)
    page.composer.text.setFocus()

    page.composer.show_draft("And how do I keep it from being loaded twice?")
    page.chat.change_draft_files(
        [
            File(id="log", name="kernel-2026-03-14.log", text="oops " * 400, n_bytes=182_000, n_tokens=9_207),
            File(id="notes", name="notes.pdf", text="note " * 40, n_bytes=48_300),
        ]
    )
    stage.shot("chat-attachments")
    page.chat.change_draft_files(
        [
            File(
                id=str(number),
                name=f"Übergabeprotokoll der Wohnung, Seite {number} von 18.pdf",
                text="",
                n_bytes=48_300,
                n_tokens=1_380 + number,
            )
            for number in range(1, 19)
        ]
    )
    stage.shot("chat-attachments-many")
    page.chat.change_draft_files([])
    page.show_drop_hint(True)
    stage.shot("chat-drop")
    page.show_drop_hint(False)
    page.composer.show_draft("")
    page._take_presets([Preset(name="Plain words", system="Answer in short, plain sentences.")])
    page.composer.settings.setChecked(True)
    page.chat.change(system="Answer in short, plain sentences.", sampling=Sampling(temperature=0.3, seed=7))
    stage.shot("chat-settings")
    page.composer.settings.setChecked(False)
    page.chat.change(system="", sampling=Sampling())
    page.pane.search.setText("null poi")
    wait(lambda: page.pane.model.rowCount() == 1)
    stage.shot("chat-search")
    page.pane.search.setText("zebra crossing")
    wait(lambda: page.pane.model.rowCount() == 0)
    stage.shot("chat-search-nothing")
    page.pane.search.setText("")
    wait(lambda: page.pane.model.rowCount() > 10)
    page._listing.delete(ids[5])
    wait(lambda: page.pane.title_of(ids[5]) == "")
    stage.shot("chat-deleted")
    _end_toast(stage)


def _play_asking(stage: Stage, page: ChatPage) -> None:
    app = stage.app
    loading = engine(state="starting", progress=0.43)
    app.tell(engines=[loading])
    refused = NodeRefused(
        "loading", status=503, code="model_loading", fields={"progress": 0.43}, retry_after_s=60
    )
    app.staged.streams["/v1/chat/completions"] = [refused]
    _ask(page, "Write a story about a lighthouse keeper and two computers.")
    wait(lambda: page.chat.loading is not None)
    stage.shot("chat-loading")
    _stop(page)
    app.tell()

    handoff = Handoff(request_id="chatcmpl-7-0", asked_s=NOW_S - 8)
    app.staged.streams["/events"] = [snapshot(), *handoff.until_chunk(26)]
    app.staged.streams["/v1/chat/completions"] = [
        {"id": "chatcmpl-7", "prompt_progress": {"processed": 0, "total": 28_800}}
    ]
    page.new_chat()
    page.chat.change_draft_files(
        [File(id="minutes", name="minutes-2025.pdf", text="so " * 400, n_bytes=412_000, n_tokens=28_741)]
    )
    _ask(page, "What was decided about the roof, when, and by whom?")
    wait(lambda: page.chat.prefill is not None and page.chat.prefill.done > 12_000)
    stage.shot("chat-handoff")
    _stop(page)
    app.staged.streams["/events"] = []

    app.staged.streams["/v1/chat/completions"] = [_said(word) for word in _words(_STORY)]
    _ask(page, "Write a story about a lighthouse keeper and two computers.")
    wait(lambda: page.chat.tree.path()[-1].text == _STORY)
    stage.shot("chat-streaming")
    _stop(page)
    stage.shot("chat-stopped")


def _play_faults(stage: Stage, page: ChatPage) -> None:
    app = stage.app
    too_long = NodeRefused(
        "the request exceeds the context",
        status=400,
        kind="exceed_context_size_error",
        fields={"n_prompt_tokens": 41_338, "n_ctx": 32_768},
    )
    app.staged.streams["/v1/chat/completions"] = [too_long, END]
    _ask(page, "Compare all of these minutes.")
    wait(lambda: not page.chat.is_answering)
    stage.shot("chat-error")
    app.tell(peers=[_away(app.parts["peers"][0])])
    stage.shot("chat-peer-away")
    app.tell(
        engines=[
            engine(state="failed", last_exits=[{"reason": "the memory of this computer does not suffice"}])
        ]
    )
    wait(lambda: page._asking_context is None)
    stage.shot("chat-engine-failed")
    page.new_chat()
    app.tell(engines=[], models={"models": []}, peers=[])
    stage.shot("chat-no-model")
    app.lose_node()
    stage.shot("chat-node-gone")


def _menu(stage: Stage, name: str, open_it: Callable[[], object]) -> None:
    stage.app.window.resize(1280, 800)
    open_it()
    (menu,) = [each for each in stage.app.window.findChildren(QMenu) if each.isVisible()]
    menu.setActiveAction(menu.actions()[0])
    stage.shot(name, over=[menu])
    menu.hide()


def _ask(page: ChatPage, text: str) -> None:
    page.new_chat()
    page.chat.change(sampling=Sampling(temperature=0.2))
    page.composer.text.setPlainText(text)
    page.composer.sent.emit(page.composer.draft)


def _stop(page: ChatPage) -> None:
    page.chat.stop()
    wait(lambda: not page.chat.is_answering)


def _end_toast(stage: Stage) -> None:
    toast = stage.app.window.findChild(Toast)
    assert toast is not None
    toast.hide()


def _said(text: str) -> dict[str, Any]:
    return {"id": "chatcmpl-8", "choices": [{"delta": {"content": text}}]}


def _words(text: str) -> list[str]:
    return [f"{word} " for word in text.split(" ")[:-1]] + [text.split(" ")[-1]]


def _away(peer: dict[str, Any]) -> dict[str, Any]:
    note = "nothing answers at 10.77.3.2 in time"
    return {**peer, "connected": False, "address": None, "note": note, "since": NOW_S - 312}


def _fill(path: Path) -> list[str]:
    """Conversations of some weeks, the first of which has something in it."""
    keeper = Keeper(path)
    chats = []
    for number, (title, days, pinned) in enumerate(_TITLES):
        at = NOW_S - days * _DAY_S
        log = File(id=f"log-{number}", name="kernel.log", text="oops", n_bytes=182_000, n_tokens=11_207)
        asked = Message(
            id=f"asked-{number}", parent=None, role="user", text=_QUESTION, created=at, files=(log,)
        )
        stats = Stats(
            first_token_s=0.9,
            tokens_per_s=24.8,
            n_reused=11_904,
            n_prompt=12_310,
            prefilled_on="spark",
            is_remote=True,
            tail_ms=2.1,
            saved_s=4.1,
            n_answer=214,
        )
        said = Message(
            id=f"said-{number}",
            parent=asked.id,
            role="assistant",
            text=_ANSWER,
            created=at,
            stats=stats,
            model=MODEL,
        )
        if title != "Kernel log":
            asked = replace(asked, text=title, files=())
            said = replace(said, text="Here is what I would do.", stats=None)
        conversation = Conversation(
            id=f"chat-{number}",
            created=at,
            updated=at,
            title=title,
            pinned=pinned,
            leaf=said.id,
            model=MODEL if number else SMALL,
        )
        chats.append(Chat(conversation=replace(conversation, model=MODEL), messages=(asked, said)))
    keeper.tell(Store.take_in, chats)
    keeper.close()
    return [chat.conversation.id for chat in chats]
