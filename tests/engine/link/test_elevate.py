"""How the administrator is asked for: words as data, for each kind of session."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.errors import HostError, ProcessFailed, UserError
from engine.link import elevate
from engine.link.elevate import Session, elevated, run_helper
from engine.link.privileged import Order

HELPER = ["/opt/Baton It/baton", "privileged"]
ORDER = b'{"action":"undo"}'
ENCODED = base64.urlsafe_b64encode(ORDER).decode()


def session(**rest: Any) -> Session:
    return Session(
        **{
            "system": "linux",
            "is_root": False,
            "has_terminal": True,
            "has_desktop": True,
            "tools": frozenset({"pkexec", "sudo"}),
            **rest,
        }
    )


def test_nobody_is_asked_where_we_are_root_already() -> None:
    assert elevated(HELPER, ORDER, session(is_root=True)) == (HELPER, ORDER)


def test_a_desktop_asks_in_a_window_and_a_terminal_in_the_terminal() -> None:
    assert elevated(HELPER, ORDER, session()) == (["pkexec", *HELPER], ORDER)
    assert elevated(HELPER, ORDER, session(has_desktop=False)) == (["sudo", "--", *HELPER], ORDER)
    assert elevated(HELPER, ORDER, session(tools=frozenset({"sudo"}))) == (["sudo", "--", *HELPER], ORDER)


@pytest.mark.parametrize(
    "rest", [{"has_desktop": False, "has_terminal": False}, {"tools": frozenset()}], ids=["nobody", "no tool"]
)
def test_where_nobody_can_be_asked_that_is_said(rest: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="sudo"):
        elevated(HELPER, ORDER, session(**rest))


def test_macos_quotes_every_word_itself() -> None:
    words, given = elevated(HELPER, ORDER, session(system="darwin"))
    assert words[:2] == ["osascript", "-e"] and given == b""
    assert "quoted form of" in words[2] and "|| true" in words[2] and "administrator privileges" in words[2]
    assert words[3:] == [*HELPER, "--order", ENCODED]
    assert not any(word in words[2] for word in (*HELPER, ENCODED))


def test_windows_starts_it_as_administrator_and_waits() -> None:
    words, given = elevated(HELPER, ORDER, session(system="win32"))
    assert words[0] == "powershell" and given == b""
    assert "-Verb RunAs" in words[-1] and "-Wait" in words[-1] and ".ExitCode" in words[-1]
    assert "-FilePath '/opt/Baton It/baton'" in words[-1]
    assert f"""'"privileged"','"--order"','"{ENCODED}"'""" in words[-1]


def test_a_quote_in_a_path_ends_no_word_of_powershells() -> None:
    words, _ = elevated(["C:\\O'Neil\u2019s\\baton.exe", "privileged"], ORDER, session(system="win32"))
    assert "-FilePath 'C:\\O''Neil\u2019\u2019s\\baton.exe' " in words[-1]


def test_the_helpers_python_heeds_nothing_of_the_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit('a module of the user was run')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = subprocess.run(
        [*elevate.helper_command(), "--order", "ö"], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert "this is no plan of Baton's" in done.stderr and done.returncode == 2
    monkeypatch.setattr(elevate, "is_bundled", lambda: True)
    monkeypatch.setattr(elevate, "own_command", lambda: ["/opt/baton"])
    assert elevate.helper_command() == ["/opt/baton", "privileged"]


@pytest.fixture
def helper(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Plays the helper by a few lines of Python."""
    monkeypatch.setattr(elevate, "this_session", lambda: session(is_root=True))

    def play(code: str) -> None:
        monkeypatch.setattr(elevate, "own_command", lambda: [sys.executable, "-c", code])

    return play


def test_the_helper_gets_the_order_and_its_lines_are_heard(helper: Any) -> None:
    helper(
        "import json, os, sys\n"
        "print(json.dumps({'done': sys.stdin.read()}))\n"
        "print('noise of a system')\n"
        "print(json.dumps({'done': os.getcwd()}))\n"
        "print(json.dumps({'ok': True}))\n"
    )
    lines: list[dict[str, Any]] = []
    run_helper(Order(action="undo"), lines.append)
    assert lines == [{"done": '{"action":"undo","changes":[]}'}, {"done": "/"}]


def test_what_the_helper_says_went_wrong_is_told(helper: Any) -> None:
    helper('print(\'{"error": "the cable is gone"}\'); raise SystemExit(1)')
    with pytest.raises(HostError, match="the cable is gone"):
        run_helper(Order(action="undo"), lambda line: None)


def test_a_helper_that_nobody_allowed_changed_nothing(helper: Any) -> None:
    helper("raise SystemExit(126)")
    with pytest.raises(HostError, match="not allowed"):
        run_helper(Order(action="undo"), lambda line: None)


def test_a_helper_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elevate, "this_session", lambda: session(is_root=True))
    monkeypatch.setattr(elevate, "own_command", lambda: ["/nowhere/baton"])
    with pytest.raises(ProcessFailed):
        run_helper(Order(action="undo"), lambda line: None)
