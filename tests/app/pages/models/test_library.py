"""The library's list without a node: what rows say of what they are told, and how keys go through it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from app.pages.models.library import LibraryView
from app.pages.models.row import LibraryRow
from app.pages.models.rows import Memory, ModelRow, Order, State
from tests.app.windows import button, click, texts

GIB = 1 << 30
HERE = Memory(name="studio", total_bytes=64 * GIB, free_bytes=40 * GIB)
THERE = Memory(name="spark", total_bytes=128 * GIB, free_bytes=100 * GIB)


def model(name: str, **more: Any) -> ModelRow:
    return ModelRow(model_id=name, **{"here": True, "architecture": "llama", "size_bytes": GIB, **more})


def row_of(qtbot: Any, shown: ModelRow, there: Memory | None = THERE, fault: str = "") -> LibraryRow:
    row = LibraryRow(SimpleNamespace())  # type: ignore[arg-type]
    qtbot.addWidget(row)
    row.show_model(shown, HERE, there, "spark", fault)
    row.resize(900, 90)
    row.show()
    return row


@pytest.mark.parametrize(
    ("needed_gib", "there", "words"),
    [
        (10, THERE, "Fits here and on spark, needs 10 GB"),
        (80, THERE, "Fits spark, too large for here: needs 80 GB of 64 GB"),
        (200, THERE, "Too large for both: needs 200 GB, studio has 64 GB and spark has 128 GB"),
        (50, THERE, "Fits spark. Here it needs 50 GB and 40 GB are free: other models give way"),
        (50, None, "Needs 50 GB and 40 GB are free now: other models give way"),
        (80, None, "Too large for this computer: needs 80 GB of 64 GB"),
        (
            10,
            Memory(name="spark", total_bytes=8 * GIB),
            "Fits here, too large for spark: needs 10 GB of 8.0 GB",
        ),
        (10, Memory(name="spark"), "Fits here, needs 10 GB"),
    ],
)
def test_whom_a_model_fits_is_said(qtbot: Any, needed_gib: int, there: Memory | None, words: str) -> None:
    assert words in texts(row_of(qtbot, model("a", needed_bytes=needed_gib * GIB), there))


def test_what_matters_most_is_said_instead(qtbot: Any) -> None:
    fits = {"needed_bytes": GIB}
    assert "Loading, 43 %" in texts(row_of(qtbot, model("a", state=State.LOADING, progress=0.43, **fits)))
    assert "Ready to answer" in texts(row_of(qtbot, model("a", state=State.LOADED, **fits)))
    assert "Could not be loaded. No memory." in texts(row_of(qtbot, model("a", **fits), fault="no memory"))
    failed = row_of(qtbot, model("a", state=State.FAILED, fault="the file is gone", **fits))
    assert "Could not be loaded. The file is gone." in texts(failed)
    assert "Ready to answer on spark" in texts(row_of(qtbot, model("a", answers_on="spark", **fits)))
    broken = row_of(qtbot, model("a", path="/m/a.gguf", problem="/m/a.gguf: the file is cut short"))
    assert "Cannot be run. The file is cut short." in texts(broken)
    assert not [each for each in broken.tab_stops if each.isVisible() and each.accessibleName() == "Load a"]


def test_what_is_only_linked_takes_nothing_of_batons_own(view: LibraryView) -> None:
    show(view, model("a"), model("b", is_link=True))
    assert "Baton's own take 1.1 GB" in texts(view)


def test_what_can_be_done_depends_on_whose_it_is(qtbot: Any) -> None:
    def menu(shown: ModelRow) -> dict[str, bool]:
        return {
            each.text(): each.isEnabled() for each in row_of(qtbot, shown).menu().actions() if each.text()
        }

    assert menu(model("a")) == {"Copy to spark": True, "Show in folder": True, "Remove…": True}
    assert menu(model("a", there=True))["Copy to spark"] is False
    assert menu(model("a", state=State.LOADED))["Remove…"] is False
    assert menu(model("a", is_link=True))["Remove the link…"] is True
    assert menu(model("a", program="Ollama"))["Kept by Ollama, remove it there"] is False


def test_what_only_the_other_computer_has_can_be_copied_here(qtbot: Any) -> None:
    asked: list[str] = []
    row = LibraryRow(SimpleNamespace(copy_here=lambda model: asked.append(model.model_id)))  # type: ignore[arg-type]
    qtbot.addWidget(row)
    theirs = model("a", here=False, there=True)
    row.show_model(theirs, HERE, THERE, "spark", "")
    row.show()
    click(button(row, "Copy here a"))
    assert asked == ["a"]
    row.show_model(replace(theirs, state=State.COMING), HERE, THERE, "spark", "")
    assert "On its way here from spark" in texts(row) and not button(row, "Copy here a").isEnabled()
    row.show_model(theirs, HERE, None, "spark", "")
    assert not button(row, "Copy here a").isEnabled()
    row.show_model(replace(theirs, problem="not known"), HERE, THERE, "spark", "")
    assert "Copy here a" not in [each.accessibleName() for each in row.tab_stops if each.isVisible()]


@pytest.fixture
def view(qtbot: Any) -> LibraryView:
    context = SimpleNamespace(peer={"name": "spark"}, computer="studio")
    view = LibraryView(context, SimpleNamespace(), lambda _: None)  # type: ignore[arg-type]
    qtbot.addWidget(view)
    view.resize(1000, 700)
    view.show()
    return view


def show(view: LibraryView, *models: ModelRow) -> None:
    view.show_models(models, HERE, THERE, {}, ())


def test_arrows_go_through_the_rows_and_return_looks_into_one(view: LibraryView) -> None:
    show(view, model("a", here=False, there=True), model("b"), model("c", size_bytes=9 * GIB))
    first, second, third = view.rows.values()
    view.activateWindow()
    first.setFocus()
    QTest.keyClick(first, Qt.Key.Key_Down)
    assert view.focusWidget() is second
    QTest.keyClick(second, Qt.Key.Key_Down)
    QTest.keyClick(third, Qt.Key.Key_Down)
    assert view.focusWidget() is third
    QTest.keyClick(third, Qt.Key.Key_Up)
    QTest.keyClick(second, Qt.Key.Key_Up)
    QTest.keyClick(first, Qt.Key.Key_Return)
    assert "It is on spark" in texts(view.panel)


def test_rows_stay_the_same_in_another_order(view: LibraryView) -> None:
    show(view, model("a"), model("b", size_bytes=9 * GIB))
    before = dict(view.rows)
    view.order.choose(Order.SIZE)
    assert list(view.rows) == [("b", True), ("a", True)] and view.rows == before
    assert "Largest first" in view.order.text()


def test_without_models_it_says_how_to_come_by_one(view: LibraryView) -> None:
    assert "No models yet" not in texts(view)  # not before it is known
    show(view)
    assert "No models yet" in texts(view) and button(view, "Import a file…").isEnabled()


def test_without_models_it_says_what_is_wrong_with_their_folder(view: LibraryView) -> None:
    view.show_models([], HERE, THERE, {}, ["No models are found in /models: this is a file."])
    assert "No models are found in /models: this is a file." in texts(view)
    show(view)
    assert "this is a file" not in texts(view)


def test_a_narrow_page_shows_the_list_or_the_model(view: LibraryView) -> None:
    show(view, model("a", here=False, there=True))
    view.choose(("a", False))
    assert view.rows["a", False].isVisible() and view.panel.isVisible()
    view.resize(800, 500)
    assert not view.rows["a", False].isVisible() and view.panel.isVisible()
    view.choose(None)
    assert view.rows["a", False].isVisible() and not view.panel.isVisible()


def test_in_a_wide_window_names_stay_near_their_buttons(view: LibraryView) -> None:
    show(view, model("a"))
    view.resize(2300, 800)
    QApplication.processEvents()
    row = view.rows["a", True]
    assert row.width() < 1200
    margin = row.mapTo(view, QPoint(0, 0)).x()
    assert abs(margin - (view.width() - margin - row.width())) <= 12
    view.panel.show_model = Mock()  # type: ignore[method-assign]
    view.choose(("a", True))
    QApplication.processEvents()
    assert row.width() > 900 and view.panel.isVisible()
    assert view.panel.mapTo(view, QPoint(0, 0)).x() + view.panel.width() < view.width() - 200
