"""What all buttons have in common."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractButton, QDialog

from app.widgets.basics import Button, column
from app.widgets.controls import Switch


@pytest.mark.parametrize("key", [Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space])
@pytest.mark.parametrize("make", [lambda: Button("Go"), lambda: Switch("Go")])
def test_the_button_with_the_focus_is_pressed_by_enter(look: object, make: object, key: Qt.Key) -> None:
    button = make()  # type: ignore[operator]
    assert isinstance(button, QAbstractButton)
    clicks: list[bool] = []
    button.clicked.connect(lambda on=False: clicks.append(on))
    QTest.keyClick(button, key)
    assert len(clicks) == 1


def test_enter_is_for_the_button_with_the_focus_and_not_for_a_dialogs_main_one(look: object) -> None:
    pressed: list[str] = []
    dialog = QDialog()
    cancel, keep = (Button(name, lambda name=name: pressed.append(name)) for name in ("Cancel", "Keep"))  # type: ignore[misc]
    dialog.setLayout(column(cancel, keep))
    keep.setDefault(True)
    dialog.show()
    cancel.setFocus()
    QTest.keyClick(cancel, Qt.Key.Key_Return)
    assert pressed == ["Cancel"]
