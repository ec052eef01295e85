"""What every kind of service starts, and how the system's tools are run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engine.errors import HostError, UserError
from engine.node.system.service import Program, must_run, other_program_note, run_tool
from engine.paths import own_command


def test_a_service_starts_this_very_baton_where_its_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = Program.own(
        {"BATON_MODELS": "models", "BATON_API_KEY": "secret", "PATH": "/bin", "HOME": "/home/ada"}
    )
    assert program.words == (*own_command(), "node")
    assert program.environment == {"PYTHONSAFEPATH": "1", "BATON_MODELS": str(tmp_path / "models")}


def test_what_no_unit_can_say_is_refused() -> None:
    Program(words=("/opt/größer/a b",), environment={}).check()
    with pytest.raises(UserError, match="rename its folder"):
        Program(words=("/opt/a\nExecStart=b",), environment={}).check()
    with pytest.raises(UserError):
        Program(words=("/opt/b",), environment={"BATON_MODELS": "a\rb"}).check()


def test_tools_that_fail_and_tools_that_are_missing() -> None:
    done = run_tool(
        [sys.executable, "-c", "import sys; print('a'); print('b', file=sys.stderr); sys.exit(3)"]
    )
    assert (done.status, done.output.strip(), done.complaint) == (3, "a", "b")
    assert "not on this computer" in run_tool(["no-such-tool-of-batons"]).complaint
    with pytest.raises(HostError, match=r"`no-such-tool-of-batons x` failed: no-such-tool"):
        must_run(run_tool, ["no-such-tool-of-batons", "x"])


def test_a_service_of_another_baton_is_told() -> None:
    assert other_program_note((), ("a",)) == other_program_note(("a", "b"), ("a", "b")) == []
    assert other_program_note(("a", "b", "--keyring", "never"), ("a", "b")) == []
    assert "not there any more" in other_program_note(("/no/such", "b"), ("a", "b"))[0]
    assert "not there any more" not in other_program_note((sys.executable,), ("a",))[0]
