"""The program `baton`: with a sub-command it is the engine's command line, without one the window opens."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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


@pytest.mark.skipif(sys.platform == "win32", reason="has no such signal")
def test_a_signal_ends_the_window_though_nothing_happens_in_it(tmp_path: Path) -> None:
    written = """
import sys
from pathlib import Path
from PySide6.QtCore import QTimer
from app import main
from app.window import MainWindow
# a node is there, of which closing the window would ask what is to become of it
main.App._choose = lambda self: print("asked", flush=True)
shown = MainWindow.showEvent
def tell(self, event):
    shown(self, event)
    QTimer.singleShot(0, lambda: print("shown", flush=True))
MainWindow.showEvent = tell
folder = Path(sys.argv[1])
host = main.Host(find=lambda: None, command=("true",), config=folder, data=folder)
sys.exit(main.run(host))
"""
    with subprocess.Popen(
        [sys.executable, "-c", written, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
    ) as window:
        assert window.stdout is not None and window.stdout.readline() == "shown\n"
        window.send_signal(signal.SIGTERM)
        assert window.stdout.read() == ""
        assert window.wait(60) == 0
