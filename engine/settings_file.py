"""The file of a user's settings: an object of JSON, written whole and for its owner alone.

It knows no setting: which there are, and what they may be, is said in engine/config.py. What it does not know it keeps.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import DiskFull, HostError
from engine.files import NO_SUCH_FILE, file_fault, write_whole

# Many times what all settings take.
_MAX_BYTES = 1 << 16


class SettingsFile:
    """Values by the settings' names, as JSON has them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[dict[str, Any], str]:
        """What it holds; and a sentence where that is nothing because it cannot be read or understood."""
        fault = file_fault(self.path, wanted="the file of the settings")
        if fault == NO_SUCH_FILE:
            return {}, ""
        if fault:
            return {}, f"the settings in {self.path} are not followed: {fault}"
        try:
            with self.path.open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
            if len(data) > _MAX_BYTES:
                return {}, f"the settings in {self.path} are not followed: the file is far too large"
            return msgspec.json.decode(data, type=dict[str, Any]), ""
        except OSError as error:
            return {}, f"the settings in {self.path} are not followed: {error.strerror or error}"
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
            return {}, (
                f"the settings in {self.path} are not followed, as the file is damaged: mend it, or set them again "
                "(baton config), which keeps the damaged one beside"
            )

    def change(self, changes: Mapping[str, Any]) -> None:
        """Set values, and take out those that are None. What cannot be read is kept beside. Raises HostError."""
        kept, fault = self.read()
        values = {name: value for name, value in {**kept, **changes}.items() if value is not None}
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if fault:
                os.replace(self.path, self._free_place_beside())
            write_whole(self.path, msgspec.json.format(msgspec.json.encode(values)) + b"\n", synced=True)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(
                    f"{self.path} cannot be written: the disk is full; make room, and try again"
                ) from error
            raise HostError(
                f"{self.path} cannot be written ({error.strerror or error}): check who owns the folder and its files"
            ) from error

    def _free_place_beside(self) -> Path:
        beside = self.path.with_name(f"{self.path.name}.damaged")
        number = 1
        while beside.exists():
            number += 1
            beside = self.path.with_name(f"{self.path.name}.damaged-{number}")
        return beside
