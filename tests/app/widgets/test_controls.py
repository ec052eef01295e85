"""Controls that Qt has not, as screen readers take them."""

from __future__ import annotations

from PySide6.QtGui import QAccessible

from app.widgets.controls import Segments


def test_one_of_a_few_is_read_aloud_as_such(look: object) -> None:
    segments = Segments([(1, "Library"), (2, "Get models")], name="Show")
    for button in segments.buttons:
        told = QAccessible.queryAccessibleInterface(button)
        assert told.role() is QAccessible.Role.RadioButton
    segments.show_value(2)
    assert [button.isChecked() for button in segments.buttons] == [False, True]
