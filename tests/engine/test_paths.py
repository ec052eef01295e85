"""Folders, and how Baton starts itself again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine import paths


def test_models_are_in_the_cache_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BATON_MODELS", raising=False)
    assert paths.models_dir() == paths.cache_dir() / "models"
    monkeypatch.setenv("BATON_MODELS", "~/elsewhere")
    assert paths.models_dir() == Path.home() / "elsewhere"


def test_all_folders_are_baton_s_own() -> None:
    for folder in (paths.cache_dir(), paths.config_dir(), paths.data_dir(), paths.log_dir()):
        assert "baton" in folder.parts


@pytest.mark.usefixtures("cold_starts")
def test_own_command_starts_the_command_line() -> None:
    result = subprocess.run(
        [*paths.own_command(), "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.startswith("baton ")


@pytest.mark.usefixtures("cold_starts")
def test_files_where_it_is_started_are_no_modules_of_it(tmp_path: Path) -> None:
    for module in ("engine", "json", "numpy"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('planted')")
    result = subprocess.run(
        [*paths.own_command(), "models", "list", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_in_a_bundle_the_executable_needs_no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/Applications/Baton.app/Contents/MacOS/Baton")
    assert paths.own_command() == ["/Applications/Baton.app/Contents/MacOS/Baton"]


@pytest.mark.parametrize(
    ("chosen", "folder"),
    [("/elsewhere", "/elsewhere"), ("elsewhere", None), (7, None), ("~nobody-of-that-name/x", None)],
)
def test_the_models_lie_where_the_settings_have_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chosen: object, folder: str | None
) -> None:
    monkeypatch.setattr(paths, "config_dir", lambda: tmp_path)
    monkeypatch.delenv("BATON_MODELS", raising=False)
    paths.settings_file().write_text(json.dumps({"models": chosen}))
    assert paths.models_dir() == (Path(folder) if folder else paths.cache_dir() / "models")
    monkeypatch.setenv("BATON_MODELS", "/first")
    assert paths.models_dir() == Path("/first")
