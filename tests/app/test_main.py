"""The program `baton`: with a sub-command it is the engine's command line, without one the window opens."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest

from app import __main__ as program
from app.__main__ import main


@pytest.fixture(autouse=True)
def own_handler() -> Iterator[None]:
    """A program keeps Ctrl-C to itself until its end; the tests go on after it."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


def test_without_a_command_the_window_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    monkeypatch.setattr("sys.argv", ["baton"])
    monkeypatch.setattr(program, "_open_window", lambda: opened.append(True) or 0)
    assert main() == 0 and opened


def test_where_no_window_is_installed_it_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["baton"])
    monkeypatch.setitem(sys.modules, "PySide6", None)
    assert main() == 0
    printed = capsys.readouterr().out
    assert "pip install" in printed
    assert "usage: baton" in printed


def test_a_command_goes_to_the_engine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["baton", "models", "path", "smollm2-135m"])
    assert main() == 0
    assert capsys.readouterr().out.endswith("SmolLM2-135M-Instruct.Q4_1.gguf\n")
