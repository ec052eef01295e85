"""What tests of the node's processes share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engine.node import supervisor


@pytest.fixture
def child_script(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of Baton's own processes run the program `CHILD` of the test's file."""
    script = tmp_path / "child.py"
    script.write_text(request.module.CHILD)
    monkeypatch.setattr(supervisor, "own_command", lambda: [sys.executable, str(script)])
