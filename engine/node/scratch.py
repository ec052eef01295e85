"""Folders for one run, for their owner alone: gone when the run is over, or at the next one where it was killed.

Each has a lock file beside it that its process holds for as long as it lives. Making and clearing away happen under one
more lock, so that no folder is ever seen before its own lock is held.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import filelock

from engine.errors import DiskFull, HostError
from engine.paths import scratch_dir

# Another process holds the common lock while it makes a folder, or deletes those of killed ones.
_LOCK_TIMEOUT_S = 10.0


@contextlib.contextmanager
def private_folder(purpose: str, home: Path | None = None) -> Iterator[Path]:
    """An empty folder that nobody else may read, in `home` or the user's cache; deleted at the end.

    Those that killed processes have left there are deleted first. Raises HostError.
    """
    home = home or scratch_dir()
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.chmod(0o700)
        with filelock.FileLock(home / "lock", timeout=_LOCK_TIMEOUT_S, mode=0o600):
            _clear_away(home)
            folder = home / f"{purpose}-{os.getpid()}-{secrets.token_hex(4)}"
            lock = filelock.FileLock(_lock_path(folder), timeout=0, mode=0o600)
            lock.acquire()
            folder.mkdir(mode=0o700)
    except filelock.Timeout as error:
        raise HostError(
            f"another process keeps {home} locked: end other starts of Baton, then try again"
        ) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"the disk that holds {home} is full: make room, then try again") from error
        raise HostError(
            f"{home} cannot be written ({error.strerror or error}): check who owns the folder, or set XDG_CACHE_HOME "
            "to another"
        ) from error
    try:
        yield folder
    finally:
        _delete(folder, lock)


def _clear_away(home: Path) -> None:
    """Delete the folders of processes that are gone."""
    for path in home.glob("*.lock"):
        lock = filelock.FileLock(path, timeout=0, mode=0o600)
        with contextlib.suppress(filelock.Timeout, OSError):
            lock.acquire()
            _delete(path.with_suffix(""), lock)


def _delete(folder: Path, lock: filelock.BaseFileLock) -> None:
    """Delete a folder and then its lock, which is held; what cannot be deleted keeps its lock file for the next run."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        if not folder.exists():
            _lock_path(folder).unlink(missing_ok=True)
    lock.release()


def _lock_path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")
