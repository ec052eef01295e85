"""The page Settings of a real node, used as its user does."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLineEdit

from app.context import Context
from app.look.look import Theme, current_look
from app.pages.settings.controls import SliderControl
from app.pages.settings.own_rows import AboutRow
from app.pages.settings.page import SettingsPage
from app.state import NodePresence
from tests.app.windows import Opened, button, click, texts, wait
from tests.engine.node.nodes import NodeProcess


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[NodeProcess]:
    """One for all of this file: each test leaves it as it was."""
    folder = tmp_path_factory.mktemp("node")
    with NodeProcess(folder, "studio", "--port", "0", "--node-port", "0", models=models) as node:
        yield node


@pytest.fixture(autouse=True)
def as_it_was(node: NodeProcess) -> Iterator[None]:
    yield
    names = [one["name"] for one in node.control("/settings")["settings"] if one["kept"] is not None]
    assert node.ask_control("PATCH", "/settings", dict.fromkeys(names)).is_success


@pytest.fixture
def page(app: Opened) -> SettingsPage:
    page = cast(SettingsPage, app.page("settings"))
    wait(lambda: page.rows)
    return page


def kept(app: Opened) -> dict[str, Any]:
    """What the node's file says."""
    file = app.node.folder / "config" / "baton" / "settings.json"
    return json.loads(file.read_text()) if file.exists() else {}


def type_into(field: QLineEdit, text: str) -> None:
    field.setFocus()
    field.selectAll()
    QTest.keyClicks(field, text) if text else QTest.keyClick(field, Qt.Key.Key_Backspace)


def field(page: SettingsPage, name: str) -> QLineEdit:
    return cast(QLineEdit, page.rows[name].control.field)  # type: ignore[attr-defined]


def test_sections_follow_one_by_one_and_are_there_for_who_looks(context: Context) -> None:
    made = SettingsPage(context)
    try:
        assert 0 < len(made._rows) < len(made._names)
        made._search.setText("thread")
        assert list(made._rows) == made._names
    finally:
        made.deleteLater()


def test_a_change_is_kept_and_taken_back(app: Opened, page: SettingsPage) -> None:
    row = page.rows["route"]
    click(button(row, "Where prompts are prefilled: This computer"))
    assert "does it all" in texts(row)
    wait(lambda: kept(app) == {"route": "never"})
    wait(lambda: row.reset.isVisibleTo(row))
    click(row.reset)
    wait(lambda: kept(app) == {})
    wait(lambda: button(row, "Where prompts are prefilled: Automatic").isChecked())


def test_what_is_refused_stays_where_it_was_typed_with_the_reason(app: Opened, page: SettingsPage) -> None:
    threads = page.rows["threads"]
    type_into(field(page, "threads"), "99999")
    assert "1,024 is the most" in threads.error
    type_into(field(page, "threads"), "3")
    assert not threads.error
    wait(lambda: kept(app) == {"threads": 3})
    host = page.rows["host"]  # open to the network, and without a key
    type_into(field(page, "host"), "0.0.0.0")
    wait(lambda: "needs an api_key" in host.error)
    assert field(page, "host").text() == "0.0.0.0" and kept(app) == {"threads": 3}
    QTest.keyClick(field(page, "host"), Qt.Key.Key_Escape)
    assert field(page, "host").text() == "127.0.0.1" and not host.error


def test_a_flag_goes_before_and_is_named(page: SettingsPage) -> None:
    row = page.rows["port"]
    assert not row.control.isEnabled()
    assert "--port was given" in texts(row) and "Start it without" in texts(row)


def test_context_says_what_it_takes_and_waits_for_a_reload(app: Opened, page: SettingsPage) -> None:
    loads: list[Any] = []
    app.bridge.run(app.client.endpoint_post("/models/load", {"model": "smollm2-135m"}), loads.append)
    wait(lambda: any(one["state"] == "ready" for one in app.state.part("engines", [])))
    row = page.rows["ctx"]
    wait(lambda: "it fits" in texts(row))
    before = texts(row)
    control = cast(SliderControl, row.control)
    wait(lambda: control._stops[-1] == 8192)  # what the model can take
    control.slider.setFocus()
    QTest.keyClick(control.slider, Qt.Key.Key_End)
    assert "8,192 tokens" in texts(row)
    wait(lambda: "GB" in texts(row) and texts(row) != before and row.declared.waits_for == "reload")
    wait(lambda: "Waiting for a reload: 1 change" in texts(page))
    click(button(page, "Reload models now"))
    wait(lambda: row.declared.waits_for == "nothing" and not page._snapshot.is_reloading)
    wait(lambda: not page._waiting.isVisibleTo(page))


def test_a_change_that_the_node_was_not_there_for_is_kept_once_it_is(app: Opened, page: SettingsPage) -> None:
    row = page.rows["threads"]
    type_into(field(page, "threads"), "2")
    app.node.end()
    wait(lambda: app.state.presence is NodePresence.GONE)
    assert "does not run" in texts(page) and not row.control.isEnabled()
    if row.is_unsaved:
        wait(lambda: row.error)
    app.node.start()
    wait(lambda: kept(app) == {"threads": 2})
    wait(lambda: not row.is_unsaved and not row.error)
    wait(row.control.isEnabled)


def test_a_search_leaves_what_it_finds(page: SettingsPage) -> None:
    page._search.setText("keyring")
    assert page.rows["keyring"].isVisibleTo(page) and not page.rows["ctx"].isVisibleTo(page)
    page._search.setText("folder")
    assert page.rows["models"].isVisibleTo(page) and page._folders["chats"].isVisibleTo(page)
    assert not page.rows["keyring"].isVisibleTo(page)
    page._search.setText("no setting has this")
    assert "Nothing matches" in texts(page)
    page._search.clear()
    assert page.rows["ctx"].isVisibleTo(page)


def test_the_windows_own_are_kept_by_the_window(app: Opened, page: SettingsPage) -> None:
    try:
        click(button(page, "Theme: Dark"))
        assert current_look().palette.is_dark
        click(button(page, "When the window is closed: Keep serving"))
        click(button(page, "Notifications"))
        told = [app.context.preferences.get(name, None) for name in ("theme", "parting", "notifications")]
        assert told == ["dark", "keep", False]
    finally:
        current_look().set_theme(Theme.SYSTEM)


def test_start_at_login_says_why_it_cannot_be_had(app: Opened, page: SettingsPage) -> None:
    status = {"installed": False, "notes": ["nothing starts programs here"]}
    app.context.command = (sys.executable, "-c", f"print({json.dumps(json.dumps(status))})")
    page._login.look()
    wait(lambda: page._login.note == "Nothing starts programs here.")
    assert not page._login.switch.isEnabled()


def test_a_report_is_one_file(app: Opened, page: SettingsPage, tmp_path: Path) -> None:
    app.context.command = (sys.executable, "-m", "engine")
    about = page.findChildren(AboutRow)[0]
    about.write_report(tmp_path / "report.zip")
    wait(lambda: "The report is in report.zip." in texts(app.window))
    assert zipfile.is_zipfile(tmp_path / "report.zip")
