"""The page Chat where it needs no node: the list, drafts, files, instructions, export and import."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QMimeData, QPointF, Qt, QUrl
from PySide6.QtGui import QDropEvent, QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractButton, QFileDialog

from app.chats.attaching import read_file
from app.chats.faults import ChatsBusy, ChatsError
from app.chats.model import File, Preset, Sampling
from app.chats.models import Choice, Readiness
from app.chats.store import Store
from app.pages.chat import attachments
from app.pages.chat.composer import FileChip, ModelButton
from tests.app.pages.chat.conftest import Alone, choose, keep, talk, titles
from tests.app.windows import button, click, texts, wait

NOW = time.time()
DAY_S = 86_400.0

CONTROL = Qt.KeyboardModifier.ControlModifier

LOG = talk("log", "Kernel log", "A null pointer was read.", updated=NOW - 10)
TAX = talk("tax", "Tax question", "It depends.", updated=NOW - 20)
BOAT = talk("boat", "Names for a boat", "Dory.", updated=NOW - 40 * DAY_S)

Open = Callable[..., Alone]


def test_conversations_stand_under_their_days(alone: Open) -> None:
    one = alone(LOG, TAX, BOAT)
    assert titles(one.page) == ["Today", "Kernel log", "Tax question", "Older", "Names for a boat"]
    click_row(one, "tax")
    wait(lambda: one.page.chat.id == "tax")
    assert [shown.text for shown in one.page.transcript.shown] == ["Tax question", "It depends."]


def test_a_search_shows_what_was_found_and_where(alone: Open) -> None:
    one = alone(LOG, TAX)
    QTest.keyClick(one.page, Qt.Key.Key_K, CONTROL)
    QTest.keyClicks(one.page.pane.search, "null poin")
    wait(lambda: titles(one.page) == ["Kernel log"])
    QTest.keyClick(one.page.pane.search, Qt.Key.Key_Return)
    wait(lambda: one.page.chat.id == "log")
    one.page.pane.search.setText("zebra")
    wait(lambda: titles(one.page) == [])
    assert "Nothing found" in texts(one.page.pane)
    QTest.keyClick(one.page.pane.search, Qt.Key.Key_Escape)
    wait(lambda: len(titles(one.page)) == 3)


def test_a_conversation_is_renamed_in_its_place(alone: Open) -> None:
    one = alone(LOG, TAX)
    pane = one.page.pane
    choose(pane.menu_of("tax"), "Rename")
    editor = pane.view.indexWidget(pane.model.index_of("tax")) or pane.view.viewport().focusWidget()
    assert editor is not None
    QTest.keyClick(editor, Qt.Key.Key_A, CONTROL)
    QTest.keyClicks(editor, "Taxes")
    QTest.keyClick(editor, Qt.Key.Key_Return)
    wait(lambda: "Taxes" in titles(one.page))
    assert "Taxes" in titles(alone().page)


def test_a_title_that_is_being_typed_is_not_lost_when_the_list_changes(alone: Open) -> None:
    one = alone(LOG, TAX)
    pane = one.page.pane
    pane.rename("tax")
    editor = pane.view.viewport().focusWidget()
    QTest.keyClick(editor, Qt.Key.Key_A, CONTROL)
    QTest.keyClicks(editor, "Tax")
    pane.show_listed([])
    assert pane.view.is_typing
    QTest.keyClicks(editor, "es")
    QTest.keyClick(editor, Qt.Key.Key_Return)
    wait(lambda: titles(one.page) == ["Today", "Kernel log", "Taxes"])


def test_after_a_title_was_typed_the_open_one_is_marked_again(alone: Open) -> None:
    one = alone(LOG, TAX)
    pane = one.page.pane
    click_row(one, "log")
    wait(lambda: one.page.chat.id == "log")
    pane.rename("tax")
    editor = pane.view.viewport().focusWidget()
    assert pane.view.currentIndex() == pane.model.index_of("tax")
    QTest.keyClick(editor, Qt.Key.Key_Escape)
    wait(lambda: pane.view.currentIndex() == pane.model.index_of("log"))


def test_the_list_begins_with_its_header_and_stays_where_it_was_scrolled(alone: Open) -> None:
    many = [talk(f"t{n}", f"Talk {n}", updated=NOW - n) for n in range(60)]
    one = alone(*many)
    bar = one.page.pane.view.verticalScrollBar()
    wait(lambda: bar.maximum() > 0)
    click_row(one, "t0")
    wait(lambda: one.page.chat.id == "t0")
    choose(one.page.pane.menu_of("t1"), "Pin")
    wait(lambda: titles(one.page)[:2] == ["Pinned", "Talk 1"])
    assert bar.value() == 0
    bar.setValue(bar.maximum())
    choose(one.page.pane.menu_of("t50"), "Delete")
    wait(lambda: "Talk 50" not in titles(one.page))
    assert bar.value() == bar.maximum()


def test_the_list_is_used_by_keys(alone: Open) -> None:
    one = alone(LOG, TAX)
    view = one.page.pane.view
    QTest.keyClick(one.page, Qt.Key.Key_K, CONTROL)
    QTest.keyClick(one.page.pane.search, Qt.Key.Key_Down)
    QTest.keyClick(view, Qt.Key.Key_Down)
    QTest.keyClick(view, Qt.Key.Key_Return)
    wait(lambda: one.page.chat.id == "tax")
    QTest.keyClick(view, Qt.Key.Key_Delete)
    wait(lambda: titles(one.page) == ["Today", "Kernel log"])


def test_a_pinned_one_comes_first(alone: Open) -> None:
    one = alone(LOG, BOAT)
    choose(one.page.pane.menu_of("boat"), "Pin")
    wait(lambda: titles(one.page) == ["Pinned", "Names for a boat", "Today", "Kernel log"])
    choose(one.page.pane.menu_of("boat"), "Unpin")
    wait(lambda: titles(one.page)[-1] == "Names for a boat")


def test_what_is_deleted_can_be_brought_back(alone: Open) -> None:
    one = alone(LOG, TAX)
    click_row(one, "tax")
    wait(lambda: one.page.chat.id == "tax")
    choose(one.page.pane.menu_of("tax"), "Delete")
    wait(lambda: titles(one.page) == ["Today", "Kernel log"])
    assert one.page.chat.is_empty
    one.shell.undo()
    wait(lambda: titles(one.page) == ["Today", "Kernel log", "Tax question"])
    wait(lambda: one.page.chat.id == "tax")


def test_a_deleted_message_can_be_brought_back(alone: Open) -> None:
    one = alone(LOG)
    click_row(one, "log")
    wait(lambda: one.page.chat.id == "log")
    one.page.transcript.delete.emit("log-a")
    assert [shown.id for shown in one.page.transcript.shown] == ["log-q"]
    one.shell.undo()
    assert [shown.id for shown in one.page.transcript.shown] == ["log-q", "log-a"]
    again = alone()
    again.page.open_conversation("log")
    wait(lambda: len(again.page.transcript.shown) == 2)


def test_drafts_belong_to_their_conversation_and_survive(alone: Open) -> None:
    one = alone(LOG, TAX)
    QTest.keyClicks(one.page.composer.text, "a new question")
    one.page.open_conversation("tax")
    wait(lambda: one.page.chat.id == "tax")
    assert one.page.composer.draft == ""
    QTest.keyClicks(one.page.composer.text, "about tax")
    again = alone()
    wait(lambda: again.page.composer.draft == "a new question")
    again.page.open_conversation("tax")
    wait(lambda: again.page.composer.draft == "about tax")
    QTest.keyClick(again.page, Qt.Key.Key_N, CONTROL)
    assert again.page.composer.draft == "a new question"


def paste(one: Alone, text: str, *, inline: bool = False) -> None:
    QGuiApplication.clipboard().setText(text)
    shift = Qt.KeyboardModifier.ShiftModifier if inline else Qt.KeyboardModifier.NoModifier
    QTest.keyClick(one.page.composer.text, Qt.Key.Key_V, CONTROL | shift)


def test_a_long_text_that_is_pasted_is_attached(alone: Open) -> None:
    one, log = alone(), "a line of a log\n" * 400
    QTest.keyClicks(one.page.composer.text, "Why? ")
    paste(one, "short")
    paste(one, log)
    paste(one, log)
    files = one.page.chat.conversation.draft_files
    assert [(file.name, file.text) for file in files] == [("Pasted text", log), ("Pasted text 2", log)]
    assert one.page.composer.draft == "Why? short"
    wait(lambda: "6 kB" in texts(one.page.composer))
    click(button(one.page.composer, "Put Pasted text 2 in the message"))
    assert [file.name for file in one.page.chat.conversation.draft_files] == ["Pasted text"]
    assert one.page.composer.draft == f"Why? short{log}"


def test_a_long_text_is_put_in_the_message_where_that_is_asked_for(alone: Open) -> None:
    one = alone()
    paste(one, "b" * 5_000, inline=True)
    assert one.page.composer.draft == "b" * 5_000
    choose(one.page.composer.text.menu_of_text(), "Paste into the message")
    assert len(one.page.composer.draft) == 10_000


def test_what_would_make_typing_slow_is_attached_in_any_case(alone: Open) -> None:
    one = alone()
    paste(one, "c" * 1_000_000, inline=True)
    (file,) = one.page.chat.conversation.draft_files
    assert (one.page.composer.draft, len(file.text)) == ("", 1_000_000)
    wait(lambda: "1,000 kB" in texts(one.page.composer))
    names = [each.accessibleName() for each in one.page.composer.findChildren(QAbstractButton)]
    assert "Put Pasted text in the message" not in names


def test_a_draft_is_written_while_somebody_types_on(alone: Open, tmp_path: Path) -> None:
    """A crash in a long sentence leaves more than its first letter."""
    one = alone(LOG)
    click_row(one, "log")
    wait(lambda: one.page.chat.id == "log")

    def types_on() -> bool:
        QTest.keyClicks(one.page.composer.text, "a")
        with Store(tmp_path / "data" / "chats.db") as store:
            return len(store.chat("log").conversation.draft) > 1

    wait(types_on)


def test_a_file_that_is_read_slowly_belongs_where_it_was_attached(
    alone: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_read = threading.Event()

    def slowly(path: Path) -> File:
        may_read.wait()
        return read_file(path)

    monkeypatch.setattr(attachments, "read_file", slowly)
    one = alone(LOG, TAX)
    click_row(one, "log")
    wait(lambda: one.page.chat.id == "log")
    (tmp_path / "dmesg.txt").write_text("oops")
    one.page.attachments.attach([tmp_path / "dmesg.txt"])
    click_row(one, "tax")
    wait(lambda: one.page.chat.id == "tax")
    assert "Reading" not in texts(one.page.composer)
    may_read.set()

    def is_kept() -> bool:
        with Store(tmp_path / "data" / "chats.db") as store:
            return [file.name for file in store.chat("log").conversation.draft_files] == ["dmesg.txt"]

    wait(is_kept)
    assert not one.page.chat.conversation.draft_files


def test_what_cannot_be_kept_just_now_is_said_once_and_kept_later(alone: Open, tmp_path: Path) -> None:
    one = alone(LOG, TAX)
    path = tmp_path / "data" / "chats.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        choose(one.page.pane.menu_of("tax"), "Delete")
        wait(lambda: [text for text, _ in one.shell.toasts if "Another program" in text])
        other.execute("ROLLBACK")
    one.page.new_chat()
    one.page.pane.search.setText("zebra")
    wait(lambda: titles(one.page) == [])
    one.page.pane.search.clear()
    wait(lambda: titles(one.page) == ["Today", "Kernel log"])


def test_shift_and_enter_begin_a_line_and_the_box_grows_to_ten(alone: Open) -> None:
    composer = alone().page.composer
    heights = [composer.text.height()]
    for _ in range(12):
        QTest.keyClick(composer.text, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
        heights.append(composer.text.height())
    assert composer.draft == "\n" * 12
    assert heights[:10] == sorted(set(heights)) and len(set(heights)) == 10
    assert not button(composer, "Send").isEnabled()


def test_files_that_are_dropped_are_attached_and_survive(alone: Open, tmp_path: Path) -> None:
    one = alone()
    (tmp_path / "log.txt").write_text("oops " * 500)
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\x00\x00")
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(tmp_path / name)) for name in ("log.txt", "photo.png")])
    copy, left = Qt.DropAction.CopyAction, Qt.MouseButton.LeftButton
    one.page.dropEvent(QDropEvent(QPointF(5, 5), copy, data, left, Qt.KeyboardModifier.NoModifier))
    wait(lambda: len(one.shell.toasts) == 1 and one.page.composer.findChildren(FileChip))
    assert "photo.png is not a text or PDF file" in one.shell.toasts[0][0]
    wait(lambda: "log.txt" in texts(one.page.composer) and "2 kB" in texts(one.page.composer))
    again = alone()
    wait(lambda: "log.txt" in texts(again.page.composer))
    click(button(again.page.composer, "Remove log.txt"))
    wait(lambda: "log.txt" not in texts(again.page.composer))


def test_of_several_files_each_that_cannot_be_read_is_named(alone: Open, tmp_path: Path) -> None:
    one = alone()
    names = ("photo.png", "empty.txt", "log.txt", "missing.txt")
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\x00\x00")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "log.txt").write_text("oops")
    one.page.attachments.attach([tmp_path / name for name in names])
    wait(lambda: one.shell.toasts)
    ((said, _),) = one.shell.toasts
    assert [name in said for name in names] == [True, True, False, True]


def test_many_files_leave_room_for_what_was_said_and_the_last_one_is_seen(alone: Open) -> None:
    one = alone(LOG)
    page, composer = one.page, one.page.composer
    usual = composer.height()

    def attach(n: int) -> list[FileChip]:
        page.chat.change_draft_files(
            [File(id=f"{at}", name=f"part-{at}.txt", text="oops", n_bytes=4) for at in range(n)]
        )
        wait(lambda: sum(chip.isVisible() for chip in composer.findChildren(FileChip)) == n)
        return [chip for chip in composer.findChildren(FileChip) if chip.isVisible()]

    attach(2)
    assert composer.height() > usual
    chips = attach(60)
    assert composer.height() < usual + 160
    wait(lambda: not chips[-1].visibleRegion().isEmpty())
    assert chips[0].visibleRegion().isEmpty()
    attach(0)
    wait(lambda: composer.height() == usual)


def test_instructions_come_from_presets_or_are_ones_own(alone: Open) -> None:
    one = alone(LOG)
    page, panel = one.page, one.page.settings
    choose(page.composer.preset.menu_of_presets(), "Editor")
    assert page.composer.preset.words == "Editor"
    assert page.chat.conversation.system.startswith("You edit texts")
    choose(page.composer.preset.menu_of_presets(), "Edit instructions")
    assert panel.isVisibleTo(page) and "You edit texts" in panel.system.toPlainText()
    panel.system.setPlainText("Answer in rhymes.")
    wait(lambda: page.composer.preset.words == "Own instructions")
    panel._name.setText("Poet")
    click(button(panel, "Keep"))
    wait(lambda: page.composer.preset.words == "Poet")
    assert page.chat.conversation.system == "Answer in rhymes."
    click(button(panel, "Delete preset"))
    wait(lambda: page.composer.preset.words == "Own instructions")


def test_sampling_is_set_for_a_conversation_and_reset(alone: Open) -> None:
    one = alone(LOG)
    page, panel = one.page, one.page.settings
    page.open_conversation("log")
    wait(lambda: page.chat.id == "log")
    click(button(page.composer, "Instructions and sampling"))
    panel.rows["temperature"].box.setValue(0.3)
    panel.rows["max_tokens"].box.setValue(64)
    panel.rows["seed"].box.setValue(7)
    assert page.chat.conversation.sampling == Sampling(temperature=0.3, max_tokens=64, seed=7)
    panel.rows["seed"].box.setValue(-1)
    panel.rows["temperature"].box.setValue(0.8)
    assert page.chat.conversation.sampling == Sampling(max_tokens=64)
    again = alone()
    again.page.open_conversation("log")
    wait(lambda: again.page.chat.conversation.sampling == Sampling(max_tokens=64))
    click(button(again.page.composer, "Instructions and sampling"))
    click(button(again.page.settings, "Reset"))
    assert again.page.chat.conversation.sampling == Sampling()


def test_a_narrow_page_shows_settings_in_the_lists_place(alone: Open) -> None:
    page = alone().page
    page.resize(842, 548)
    click(button(page.composer, "Instructions and sampling"))
    assert not page.pane.isVisibleTo(page)
    QTest.keyClick(page, Qt.Key.Key_K, CONTROL)
    assert page.pane.isVisibleTo(page) and not page.settings.isVisibleTo(page)


def test_exported_and_imported_it_is_there_twice(
    alone: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = alone(LOG, TAX)
    file, text = tmp_path / "out.json", tmp_path / "out.md"
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (str(text), ""))
    choose(one.page.pane.menu_of("log"), "Export")
    wait(lambda: text.exists() and one.shell.toasts)
    assert "# Kernel log" in text.read_text() and "Tax" not in text.read_text()
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (str(file), ""))
    choose(one.page.pane.more_menu(), "Export all")
    wait(lambda: file.exists() and len(one.shell.toasts) == 2)
    assert len(json.loads(file.read_text())["conversations"]) == 2
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: (str(file), ""))
    choose(one.page.pane.more_menu(), "Import")
    wait(lambda: titles(one.page).count("Kernel log") == 2)
    assert one.shell.toasts[-1][0] == "2 conversations are imported."
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: (str(text), ""))
    choose(one.page.pane.more_menu(), "Import")
    wait(lambda: "no JSON file" in one.shell.toasts[-1][0])


def test_a_name_with_a_dot_gets_the_ending_of_what_is_written(
    alone: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = alone(LOG)
    monkeypatch.setattr(
        QFileDialog, "getSaveFileName", lambda *_: (str(tmp_path / "log v1.5"), "Markdown, to read (*.md)")
    )
    choose(one.page.pane.menu_of("log"), "Export")
    wait(lambda: one.shell.toasts)
    assert "# Kernel log" in (tmp_path / "log v1.5.md").read_text()


def test_nothing_is_exported_where_there_is_nothing(alone: Open) -> None:
    assert [each.isEnabled() for each in alone().page.pane.more_menu().actions()] == [True, False]


def test_all_is_exported_also_while_a_search_finds_nothing(alone: Open) -> None:
    page = alone(LOG).page
    page.pane.search.setText("nothing has this")
    wait(lambda: not titles(page))
    assert [each.isEnabled() for each in page.pane.more_menu().actions()] == [True, True]


def test_a_beginning_is_written_into_the_composer(alone: Open) -> None:
    one = alone()
    one.page._welcome.setCurrentIndex(0)
    click(button(one.page, "Draft a message"))
    assert one.page.composer.draft.startswith("Write a short, friendly message")


def test_a_damaged_file_is_said_and_the_page_works(alone: Open, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "chats.db").write_bytes(b"no database" * 1000)
    one = alone()
    assert "damaged" in one.shell.toasts[0][0]
    QTest.keyClicks(one.page.composer.text, "a new question")
    again = alone()
    wait(lambda: again.page.composer.draft == "a new question")
    assert again.shell.toasts == []


def test_a_file_of_a_newer_baton_is_said(alone: Open, tmp_path: Path) -> None:
    keep(tmp_path, LOG)
    with contextlib.closing(sqlite3.connect(tmp_path / "data" / "chats.db")) as db:
        db.execute("PRAGMA user_version = 99")
    again = alone()
    assert "newer Baton" in again.shell.toasts[0][0]
    # and it stays said, where conversations would be
    assert "newer Baton" in texts(again.page.pane)
    assert "Conversations are listed here" not in texts(again.page.pane)


def test_what_cannot_be_kept_is_not_lost_with_the_conversation_that_is_left(
    alone: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = alone(TAX)
    add, is_full = Store.add, True

    def full(store: Store, *told: Any) -> None:
        if is_full:
            raise ChatsBusy("The disk is full.")
        add(store, *told)

    monkeypatch.setattr(Store, "add", full)
    one.page.chat.send("Hello", (), "some-model")
    talked = one.page.chat.id
    wait(lambda: not one.page.chat.is_answering and len(one.shell.toasts) > 1)
    click_row(one, "tax")
    wait(lambda: one.page.chat.id == "tax")
    one.page.open_conversation(talked)
    wait(lambda: [shown.text for shown in one.page.transcript.shown][:1] == ["Hello"])
    is_full = False
    again = alone()
    again.page.open_conversation(talked)
    wait(lambda: [shown.text for shown in again.page.transcript.shown][:1] == ["Hello"])


def test_what_could_not_be_kept_is_kept_when_it_can_be(alone: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    one = alone()
    add, n_failed = Store.add, 0

    def full_at_first(store: Store, *told: Any) -> None:
        nonlocal n_failed
        if n_failed == 0:
            n_failed = 1
            raise ChatsError("The disk is full.")
        add(store, *told)

    monkeypatch.setattr(Store, "add", full_at_first)
    one.page.chat.send("Hello", (), "some-model")
    wait(lambda: not one.page.chat.is_answering and "Hello" in titles(one.page))
    assert ("The disk is full.", None) in one.shell.toasts
    asked, said = one.page.transcript.shown
    assert asked.text == "Hello" and "does not answer" in said.note
    again = alone()
    again.page.open_conversation(one.page.chat.id)
    wait(lambda: [shown.note for shown in again.page.transcript.shown] == ["", said.note])


def test_thousands_are_listed(alone: Open) -> None:
    one = alone(*(talk(f"c{number}", f"Chat {number}", updated=NOW - number * 60) for number in range(1500)))
    assert len(titles(one.page)) > 1500
    one.page.pane.search.setText("chat 1499")
    wait(lambda: titles(one.page) == ["Chat 1499"])


def test_presets_of_the_user_are_kept(alone: Open, tmp_path: Path) -> None:
    alone()
    with Store(tmp_path / "data" / "chats.db") as store:
        store.keep_preset(Preset(name="Poet", system="Answer in rhymes."))
    again = alone()
    names = [action.text() for action in again.page.composer.preset.menu_of_presets().actions()]
    assert "Poet" in names and "Editor" in names


def click_row(one: Alone, conversation_id: str) -> None:
    view = one.page.pane.view
    rect = view.visualRect(one.page.pane.model.index_of(conversation_id))
    QTest.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, pos=rect.center())


def test_the_menu_says_where_a_model_is_loaded(qtbot: Any) -> None:
    menu_button = ModelButton()
    qtbot.addWidget(menu_button)
    loaded = Readiness.LOADED
    menu_button.show_choices(
        [Choice(id="a", readiness=loaded, on="spark"), Choice(id="b", readiness=loaded), Choice(id="c")], "a"
    )
    rows = [action.text().partition("\t") for action in menu_button.menu_of_models().actions()]
    assert {name: state for name, _, state in rows[:3]} == {"a": "loaded on spark", "b": "loaded", "c": ""}
