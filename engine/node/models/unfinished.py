"""Model files that are not whole: what an interrupted download, copy or import has left among the models.

A download or a copy goes on with its own; what nobody has gone on with for weeks is cleared. Whoever fetches a file
holds its lock meanwhile, and nothing of it is touched then.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from engine.errors import ModelFileError, UserError
from engine.files import file_error
from engine.gguf.reader import part_paths
from engine.node.models.catalogue import model_id_of
from engine.node.models.library import ORIGIN

# A download that waits for a better connection, or for its user's holidays to end, is gone on with by then.
KEPT_S = 28 * 24 * 3600.0

# As long as a file's name on the hub may be.
_MAX_SOURCE = 512

# As `partial_path` calls it, with the note of its pieces, and the folder in which the next piece comes; an import's.
_LEFT = re.compile(r"\.?(?P<file>.+)\.[0-9a-f]{12}\.partial(\.\w+)?|\.(?P<imported>.+)\.partial")


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """What is here of one file. `file` is the name that it is to have; `touched_s` is when it grew last.

    `source` is OWNER/REPO/FILE where it comes from the hub.
    """

    file: str
    paths: tuple[Path, ...]
    size_bytes: int
    touched_s: float
    source: str = ""

    @property
    def model_id(self) -> str:
        return model_id_of(Path(self.file))

    def told(self) -> dict[str, Any]:
        return {
            "id": self.model_id,
            "file": self.file,
            "size_bytes": self.size_bytes,
            "touched": self.touched_s,
            "source": self.source,
        }


def find_unfinished(folder: Path) -> tuple[Unfinished, ...]:
    """All there is, by the names of files."""
    left: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.partial*")) + sorted(folder.glob(".*.partial*")):
        if found := _LEFT.fullmatch(path.name):
            left.setdefault(found["file"] or found["imported"], []).append(path)
    looked_at = (_looked_at(file, tuple(dict.fromkeys(paths))) for file, paths in sorted(left.items()))
    return tuple(each for each in looked_at if each is not None)


def named_unfinished(folder: Path, text: str) -> tuple[Unfinished, ...]:
    """Of the model with that id, or of the file of that name; none where nothing is left of it."""
    return tuple(each for each in find_unfinished(folder) if text in (each.model_id, each.file))


def clear_unfinished(folder: Path, unfinished: Unfinished) -> None:
    """Delete it. Raises UserError while somebody fetches the file, or HostError."""
    try:
        with _nobody_fetches(folder, unfinished.file):
            for path in unfinished.paths:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
    except filelock.Timeout as error:
        raise UserError(
            f"{unfinished.file} is being fetched just now: end that first, or wait until it is done"
        ) from error
    except OSError as error:
        raise file_error(f"what is left of {unfinished.file} in {folder}", error) from error


def find_old(folder: Path, *, now_s: float | None = None) -> tuple[Unfinished, ...]:
    """What nobody has gone on with for weeks."""
    until_s = (time.time() if now_s is None else now_s) - KEPT_S
    return tuple(each for each in find_unfinished(folder) if each.touched_s < until_s)


def _looked_at(file: str, paths: tuple[Path, ...]) -> Unfinished | None:
    """None where it has been finished just now."""
    found = []
    source = ""
    for path in paths:
        with contextlib.suppress(OSError, UnicodeError):
            if path.suffix == ORIGIN:
                source = path.read_text("utf-8")[:_MAX_SOURCE]
            else:
                found.append(path.lstat())
    if not found:
        return None
    return Unfinished(
        file=file,
        paths=paths,
        size_bytes=sum(each.st_size for each in found),
        touched_s=max(each.st_mtime for each in found),
        source=source,
    )


@contextlib.contextmanager
def _nobody_fetches(folder: Path, file: str) -> Iterator[None]:
    """Hold the locks of a file, and of the one that stands for its model. Raises filelock.Timeout."""
    names = [file]
    with contextlib.suppress(ModelFileError):
        names.append(next(iter(part_paths(Path(file)))).name)
    with contextlib.ExitStack() as locks:
        for name in dict.fromkeys(names):
            locks.enter_context(filelock.FileLock(folder / f"{name}.lock", timeout=0))
        yield
