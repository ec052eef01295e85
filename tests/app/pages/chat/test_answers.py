"""The page Chat with a real node and the starter model: asked, stopped, continued, and asked again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from app.chats.model import Sampling
from app.pages.chat import open_chat
from app.pages.chat.page import ChatPage
from tests.app.pages.chat.conftest import chat_page, choose, titles
from tests.app.windows import Opened, button, click, opened, texts, wait
from tests.engine.node.nodes import NodeProcess


@pytest.fixture
def node(lasting_node: NodeProcess) -> NodeProcess:
    return lasting_node


def ask(page: ChatPage, text: str) -> None:
    page.composer.text.setFocus()
    QTest.keyClicks(page.composer.text, text)
    QTest.keyClick(page.composer.text, Qt.Key.Key_Return)


def answered(page: ChatPage) -> None:
    wait(lambda: not page.chat.is_empty and not page.chat.is_answering)


def short(page: ChatPage, n_tokens: int = 12) -> None:
    page.chat.change(sampling=Sampling(temperature=0.0, max_tokens=n_tokens))


def test_a_question_is_answered_in_versions_and_all_of_it_is_kept(node: NodeProcess, tmp_path: Path) -> None:
    with opened(node, tmp_path / "window") as app:
        page = chat_page(app)
        choose(page.composer.model.menu_of_models(), "smollm2-135m")
        wait(lambda: any("loaded" in one.text() for one in page.composer.model.menu_of_models().actions()))
        short(page, 4)
        ask(page, "What is the capital of France?")
        answered(page)
        asked, said = page.transcript.shown
        assert asked.text == "What is the capital of France?" and said.text and not said.is_live
        assert said.stats is not None and said.stats.n_prompt and said.stats.prefilled_on == "studio"
        assert "limit of 4 tokens" in said.note
        assert page.composer.draft == ""
        wait(lambda: "What is the capital of France?" in titles(page))
        wait(lambda: "of 4,096 tokens" in page.composer.gauge.words)

        page.transcript.continue_answer.emit(said.id)
        answered(page)
        assert page.transcript.shown[1].text.startswith(said.text)
        assert len(page.transcript.shown[1].text) > len(said.text)

        page.transcript.regenerate.emit(said.id)
        answered(page)
        assert page.transcript.shown[1].branch == (2, 2)
        page.transcript.branch.emit(page.transcript.shown[1].id, -1)
        assert page.transcript.shown[1].id == said.id and page.transcript.shown[1].branch == (1, 2)

        page.transcript.edited.emit(asked.id, "And of Spain?", [])
        answered(page)
        assert page.transcript.shown[0].text == "And of Spain?"
        assert page.transcript.shown[0].branch == (2, 2)
        was = [(shown.id, shown.text) for shown in page.transcript.shown]
        kept_id = page.chat.id

    with opened(node, tmp_path / "window") as again:
        page = chat_page(again)
        wait(lambda: len(titles(page)) == 2)
        page.open_conversation(kept_id)
        wait(lambda: [(shown.id, shown.text) for shown in page.transcript.shown] == was)


def test_an_answer_that_is_stopped_or_loses_its_engine_keeps_what_came(
    app: Opened, page: ChatPage, node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, str]] = []
    monkeypatch.setattr(app.window, "notify", lambda *words: told.append(words))
    monkeypatch.setattr(open_chat, "_LONG_S", 0.0)
    short(page, 4000)
    ask(page, "Count to one thousand.")
    wait(lambda: page.transcript.shown and page.transcript.shown[-1].text)
    first = page.chat
    QTest.keyClick(app.window, Qt.Key.Key_N, Qt.KeyboardModifier.ControlModifier)
    assert page.chat is not first and first.is_answering and page.transcript.shown == []
    page.open_conversation(first.id)
    assert page.chat is first and page.transcript.shown[-1].is_live
    QTest.keyClick(app.window, Qt.Key.Key_Escape)
    answered(page)
    stopped = page.transcript.shown[-1]
    assert stopped.note == "stopped" and stopped.text

    page.transcript.regenerate.emit(stopped.id)
    wait(lambda: page.transcript.shown[-1].text)
    (engine,) = node.state()["engines"]
    os.kill(engine["pid"], signal.SIGKILL)
    answered(page)
    said = page.transcript.shown[-1]
    assert said.text and "Continue goes on from here" in said.note
    assert [words for _, words in told] == ["Stopped.", said.note]
    assert said.branch == (2, 2)


def test_files_are_counted_and_what_is_too_long_is_said(page: ChatPage, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("word " * 5000)
    page.attachments.attach([tmp_path / "long.txt"])
    wait(lambda: "5,0" in texts(page.composer) and "tokens" in texts(page.composer))
    (file,) = page.chat.conversation.draft_files
    assert file.n_tokens is not None and 5000 <= file.n_tokens <= 5002
    click(button(page.composer, "Send"))
    answered(page)
    note = page.transcript.shown[-1].note
    assert "too long" in note and "4,096" in note
    assert [one.name for one in page.transcript.shown[0].attachments] == ["long.txt"]


@pytest.fixture
def bare(tmp_path: Path) -> NodeProcess:
    """A node without any model."""
    return NodeProcess(tmp_path, "bare", "--port", "0", "--node-port", "0")


def test_without_a_model_the_way_to_one_is_shown(bare: NodeProcess, tmp_path: Path) -> None:
    with bare, opened(bare, tmp_path / "window") as app:
        page = app.page("chat")
        assert isinstance(page, ChatPage)
        wait(lambda: "No model is on this computer" in texts(page))
        QTest.keyClicks(page.composer.text, "Hello")
        assert not button(page.composer, "Send").isEnabled()
        click(button(page, "Choose a model"))
        assert app.window.page_shown == "models"
