"""The frame around the pages."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from app.state import NodePresence
from tests.app.windows import Opened, button, click, texts, wait


def test_pages_are_reached_by_name_and_by_key(app: Opened) -> None:
    click(button(app.window, "Models"))
    assert app.window.page_shown == "models"
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


def test_what_ran_by_a_node_that_ended_is_not_shown_as_running(app: Opened) -> None:
    running = [{"model": "m", "state": "ready", "active": 0}]
    peers = [{"node_id": "b", "name": "spark", "connected": True}]
    app.state._hear(("changed", {"engines": running, "peers": peers}))
    heard: list[str] = []
    app.state.changed.connect(heard.append)
    app.node.kill()
    wait(lambda: app.state.presence is NodePresence.GONE)
    wait(lambda: {"engines", "peers"} <= set(heard))
    assert app.state.part("engines") == []
    assert [peer["connected"] for peer in app.state.part("peers")] == [False]


def test_the_status_fits_a_small_window(app: Opened) -> None:
    app.window.resize(760, 560)
    assert button(app.window, "Models").text() == ""
    app.window.resize(1280, 800)
    assert button(app.window, "Models").text() == "Models"
