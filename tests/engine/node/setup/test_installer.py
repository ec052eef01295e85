"""The installer's decisions: where Baton runs, where it goes, which Python it takes. test_setup_peer.py runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine.node.setup import installer
from engine.node.setup.installer import Plan, Refused, app_folder, find_python, system_fault
from tests.engine.node.setup.setup_room import small_archive, write_tool


@pytest.mark.parametrize(
    ("system", "machine", "libc", "words"),
    [
        ("Linux", "x86_64", "glibc", ""),
        ("Linux", "aarch64", "glibc", ""),
        ("Darwin", "arm64", "", ""),
        ("Windows", "AMD64", "", ""),
        ("Darwin", "x86_64", "", "Intel"),
        ("Linux", "x86_64", "", "glibc"),
        ("Linux", "armv7l", "glibc", "armv7l"),
        ("Windows", "ARM64", "", "arm64"),
        ("FreeBSD", "amd64", "", "none of the systems"),
    ],
)
def test_it_is_said_where_baton_does_not_run(system: str, machine: str, libc: str, words: str) -> None:
    fault = system_fault(system, machine, libc)
    assert words in fault and bool(fault) == bool(words)


@pytest.mark.parametrize(
    ("system", "environment", "folder"),
    [
        ("Linux", {"HOME": "/home/me"}, "/home/me/.local/share/baton/app"),
        ("Linux", {"HOME": "/home/me", "XDG_DATA_HOME": "/data"}, "/data/baton/app"),
        ("Darwin", {"HOME": "/Users/me"}, "/Users/me/Library/Application Support/baton/app"),
    ],
)
def test_everything_goes_into_one_folder(system: str, environment: dict[str, str], folder: str) -> None:
    assert app_folder(environment, system) == folder
    plan = Plan(folder, "baton-1-py3-none-any.whl", index="https://example.org/whl")
    for _, words in plan.describe("python3", service=True):
        assert all(word.startswith(folder) for word in words if "baton" in word and "/" in word)
    assert "--extra-index-url" in plan.install()
    assert plan.replace()[-2:] == ("--no-deps", f"{folder}/baton-1-py3-none-any.whl")


def test_a_newer_python_is_looked_for_where_ssh_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installer.sys, "version_info", (3, 9, 6))
    monkeypatch.setattr(installer, "_MORE_FOLDERS", (str(tmp_path),))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Refused, match=r"Python 3\.11 or newer is needed.*brew install"):
        find_python()
    write_tool(tmp_path / "python3.12", "#!/bin/sh\nexit 1\n")  # a shim with nothing behind it
    write_tool(tmp_path / "python3.13", "#!/bin/sh\necho 3 9\n")
    write_tool(tmp_path / "python3.11", "#!/bin/sh\necho 3 11\n")
    assert find_python() == str(tmp_path / "python3.11")


@pytest.mark.skipif(not shutil.which("df"), reason="no POSIX system")
def test_a_full_disk_is_told_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "baton-setup.pyz"
    archive.write_bytes(small_archive().data)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(installer.sys, "argv", [str(archive)])
    monkeypatch.setattr(installer, "_NEEDED_BYTES", 1 << 60)
    assert installer.main(["--json"]) == installer.EXIT_REFUSED
    assert "make room" in capsys.readouterr().out
    assert not list((tmp_path / "data").rglob("*.whl"))


@pytest.mark.parametrize("old", ["python3.8", "python3.9", "python3.10"])
def test_it_is_read_by_old_pythons(old: str, tmp_path: Path) -> None:
    """They have to get as far as saying which Python is needed, or finding it."""
    python = shutil.which(old)
    works = python and subprocess.run([python, "--version"], capture_output=True, check=False).returncode == 0
    if not works:
        pytest.skip(f"no {old}")
    archive = tmp_path / "baton-setup.pyz"
    archive.write_bytes(small_archive().data)
    environment = {"HOME": str(tmp_path), "PATH": str(Path(sys.executable).parent)}
    done = subprocess.run(
        [str(python), str(archive), "--dry-run"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "-m venv" in done.stdout


def install_into(environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    archive = tmp_path / "baton-setup.pyz"
    archive.write_bytes(small_archive().data)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(installer.sys, "argv", [str(archive)])
    return installer.main(["--json", "--into", str(environment)])


@pytest.mark.skipif(os.name != "posix", reason="the Python of this test is a shell script")
def test_somebodys_environment_without_pip_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = tmp_path / "theirs"
    (environment / "bin").mkdir(parents=True)
    write_tool(environment / "bin" / "python", "#!/bin/sh\nexit 1\n")
    (environment / "precious").write_text("all that is in it")
    assert install_into(environment, tmp_path, monkeypatch) == installer.EXIT_REFUSED
    assert "ensurepip" in capsys.readouterr().out
    assert (environment / "precious").read_text() == "all that is in it"


@pytest.mark.skipif(os.name != "posix", reason="the Python of this test is a shell script")
def test_what_is_in_one_environment_says_nothing_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "other"):
        (tmp_path / name / "bin").mkdir(parents=True)
        write_tool(tmp_path / name / "bin" / "python", '#!/bin/sh\necho "$@" >> "$0.calls"\n')
        assert install_into(tmp_path / name, tmp_path, monkeypatch) == 0
        assert "--force-reinstall" in (tmp_path / name / "bin" / "python.calls").read_text()
    capsys.readouterr()
    assert install_into(tmp_path / "one", tmp_path, monkeypatch) == 0
    assert "installed here already" in capsys.readouterr().out
