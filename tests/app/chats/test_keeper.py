"""The store on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from app.chats.faults import ChatsUnreadable
from app.chats.keeper import Keeper
from app.chats.model import Conversation
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
