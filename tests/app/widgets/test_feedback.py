"""What tells the user something."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QEvent
from PySide6.QtWidgets import QApplication, QWidget

from app.widgets import feedback
from app.widgets.basics import Text, column
from app.widgets.feedback import Action, Banner, DropHint, Question, Toast
from tests.app.windows import wait

LONG = (
    "Your chats were last opened by a newer Baton (their version is 99, this one reads 2). "
    "Update Baton to see them; nothing was changed."
)


@pytest.mark.parametrize("width", [720, 1280])
@pytest.mark.parametrize("action", [None, Action(text="Undo", run=lambda: None)])
def test_a_long_toast_is_seen_whole(look: object, width: int, action: Action | None) -> None:
    window = QWidget()
    window.resize(width, 520)
    toast = Toast(window)
    window.show()
    toast.say("Short.", action)
    one_line = toast.height()
    toast.say(LONG, action)
    assert window.rect().contains(toast.geometry())
    (text,) = toast.findChildren(Text)
    assert text.height() >= text.heightForWidth(text.width())
    assert toast.height() > one_line
    window.hide()
    window.deleteLater()


def test_a_toast_and_a_banner_are_both_seen(look: object) -> None:
    window = QWidget()
    window.resize(720, 520)
    foot = QWidget(window)
    foot.setGeometry(0, 440, 720, 80)
    foot.hide()
    toast = Toast(window, lambda: [foot])
    window.show()
    toast.say("Short.")
    assert toast.geometry().bottom() > 440
    foot.show()
    wait(lambda: not toast.geometry().intersects(foot.geometry()))
    foot.hide()
    wait(lambda: toast.geometry().bottom() > 440)
    window.hide()
    window.deleteLater()


def test_what_a_dialog_opens_over_does_not_stay_tinted(look: object) -> None:
    window = QWidget()
    window.resize(720, 520)
    below = QWidget(window)
    window.show()
    QApplication.sendEvent(below, QEvent(QEvent.Type.Enter))
    assert below.underMouse()
    question = Question(window, "Do it?", "Now.", yes="Do it", no="Cancel")
    question.open()
    assert not below.underMouse()
    question.reject()
    window.hide()
    window.deleteLater()


def test_a_screen_reader_hears_of_banners_and_toasts(look: object, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr(
        feedback.QAccessible, "updateAccessibility", lambda event: heard.append(event.message())
    )
    window = QWidget()
    window.resize(720, 520)
    window.setLayout(column(banner := Banner()))
    window.show()
    Toast(window).say("It is here.")
    banner.say("spark is away.")
    # the same again is no news
    banner.say("spark is away.")
    assert heard == ["It is here.", "spark is away."]
    window.hide()
    window.deleteLater()


@pytest.mark.parametrize("sentence", ["Short.", LONG, "A line.\n" * 9])
def test_a_question_is_as_high_as_its_text(look: object, sentence: str) -> None:
    window = QWidget()
    question = Question(window, "Do it?", sentence, yes="Do it", no="Cancel")
    question.open()
    for text in question.findChildren(Text):
        assert text.height() == text.heightForWidth(text.width())
    question.reject()
    window.deleteLater()


def test_what_is_said_of_dropped_files_covers_all_of_it(look: object) -> None:
    window = QWidget()
    window.resize(600, 400)
    hint = DropHint(window, "Drop it")
    window.show()
    hint.show()
    window.resize(700, 500)
    wait(lambda: hint.geometry() == window.rect())
    window.hide()
    window.deleteLater()
