"""The log that a window holds: filtered, held still, and bounded."""

from __future__ import annotations

from typing import Any

from app.pages.server.logbook import MAX_LINES, LogBook


def line(text: str, level: str = "info", source: str = "node") -> dict[str, Any]:
    return {"at": 1.0, "source": source, "level": level, "text": text}


def texts(book: LogBook) -> list[str]:
    return [one.text for one in book.shown()]


def test_level_and_words_let_lines_pass() -> None:
    book = LogBook()
    book.begin([line("one", "info"), line("two", "warning", "serve-small"), line("three", "error")])
    assert texts(book) == ["one", "two", "three"]
    book.level = "warning"
    assert texts(book) == ["two", "three"]
    book.words = "SMALL tw"
    assert texts(book) == ["two"]
    assert [one.text for one in book.add([line("four", "error"), line("two more", "error", "small")])] == [
        "two more"
    ]


def test_held_still_it_loses_nothing() -> None:
    book = LogBook()
    book.begin([line("one")])
    book.is_paused = True
    assert book.add([line("two")]) == []
    book.begin([line("one"), line("two"), line("three")])  # the listener fell behind, or came back
    assert texts(book) == ["one"] and book.n_held == 2
    book.go_on()
    assert texts(book) == ["one", "two", "three"] and book.n_held == 0


def test_it_is_bounded_paused_or_not() -> None:
    book = LogBook()
    for paused in (False, True):
        book.is_paused = paused
        book.add(line(str(number)) for number in range(MAX_LINES + 7))
    assert (book.n_lines, book.n_held) == (MAX_LINES, MAX_LINES)


def test_what_is_copied_says_when_and_who() -> None:
    book = LogBook()
    book.begin([line("it ended", "unheard of")])
    (only,) = book.shown()
    assert only.plain.endswith(" INFO node: it ended") and only.plain.startswith("19")
