"""The page Settings: its groups, a value that is refused, changes that wait, a search, dialogs, and without a node."""

from __future__ import annotations

import sys

from PySide6.QtTest import QTest

from app.pages.settings.controls import SliderControl, TextControl
from app.pages.settings.own_rows import Licences
from app.pages.settings.page import SettingsPage
from app.state import NodePresence
from tests.app.screenshots import Stage
from tests.app.windows import button, click, wait

MODEL = "smollm2-135m"


def play(stage: Stage) -> None:
    app = stage.app
    app.context.command = (sys.executable, "-m", "engine")
    page = app.page("settings")
    assert isinstance(page, SettingsPage)
    wait(lambda: page.rows)
    app.bridge.run(app.client.endpoint_post("/models/load", {"model": MODEL}))
    wait(lambda: any(one["state"] == "ready" for one in app.state.part("engines", [])))
    stage.shot("settings-first")
    for section in ("Endpoint", "Handoff", "Models and memory", "Window", "About"):
        click(button(page, section))
        stage.shot(f"settings-{section.split()[0].lower()}")

    click(button(page, "Models and memory"))
    control = page.rows["ctx"].control
    assert isinstance(control, SliderControl)
    control.slider.setValue(control.slider.maximum())
    wait(lambda: page.rows["ctx"].declared.waits_for == "reload")
    number = page.rows["prefix_cache"].control
    assert isinstance(number, TextControl)
    number.field.setFocus()
    number.field.selectAll()
    QTest.keyClicks(number.field, "99999999999")
    wait(lambda: page.rows["prefix_cache"].error)
    stage.shot("settings-waiting")
    page._scrolled.ensureWidgetVisible(page.rows["prefix_cache"])
    stage.shot("settings-error")
    click(button(page._waiting, "Reload models now"))
    wait(lambda: not page._snapshot.is_reloading and not page._snapshot.waiting("reload"))
    app.bridge.run(app.client.patch("/settings", {"ctx": None, "slots": 8, "keyring": "never"}))
    wait(lambda: page._snapshot.waiting("restart"))
    click(button(page, "Handoff"))
    stage.shot("settings-restart")
    page._search.setText("memory")
    stage.shot("settings-search")
    page._search.setText("nothing has this")
    stage.shot("settings-nothing")
    page._search.clear()
    dialog = Licences(app.window)
    dialog.show()
    stage.shot("settings-licences", dialog)
    dialog.close()

    app.node.end()
    wait(lambda: app.state.presence is NodePresence.GONE)
    click(button(page, "This computer"))
    stage.shot("settings-gone")
    app.node.start()
    wait(lambda: app.state.presence is NodePresence.THERE)
    app.bridge.run(app.client.patch("/settings", {"slots": None, "keyring": None}))
    wait(lambda: not any(one.can_be_reset for one in page._snapshot.settings))
