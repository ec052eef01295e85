"""Logs that rotate, that only their owner reads, and that never stand in anybody's way."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.log_lines import MAX_LINE_CHARACTERS
from engine.node.reporting.logs import (
    KEPT_LINES,
    MAX_LOG_BYTES,
    RotatingLog,
    engine_log,
    read_tail,
)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RotatingLog]:
    log = RotatingLog(tmp_path / "logs" / "decode.log", max_bytes=200, n_older=2)
    yield log
    log.close()


def test_a_log_rotates_and_keeps_no_more_than_it_may(log: RotatingLog, tmp_path: Path) -> None:
    for number in range(100):
        log.write(f"line {number}\n")
    files = sorted((tmp_path / "logs").iterdir())
    assert [file.name for file in files] == ["decode.log", "decode.log.1", "decode.log.2"]
    assert all(file.stat().st_size <= 200 for file in files)
    kept = "".join(file.read_text() for file in reversed(files)).splitlines()
    assert kept == [f"line {number}" for number in range(100 - len(kept), 100)]
    assert len(kept) > 40


@pytest.mark.skipif(os.name != "posix", reason="files have no such modes here")
def test_only_its_owner_reads_it(log: RotatingLog, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        for number in range(100):
            log.write(f"line {number}")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "logs").iterdir()}
    assert modes == {0o600}


def test_the_log_of_an_engine_is_in_its_folder_whatever_the_model_is_called(tmp_path: Path) -> None:
    assert engine_log(tmp_path, "serve", "qwen2.5-coder-0.5b") == tmp_path / "serve-qwen2.5-coder-0.5b.log"
    names = ["../../evil", "..", "a/b", "a\\b", "a_b", "C:x", "a\nb", "x" * 1000, "\udcff", "größer", ""]
    files = [engine_log(tmp_path, "worker", name) for name in names]
    assert len(set(files)) == len(names)
    for file in files:
        assert file.parent == tmp_path and len(file.name) < 200 and file.name.isascii()
        log = RotatingLog(file)
        log.write("one")
        log.close()
        assert file.read_text() == "one\n"
    assert len(list(tmp_path.iterdir())) == len(names)


def test_the_last_lines_are_at_hand(log: RotatingLog) -> None:
    assert log.tail(5) == []
    for number in range(KEPT_LINES + 10):
        log.write(f"line {number}\n")
    assert log.tail(2) == [f"line {KEPT_LINES + 8}", f"line {KEPT_LINES + 9}"]
    assert log.tail(0) == []
    assert len(log.tail(10 * KEPT_LINES)) == KEPT_LINES


def test_a_line_stays_one_line(log: RotatingLog, tmp_path: Path) -> None:
    log.write("100% of it\rnot\x1b[2J this\n")
    log.write("größer, 大きい\n")
    log.write("x" * 10 * MAX_LINE_CHARACTERS)
    assert log.tail(3) == ["100% of it\\rnot\\x1b[2J this", "größer, 大きい", "x" * MAX_LINE_CHARACTERS]
    newest = (tmp_path / "logs" / "decode.log").read_text(encoding="utf-8")
    assert newest == "x" * MAX_LINE_CHARACTERS + "\n"


def test_a_log_that_cannot_be_written_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no folder")
    log = RotatingLog(tmp_path / "file" / "decode.log")
    log.write("one")
    assert log.tail(1) == ["one"]
    log.close()
    if Path("/dev/full").exists():
        full = RotatingLog(Path("/dev/full"))
        full.write("two")
        assert full.tail(1) == ["two"]
        full.close()
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(os.name != "posix", reason="no limit on the size of files here")
def test_a_log_goes_on_once_there_is_room_again(tmp_path: Path) -> None:
    import resource

    log = RotatingLog(tmp_path / "decode.log", max_bytes=300)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        for number in range(100):
            log.write(f"no room for line {number}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    log.write("there is room")
    log.close()
    # and what could not be written was not hoarded
    text = (tmp_path / "decode.log").read_text()
    assert text.endswith("there is room\n") and len(text) <= 100 + len("there is room\n")


def test_many_threads_may_write(log: RotatingLog, tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "all.log")
    threads = [
        threading.Thread(target=lambda name=name: [log.write(f"{name} {number}") for number in range(50)])
        for name in "abcd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    lines = (tmp_path / "all.log").read_text().splitlines()
    assert sorted(lines) == sorted(f"{name} {number}" for name in "abcd" for number in range(50))


def test_standard_error_is_emptied_only_where_it_is_that_file_and_large(tmp_path: Path) -> None:
    code = (
        "import logging, sys, pathlib; from engine.node.reporting.logs import TrimmedStderr; "
        "log = TrimmedStderr(pathlib.Path('no such file'), pathlib.Path(sys.argv[1])); "
        "log.handle(logging.makeLogRecord({'msg': 'line'}))"
    )
    for size, other, left in (
        (MAX_LOG_BYTES + 1, False, 0),
        (MAX_LOG_BYTES, False, None),
        (MAX_LOG_BYTES + 1, True, None),
    ):
        mine, named = tmp_path / "service.log", tmp_path / ("other.log" if other else "service.log")
        for path in (mine, named):
            path.write_bytes(b"x" * size)
        with mine.open("ab") as stderr:
            subprocess.run([sys.executable, "-c", code, str(named)], stderr=stderr, check=True)
        told = len("line\n")
        assert mine.stat().st_size == told + (size if left is None else left)
        assert not other or named.stat().st_size == size


def test_standard_error_stays_small_while_it_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    code = (
        "import logging, sys, pathlib\nfrom engine.node.reporting import logs\nlogs.MAX_LOG_BYTES = 100\n"
        "logging.getLogger().addHandler(logs.TrimmedStderr(pathlib.Path(sys.argv[1])))\n"
        "for number in range(12): logging.warning('line %d ' + 20 * 'x', number)"
    )
    with path.open("wb") as stderr:  # as the installer opens it: what is written next goes where it was
        subprocess.run([sys.executable, "-c", code, str(path)], stderr=stderr, check=True)
    lines = path.read_text().splitlines()
    assert lines[-1] == f"line 11 {20 * 'x'}" and 0 < len(lines) < 5
    assert not any("\0" in line for line in lines)


def test_the_end_of_a_log_has_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(1000)) + b"not \xff text\n")
    tail = read_tail(path, 100)
    assert tail.splitlines()[-2:] == ["line 999", "not \\xff text"]
    assert len(tail) <= 104 and tail.startswith("line ")
    assert read_tail(path, 1 << 20).startswith("line 0\n")
