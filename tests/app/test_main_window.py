"""The window's process as a user starts and ends it: its parts put together by `app.main`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication, QStackedWidget

from app import single
from app.farewell import Farewell
from app.main import App, Host
from app.single import SingleInstance
from app.state import NodePresence
from app.tray import Tray
from tests.app.windows import address_of, button, click, wait
from tests.engine.node.nodes import NodeProcess


class Quits:
    """Stands in for the application's end, which would be that of the tests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n = 0
        monkeypatch.setattr(QApplication, "exit", self._quit)

    def _quit(self, *_: object) -> None:
        self.n += 1


@pytest.fixture
def node(lasting_node: NodeProcess) -> NodeProcess:
    return lasting_node


@pytest.fixture
def host(node: NodeProcess, tmp_path: Path) -> Host:
    return Host(
        find=lambda: address_of(node),
        command=("false",),
        config=tmp_path / "window",
        data=tmp_path / "data",
    )


@pytest.fixture
def started(host: Host, qapp: QApplication) -> Iterator[App]:
    app = App(qapp, host)
    app.open()
    wait(lambda: app.state.presence is NodePresence.THERE)
    yield app
    app.close()


def remember(host: Host, preferences: str) -> None:
    """As an earlier window left them."""
    host.config.mkdir(parents=True)
    (host.config / "window.json").write_text(preferences)


def answer(text: str, *, always: bool = False) -> None:
    """Click that button of the question that is about to be asked."""

    def choose() -> None:
        dialog = QApplication.activeModalWidget()
        assert isinstance(dialog, Farewell)
        if always:
            click(button(dialog, "Do this every time"))
        click(button(dialog, text))

    QTimer.singleShot(0, choose)


def test_closing_asks_and_cancel_leaves_everything(started: App, monkeypatch: pytest.MonkeyPatch) -> None:
    quits = Quits(monkeypatch)
    answer("Cancel")
    started.window.close()
    assert started.window.isVisible() and not quits.n


def test_to_quit_is_asked_once_at_a_time(started: App, monkeypatch: pytest.MonkeyPatch) -> None:
    quits = Quits(monkeypatch)
    QTimer.singleShot(0, started.part_for_good)  # from the tray, while the question stands
    answer("Cancel")
    started.part_for_good()
    assert len(started.window.findChildren(Farewell)) == 1 and not quits.n


def test_without_a_node_closing_is_the_end(started: App, monkeypatch: pytest.MonkeyPatch) -> None:
    quits = Quits(monkeypatch)
    monkeypatch.setattr(Tray, "is_there", True)
    started.state._lost("")
    started.window.close()
    assert quits.n == 1


def test_stop_everything_ends_the_node_too(
    started: App, node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    quits = Quits(monkeypatch)
    answer("Stop everything")
    started.window.close()
    wait(lambda: quits.n)
    assert node.process is not None
    process = node.process
    wait(lambda: process.poll() is not None)


def test_a_choice_is_remembered_if_wished(started: App, monkeypatch: pytest.MonkeyPatch) -> None:
    quits = Quits(monkeypatch)
    answer("Keep serving", always=True)
    started.part_for_good()
    started.part_for_good()
    assert quits.n == 2
    assert started.state.presence is NodePresence.THERE


def test_where_it_was_left_it_opens_again(host: Host, qapp: QApplication) -> None:
    first = App(qapp, host)
    first.open()
    # the first start, which can be put off before the node is there
    assert first.window.page_shown == "setup"
    click(button(first.window, "Later"))
    assert first.window.page_shown == "chat"
    first.window.go("models")
    first.window.resize(760, 600)
    first.close()
    second = App(qapp, host)
    second.open()
    assert second.window.page_shown == "models"
    assert (second.window.width(), second.window.height()) == (760, 600)
    second.close()


def test_the_frame_is_painted_before_its_page_is_made(host: Host, qapp: QApplication) -> None:
    remember(host, '{"page": "server", "setup": {"is_over": true}}')
    app = App(qapp, host)
    app.open()
    frame = app.window.findChild(QStackedWidget)
    assert frame is not None and frame.count() == 0 and app.window.page_shown == "server"
    wait(lambda: frame.count() == 1)
    assert frame.currentWidget() is app.window.page("server")
    app.close()


def test_closed_before_its_page_was_made_it_opens_there_again(host: Host, qapp: QApplication) -> None:
    remember(host, '{"page": "server", "setup": {"is_over": true}}')
    first = App(qapp, host)
    first.open()
    first.close()
    second = App(qapp, host)
    second.open()
    assert second.window.page_shown == "server"
    second.close()


def test_a_maximized_window_comes_back_so_and_knows_its_other_size(host: Host, qapp: QApplication) -> None:
    first = App(qapp, host)
    first.open()
    first.window.resize(760, 600)
    first.window.showMaximized()
    first.close()
    second = App(qapp, host)
    second.open()
    assert second.window.isMaximized()
    second.window.showNormal()
    assert (second.window.width(), second.window.height()) == (760, 600)
    second.close()


def test_odd_sizes_are_no_obstacle(host: Host, qapp: QApplication) -> None:
    remember(host, '{"width": 1000000000000, "height": -5}')
    app = App(qapp, host)
    app.open()
    assert app.window.isVisible() and app.window.height() >= 520
    app.close()


def test_it_opens_no_larger_than_the_screen(host: Host, qapp: QApplication) -> None:
    remember(host, '{"width": 3000, "height": 2000}')
    app = App(qapp, host)
    app.open()
    room = app.window.screen().availableGeometry()
    assert app.window.width() == max(room.width(), app.window.minimumWidth())
    assert app.window.height() < room.height()
    app.close()


def test_a_second_start_calls_the_first(qapp: QApplication, tmp_path: Path) -> None:
    first = SingleInstance(str(tmp_path))
    calls: list[int] = []
    first.called.connect(lambda: calls.append(1))
    second = SingleInstance(str(tmp_path))
    assert second.is_second and not first.is_second
    wait(lambda: calls)
    first.close()
    assert not SingleInstance(str(tmp_path)).is_second


def test_a_minimised_window_comes_back_when_it_is_called(started: App) -> None:
    started.window.showMinimized()
    assert started.window.isMinimized()
    started.come_forward()
    assert started.window.isVisible() and not started.window.isMinimized()


def test_of_two_started_at_once_one_is_the_second(
    qapp: QApplication, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = SingleInstance(str(tmp_path))
    call, n_calls = single._call, 0

    def call_too_early(name: str) -> bool:
        nonlocal n_calls
        n_calls += 1
        return n_calls > 1 and call(name)

    monkeypatch.setattr(single, "_call", call_too_early)
    assert SingleInstance(str(tmp_path)).is_second
    first.close()
