"""Baton's own commands as processes of the window."""

from __future__ import annotations

import asyncio
import sys

import pytest

from app.node.command import CommandFailed, run_baton

PYTHON = (sys.executable, "-c")


def run(program: str, good: tuple[int, ...] = (0,)) -> str:
    return asyncio.run(run_baton(PYTHON, program, good=good))


def test_what_it_prints_comes_back() -> None:
    assert run("print('{}')").strip() == "{}"
    assert run("print('not running'); raise SystemExit(1)", good=(0, 1)).strip() == "not running"


def test_a_failure_is_told_in_its_own_last_words() -> None:
    program = "import sys; print('a note', file=sys.stderr); sys.exit('baton: it cannot be done')"
    with pytest.raises(CommandFailed, match=r"^It cannot be done$"):
        run(program)
    with pytest.raises(CommandFailed, match="could not start"):
        asyncio.run(run_baton(("/no/such/program",), "report"))
