"""Starts the helper as administrator: one prompt of the system's own, or none where we are that already."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.errors import HostError, ProcessFailed, UserError
from engine.link.privileged import Order
from engine.paths import is_bundled, own_command

# A person types a password, and PowerShell starts a few times.
_TIMEOUT_S = 300.0

# Quotes every word for the one shell that macOS's dialog insists on; the words come as arguments, never as text. What
# the helper says comes back only where its status is 0.
_APPLESCRIPT = """\
on run words
  set line_ to ""
  repeat with word_ in words
    set line_ to line_ & quoted form of word_ & " "
  end repeat
  do shell script (line_ & "|| true") with administrator privileges without altering line endings
end run"""


@dataclass(frozen=True, kw_only=True)
class Session:
    """How this process may ask for the administrator."""

    system: str
    is_root: bool
    has_terminal: bool
    has_desktop: bool
    tools: frozenset[str]


def this_session() -> Session:
    return Session(
        system=sys.platform,
        is_root=hasattr(os, "geteuid") and os.geteuid() == 0,
        has_terminal=sys.stdin is not None and sys.stdin.isatty(),
        has_desktop=bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")),
        tools=frozenset(tool for tool in ("pkexec", "sudo") if shutil.which(tool)),
    )


def elevated(helper: Sequence[str], order: bytes, session: Session) -> tuple[list[str], bytes]:
    """The words to start, and what to give them on standard input. Raises UserError where there is no way to ask."""
    if session.is_root:
        return list(helper), order
    as_argument = ["--order", base64.urlsafe_b64encode(order).decode()]
    if session.system == "darwin":
        return ["osascript", "-e", _APPLESCRIPT, *helper, *as_argument], b""
    if session.system == "win32":
        words = ",".join(_quoted(f'"{word}"') for word in [*helper[1:], *as_argument])
        command = (
            f"exit (Start-Process -FilePath {_quoted(helper[0])} -ArgumentList {words} -Verb RunAs -WindowStyle Hidden "
            "-Wait -PassThru).ExitCode"
        )
        return ["powershell", "-NoProfile", "-NonInteractive", "-Command", command], b""
    if session.has_desktop and "pkexec" in session.tools:
        return ["pkexec", *helper], order
    if session.has_terminal and "sudo" in session.tools:
        return ["sudo", "--", *helper], order
    raise UserError(
        "changing the network needs the administrator, and there is no way to ask here: run the same command with sudo"
    )


def helper_command() -> list[str]:
    """The words that start the helper. Its Python heeds no variable and no module of the user's own (-I)."""
    program, *words = own_command()
    return [program, *([] if is_bundled() else ["-I"]), *words, "privileged"]


def run_helper(order: Order, say: Callable[[dict[str, Any]], None]) -> None:
    """Have the helper carry the order out; `say` gets each of its lines but the last. Raises HostError."""
    words, given = elevated(helper_command(), msgspec.json.encode(order), this_session())
    try:
        # Not where we are: a file there could be taken for a module of Python's, by the administrator.
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_top())
    except OSError as error:
        raise ProcessFailed(f"the helper could not be run: {error}") from error
    try:
        # Whatever ends our waiting does not end the helper: it does the whole plan, or none of it.
        said, _ = process.communicate(given, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise ProcessFailed(
            "nobody has allowed the change within five minutes: close the system's question where it is still open, "
            "then try again"
        ) from error
    finally:
        if process.stdout is not None:
            process.stdout.close()
    lines = [line for text in said.splitlines() if (line := _line(text)) is not None]
    for line in lines:
        if "error" in line:
            raise HostError(str(line["error"]))
        if "ok" not in line:
            say(line)
    if process.returncode != 0:
        raise HostError(
            "nothing was changed: the helper was not allowed to run as administrator, or could not. Allow it where the "
            "system asks, or run the same command as administrator"
        )


def _line(text: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _quoted(word: str) -> str:
    """For PowerShell; words that Start-Process makes a command line of need quotes of their own inside."""
    # It takes typographic quotes for quotes, too.
    return "'" + re.sub("(['\u2018\u2019\u201a\u201b])", r"\1\1", word) + "'"


def _top() -> str:
    return os.path.abspath(os.sep)
