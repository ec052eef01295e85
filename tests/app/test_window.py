"""The frame around the pages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QAccessible, QAccessibleInterface
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget

from app import state
from app.node.faults import AppError, NodeGone
from app.node.starter import start_node
from app.pages.catalogue import PAGES
from app.state import NodePresence
from app.telemetry.ledger import Ledger
from app.widgets.basics import Scrolled
from app.widgets.feedback import Action
from app.window import MainWindow
from tests.app.telemetry.timelines import ASKED_S, Handoff, snapshot
from tests.app.two_computers import (
    MODEL,
    SLOW_START,
    Shell,
    another,
    link,
    parts_of,
    pretend,
    settings,
    two_computers,
)
from tests.app.windows import Opened, button, click, texts, wait
from tests.engine.node.nodes import NodeProcess


@pytest.fixture
def node(lasting_node: NodeProcess) -> NodeProcess:
    return lasting_node


def test_pages_are_reached_by_name_and_by_key(app: Opened) -> None:
    click(button(app.window, "Models"))
    assert app.window.page_shown == "models"
    assert "Ctrl+2" in button(app.window, "Cluster").toolTip()
    QTest.keyClick(app.window, Qt.Key.Key_2, Qt.KeyboardModifier.ControlModifier)
    assert app.window.page_shown == "cluster"


def test_a_node_that_ends_is_said_and_can_be_started_again(app: Opened) -> None:
    app.node.end()
    wait(lambda: app.state.presence is NodePresence.GONE)
    wait(lambda: "Not running" in texts(app.window))
    click(button(app.window, "Start it again"))
    wait(lambda: app.state.presence is NodePresence.THERE)
    assert app.started == 1
    assert "studio alone" in texts(app.window)


def test_a_node_that_was_to_come_back_and_does_not_can_be_started(
    app: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_START_WITHIN_S", 2.0)
    app.state.expect_back()
    app.node.end()
    wait(lambda: app.state.presence is NodePresence.STARTING)
    wait(lambda: app.state.presence is NodePresence.GONE)
    assert "did not come back by itself" in texts(app.window)
    monkeypatch.undo()
    click(button(app.window, "Start it again"))
    wait(lambda: app.state.presence is NodePresence.THERE)


def test_why_a_node_does_not_start_is_said_at_once(app: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    says = "import sys; sys.exit('baton: the folder /x cannot be written; check it')"
    app.node.end()
    wait(lambda: app.state.presence is NodePresence.GONE)
    monkeypatch.setattr(app.state, "_start", lambda: start_node([sys.executable, "-c", says]))
    click(button(app.window, "Start it again"))
    wait(lambda: "did not start: the folder /x cannot be written; check it." in texts(app.window))


def test_a_model_that_cannot_be_loaded_can_be_left_so(app: Opened) -> None:
    failed = {"model": "m", "state": "failed", "active": 0, "last_exits": [{"reason": "the file is gone"}]}
    asked: list[tuple[str, dict[str, str]]] = []

    async def post(path: str, body: dict[str, str]) -> None:
        asked.append((path, body))

    app.client.post = post  # type: ignore[method-assign]
    app.state._hear(("changed", {"engines": [failed]}))
    assert "m could not be kept loaded: the file is gone." in texts(app.window)
    click(button(app.window, "Leave it unloaded"))
    wait(lambda: asked == [("/models/unload", {"model": "m"})])


def test_what_ran_by_a_node_that_ended_is_not_shown_as_running(
    app: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = [{"model": "m", "state": "ready", "active": 0}]
    peers = [{"node_id": "b", "name": "spark", "connected": True}]
    lost = app.state._lost

    def say_and_be_lost(fault: str) -> None:
        """The node's last word, after whatever it said itself."""
        app.state._hear(("changed", {"engines": running, "peers": peers}))
        lost(fault)

    monkeypatch.setattr(app.state, "_lost", say_and_be_lost)
    heard: list[str] = []
    app.state.changed.connect(heard.append)
    app.node.kill()
    wait(lambda: app.state.presence is NodePresence.GONE)
    wait(lambda: {"engines", "peers"} <= set(heard))
    assert app.state.part("engines") == []
    assert [peer["connected"] for peer in app.state.part("peers")] == [False]


class Windows(QObject):
    """Remembers which widgets were shown as windows of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[str] = []

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() is QEvent.Type.Show and isinstance(watched, QWidget) and watched.isWindow():
            self.shown.append(type(watched).__name__)
        return False


def test_no_part_of_a_page_is_a_window_for_a_moment(look: object, qapp: QApplication, tmp_path: Path) -> None:
    windows = Windows()
    qapp.installEventFilter(windows)
    with two_computers(tmp_path) as context:
        pretend(context, settings=settings())
        window = MainWindow(context, PAGES)
        window.show()
        for name in PAGES:
            window.go(name)
            qapp.processEvents()
        window.hide()
        window.end()
        window.deleteLater()
    qapp.removeEventFilter(windows)
    assert windows.shown == ["MainWindow"]


def nameless(told: QAccessibleInterface) -> Iterator[str]:
    """What can have the focus, is seen, and would be read aloud as nothing."""
    if told.state().invisible:
        return
    if told.state().focusable and not told.text(QAccessible.Text.Name).strip():
        yield f"{told.role().name} {type(told.object()).__name__}"
    for index in range(told.childCount()):
        yield from nameless(told.child(index))


def test_all_that_can_have_the_focus_is_read_aloud(look: object, qapp: QApplication, tmp_path: Path) -> None:
    found: dict[str, list[str]] = {}
    with two_computers(tmp_path) as context:
        pretend(context, settings=settings())
        window = MainWindow(context, PAGES)
        window.resize(1280, 800)
        window.show()
        for name in PAGES:
            window.go(name)
            qapp.processEvents()
            found[name] = list(nameless(QAccessible.queryAccessibleInterface(window)))
        window.go("chat")
        navigation = button(window, "Chat")
        assert QAccessible.queryAccessibleInterface(navigation).role() is QAccessible.Role.RadioButton
        window.hide()
        window.end()
        window.deleteLater()
    assert found == {name: [] for name in PAGES}


def test_a_button_that_goes_leaves_the_focus_to_the_page(look: object, tmp_path: Path) -> None:
    """And to no other button, which the next Enter would press. Tab goes back to it."""
    with two_computers(tmp_path) as context:
        window = MainWindow(context, PAGES)
        window.show()
        window.go("cluster")
        window.activateWindow()
        wait(window.isActiveWindow)
        pressed = button(window, "Test link")
        pressed.setFocus()
        pressed.setEnabled(False)
        assert window.focusWidget() is window._stack
        pressed.setEnabled(True)
        QTest.keyClick(window, Qt.Key.Key_Tab)
        assert window.focusWidget() is pressed
        window.banner("Something is wrong.", Action(text="Mend it", run=lambda: window.banner("")))
        mend = button(window, "Mend it")
        mend.setFocus()
        mend.click()
        assert window.focusWidget() is window._stack
        window.hide()
        window.end()
        window.deleteLater()


def test_an_error_of_a_node_that_has_gone_is_left_to_the_banner(look: object, tmp_path: Path) -> None:
    with two_computers(tmp_path) as context:
        assert isinstance(context.shell, Shell)
        context.tell(NodeGone("It does not answer."))
        assert context.shell.said == []
        context.tell(AppError("That is no file."))
        context.client.look = lambda: True  # type: ignore[method-assign]
        context.tell(NodeGone("It has stopped answering."))
        assert context.shell.said == ["That is no file.", "It has stopped answering."]


def test_tab_goes_through_cluster_as_it_is_seen(look: object, tmp_path: Path) -> None:
    with two_computers(tmp_path) as context:
        pretend(context, peers=[*parts_of()["peers"], another("garage")], link=link(SLOW_START))
        window = MainWindow(context, PAGES)
        window.resize(1280, 800)
        window.show()
        window.go("cluster")
        window.activateWindow()
        wait(window.isActiveWindow)
        stops = []
        while "Unpair" not in stops:
            QTest.keyClick(window, Qt.Key.Key_Tab)
            held = window.focusWidget()
            assert held is not None
            stops.append(held.accessibleName() or getattr(held, "text", str)())
        QTest.keyClick(window, Qt.Key.Key_Tab)
        assert window.focusWidget() is button(window, "Cluster")
        window.hide()
        window.end()
        window.deleteLater()
    fix = f"Fix: {SLOW_START['what'][:1].upper()}{SLOW_START['what'][1:]}."
    assert stops == [
        *("Page, scrolled by the arrow keys", "Test link", "Self-test", fix, "Show them"),
        *("Roles: Fastest way", "Use garage", "Unpair garage", "Unpair"),
    ]


@pytest.mark.parametrize("page", ["chat", "cluster", "telemetry", "models", "server", "settings"])
def test_nothing_is_cut_in_the_smallest_window(look: object, tmp_path: Path, page: str) -> None:
    with two_computers(tmp_path) as context:
        peers = [*parts_of()["peers"], another("garage")]
        pretend(context, peers=peers, link=link(SLOW_START), settings=settings())
        ledger = context.feeds.ledgers.setdefault(MODEL, Ledger(MODEL))
        for name, data in (snapshot(), *Handoff(n_layers=4).events()):
            ledger.hear(name, data, ASKED_S)
        window = MainWindow(context, PAGES)
        window.resize(window.minimumSize())
        window.show()
        window.go(page)
        QApplication.processEvents()
        wide = {
            scrolled.accessibleName(): (scrolled.widget().width(), scrolled.viewport().width())
            for scrolled in window.findChildren(Scrolled)
            if scrolled.isVisible() and scrolled.widget().width() > scrolled.viewport().width()
        }
        window.hide()
        window.end()
        window.deleteLater()
    assert wide == {}


def test_the_window_has_its_own_icon(app: Opened) -> None:
    assert not app.window.windowIcon().isNull()


def test_a_computer_that_is_away_can_be_called_from_anywhere(app: Opened) -> None:
    asked: list[str] = []

    async def post(path: str, body: object = None) -> None:
        asked.append(path)

    app.client.post = post  # type: ignore[method-assign]
    peer = {"node_id": "b" * 32, "name": "spark", "connected": False, "note": "nothing answers", "since": 0.0}
    running = [{"model": "m", "state": "ready", "active": 0}]
    app.state._hear(("changed", {"engines": running, "peers": [peer]}))
    assert "spark is away. Nothing answers. Answers go on here" in texts(app.window)
    click(button(app.window, "Reconnect"))
    wait(lambda: asked == [f"/peers/{'b' * 32}/call"])
    app.state._hear(
        (
            "changed",
            {
                "workers": [
                    {
                        **{"model": "m", "for": "spark", "state": "starting", "starts": 2},
                        **{"link": {}, "last_exits": [{"reason": "it was killed"}]},
                    }
                ]
            },
        )
    )
    assert "The worker of m stopped: it was killed." in texts(app.window)
    assert "spark prefills by itself meanwhile" in texts(app.window)
    app.state._hear(("changed", {"workers": []}))
    garage = {**peer, "node_id": "c" * 32, "name": "garage"}
    join = {"model": "m", "prefill": "garage", "prefill_node_id": "c" * 32, "note": ""}
    app.state._hear(("changed", {"joins": [join], "peers": [peer, garage]}))
    assert "garage is away." in texts(app.window) and "spark is away." not in texts(app.window)


def test_the_status_fits_a_small_window(app: Opened) -> None:
    app.window.resize(760, 560)
    assert button(app.window, "Models").text() == ""
    app.window.resize(1280, 800)
    assert button(app.window, "Models").text().strip() == "Models"
