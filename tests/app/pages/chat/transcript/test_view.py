"""The transcript as a user meets it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QDesktopServices, QGuiApplication, QWheelEvent
from PySide6.QtTest import QSignalSpy, QTest
from PySide6.QtWidgets import (
    QAbstractButton,
    QApplication,
    QLabel,
    QLineEdit,
    QPlainTextEdit,
    QScrollBar,
    QWidget,
)

from app.look.look import Look, Theme
from app.pages.chat.transcript import highlight
from app.pages.chat.transcript.message import MARGIN, MessageView
from app.pages.chat.transcript.model import Prefill, Shown, ShownFile, Stats
from app.pages.chat.transcript.view import Transcript
from app.widgets import feedback
from tests.app.bench_window import conversation, markdown
from tests.app.windows import button, click, wait


@pytest.fixture
def transcript(look: Look) -> Iterator[Transcript]:
    made = Transcript()
    made.resize(900, 600)
    made.show()
    yield made
    made.hide()
    made.deleteLater()


def answer(text: str = "An answer.", **more: object) -> Shown:
    return Shown(id="a", role="assistant", text=text, **more)  # type: ignore[arg-type]


def question(text: str = "A question?", **more: object) -> Shown:
    return Shown(id="q", role="user", text=text, **more)  # type: ignore[arg-type]


def message(transcript: Transcript, id: str) -> MessageView:
    found = transcript.message(id)
    assert isinstance(found, MessageView), f"{id} is not in view"
    return found


def buttons(within: QWidget) -> list[str]:
    return [
        one.accessibleName() or one.text()
        for one in within.findChildren(QAbstractButton)
        if one.isVisibleTo(within)
    ]


def hover(widget: QWidget, at: QPoint) -> None:
    QTest.mouseMove(widget, at)
    QApplication.processEvents()


def place_of(view: MessageView, word: str) -> QPoint:
    """The middle of the first letter of a word."""
    for _, flow, left, top in view.entry.flows():
        for _, _, y, box in flow.boxes(0, flow.height):
            for index in range(box.n_units):
                unit = box.unit(index)
                start = unit._layout.text().find(word)
                if start >= 0:
                    rect = next(iter(unit.rects(start, start + 1)))
                    inner = box.place(index)
                    return QPoint(
                        round(MARGIN + left + inner.x() + rect.left() + 1),
                        round(top + y + inner.y() + rect.center().y()),
                    )
    raise AssertionError(f"no {word!r}")


def at_top(view: MessageView) -> int:
    return view.mapTo(view.parentWidget(), QPoint(0, 0)).y()


# Showing and streaming.


def test_a_conversation_opens_at_its_end(transcript: Transcript) -> None:
    transcript.show_all(conversation(200))
    bar = transcript.verticalScrollBar()
    assert bar.value() == bar.maximum() > 10_000
    assert transcript.message("m199") is not None
    assert transcript.message("m0") is None


def test_a_streamed_answer_is_what_was_sent(transcript: Transcript) -> None:
    text = markdown(3000)
    transcript.show_all([question(), answer("", is_live=True)])
    for at in range(0, len(text), 7):
        transcript.append("a", text[at : at + 7])
    wait(lambda: transcript.shown[-1].text == text)
    streamed = message(transcript, "a")
    height = streamed.height()
    transcript.replace(answer(text))
    transcript.show_all([question(), answer(text)])
    assert message(transcript, "a").height() == height


def test_it_stays_at_the_end_while_text_comes(transcript: Transcript) -> None:
    transcript.show_all([question(), answer("", is_live=True)])
    bar = transcript.verticalScrollBar()
    for part in range(30):
        transcript.append("a", f"paragraph {part}\n\n")
    wait(lambda: "paragraph 29" in transcript.shown[-1].text)
    assert bar.value() == bar.maximum() > 0


def test_who_has_scrolled_up_is_left_there_and_can_go_back(transcript: Transcript) -> None:
    transcript.show_all([*conversation(20), answer("start\n\n", is_live=True)])
    bar = transcript.verticalScrollBar()
    assert not button_is_visible(transcript)
    bar.setValue(bar.maximum() - 900)
    QApplication.processEvents()
    seen = transcript.viewport().grab().toImage()
    assert button_is_visible(transcript)
    for part in range(20):
        transcript.append("a", f"paragraph {part}\n\n")
    wait(lambda: "paragraph 19" in transcript.shown[-1].text)
    assert transcript.viewport().grab().toImage() == seen
    click(button(transcript, "To the end"))
    assert bar.value() == bar.maximum()
    assert not button_is_visible(transcript)
    bar.setValue(bar.maximum() - 900)
    button(transcript, "To the end").setFocus()
    QTest.keyClick(button(transcript, "To the end"), Qt.Key.Key_Space)
    assert bar.value() == bar.maximum()
    assert message(transcript, "a").hasFocus()


def button_is_visible(transcript: Transcript) -> bool:
    return "To the end" in buttons(transcript)


def test_heights_are_put_right_without_moving_what_is_looked_at(transcript: Transcript) -> None:
    transcript.show_all(conversation(40))
    bar = transcript.verticalScrollBar()
    bar.setValue(bar.maximum() // 2)
    for _ in range(40):
        views = {id: at_top(message(transcript, id)) for id in list(transcript._views)}
        value = bar.value()
        bar.setValue(value - 48)
        moved = {id: at_top(view) - views[id] for id, view in transcript._views.items() if id in views}
        assert moved
        assert all(abs(by - 48) <= 1 for by in moved.values())


def test_only_what_is_near_is_laid_out(transcript: Transcript) -> None:
    transcript.show_all(conversation(1))
    flow = message(transcript, "m0").entry.flow(1)
    assert len(flow.slots) > 400
    laid = sum(slot.boxes is not None for slot in flow.slots)
    assert 0 < laid < 60
    bar = transcript.verticalScrollBar()
    for step in range(20):
        bar.setValue(bar.maximum() * step // 20)
    assert sum(slot.boxes is not None for slot in flow.slots) < 150
    transcript.show_all(conversation(200))
    for step in range(40):
        bar.setValue(bar.maximum() * step // 40)
    assert len(transcript._views) < 12


def test_every_part_is_painted_as_if_it_had_been_laid_out_at_once(transcript: Transcript) -> None:
    """Scrolled to from below or from above, the same place looks the same."""
    transcript.show_all(conversation(30))
    bar = transcript.verticalScrollBar()
    while bar.value() > 0:
        bar.setValue(bar.value() - 400)
    while bar.value() < bar.maximum():
        bar.setValue(bar.value() + 400)
    bar.setValue(bar.maximum() // 3)
    down = transcript.viewport().grab().toImage()
    place = bar.value()
    bar.setValue(bar.maximum())
    bar.setValue(place)
    assert transcript.viewport().grab().toImage() == down


def test_messages_after_one_are_taken_away(transcript: Transcript) -> None:
    transcript.show_all(conversation(6))
    transcript.show_all(conversation(6)[:3])
    assert [shown.id for shown in transcript.shown] == ["m0", "m1", "m2"]
    transcript.append("m4", "for one that is gone")
    transcript.add(answer())
    assert transcript.message("a") is not None


def test_another_conversation_leaves_nothing_of_the_one_before(transcript: Transcript) -> None:
    transcript.show_all([question("Old?"), answer("Old.", reasoning="r")])
    transcript.activateWindow()
    button(message(transcript, "a"), "Thoughts, folded").setFocus()
    transcript.show_all([question("New?"), answer("New.")])
    views = [one for one in transcript.findChildren(MessageView) if one.isVisibleTo(transcript)]
    assert sorted(view.entry.shown.text for view in views) == ["New.", "New?"]


def test_a_narrower_window_wraps_and_stays_at_the_end(transcript: Transcript) -> None:
    transcript.show_all(conversation(10))
    transcript.resize(500, 600)
    bar = transcript.verticalScrollBar()
    assert bar.value() == bar.maximum()
    assert message(transcript, "m9").width() < 500
    transcript.resize(1600, 600)
    assert message(transcript, "m9").width() == 720 + 2 * MARGIN


def test_the_theme_may_change(transcript: Transcript, look: Look) -> None:
    transcript.show_all([question(), answer("text `code`")])
    light = transcript.viewport().grab().toImage()
    look.set_theme(Theme.DARK)
    assert transcript.viewport().grab().toImage() != light
    look.set_theme(Theme.LIGHT)
    assert transcript.viewport().grab().toImage() == light


def test_odd_letters_are_shown(transcript: Transcript) -> None:
    transcript.show_all([answer("half a letter: \ud83d, nothing: \0, whole: 🙂 **🙂 bold**", is_live=True)])
    transcript.append("a", "\ude00")
    wait(lambda: transcript.shown[-1].text.endswith("\ude00"))
    assert not transcript.grab().isNull()


# Reasoning and prefill.


def test_reasoning_is_open_while_it_goes_on_and_folds_for_the_answer(transcript: Transcript) -> None:
    transcript.show_all([question(), answer("", is_live=True)])
    transcript.append("a", reasoning="Let me *think*.")
    wait(lambda: transcript.shown[-1].reasoning)
    view = message(transcript, "a")
    assert "Thinking, unfolded" in buttons(view)
    transcript.append("a", "So.")
    wait(lambda: transcript.shown[-1].text)
    transcript.replace(answer("So.", reasoning="Let me *think*.", reasoning_s=8.0))
    folded = view.height()
    click(button(view, "Thought for 8 s"))
    assert "Thought for 8 s, unfolded" in buttons(view)
    assert view.height() > folded
    click(button(view, "Thought for 8 s"))
    assert "Thought for 8 s, folded" in buttons(view)


def test_a_prompt_that_is_read_stands_in_the_answers_place(transcript: Transcript) -> None:
    transcript.show_all([question(), answer("", is_live=True)])
    asked = QSignalSpy(transcript.answer_here)
    prefill = Prefill(
        done=12300, arrived=11900, total=28800, tokens_per_s=1833, left_s=9, where="spark", is_remote=True
    )
    transcript.show_prefill("a", prefill)
    view = message(transcript, "a")
    said = [label.text() for label in view.findChildren(QLabel) if label.isVisibleTo(view)]
    assert "Reading the prompt on spark: 12,300 of 28,800 tokens" in said
    click(button(view, "Answer here instead"))
    assert [asked.at(0)[0]] == ["a"]
    transcript.show_prefill("a", Prefill(done=1, arrived=1, total=2))
    assert "Answer here instead" not in buttons(view)
    transcript.append("a", "Text")
    wait(lambda: transcript.shown[-1].text)
    assert not [label for label in view.findChildren(QLabel) if label.isVisibleTo(view)]


# Acting on a message.


def test_the_last_message_shows_its_buttons_always_others_when_pointed_at(transcript: Transcript) -> None:
    transcript.show_all([question(), answer()])
    assert "Edit" not in buttons(message(transcript, "q"))
    assert buttons(message(transcript, "a")) == ["Copy", "Regenerate", "Delete"]
    QApplication.sendEvent(message(transcript, "q"), _enter())
    assert buttons(message(transcript, "q")) == ["Copy", "Edit", "Delete"]


def _enter() -> object:
    from PySide6.QtGui import QEnterEvent

    return QEnterEvent(QPointF(5, 5), QPointF(5, 5), QPointF(5, 5))


def test_tab_reaches_a_message_and_its_buttons(transcript: Transcript) -> None:
    transcript.show_all([question(), answer("```\ncode\n```")])
    transcript.activateWindow()
    first = message(transcript, "q")
    first.setFocus(Qt.FocusReason.TabFocusReason)
    reached = []
    for _ in range(9):
        focus = QApplication.focusWidget()
        reached.append(focus.accessibleName() if focus else "")
        QTest.keyClick(focus or first, Qt.Key.Key_Tab)
    assert reached == ["You", "Copy", "Edit", "Delete", "Answer", "Copy code", "Copy", "Regenerate", "Delete"]


def test_messages_come_before_what_follows_the_transcript(look: Look) -> None:
    window, after = QWidget(), QLineEdit()
    transcript = Transcript()
    transcript.setParent(window)
    after.setParent(window)
    window.show()
    transcript.show_all([question()])
    reached, widget = [], transcript.nextInFocusChain()
    while widget is not transcript:
        reached.append(widget)
        widget = widget.nextInFocusChain()
    assert reached.index(message(transcript, "q")) < reached.index(after)
    window.deleteLater()


def test_empty_lines_are_a_message_too(transcript: Transcript) -> None:
    transcript.show_all([answer(" \n\n\n")])
    view = message(transcript, "a")
    QTest.mouseDClick(view, Qt.MouseButton.LeftButton, pos=QPoint(20, 8))
    view.select_all()
    assert view.selected_text() == ""


def test_buttons_tell_the_page(transcript: Transcript) -> None:
    transcript.show_all([answer(note="stopped", branch=(2, 3))])
    view = message(transcript, "a")
    spies = {
        "Regenerate": QSignalSpy(transcript.regenerate),
        "Continue": QSignalSpy(transcript.continue_answer),
        "Delete": QSignalSpy(transcript.delete),
    }
    for name, spy in spies.items():
        click(button(view, name))
        assert spy.count() == 1 and spy.at(0) == ["a"], name
    turned = QSignalSpy(transcript.branch)
    click(button(view, "The version before"))
    click(button(view, "The next version"))
    assert [turned.at(0), turned.at(1)] == [["a", -1], ["a", 1]]


def test_at_the_last_version_there_is_no_next(transcript: Transcript) -> None:
    transcript.show_all([answer(branch=(3, 3))])
    assert not button(message(transcript, "a"), "The next version").isEnabled()
    assert "Continue" not in buttons(message(transcript, "a"))


def test_a_live_answer_has_no_buttons_until_it_is_done(transcript: Transcript) -> None:
    transcript.show_all([answer("x", is_live=True)])
    assert buttons(message(transcript, "a")) == []
    transcript.replace(answer("x", stats=Stats(tokens_per_s=3.0)))
    assert "Regenerate" in buttons(message(transcript, "a"))


def test_an_answer_that_is_over_is_read_aloud(
    transcript: Transcript, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    monkeypatch.setattr(
        feedback.QAccessible, "updateAccessibility", lambda event: heard.append(event.message())
    )
    transcript.show_all([answer("", is_live=True)])
    transcript.append("a", "It is so")
    assert heard == []
    transcript.replace(answer("It is so.", note="stopped"))
    transcript.replace(answer("It is so.", note="stopped", stats=Stats(tokens_per_s=3.0)))
    assert heard == ["Answer: It is so.\nstopped"]


def test_a_message_is_edited_in_place(transcript: Transcript) -> None:
    transcript.show_all([question("Old")])
    edited = QSignalSpy(transcript.edited)
    view = message(transcript, "q")
    click(button(view, "Edit"))
    (field,) = view.findChildren(QPlainTextEdit)
    QTest.keyClicks(field, " and new")
    QTest.keyClick(field, Qt.Key.Key_Escape)
    assert not edited.count()
    click(button(view, "Edit"))
    (field,) = [one for one in view.findChildren(QPlainTextEdit) if one.isVisibleTo(view)]
    assert field.toPlainText() == "Old"
    QTest.keyClicks(field, " and new")
    click(button(view, "Send"))
    assert edited.at(0) == ["q", "Old and new", []]


def test_a_file_can_be_left_out_of_an_edited_message(transcript: Transcript) -> None:
    files = tuple(ShownFile(name=name, n_tokens=9_000) for name in ("a.md", "b.pdf", "c.txt"))
    transcript.show_all([question("Old", attachments=files)])
    edited = QSignalSpy(transcript.edited)
    view = message(transcript, "q")
    assert not any("Leave" in name for name in buttons(view))
    click(button(view, "Edit"))
    for name in ("a.md", "b.pdf"):
        click(button(view, f"Leave {name} out"))
    click(button(view, "Put a.md back"))
    crosses = [button(view, name) for name in ("Leave a.md out", "Put b.pdf back", "Leave c.txt out")]
    assert all(view.rect().contains(one.geometry()) for one in crosses)
    click(button(view, "Send"))
    assert edited.at(0) == ["q", "Old", [0, 2]]
    assert not any("Leave" in name for name in buttons(view))


def test_an_empty_edit_is_not_sent(transcript: Transcript) -> None:
    transcript.show_all([question("Old")])
    view = message(transcript, "q")
    click(button(view, "Edit"))
    (field,) = view.findChildren(QPlainTextEdit)
    field.selectAll()
    QTest.keyClick(field, Qt.Key.Key_Delete)
    assert not button(view, "Send").isEnabled()


# Copying, links, code.


def test_a_message_is_copied_as_it_was_written(transcript: Transcript) -> None:
    transcript.show_all([answer("**bold** $x^2$")])
    click(button(message(transcript, "a"), "Copy"))
    assert QGuiApplication.clipboard().text() == "**bold** $x^2$"


def test_selected_text_is_copied_as_it_is_read(transcript: Transcript) -> None:
    transcript.show_all(
        [answer("First **words** here 🙂.\n\n- one\n- two\n\n```\ncode\n  more\n```\n\nLast end.")]
    )
    view = message(transcript, "a")
    QTest.mousePress(view, Qt.MouseButton.LeftButton, pos=place_of(view, "here"))
    QTest.mouseMove(view, place_of(view, "end"))
    QTest.mouseRelease(view, Qt.MouseButton.LeftButton, pos=place_of(view, "end"))
    QTest.keyClick(view, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text() == "here 🙂.\n• one\n• two\n\ncode\n  more\n\nLast "


def test_a_double_click_selects_a_word(transcript: Transcript) -> None:
    transcript.show_all([answer("some chosen_word here")])
    view = message(transcript, "a")
    QTest.mouseDClick(view, Qt.MouseButton.LeftButton, pos=place_of(view, "chosen_word"))
    assert view.selected_text() == "chosen_word"


def test_everything_in_a_message_can_be_selected_though_it_is_not_laid_out(transcript: Transcript) -> None:
    transcript.show_all(conversation(1))
    view = message(transcript, "m0")
    view.setFocus()
    QTest.keyClick(view, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
    assert len(view.selected_text()) > 150_000


def test_a_selection_elsewhere_ends_the_one_before(transcript: Transcript) -> None:
    transcript.show_all([question(), answer()])
    message(transcript, "q").select_all()
    assert message(transcript, "q").selected_text() == "A question?"
    message(transcript, "a").select_all()
    assert message(transcript, "q").selected_text() == ""


def test_links_open_in_the_browser(transcript: Transcript, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: opened.append(url.toString()))
    transcript.show_all([answer("see [the page](https://a.b/c) or [this](file:///x)")])
    view = message(transcript, "a")
    hover(view, place_of(view, "page"))
    assert view.toolTip() == "https://a.b/c"
    QTest.mouseClick(view, Qt.MouseButton.LeftButton, pos=place_of(view, "page"))
    QTest.mouseClick(view, Qt.MouseButton.LeftButton, pos=place_of(view, "this"))
    assert opened == ["https://a.b/c"]


def test_all_of_a_long_code_block_is_copied(transcript: Transcript) -> None:
    code = "\n".join(f"line {number}" for number in range(500))
    transcript.show_all([answer(f"Here:\n```text\n{code}\n```\ndone")])
    transcript.verticalScrollBar().setValue(0)
    click(button(message(transcript, "a"), "Copy code"))
    assert QGuiApplication.clipboard().text() == code


def test_long_lines_of_code_scroll_sideways(transcript: Transcript) -> None:
    transcript.show_all([answer("```\n" + "x" * 400 + "\nshort\n```")])
    view = message(transcript, "a")
    (bar,) = view.findChildren(QScrollBar)
    before = place_of(view, "short").x()
    bar.setValue(bar.maximum())
    assert bar.maximum() > 1000
    assert place_of(view, "short").x() == before - bar.maximum()
    at = QPointF(place_of(view, "short").x() + bar.maximum(), place_of(view, "short").y())
    turn = QWheelEvent(
        at,
        view.mapToGlobal(at),
        QPoint(),
        QPoint(240, 0),
        Qt.MouseButton.NoButton,
        Qt.KeyboardModifier.NoModifier,
        Qt.ScrollPhase.NoScrollPhase,
        False,
    )
    QApplication.sendEvent(view, turn)
    assert place_of(view, "short").x() == before - bar.maximum() + 120


def test_code_is_coloured_when_its_language_has_been_loaded(transcript: Transcript) -> None:
    transcript.show_all([answer("```lua\nlocal x = 1\n```")])
    wait(lambda: highlight.is_loaded("lua"))
    plain = transcript.viewport().grab().toImage()
    wait(lambda: transcript.viewport().grab().toImage() != plain or _has_colour(transcript))
    assert _has_colour(transcript)


def _has_colour(transcript: Transcript) -> bool:
    flow = message(transcript, "a").entry.flow(1)
    boxes = flow.slots[0].boxes or []
    return any(getattr(box, "runs", [[]])[0] for _, box in boxes)


# Read aloud.


def test_messages_are_read_aloud(transcript: Transcript) -> None:
    files = (ShownFile(name="a.log", n_tokens=12),)
    transcript.show_all([question("Why?", attachments=files), answer("Because.", note="stopped")])
    asked, answered = message(transcript, "q"), message(transcript, "a")
    assert (asked.accessibleName(), asked.accessibleDescription()) == ("You", "Why?\na.log")
    assert (answered.accessibleName(), answered.accessibleDescription()) == ("Answer", "Because.\nStopped")


def test_every_button_has_a_name(transcript: Transcript) -> None:
    transcript.show_all([question(), answer("```\nx\n```", reasoning="r", branch=(1, 2), note="stopped")])
    for view in (message(transcript, "q"), message(transcript, "a")):
        assert all(buttons(view))
