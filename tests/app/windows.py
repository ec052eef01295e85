"""Windows of real nodes, and what a user does with them."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractButton, QCheckBox, QLabel, QWidget

from app.bridge import Bridge
from app.context import Context, is_there
from app.node.client import Address, NodeClient
from app.pages.catalogue import PAGES
from app.pages.page import Page
from app.preferences import Preferences
from app.state import NodePresence, NodeState
from app.window import MainWindow
from tests.engine.node.nodes import NodeProcess

# Far more than anything takes on a busy computer.
TIMEOUT_MS = 60_000


class Opened:
    """A window and its parts, as `app.main` puts them together."""

    def __init__(self, node: NodeProcess, folder: Path) -> None:
        self.node = node
        self._put_together(NodeClient(lambda: address_of(node)), folder)

    def _put_together(self, client: NodeClient, folder: Path) -> None:
        self.started = 0
        self.bridge = Bridge()
        self.client = client
        self.state = NodeState(self.bridge, self.client, self._start)
        self.context = Context(
            bridge=self.bridge,
            client=self.client,
            state=self.state,
            preferences=Preferences(folder / "window.json"),
            data=folder / "data",
            command=("false",),
        )
        self.window = MainWindow(self.context, PAGES)

    @contextlib.contextmanager
    def _start(self) -> Iterator[Callable[[], str]]:
        self.started += 1
        self.node.start()
        yield lambda: ""

    def begin(self) -> None:
        self.window.resize(1280, 800)
        self.window.go("chat")
        self.window.show()
        self.state.begin(start=False)
        wait(lambda: self.state.presence is NodePresence.THERE)

    def page(self, name: str) -> Page:
        """Go there, as a user does."""
        self.window.go(name)
        return self.window.page(name)

    def close(self) -> None:
        self.state.close()
        self.window.hide()
        self.bridge.close(self.client.close())
        self.window.end()
        self.window.deleteLater()


@contextlib.contextmanager
def opened(node: NodeProcess, folder: Path) -> Iterator[Opened]:
    made = Opened(node, folder)
    try:
        made.begin()
        yield made
    finally:
        made.close()


def address_of(node: NodeProcess) -> Address | None:
    """As `engine.node.presence` finds it; the folders of that node are its own."""
    if node.process is None or node.process.poll() is not None:
        return None
    for note in node.folder.rglob("node.json"):
        with contextlib.suppress(OSError, ValueError):
            told = json.loads(note.read_text())
            return Address(pid=told["pid"], port=told["port"], token=told["token"], endpoint=told["endpoint"])
    return None


def wait(is_so: Callable[[], object], timeout_ms: int = TIMEOUT_MS) -> None:
    """Let the window work until something is so."""
    deadline_s = time.monotonic() + timeout_ms / 1000
    while not is_so():
        assert time.monotonic() < deadline_s, "it did not come to be so"
        QTest.qWait(5)


def pair(app: Opened, spark: NodeProcess) -> None:
    """As two people at two computers do, over loopback."""
    theirs = NodeClient(lambda: address_of(spark))

    async def shake_hands() -> None:
        offer = await theirs.post("/pairing/offer")
        await app.client.post("/pairing/join", {"code": offer["code"], "to": f"127.0.0.1:{offer['port']}"})
        await theirs.close()

    app.bridge.run(shake_hands())
    wait(lambda: (peer := app.context.peer) and is_there(peer))


def click(widget: QWidget) -> None:
    assert widget.isEnabled(), "it cannot be clicked"
    # a check box hears clicks on its mark and words alone, which are at its left
    x = 8 if isinstance(widget, QCheckBox) else widget.width() // 2
    QTest.mouseClick(widget, Qt.MouseButton.LeftButton, pos=QPoint(x, widget.height() // 2))


def button(within: QWidget, text: str) -> QAbstractButton:
    """The visible button with that text or accessible name."""
    there = [one for one in within.findChildren(QAbstractButton) if one.isVisibleTo(within)]
    found = [one for one in there if text in (one.text(), one.accessibleName())]
    assert found, f"no button {text!r} among {[one.text() or one.accessibleName() for one in there]}"
    return found[0]


def texts(within: QWidget) -> str:
    """All that its visible labels say."""
    return "\n".join(
        label.text() for label in within.findChildren(QLabel) if label.isVisibleTo(within) and label.text()
    )
