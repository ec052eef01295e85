"""The page Chat: empty, writing, streaming, with files and settings, searched, and when something goes wrong."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from app.chats.keeper import Keeper
from app.chats.model import Chat, Conversation, File, Message, Sampling, new_id
from app.chats.store import Store
from app.pages.chat.page import ChatPage
from app.pages.chat.transcript.model import Stats
from tests.app.screenshots import Stage
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

_ANSWER = """The kernel stopped in `net_rx_action` because a **null pointer** was read, about two seconds after the
link to `eth2` came up.

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


def play(stage: Stage) -> None:
    app = stage.app
    page = app.page("chat")
    assert isinstance(page, ChatPage)
    wait(lambda: "smollm2" in page.composer.model.words)
    stage.shot("chat-empty")
    ids = _fill(app.context.data / "chats.db")
    page.shown()
    wait(lambda: page.pane.model.rowCount() > 10)
    page.open_conversation(ids[0])
    wait(lambda: page.chat.id == ids[0])
    stage.shot("chat-conversation")
    page.composer.show_draft("And how do I keep it from being loaded twice?")
    page.chat.change_draft_files(
        [
            File(
                id=new_id(),
                name="kernel-2026-03-14.log",
                text="oops " * 400,
                n_bytes=182_000,
                n_tokens=41_207,
            ),
            File(id=new_id(), name="notes.pdf", text="note " * 40, n_bytes=48_300),
        ]
    )
    stage.shot("chat-attachments")
    page.show_drop_hint(True)
    stage.shot("chat-drop")
    page.show_drop_hint(False)
    page.chat.change_draft_files([])
    page.composer.show_draft("")
    page.composer.settings.setChecked(True)
    page.chat.change(system="Answer in short, plain sentences.", sampling=Sampling(temperature=0.3, seed=7))
    stage.shot("chat-settings")
    page.composer.settings.setChecked(False)
    page.pane.search.setText("null poi")
    wait(lambda: page.pane.model.rowCount() == 1)
    stage.shot("chat-search")
    page.pane.search.setText("zebra crossing")
    wait(lambda: page.pane.model.rowCount() == 0)
    stage.shot("chat-search-nothing")
    page.pane.search.setText("")
    wait(lambda: page.pane.model.rowCount() > 10)
    page.new_chat()
    page.chat.change(sampling=Sampling(max_tokens=400, temperature=0.2))
    page.composer.text.setPlainText("Write a long story about a lighthouse keeper and two computers.")
    page.composer.sent.emit(page.composer.draft)
    wait(lambda: page.chat.loading is not None or page.chat.tree.path()[-1].text)
    stage.shot("chat-loading")
    wait(lambda: page.chat.is_answering and page.chat.tree.path()[-1].text.count(" ") > 30)
    stage.shot("chat-streaming")
    page.chat.stop()
    wait(lambda: not page.chat.is_answering)
    page.new_chat()
    page.composer.text.setPlainText("word " * 9_000)
    page.composer.sent.emit(page.composer.draft)
    wait(lambda: not page.chat.is_empty and not page.chat.is_answering)
    stage.shot("chat-error")
    page.new_chat()


def _fill(path: Path) -> list[str]:
    """Conversations of some weeks, the first of which has something in it."""
    keeper = Keeper(path)
    now = time.time()
    chats = []
    for title, days, pinned in _TITLES:
        at = now - days * _DAY_S
        log = File(id=new_id(), name="kernel.log", text="oops", n_bytes=182_000, n_tokens=41_207)
        asked = Message(id=new_id(), parent=None, role="user", text=_QUESTION, created=at, files=(log,))
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
            id=new_id(),
            parent=asked.id,
            role="assistant",
            text=_ANSWER,
            created=at,
            stats=stats,
            model="smollm2-135m",
        )
        if title != "Kernel log":
            asked = replace(asked, text=title, files=())
            said = replace(said, text="Here is what I would do.", stats=None)
        conversation = Conversation(
            id=new_id(),
            created=at,
            updated=at,
            title=title,
            pinned=pinned,
            leaf=said.id,
            model="smollm2-135m",
        )
        chats.append(Chat(conversation=conversation, messages=(asked, said)))
    keeper.tell(Store.take_in, chats)
    keeper.close()
    return [chat.conversation.id for chat in chats]
