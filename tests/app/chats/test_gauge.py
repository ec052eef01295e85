"""How full the context is."""

from __future__ import annotations

from app.chats.gauge import fill_of
from app.chats.model import File, Message
from app.pages.chat.transcript.model import Stats

ASKED = Message(id="q", parent=None, role="user", text="a" * 400, created=0.0)
SAID = Message(
    id="a", parent="q", role="assistant", text="b", created=0.0, stats=Stats(n_prompt=120, n_answer=30)
)
NEXT = Message(id="r", parent="a", role="user", text="c" * 40, created=0.0)
FILE = File(id="f", name="n", text="d" * 80, n_bytes=80)


def test_an_empty_chat_is_empty() -> None:
    fill = fill_of([], draft="", files=[], system="", n_ctx=4096)
    assert (fill.n_tokens, fill.share, fill.is_exact) == (0, 0.0, True)


def test_what_the_engine_counted_is_exact() -> None:
    fill = fill_of([ASKED, SAID], draft="", files=[], system="e" * 400, n_ctx=200)
    assert (fill.n_tokens, fill.share, fill.is_exact, fill.is_nearly_full) == (150, 0.75, True, False)


def test_what_follows_is_guessed() -> None:
    fill = fill_of([ASKED, SAID, NEXT], draft="f" * 4, files=[FILE], system="", n_ctx=200)
    assert (fill.n_tokens, fill.is_exact, fill.is_nearly_full) == (150 + 10 + 1 + 20, False, True)


def test_files_that_were_counted_count_so() -> None:
    counted = File(id="f", name="n", text="d" * 80, n_bytes=80, n_tokens=7)
    assert fill_of([], draft="", files=[counted], system="", n_ctx=None).n_tokens == 7


def test_more_than_fits_is_full() -> None:
    fill = fill_of([ASKED, SAID], draft="", files=[], system="", n_ctx=100)
    assert (fill.share, fill.n_over) == (1.0, 50)
    assert fill_of([ASKED, SAID], draft="", files=[], system="", n_ctx=150).n_over == 0
    assert fill_of([ASKED, SAID], draft="", files=[], system="", n_ctx=None).share == 0.0
