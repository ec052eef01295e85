"""The helper's command line, as the administrator runs it."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import pytest

from engine.cli import privileged
from engine.errors import UserError
from engine.link import privileged as helper
from engine.link.commands import run_command

pytestmark = pytest.mark.skipif(os.name != "posix", reason="folders of POSIX systems")


@pytest.fixture(autouse=True)
def as_before() -> object:
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


def test_tools_are_the_systems_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "uname"
    fake.write_text("#!/bin/sh\necho fake\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert run_command(["uname"]) == "fake\n"
    said: list[str] = []
    monkeypatch.setattr(helper, "main", lambda order, roots: said.append(run_command(["uname"])) or 0)
    assert privileged.run(argparse.Namespace(order="")) == 0
    assert said != ["fake\n"] and said[0].strip()


@pytest.mark.parametrize("order", ["ö", "a"])
def test_what_is_no_order_is_refused(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])
    with pytest.raises(UserError, match="no plan of Baton's"):
        privileged.run(argparse.Namespace(order=order))
