"""The journal of what `link tune` has changed: what was there before stands in it before anything is changed.

It is the helper's, and only the administrator may write it; everybody may read what would be undone.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from engine.errors import HostError
from engine.files import write_whole
from engine.link.tune import Before, Change, Profile, Sysctls, Way

_NAME = "link-tune.json"
_MAX_BYTES = 1 << 18


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A change, what was there before it, and how many of its steps have begun, of how many."""

    change: Change
    before: Before
    n_begun: int
    n_steps: int


class Journal:
    """Read whole at first, written whole each time and on the disk before `record` returns."""

    def __init__(self, folder: Path) -> None:
        """Raises HostError for a journal that cannot be read, or that somebody else may have written."""
        self._file = folder / _NAME
        self.entries: list[Entry] = []
        try:
            with self._file.open("rb") as opened:
                _check_owner(self._file, os.fstat(opened.fileno()))
                self.entries = msgspec.json.decode(opened.read(_MAX_BYTES), type=list[Entry])
        except FileNotFoundError:
            pass
        except (OSError, msgspec.DecodeError) as error:
            raise HostError(
                f"{self._file}, which says what to put back, cannot be read ({error}): put the settings back by hand "
                "and remove it"
            ) from error

    def record(self, entry: Entry) -> None:
        """The last entry is this one from now on, or one more is where the last is another change's."""
        if self.entries and self.entries[-1].change == entry.change:
            self.entries.pop()
        self.entries.append(entry)
        self._write()

    def drop(self, entry: Entry) -> None:
        self.entries.remove(entry)
        self._write()

    def _write(self) -> None:
        try:
            if not self.entries:
                self._file.unlink(missing_ok=True)
                return
            self._file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_whole(self._file, msgspec.json.format(msgspec.json.encode(self.entries)), synced=True)
            self._file.chmod(0o644)
        except OSError as error:
            raise HostError(
                f"{self._file} cannot be written ({error.strerror or error}), and without it nothing could be put "
                "back: nothing more was changed"
            ) from error


def is_in_the_way(journal: Journal, changes: Sequence[Change]) -> bool:
    """Whether what is in force has to be undone before these changes can be made.

    Those that a system forgets when it starts may be made once more, unless they were cut short.
    """
    again = [
        entry.change
        for entry in journal.entries
        if _is_forgotten(entry.change) and entry.n_begun == entry.n_steps
    ]
    return bool(journal.entries) and any(change not in again for change in changes)


def _is_forgotten(change: Change) -> bool:
    return isinstance(change, Sysctls) or (isinstance(change, Profile) and change.way is Way.IP)


def _check_owner(file: Path, found: os.stat_result) -> None:
    if sys.platform == "win32":
        return  # ProgramData's own rules keep others from changing an administrator's files
    if found.st_uid != 0 or stat.S_IMODE(found.st_mode) & 0o022:
        raise HostError(
            f"{file} could have been written by somebody else, and is not believed: look at it and remove it"
        )
