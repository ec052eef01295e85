"""The page Server of a real node, used as its user does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication

from app.pages.server.page import ServerPage
from app.state import NodePresence
from app.widgets.feedback import Question
from tests.app.windows import Opened, button, click, texts, wait
from tests.engine.node.nodes import NodeProcess


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[NodeProcess]:
    """One for all of this file: each test leaves it as it was."""
    folder = tmp_path_factory.mktemp("node")
    with NodeProcess(folder, "studio", "--port", "0", "--node-port", "0", models=models) as node:
        yield node


def page_of(app: Opened) -> ServerPage:
    return cast(ServerPage, app.page("server"))


def status_with(app: Opened, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.get(f"{app.client.endpoint}/v1/models", headers=headers).status_code


def say_yes(text: str) -> None:
    """To the question that is about to be asked."""

    def answer() -> None:
        dialog = QApplication.activeModalWidget()
        assert isinstance(dialog, Question)
        click(button(dialog, text))

    QTimer.singleShot(0, answer)


def test_a_key_is_shown_once_wanted_from_then_on_and_removed(app: Opened) -> None:
    page = page_of(app)
    wait(lambda: app.client.endpoint in page.examples._code.text)
    click(button(page.endpoint, "Copy the address"))
    assert QApplication.clipboard().text() == f"{app.client.endpoint}/v1"
    click(button(page.endpoint, "Make a key"))
    wait(lambda: "this once" in texts(page.endpoint))
    # whoever presses Enter once more does not let other computers in
    assert app.window.focusWidget() is button(page.endpoint, "Copy the new key")
    click(button(page.endpoint, "Copy the new key"))
    key = QApplication.clipboard().text()
    assert len(key) > 40
    assert (status_with(app, ""), status_with(app, key)) == (401, 200)
    found: list[Any] = []
    app.bridge.run(app.client.endpoint_get("/v1/models"), found.append)
    wait(lambda: found)  # the window itself needs none
    click(button(page.endpoint, "I have it"))
    assert key not in texts(page.endpoint)
    wait(lambda: "BATON_API_KEY" in page.examples._code.text)
    click(button(page.endpoint, "Remove"))
    wait(lambda: not page.endpoint.exposure.has_key)
    assert status_with(app, "") == 200


def test_other_computers_are_let_in_with_a_key_after_a_restart_and_kept_out_again(app: Opened) -> None:
    page = page_of(app)
    wait(lambda: page.others._can_change)
    presences = []
    app.state.presence_changed.connect(lambda: presences.append(app.state.presence))
    say_yes("Let them")
    click(page.others._switch)
    wait(lambda: page.others.exposure.is_open and app.state.presence is NodePresence.THERE)
    assert NodePresence.GONE not in presences  # nobody is told that it has ended
    assert "shown this once" in texts(page.endpoint)
    assert "not encrypted" in texts(page.others)
    assert status_with(app, "") == 401
    assert page.others._url.text.endswith("/v1") and "127.0.0.1" not in page.others._url.text
    click(page.others._switch)  # nothing is being answered: it starts again at once
    wait(lambda: not page.others.exposure.is_open and app.state.presence is NodePresence.THERE)
    assert NodePresence.GONE not in presences
    click(button(page.endpoint, "I have it"))
    click(button(page.endpoint, "Remove"))
    wait(lambda: not page.endpoint.exposure.has_key)


def test_requests_and_the_log_appear_as_they_happen(app: Opened) -> None:
    page = page_of(app)
    body = {"model": "no such model", "prompt": "a secret word"}
    app.bridge.run(app.client.endpoint_post("/v1/completions", body), on_error=lambda _: None)
    wait(lambda: page.requests.cells() and page.requests.cells()[0][7] == "failed, 404")
    assert page.requests.cells()[0][1:3] == ["completions", "no such model"]
    click(button(page, "Log"))
    app.bridge.run(app.client.endpoint_post("/models/load", {"model": "smollm2-135m"}))
    wait(lambda: page.log.book.n_lines)
    assert page.log.text and "secret word" not in page.log.text
    page.log._search.setText("nothing says this")
    assert "Nothing matches" in texts(page.log)


def test_without_a_node_it_says_so_and_nothing_can_be_changed(app: Opened) -> None:
    page = page_of(app)
    app.node.end()
    wait(lambda: app.state.presence is NodePresence.GONE)
    assert "Not running" in texts(page.endpoint)
    assert not button(page.endpoint, "Make a key").isEnabled()
    assert not page.others._switch.isEnabled() and "once Baton's node runs" in texts(page.others)
    app.node.start()
    wait(lambda: app.state.presence is NodePresence.THERE)
    assert button(page.endpoint, "Make a key").isEnabled()
