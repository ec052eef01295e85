"""The chats' store on a thread of its own, and where it cannot be written for a while."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.chats import store
from app.chats.faults import ChatsBusy, ChatsError, ChatsUnreadable
from app.chats.keeper import Keeper
from app.chats.model import Conversation, Message, Preset
from app.chats.store import Store

BEGUN = Conversation(id="c", created=1.0, updated=1.0, draft="Dear")


def test_what_is_told_comes_before_what_is_asked_after_it(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "chats.db")
    keeper.tell(Store.keep, BEGUN)
    assert asyncio.run(keeper.do(Store.unsent)) == BEGUN
    keeper.close()


def test_who_is_cancelled_undoes_nothing(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "chats.db")
    may_go = threading.Event()

    def wait(store: Store) -> None:
        may_go.wait(60)

    async def work() -> None:
        keeper.tell(wait)
        task = asyncio.create_task(keeper.do(Store.keep, BEGUN))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        may_go.set()

    asyncio.run(work())
    keeper.close()
    with Store(tmp_path / "chats.db") as store:
        assert store.unsent() == BEGUN


def test_closing_does_what_was_told_first_and_nothing_after_it(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "chats.db")
    keeper.tell(Store.keep, BEGUN)
    keeper.close()
    keeper.close()
    keeper.tell(Store.delete, "c")
    with Store(tmp_path / "chats.db") as store:
        assert store.unsent() == BEGUN


def test_a_file_that_could_not_be_opened_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("in the way")
    keeper = Keeper(tmp_path / "data" / "chats.db")
    with pytest.raises(ChatsUnreadable):
        asyncio.run(keeper.do(Store.listed))
    (tmp_path / "data").unlink()
    assert asyncio.run(keeper.do(Store.listed)) == []
    keeper.close()


TALK = Conversation(id="c", created=1.0, updated=1.0, title="Talk", draft="b")
ASKED = Message(id="q", parent=None, role="user", text="Why?", created=1.0)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(store, "_BUSY_TIMEOUT_S", 0.01)
    Store(tmp_path / "chats.db").close()
    return tmp_path / "chats.db"


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Another program has the file."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_what_was_told_while_it_could_not_be_kept_is_kept_later(path: Path) -> None:
    faults: list[ChatsError | None] = []
    keeper = Keeper(path, faults.append)
    with held(path):
        keeper.tell(Store.keep, TALK)
        keeper.tell(Store.keep, replace(TALK, draft="before that"))
        keeper.tell(Store.keep_preset, Preset(name="Short", system="Be short."))
        with pytest.raises(ChatsBusy, match="Another program"):
            asyncio.run(keeper.do(Store.add, "c", ASKED))
        assert [type(fault) for fault in faults] == [ChatsBusy]
    # a message of a conversation that could not be kept until now
    asyncio.run(keeper.do(Store.add, "c", ASKED))
    assert faults[1:] == [None]
    chat = asyncio.run(keeper.do(Store.chat, "c"))
    assert (chat.conversation.draft, chat.messages) == ("before that", (ASKED,))
    assert [preset.name for preset in asyncio.run(keeper.do(Store.presets))] == ["Short"]
    keeper.close()


def test_what_can_never_be_kept_holds_nothing_up(path: Path) -> None:
    faults: list[ChatsError | None] = []
    keeper = Keeper(path, faults.append)
    keeper.tell(Store.add, "nowhere", ASKED)
    keeper.tell(Store.keep, TALK)
    keeper.close()
    fault, then = faults
    assert type(fault) is ChatsError and then is None
    with Store(path) as kept:
        assert kept.chat("c").conversation.title == "Talk"


def test_closing_keeps_what_can_be_kept_by_then(path: Path) -> None:
    keeper = Keeper(path)
    with held(path), pytest.raises(ChatsBusy):
        keeper.tell(Store.keep, TALK)
        asyncio.run(keeper.do(Store.keep_preset, Preset(name="Short", system="Be short.")))
    keeper.close()
    with Store(path) as kept:
        assert kept.chat("c").conversation.draft == "b"
