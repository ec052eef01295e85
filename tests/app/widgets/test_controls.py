"""Controls that Qt has not, as screen readers take them."""

from __future__ import annotations

from PySide6.QtGui import QAccessible
from PySide6.QtWidgets import QMenu

from app.widgets.controls import Segments, tick


def test_one_of_a_few_is_read_aloud_as_such(look: object) -> None:
    segments = Segments([(1, "Library"), (2, "Get models")], name="Show")
    for button in segments.buttons:
        told = QAccessible.queryAccessibleInterface(button)
        assert told.role() is QAccessible.Role.RadioButton
    segments.show_value(2)
    assert [button.isChecked() for button in segments.buttons] == [False, True]


def test_the_chosen_one_of_a_menu_is_read_aloud_as_such(look: object) -> None:
    menu = QMenu()
    one, other = menu.addAction("one"), menu.addAction("other")
    for action in (one, other):
        tick(action, is_chosen=action is other)
    told = QAccessible.queryAccessibleInterface(menu)
    assert [told.child(index).state().checked for index in range(2)] == [0, 1]
    assert one.icon().isNull() and not other.icon().isNull()
