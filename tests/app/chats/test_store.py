"""What is kept of chats, and what happens to a file that is old, new, broken, locked, or on a full disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.chats import schema
from app.chats.faults import ChatsError, ChatsUnreadable
from app.chats.model import (
    MARK_BEGIN,
    MARK_END,
    Conversation,
    File,
    Message,
    Preset,
    Sampling,
)
from app.chats.store import KEPT_DELETED_S, Store
from app.pages.chat.transcript.model import Stats


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "chats.db"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(path: Path, clock: Clock) -> Iterator[Store]:
    with Store(path, clock=clock) as store:
        yield store


def conversation(id_: str = "c", **fields: object) -> Conversation:
    return Conversation(id=id_, created=1.0, updated=1.0, **fields)  # type: ignore[arg-type]


def question(id_: str, text: str, parent: str | None = None, **fields: object) -> Message:
    return Message(id=id_, parent=parent, role="user", text=text, created=2.0, **fields)  # type: ignore[arg-type]


def answer(id_: str, text: str, parent: str, **fields: object) -> Message:
    return Message(id=id_, parent=parent, role="assistant", text=text, created=3.0, **fields)  # type: ignore[arg-type]


def talk(
    store: Store, id_: str = "c", title: str = "Kernel log", text: str = "What does the oops say?"
) -> None:
    store.keep(conversation(id_, title=title))
    store.add(id_, question(f"{id_}-q", text), answer(f"{id_}-a", "A null pointer.", f"{id_}-q"))


def test_all_of_a_conversation_comes_back(store: Store, path: Path) -> None:
    kept = conversation(
        title="Kernel log",
        is_named=True,
        pinned=True,
        system="Be short.",
        sampling=Sampling(temperature=0.2, top_k=5, seed=7),
        model="smollm2-135m",
        draft="and then",
    )
    file = File(id="f", name="log.txt", text="oops", n_bytes=4, n_tokens=2)
    asked = question("q", "What is it?", files=(file,))
    said = answer(
        "a",
        "A crash.",
        "q",
        reasoning="Hm.",
        reasoning_s=1.5,
        note="stopped",
        model="smollm2-135m",
        stats=Stats(first_token_s=0.5, n_prompt=12, prefilled_on="spark", is_remote=True),
    )
    attached = File(id="g", name="more.txt", text="more", n_bytes=4)
    store.keep(kept)
    store.keep_draft_files("c", [attached])
    store.add("c", asked, said)
    store.close()
    with Store(path) as again:
        chat = again.chat("c")
    assert chat.messages == (asked, said)
    assert chat.conversation == replace(
        kept, leaf="a", updated=chat.conversation.updated, draft_files=(attached,)
    )
    assert chat.conversation.updated > kept.updated


def test_an_answer_grows(store: Store) -> None:
    talk(store)
    (_, said) = store.chat("c").messages
    store.change_answer(replace(said, text="A null pointer, in", note="stopped"))
    assert store.chat("c").messages[1].text == "A null pointer, in"


def test_a_draft_leaves_the_order_and_the_version_shown_alone(store: Store) -> None:
    talk(store)
    before = store.chat("c").conversation
    store.keep(conversation(title="Kernel log", draft="wait"))
    after = store.chat("c").conversation
    assert (after.draft, after.leaf, after.updated) == ("wait", "c-a", before.updated)


def test_a_file_of_the_draft_goes_with_what_is_sent(store: Store) -> None:
    file = File(id="f", name="log.txt", text="oops", n_bytes=4)
    store.keep(conversation())
    store.keep_draft_files("c", [file])
    store.add("c", question("q", "?", files=(file,)))
    chat = store.chat("c")
    assert chat.conversation.draft_files == () and chat.messages[0].files == (file,)


def test_what_was_not_sent_is_not_listed_but_found_again(store: Store) -> None:
    assert store.unsent() is None
    store.keep(conversation("empty"))
    assert store.unsent() is None
    store.keep(conversation("begun", draft="Dear"))
    assert store.listed() == []
    found = store.unsent()
    assert found is not None and (found.id, found.draft) == ("begun", "Dear")


def test_pinned_ones_come_first_then_the_latest(store: Store) -> None:
    for name in ("one", "two", "three"):
        talk(store, name)
    store.keep(conversation("one", pinned=True))
    assert [one.id for one in store.listed()] == ["one", "three", "two"]


def test_deleted_ones_come_back_or_go_for_good(store: Store, clock: Clock) -> None:
    talk(store, "one")
    talk(store, "two")
    store.delete("one")
    assert [one.id for one in store.listed()] == ["two"]
    assert [one.id for one in store.search("oops")] == ["two"]
    store.restore("one")
    assert {one.id for one in store.listed()} == {"one", "two"}
    store.delete("one")
    clock.now += KEPT_DELETED_S + 1
    store.delete("two")
    store.restore("one")
    store.restore("two")
    assert [one.id for one in store.listed()] == ["two"]


def test_deleted_messages_come_back(store: Store) -> None:
    talk(store)
    store.delete_messages("c", ["c-a"], "c-q")
    assert [one.id for one in store.chat("c").messages] == ["c-q"]
    assert store.search("pointer") == []
    store.restore_messages("c", ["c-a"], "c-a")
    chat = store.chat("c")
    assert [one.id for one in chat.messages] == ["c-q", "c-a"] and chat.conversation.leaf == "c-a"


def test_a_conversation_that_is_gone_is_said(store: Store) -> None:
    with pytest.raises(ChatsError, match="not there any more"):
        store.chat("nowhere")


def test_a_search_takes_the_last_word_for_a_beginning(store: Store) -> None:
    talk(store, "log", "Kernel log", "What does the oops say?")
    talk(store, "tax", "Tax question", "Where do the interest payments go?")
    assert [one.id for one in store.search("kern")] == ["log"]
    (found,) = store.search("interest paym")
    assert found.id == "tax"
    assert f"{MARK_BEGIN}interest{MARK_END}" in found.snippet
    assert f"{MARK_BEGIN}payments{MARK_END}" in found.snippet
    assert store.search("intere payments") == []


def test_a_search_finds_signs(store: Store) -> None:
    for id_, text in (("party", "A party \N{PARTY POPPER}"), ("sums", "Is 50 % a half?")):
        store.keep(conversation(id_))
        store.add(id_, question(f"{id_}-q", text))
    assert [one.id for one in store.search("\N{PARTY POPPER}")] == ["party"]
    assert [one.id for one in store.search(" %")] == ["sums"]
    assert store.search("*") == store.search('"') == []


def test_a_search_minds_neither_case_nor_accents_nor_syntax(store: Store) -> None:
    talk(store, "cafe", "Café", 'He said "OR" NOT (this) AND col:umn*')
    for text in ("cafe", "CAFÉ", "Cafe\u0301", '"or"', "not (this", "col:umn*", "AND"):
        assert [one.id for one in store.search(text)] == ["cafe"], text
    assert [one.id for one in store.search("  ")] == ["cafe"]


def test_a_changed_title_and_answer_are_found_and_the_old_ones_not(store: Store) -> None:
    talk(store)
    store.keep(conversation(title="Holiday"))
    store.change_answer(answer("c-a", "By train.", "c-q"))
    assert [one.id for one in store.search("holiday")] == ["c"]
    assert [one.id for one in store.search("train")] == ["c"]
    assert store.search("kernel") == [] and store.search("pointer") == []


def test_presets_are_kept_by_name(store: Store) -> None:
    store.keep_preset(Preset(name="short", system="Be short."))
    store.keep_preset(Preset(name="Brief", system="Be brief."))
    store.keep_preset(Preset(name="short", system="Very short."))
    assert [(one.name, one.system) for one in store.presets()] == [
        ("Brief", "Be brief."),
        ("short", "Very short."),
    ]
    store.delete_preset("Brief")
    assert [one.name for one in store.presets()] == ["short"]


def test_what_is_written_in_one_go_is_written_whole_or_not_at_all(store: Store) -> None:
    store.keep(conversation())
    with pytest.raises(ChatsError):
        store.add("c", question("q", "?"), question("q", "the same id"))
    assert store.chat("c").messages == ()


def test_version_1_is_brought_up_to_date_with_all_that_is_in_it(path: Path) -> None:
    path.parent.mkdir(parents=True)
    old = sqlite3.connect(path, isolation_level=None)
    schema.migrate(old, to=1)
    old.execute(
        "INSERT INTO conversations (id, title, created, updated, leaf) VALUES ('c', 'Kernel log', 1, 2, 'q')"
    )
    old.execute(
        "INSERT INTO messages (id, conversation, role, text, created) VALUES ('q', 'c', 'user', 'an oops', 1)"
    )
    old.close()
    with Store(path) as store:
        assert [one.id for one in store.listed()] == ["c"]
        assert [one.id for one in store.search("oops")] == ["c"]
        assert [one.id for one in store.search("kernel")] == ["c"]
        assert store.presets() == []


def test_a_step_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.parent.mkdir(parents=True)
    db = sqlite3.connect(path, isolation_level=None)
    schema.migrate(db, to=1)
    monkeypatch.setattr(schema, "STEPS", (schema.STEPS[0], "CREATE TABLE half (one TEXT); CREATE NONSENSE;"))
    with pytest.raises(sqlite3.Error):
        schema.migrate(db, to=2)
    assert schema.version_of(db) == 1
    assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'half'").fetchone()[0] == 0
    db.close()


def test_a_file_of_a_newer_version_is_left_alone(path: Path) -> None:
    with Store(path) as store:
        talk(store)
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(ChatsUnreadable, match="newer Baton"):
        Store(path)
    assert path.read_bytes() == before and list(path.parent.glob("*damaged*")) == []


def test_what_is_no_database_is_moved_aside_whole(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"this is a letter, and no database at all" * 100)
    with Store(path) as store:
        assert store.listed() == []
        talk(store)
        assert "damaged" in store.notice and "nothing of it could be read" in store.notice
        assert store.take_notice() and store.take_notice() == ""
    (aside,) = path.parent.glob("chats-damaged-*.db")
    assert aside.read_bytes().startswith(b"this is a letter")
    with Store(path) as store:
        assert store.notice == "" and len(store.listed()) == 1


def test_of_a_damaged_file_what_can_be_read_is_taken_over(path: Path) -> None:
    with Store(path) as store:
        for number in range(200):
            talk(store, f"c{number}", text="word " * 200)
    content = bytearray(path.read_bytes())
    db = sqlite3.connect(path)
    (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'messages_of'").fetchone()
    (size,) = db.execute("PRAGMA page_size").fetchone()
    db.close()
    content[(root - 1) * size : root * size] = b"\xff" * size  # an index that leads nowhere
    path.write_bytes(content)
    with Store(path) as store:
        assert "200 of its conversations" in store.notice
        assert store.chat("c7").messages[1].text == "A null pointer."
        assert len(store.search("pointer")) == 200
    assert len(list(path.parent.glob("chats-damaged-*.db"))) == 1


def test_a_locked_file_is_said_and_written_later(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.keep(conversation())
    store._db.execute("PRAGMA busy_timeout = 1")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(ChatsError, match="Another program is using"):
        store.add("c", question("q", "?"))
    other.execute("COMMIT")
    other.close()
    store.add("c", question("q", "?"))
    assert len(store.chat("c").messages) == 1


def test_a_full_disk_is_said_and_loses_nothing(store: Store) -> None:
    talk(store)
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    (_, said) = store.chat("c").messages
    with pytest.raises(ChatsError, match="disk is full"):
        store.change_answer(replace(said, text="word " * 100_000))
    assert store.chat("c").messages[1] == said
    store._db.execute("PRAGMA max_page_count = 1000000")
    store.change_answer(replace(said, text="more"))
    assert store.chat("c").messages[1].text == "more"


def test_a_folder_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(ChatsUnreadable, match="cannot be opened"):
        Store(tmp_path / "data" / "chats.db")


def test_a_writer_that_is_killed_loses_nothing_that_was_written(path: Path, tmp_path: Path) -> None:
    store = Store(path)
    talk(store)
    copied = tmp_path / "copy"
    copied.mkdir()
    # As a killed process leaves it: the log beside the file, which nobody put away.
    for part in path.parent.iterdir():
        (copied / part.name).write_bytes(part.read_bytes())
    store.close()
    with Store(copied / "chats.db") as again:
        assert [one.id for one in again.chat("c").messages] == ["c-q", "c-a"]
        assert again.notice == ""
