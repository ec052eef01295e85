"""The page Settings: its groups, a value that is refused, changes that wait, a search, dialogs, and without a node."""

from __future__ import annotations

import json
from unittest.mock import patch

from PySide6.QtTest import QTest
from PySide6.QtWidgets import QComboBox, QWidget

from app.node.faults import NodeRefused
from app.pages.settings import own_rows
from app.pages.settings.controls import SliderControl, TextControl
from app.pages.settings.own_rows import Licences, LoginRow
from app.pages.settings.page import SettingsPage
from app.widgets.feedback import Question
from tests.app.screenshots import Stage
from tests.app.staged_node import memory, settings
from tests.app.two_computers import GB
from tests.app.windows import button, click, wait


def play(stage: Stage) -> None:
    app = stage.app
    app.staged.answers["GET", "/settings/memory"] = memory()
    service = {"installed": True, "running": True, "notes": []}
    app.context.command = ("sh", "-c", f"echo '{json.dumps(service)}'")
    page = app.page("settings")
    assert isinstance(page, SettingsPage)
    wait(lambda: page.rows and page._login.switch.isEnabled())
    page._folders["chats"].show_folder("/Users/you/Library/Application Support/baton")
    stage.shot("settings-first")
    for section in ("Endpoint", "Handoff", "Models and memory", "Window", "About"):
        _go(stage, page, section)
        stage.shot(f"settings-{section.split()[0].lower()}")
    _play_changes(stage, page)
    _play_dialogs(stage, page)

    app.tell()
    app.lose_node()
    _go(stage, page, "This computer")
    stage.shot("settings-gone")


def _go(stage: Stage, page: SettingsPage, section: str) -> None:
    stage.app.window.resize(900, 600)
    click(button(page, section))


def _play_changes(stage: Stage, page: SettingsPage) -> None:
    app = stage.app
    changed = {"ctx": {"value": 131_072, "kept": 131_072, "waits_for": "reload"}}
    app.staged.answers["GET", "/settings/memory"] = {
        **memory(),
        "models": [{**memory()["models"][0], "needed_bytes": 139 * GB}],
    }
    app.staged.answers["PATCH", "/settings"] = NodeRefused(
        "prefix_cache has to be at most 1,024 GiB", status=400
    )
    app.tell(settings=settings(app.folder, **changed))
    _go(stage, page, "Models and memory")
    number = page.rows["prefix_cache"].control
    assert isinstance(number, TextControl)
    number.field.setFocus()
    number.field.selectAll()
    QTest.keyClicks(number.field, "99999999999")
    wait(lambda: page.rows["prefix_cache"].error)
    stage.shot("settings-waiting")
    page._scrolled.ensureWidgetVisible(page.rows["prefix_cache"])
    stage.shot("settings-error")
    slider = page.rows["ctx"].control
    assert isinstance(slider, SliderControl)
    restart = {
        name: {"value": value, "kept": value, "waits_for": "restart"}
        for name, value in (("keyring", "never"),)
    }
    app.tell(settings=settings(app.folder, **restart))
    _go(stage, page, "Handoff")
    stage.shot("settings-restart")
    page._search.setText("memory")
    stage.shot("settings-search")
    page._search.setText("nothing has this")
    stage.shot("settings-nothing")
    page._search.clear()


def _play_dialogs(stage: Stage, page: SettingsPage) -> None:
    app = stage.app
    _go(stage, page, "Models and memory")
    combo = next(each for each in page.findChildren(QComboBox) if each.isVisible())
    page._scrolled.ensureWidgetVisible(combo)
    # the screen that is not there is narrower than the window
    app.window.move(-120, 0)
    combo.showPopup()
    lists = [each for each in combo.findChildren(QWidget) if each.inherits("QComboBoxPrivateContainer")]
    stage.shot("settings-combo", over=lists)
    combo.hidePopup()
    app.window.move(0, 0)
    with patch.object(own_rows, "licences", lambda: LICENCES):
        dialog = Licences(app.window)
    dialog.show()
    stage.shot("settings-licences", dialog)
    dialog.close()
    login = page.findChild(LoginRow)
    assert login is not None
    with patch.object(Question, "exec", lambda question: question.open() or False):
        login._ask(PLAN)
    question = page.window().findChild(Question)
    assert question is not None
    stage.shot("settings-login", question)
    question.reject()


PLAN = """This would be changed:
  - write /Users/you/Library/LaunchAgents/org.baton.node.plist
  - launchctl bootstrap gui/501 /Users/you/Library/LaunchAgents/org.baton.node.plist
"""

LICENCES = [
    f"{name:<22}{version:<14}{licence}"
    for name, version, licence in (
        ("cryptography", "46.0.3", "Apache-2.0 OR BSD-3-Clause"),
        ("httpx", "0.28.1", "BSD-3-Clause"),
        ("markdown-it-py", "4.0.0", "MIT"),
        ("numpy", "2.3.5", "BSD-3-Clause"),
        ("PySide6_Essentials", "6.11.3", "LGPL-3.0-only"),
        ("torch", "2.9.1", "BSD-3-Clause"),
        ("zeroconf", "0.154.0", "LGPL-2.1-or-later"),
    )
]
