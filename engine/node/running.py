"""Which engines run on this computer: each keeps a small note while it runs, and anyone can list them.

The note's file is locked by its process, so that a note left behind by a killed one is seen to be void.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from engine.paths import cache_dir


def notes_dir() -> Path:
    return cache_dir() / "running"


@contextlib.contextmanager
def announce(note: dict[str, Any], folder: Path | None = None) -> Iterator[None]:
    """Let others know of this process for as long as the context lasts; `note` is plain data."""
    path = (folder or notes_dir()) / f"{os.getpid()}.json"
    with contextlib.ExitStack() as written:
        # Who cannot be listed, because the disk is full or the folder is not his, can still work.
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = written.enter_context(path.open("wb", buffering=0))
            written.callback(path.unlink, missing_ok=True)
            _lock(file)
            file.write(json.dumps({**note, "pid": os.getpid()}).encode())
        yield


def list_running(folder: Path | None = None) -> list[dict[str, Any]]:
    """The notes of all that run, oldest first; void ones are removed."""
    notes = []
    for path in sorted((folder or notes_dir()).glob("*.json"), key=_age):
        try:
            with path.open("r+", encoding="utf-8") as file:
                if _lock(file):
                    path.unlink(missing_ok=True)
                    continue
                notes.append(json.load(file))
        except (OSError, ValueError):
            continue
    return notes


def _lock(file: IO[Any]) -> bool:
    """Whether the file is ours now; it stays so until it is closed."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
