"""The frame: what lies over every page, and each page while the node is only starting."""

from __future__ import annotations

from PySide6.QtWidgets import QApplication, QToolTip, QWidget

from app.farewell import Farewell
from app.state import NodePresence
from app.tray import Tray
from app.widgets.feedback import Action
from tests.app.screenshots import Stage
from tests.app.windows import wait


def play(stage: Stage) -> None:
    app, window = stage.app, stage.app.window
    app.state._be(NodePresence.STARTING)
    for name in ("chat", "cluster", "telemetry", "models", "server", "settings"):
        app.page(name)
        stage.shot(f"starting-{name}")
    app.state._be(NodePresence.THERE)
    app.lose_node()
    for name in ("cluster", "telemetry", "models"):
        app.page(name)
        stage.shot(f"gone-{name}")
    app.find_node()

    app.page("cluster")
    long = "The report is in baton-report-20260314-142500.zip, and nothing of it was sent to anybody by Baton itself."
    window.toast(long, Action(text="Open the folder", run=lambda: None))
    window._toast._timer.stop()
    stage.shot("frame-toast")
    window._toast.hide()
    for is_answering in (False, True):
        dialog = Farewell(window, is_answering=is_answering)
        dialog.show()
        stage.shot("frame-farewell-answering" if is_answering else "frame-farewell", dialog)
        dialog.reject()
    window.resize(900, 600)
    button = window._navigation._buttons["telemetry"][0]
    QToolTip.showText(button.mapToGlobal(button.rect().center()), "Telemetry", button)
    wait(_tip)
    tip = _tip()
    assert tip is not None
    stage.shot("frame-tooltip", over=[tip])
    QToolTip.hideText()
    tray = Tray(app.context)
    tray._menu.popup(window.mapToGlobal(window.rect().center()))
    stage.shot("frame-tray", over=[tray._menu])
    tray._menu.hide()


def _tip() -> QWidget | None:
    return next(
        (each for each in QApplication.topLevelWidgets() if each.inherits("QTipLabel") and each.isVisible()),
        None,
    )
