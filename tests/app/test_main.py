"""The program `baton`: with a sub-command it is the engine's command line, without one it owns up to have no window."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from app.__main__ import main


@pytest.fixture(autouse=True)
def own_handler() -> Iterator[None]:
    """A program keeps Ctrl-C to itself until its end; the tests go on after it."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


def test_without_a_command_it_says_that_there_is_no_window_yet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["baton"])
    assert main() == 0
    printed = capsys.readouterr().out
    assert "not built yet" in printed
    assert "usage: baton" in printed


def test_a_command_goes_to_the_engine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["baton", "models", "path", "smollm2-135m"])
    assert main() == 0
    assert capsys.readouterr().out.endswith("SmolLM2-135M-Instruct.Q4_1.gguf\n")
