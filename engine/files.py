"""Paths that a user names: where they lead, and why one is no file that can be read. And writing files whole."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path

from engine.errors import DiskFull, HostError, UserError

NO_SUCH_FILE = "no such file"

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def user_path(text: str) -> Path:
    """The path with its ~ replaced; raises UserError where that names nobody."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UserError(f"{text}: the home folder of {text.partition('/')[0]} is not known here") from None


def file_fault(path: Path, *, wanted: str) -> str:
    """What keeps `path` from being read as a file, which was to be `wanted`; nothing where nothing does."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            return f"this is a link to {os.readlink(path)}, which is not there"
        return NO_SUCH_FILE
    except OSError as error:
        return f"it cannot be looked at ({error.strerror})"
    if not stat.S_ISREG(mode):
        return f"this is {_KINDS.get(stat.S_IFMT(mode), 'no file')}, and {wanted} is needed"
    if not os.access(path, os.R_OK):
        return "it may not be read: check its permissions"
    return ""


def folder_fault(path: Path) -> str:
    """Why nobody can know what is in the folder `path`; nothing where that can be known, or where it is still to be."""
    try:
        with os.scandir(path):
            return ""
    except FileNotFoundError:
        return ""
    except NotADirectoryError:
        return "this is a file, and a folder is needed"
    except PermissionError:
        return "it may not be read: check its permissions"
    except OSError as error:
        return f"it cannot be looked into ({error.strerror or error})"


def keeping_fault(folder: Path) -> str:
    """Why nobody can keep a file in `folder`, or make that where it is still to be; nothing where one can."""
    for place in (folder, *folder.parents):
        try:
            mode = place.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return f"it cannot be looked at ({error.strerror or error})"
        if not stat.S_ISDIR(mode):
            return f"{'this' if place == folder else place} is a file, and a folder is needed"
        if os.access(place, os.W_OK | os.X_OK):
            return ""
        cannot = (
            "nothing may be written into it"
            if place == folder
            else f"it cannot be made in {place}, where nothing may be written"
        )
        return f"{cannot}: check its permissions"
    return "there is no such disk"


def file_error(what: str, error: OSError) -> HostError:
    """What to raise where a file of Baton's own, which is `what`, cannot be read or written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"{what} cannot be written: the disk is full; make room, and try again")
    return HostError(
        f"{what} cannot be read or written: {error.strerror or error}; check who owns the folder and its files"
    )


def private_opener(path: str, flags: int) -> int:
    """For `open`: a file that is made is for its owner alone."""
    return os.open(path, flags, 0o600)


def write_whole(path: Path, data: bytes, *, synced: bool = False) -> None:
    """Write `path` whole or not at all, for its owner alone; with `synced` it is on the disk afterwards.

    Its folder has to be there. Raises OSError.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
