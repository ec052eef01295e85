"""A code that is shown, and one that is typed."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from app.widgets.code import CodeField, CodeView


def test_a_typed_code_is_grouped_and_cut_to_its_length(look: object) -> None:
    field = CodeField()
    completed: list[str] = []
    field.completed.connect(lambda: completed.append(field.code))
    QTest.keyClicks(field, "1234 5x")
    assert field.code == "1234-5" and not field.is_complete
    QTest.keyClicks(field, "67890")
    assert field.code == "1234-5678" and field.is_complete and completed[0] == "1234-5678"


def test_a_digit_in_the_middle_is_mended_where_it_is(look: object) -> None:
    field = CodeField()
    QTest.keyClicks(field, "12945678")
    field.setCursorPosition(3)
    QTest.keyClick(field, Qt.Key.Key_Backspace)
    assert (field.code, field.cursorPosition()) == ("1245-678", 2)
    QTest.keyClicks(field, "3")
    assert (field.code, field.cursorPosition()) == ("1234-5678", 3)
    field.setCursorPosition(5)  # the dash goes, and comes back
    QTest.keyClick(field, Qt.Key.Key_Backspace)
    QTest.keyClick(field, Qt.Key.Key_Backspace)
    assert field.code == "1235-678"


def test_typing_on_takes_the_fault_away(look: object) -> None:
    field = CodeField()
    field.show_wrong(True)
    assert field.property("state") == "wrong"
    QTest.keyClicks(field, "1")
    assert field.property("state") == ""


def test_a_code_is_read_aloud_digit_by_digit_and_goes(look: object) -> None:
    view = CodeView()
    view.show_code("1234-5678", 299.5, 300)
    assert view.code == "1234-5678"
    assert "1 2 3 4 - 5 6 7 8" in view._code.accessibleName()
    view.clear()
    assert view.code == ""


def test_its_end_is_told(look: object) -> None:
    view = CodeView()
    ends: list[bool] = []
    view.expired.connect(lambda: ends.append(True))
    view.show_code("1234-5678", 1.0, 300)
    view._ring._tick()
    assert ends == [True]
