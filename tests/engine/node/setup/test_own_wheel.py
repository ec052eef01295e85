"""The wheel of this very installation: always the same, installable, and with all that runs here."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import engine
import resources
from engine.errors import HostError
from engine.node.setup import own_wheel
from engine.node.setup.installer import CONSTRAINTS
from engine.node.setup.own_wheel import make_archive


def names(data: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(data)).namelist()


def test_the_same_files_make_the_same_archive() -> None:
    archive = make_archive()
    assert archive.sha256 == make_archive().sha256
    assert archive.version == version("baton")
    assert names(archive.data) == ["__main__.py", CONSTRAINTS, archive.wheel_name]


def test_its_wheel_is_installed_by_pip_and_runs(tmp_path: Path) -> None:
    archive = make_archive()
    zipfile.ZipFile(io.BytesIO(archive.data)).extract(archive.wheel_name, tmp_path)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile"]
    target = tmp_path / "target"
    subprocess.run([*pip, "--target", str(target), str(tmp_path / archive.wheel_name)], check=True)
    for package in (engine, resources):
        root = Path(package.__path__[0])
        files = {path.relative_to(root) for path in root.rglob("*") if "__pycache__" not in path.parts}
        assert {path.relative_to(target / root.name) for path in (target / root.name).rglob("*")} == files
    code = (
        "import engine, sys; from engine.cli.main import main; print(engine.__path__[0]); main(['--version'])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(target)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.splitlines() == [str(target / "engine"), f"baton {version('baton')}"]


def test_versions_are_those_of_here_without_the_tools_of_development() -> None:
    constraints = zipfile.ZipFile(io.BytesIO(make_archive().data)).read(CONSTRAINTS).decode().splitlines()
    assert f"numpy=={version('numpy')}" in constraints
    assert f"torch=={version('torch').partition('+')[0]}" in constraints
    assert f"h11=={version('h11')}" in constraints  # of uvicorn's
    assert not [line for line in constraints if line.startswith(("pytest", "mypy", "baton"))]
    assert not [line for line in constraints if "+" in line]


def test_what_was_not_installed_cannot_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_wheel, "_PROJECT", "no-such-project-of-anybody")
    with pytest.raises(HostError, match="not installed as a package"):
        make_archive()
