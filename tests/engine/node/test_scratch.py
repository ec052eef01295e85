"""Folders for one run: private, gone with it, and those of killed processes gone with the next one's start."""

from __future__ import annotations

import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import DiskFull, HostError
from engine.node import scratch
from engine.node.scratch import private_folder

HOLDER = """
import sys
from pathlib import Path
from engine.node.scratch import private_folder
with private_folder("demo", Path(sys.argv[1])) as folder:
    (folder / "key.pem").write_text("secret")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


@pytest.fixture
def holder(home: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has a folder, and its folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert (folder / "key.pem").exists()
        yield process, folder
        process.kill()


def left_in(home: Path) -> set[str]:
    return {path.name for path in home.iterdir()} - {"lock"}


def test_a_folder_is_its_owner_s_alone_and_goes_with_its_context(home: Path) -> None:
    home.mkdir(mode=0o755)
    with private_folder("demo", home) as folder:
        assert stat.S_IMODE(home.stat().st_mode) == stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "inside").mkdir()
        (folder / "inside" / "file").touch()
    assert left_in(home) == set()


def test_a_killed_process_s_folder_goes_with_the_next_start(
    home: Path, holder: tuple[subprocess.Popen[str], Path]
) -> None:
    process, left = holder
    process.kill()
    process.wait(30)
    assert (left / "key.pem").exists()
    with private_folder("demo", home) as folder:
        assert left_in(home) == {folder.name, f"{folder.name}.lock"}


def test_a_living_process_s_folder_stays(home: Path, holder: tuple[subprocess.Popen[str], Path]) -> None:
    _, other = holder
    with private_folder("demo", home) as folder:
        assert (other / "key.pem").exists()
        assert folder != other
    assert left_in(home) == {other.name, f"{other.name}.lock"}


def test_many_starts_at_once_do_not_take_each_other_s(home: Path) -> None:
    losses: list[str] = []

    def run() -> None:
        for _ in range(5):
            with private_folder("demo", home) as folder:
                (folder / "key.pem").write_text("secret")
                if not (folder / "key.pem").exists():
                    losses.append(folder.name)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert losses == []
    assert left_in(home) == set()


def test_what_cannot_be_deleted_is_tried_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rmtree = scratch.shutil.rmtree
    monkeypatch.setattr(scratch.shutil, "rmtree", lambda *_, **__: None)
    with private_folder("demo", home) as left:
        pass
    assert left_in(home) == {left.name, f"{left.name}.lock"}
    monkeypatch.setattr(scratch.shutil, "rmtree", rmtree)
    with private_folder("demo", home):
        assert not left.exists()


def test_a_place_that_cannot_be_had_is_one_sentence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.write_text("a file")
    with (
        pytest.raises(HostError, match=r"scratch cannot be written .*check who owns"),
        private_folder("demo", home),
    ):
        pass
    home.unlink()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(scratch, "_clear_away", full)
    with pytest.raises(DiskFull, match="make room"), private_folder("demo", home):
        pass
