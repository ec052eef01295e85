"""The page Chat in a window of its own: without a node, which most of it needs not, or with one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtWidgets import QMenu

from app.bridge import Bridge
from app.chats.model import Chat, Conversation, Message
from app.chats.store import Store
from app.context import Context
from app.node.client import NodeClient
from app.pages.chat.page import ChatPage
from app.preferences import Preferences
from app.state import NodeState
from app.widgets.feedback import Action
from tests.app.windows import Opened, wait


class Shell:
    """Remembers what the user was told."""

    def __init__(self) -> None:
        self.toasts: list[tuple[str, Action | None]] = []
        self.gone_to: list[str] = []

    def toast(self, text: str, action: Action | None = None) -> None:
        self.toasts.append((text, action))

    def go(self, page: str) -> None:
        self.gone_to.append(page)

    def notify(self, title: str, text: str) -> None:
        self.toasts.append((text, None))

    def undo(self) -> None:
        action = self.toasts[-1][1]
        assert action is not None
        action.run()


def talk(id_: str, title: str, said: str = "Fine.", *, updated: float, **fields: Any) -> Chat:
    """A question and its answer."""
    asked = Message(id=f"{id_}-q", parent=None, role="user", text=title, created=updated)
    answer = Message(id=f"{id_}-a", parent=asked.id, role="assistant", text=said, created=updated)
    conversation = Conversation(
        id=id_, created=updated, updated=updated, title=title, leaf=answer.id, **fields
    )
    return Chat(conversation=conversation, messages=(asked, answer))


def keep(folder: Path, *chats: Chat) -> None:
    with Store(folder / "data" / "chats.db") as store:
        store.take_in(chats)


class Alone:
    """The page without a node."""

    def __init__(self, folder: Path) -> None:
        self.bridge = Bridge()
        client = NodeClient(lambda: None)
        self.shell = Shell()
        self.context = Context(
            bridge=self.bridge,
            client=client,
            state=NodeState(self.bridge, client, lambda: contextlib.nullcontext(str)),
            preferences=Preferences(folder / "window.json"),
            data=folder / "data",
            command=("false",),
        )
        self.context.shell = self.shell
        self.page = ChatPage(self.context)
        self.page.resize(1040, 720)
        self.page.show()

    def close(self) -> None:
        self.page.hide()
        self.bridge.close(self.context.client.close())
        self.page.end()
        self.page.deleteLater()


@pytest.fixture
def alone(tmp_path: Path, look: object) -> Iterator[Callable[..., Alone]]:
    """Opens the page upon these conversations; again, after the first was closed, upon what is there then."""
    opened: list[Alone] = []

    def open_it(*chats: Chat) -> Alone:
        while opened:
            opened.pop().close()
        if chats:
            keep(tmp_path, *chats)
        made = Alone(tmp_path)
        opened.append(made)
        wait(lambda: made.page.is_ready)
        return made

    yield open_it
    while opened:
        opened.pop().close()


@pytest.fixture
def page(app: Opened) -> ChatPage:
    """The page of a window with a real node."""
    return chat_page(app)


def chat_page(app: Opened) -> ChatPage:
    """The page Chat, when it knows of the starter model."""
    page = app.page("chat")
    assert isinstance(page, ChatPage)
    wait(lambda: page.composer.model.words == "smollm2-135m")
    return page


def titles(page: ChatPage) -> list[str]:
    """The rows of the list, headers too."""
    model = page.pane.model
    return [model.index(at).data() for at in range(model.rowCount())]


def choose(menu: QMenu, text: str) -> None:
    """An entry of a menu by how its text begins."""
    found: Sequence[Any] = [action for action in menu.actions() if action.text().startswith(text)]
    assert found, f"no {text!r} among {[action.text() for action in menu.actions()]}"
    found[0].trigger()
