"""How the system's own tools are run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.errors import HostError
from engine.link.commands import run_command

posix = pytest.mark.skipif(os.name != "posix", reason="the tools of these tests are shell scripts")


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def write_tool(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@posix
def test_a_tool_answers_in_plain_english(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked for in its answers are words."""
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    write_tool(tools / "nmcli", 'test "$LC_ALL" = C && echo running || echo läuft')
    assert run_command(["nmcli"]) == "running\n"


@posix
def test_what_a_tool_complains_of_is_told(tools: Path) -> None:
    write_tool(tools / "nmcli", "echo no such device >&2; exit 4")
    with pytest.raises(HostError, match="`nmcli up` failed: no such device"):
        run_command(["nmcli", "up"])
    with pytest.raises(HostError, match="`no-such-tool-of-batons` is not installed"):
        run_command(["no-such-tool-of-batons"])
