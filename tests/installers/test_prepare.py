"""`installers/prepare.sh` on computers that lack something: played with small stand-ins for the system's programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "installers" / "prepare.sh"

# A Python that knows its version and has, or lacks, the module venv.
PYTHON = """#!/bin/sh
case "$*" in
    *"< (3, 11)"*) exit {too_old} ;;
    *"import ensurepip"*) test -e "{folder}/has-venv" ;;
    *"%d.%d"*) echo 3.12 ;;
    --version) echo Python 3.12.1 ;;
    *"-m venv"*) mkdir -p "{folder}/made" ;;
esac
"""
APT = """#!/bin/sh
echo "$*" >> "{folder}/apt-log"
touch "{folder}/has-venv" "{folder}/has-library"
"""


class Computer:
    """A folder of programs that is all of PATH, and what the script did with them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        for program in ("sh", "sed", "tail", "touch", "mkdir", "cat"):
            os.symlink(shutil.which(program), self.bin / program)
        self.add("uname", "#!/bin/sh\necho Linux\n")

    def add(self, name: str, text: str, **values: object) -> None:
        path = self.bin / name
        path.write_text(text.format(folder=self.folder, **values) if values or "{" in text else text)
        path.chmod(0o755)

    def be(self, user_id: int) -> None:
        self.add("id", f"#!/bin/sh\necho {user_id}\n")

    def prepare(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.bin / "sh", SCRIPT, *words],
            cwd=self.folder,
            env={"PATH": str(self.bin)},
            capture_output=True,
            text=True,
            timeout=30,
        )

    @property
    def installed(self) -> str:
        log = self.folder / "apt-log"
        return log.read_text() if log.exists() else ""


@pytest.fixture
def computer(tmp_path: Path) -> Computer:
    return Computer(tmp_path)


def test_a_computer_that_has_it_all_gets_its_venv(computer: Computer) -> None:
    computer.add("python3", PYTHON, too_old=0)
    (computer.folder / "has-venv").touch()
    result = computer.prepare("venv")
    assert (result.returncode, result.stderr) == (0, "")
    assert (computer.folder / "made").is_dir()


def test_root_on_debian_gets_the_missing_module_installed(computer: Computer) -> None:
    computer.add("python3", PYTHON, too_old=0)
    computer.add("apt-get", APT)
    computer.be(0)
    result = computer.prepare("venv")
    assert result.returncode == 0, result.stderr
    assert "install -y -qq python3.12-venv" in computer.installed
    assert "installing python3.12-venv" in result.stdout
    assert (computer.folder / "made").is_dir()


def test_others_on_debian_are_told_what_to_type(computer: Computer) -> None:
    computer.add("python3", PYTHON, too_old=0)
    computer.add("apt-get", APT)
    computer.be(1000)
    result = computer.prepare("venv")
    assert result.returncode == 1
    assert "    sudo apt-get install python3.12-venv" in result.stderr
    assert not computer.installed


def test_elsewhere_the_missing_thing_is_named(computer: Computer) -> None:
    computer.add("python3", PYTHON, too_old=0)
    result = computer.prepare("venv")
    assert result.returncode == 1
    assert "Python's venv module is missing" in result.stderr


def test_on_macos_the_command_is_homebrews(computer: Computer) -> None:
    computer.add("uname", "#!/bin/sh\necho Darwin\n")
    result = computer.prepare("venv")
    assert result.returncode == 1
    assert "    brew install python@" in result.stderr


def test_an_old_python_is_passed_over_for_a_newer_one(computer: Computer) -> None:
    computer.add("python3", PYTHON, too_old=1)
    computer.add("python3.12", PYTHON, too_old=0)
    (computer.folder / "has-venv").touch()
    assert computer.prepare("venv").returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the loader's words are Linux's")
@pytest.mark.parametrize(
    ("library", "package"),
    [("libgomp.so.1", "libgomp1"), ("libstdc++.so.6", "libstdc++6"), ("libodd.so.3", None)],
)
def test_a_missing_library_is_installed_or_named(
    computer: Computer, library: str, package: str | None
) -> None:
    (computer.folder / ".venv" / "bin").mkdir(parents=True)
    complaint = f"ImportError: {library}: cannot open shared object file: No such file or directory"
    loader = f'#!/bin/sh\ntest -e "{computer.folder}/has-library" && exit\necho "Traceback:\n{complaint}" >&2\nexit 1\n'
    python = computer.folder / ".venv" / "bin" / "python"
    python.write_text(loader)
    python.chmod(0o755)
    computer.add("apt-get", APT)
    computer.be(0)
    result = computer.prepare("libraries")
    if package is None:
        assert result.returncode == 1
        assert f"The system library {library} is missing" in result.stderr
    else:
        assert result.returncode == 0, result.stderr
        assert f"install -y -qq {package}" in computer.installed
