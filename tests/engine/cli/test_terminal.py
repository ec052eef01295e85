"""What others wrote does not steer the terminal of who reads it."""

from __future__ import annotations

import io
import sys

import pytest

from engine.cli.terminal import harmless_output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_control_characters_are_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with harmless_output():
        print("two\nlines\tand \x1b]0;a title\x07, \x9b2J \r👩‍🚀 é")
        print("half\rdone\x1b[2J", file=sys.stderr)
    assert sys.stdout is out and sys.stderr is err
    assert out.getvalue() == "two\nlines\tand \\x1b]0;a title\\x07, \\x9b2J \\x0d👩‍🚀 é\n"
    assert err.getvalue() == "half\rdone\\x1b[2J\n"


def test_what_goes_elsewhere_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    with harmless_output():
        print("\x1b[1m")
    assert out.getvalue() == "\x1b[1m\n"
