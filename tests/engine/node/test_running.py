"""The list of running engines: notes of the living, none of the dead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.node.running import announce, list_running

ANNOUNCE = """
import sys
from pathlib import Path
from engine.node.running import announce
with announce({"role": "worker"}, Path(sys.argv[1])):
    print("announced", flush=True)
    sys.stdin.read()
"""


def start_announcer(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", ANNOUNCE, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "announced\n"
    return process


def test_a_note_lasts_as_long_as_its_context(tmp_path: Path) -> None:
    with start_announcer(tmp_path) as process:
        assert list_running(tmp_path) == [{"role": "worker", "pid": process.pid}]
    assert list_running(tmp_path) == []


def test_the_note_of_a_killed_process_is_void_and_removed(tmp_path: Path) -> None:
    with start_announcer(tmp_path) as process:
        process.kill()
        process.wait(10)
        assert len(list(tmp_path.iterdir())) == 1
        assert list_running(tmp_path) == []
        assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with announce({"role": "serve"}, tmp_path / "file" / "notes"):
        pass
    assert list_running(tmp_path / "file" / "notes") == []


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
def test_a_disk_without_room_does_no_harm(tmp_path: Path) -> None:
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n{ANNOUNCE}"
    ended = subprocess.run(
        [sys.executable, "-c", limited, str(tmp_path)], input="", capture_output=True, text=True, timeout=30
    )
    assert (ended.returncode, ended.stdout) == (0, "announced\n"), ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_note_is_passed_over(tmp_path: Path) -> None:
    with announce({"role": "serve"}, tmp_path):
        (tmp_path / f"{os.getpid()}.json").write_text("{")
        assert list_running(tmp_path) == []
