"""The logs of the node and of its engines: files in the user's log folder that rotate, for their owner alone.

A log may fail to be written, on a full disk say, and that ends nothing. It knows nothing of who writes into it; callers
see to it that no prompt, answer, key or token comes here.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import logging.handlers
import os
import re
import sys
from collections import deque
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO, cast

from engine.files import private_opener
from engine.log_lines import one_line

# Each log is at most so large, with so many older ones beside it: weeks of an ordinary node.
MAX_LOG_BYTES = 2 << 20
OLDER_LOGS = 2

# What file systems take, less what comes before and after it.
_MAX_NAME_CHARACTERS = 150

# Called with where a line comes from, and the line; from any thread, and never raises.
OnLine = Callable[[str, str], None]

_STDERR = 2

# Lines that are kept in memory, to be shown when an engine has ended.
KEPT_LINES = 200


def engine_log(folder: Path, role: str, model: str) -> Path:
    """The file in `folder` for the log of an engine. A paired computer may have named its model, as it liked."""
    name = re.sub(r"[^\w.-]", "_", model, flags=re.ASCII)[:_MAX_NAME_CHARACTERS]
    if name != model:
        name += f"-{hashlib.sha256(model.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
    return folder / f"{role}-{name}.log"


class RotatingLog:
    """The log of one engine, in the file `path`: what it writes to standard error, a line at a time.

    May be written to from any thread. Nothing here raises.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = MAX_LOG_BYTES,
        n_older: int = OLDER_LOGS,
        on_line: OnLine | None = None,
    ) -> None:
        """`on_line` hears each line, with the file's name without its ending."""
        self._source, self._on_line = path.stem, on_line
        self._handler = _Rotating(path, max_bytes=max_bytes, n_older=n_older)
        self._last: deque[str] = deque(maxlen=KEPT_LINES)

    def write(self, line: str) -> None:
        """Add a line, with or without its line break; what a terminal would obey is made visible."""
        text = one_line(line)
        self._last.append(text)
        self._handler.handle(logging.makeLogRecord({"msg": text}))
        if self._on_line is not None:
            self._on_line(self._source, text)

    def tail(self, n: int) -> list[str]:
        """The last lines that were written through this object, `n` of them or as many as there are."""
        return list(self._last)[-n:] if n > 0 else []

    def close(self) -> None:
        self._handler.close()


def node_log_handler(path: Path) -> logging.Handler:
    """Where the node's own log goes, beside standard error."""
    return _Rotating(path, max_bytes=MAX_LOG_BYTES, n_older=OLDER_LOGS)


class TrimmedStderr(logging.StreamHandler[TextIO]):
    """Standard error. Where that goes to one of `paths`, which nobody rotates, the file is emptied when it is large."""

    def __init__(self, *paths: Path) -> None:
        super().__init__(sys.stderr)
        self._paths = paths

    def emit(self, record: logging.LogRecord) -> None:
        self._trim()
        super().emit(record)

    def _trim(self) -> None:
        with contextlib.suppress(OSError):
            here = os.fstat(_STDERR)
            if here.st_size > MAX_LOG_BYTES and any(_is_at(path, here) for path in self._paths):
                os.ftruncate(_STDERR, 0)
                os.lseek(_STDERR, 0, os.SEEK_SET)


def _is_at(path: Path, status: os.stat_result) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(path.stat(), status)
    return False


def read_tail(path: Path, n_bytes: int) -> str:
    """The end of the log file `path`, whole lines of `n_bytes` at most. Raises OSError."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - n_bytes))
        data = file.read(n_bytes)
    if size > n_bytes:
        data = data.partition(b"\n")[2]
    return data.decode("utf-8", "backslashreplace")


class _Rotating(logging.handlers.RotatingFileHandler):
    """Opens its file when there is something to write, and keeps quiet about what cannot be written."""

    def __init__(self, path: Path, *, max_bytes: int, n_older: int) -> None:
        super().__init__(
            path,
            maxBytes=max_bytes,
            backupCount=n_older,
            encoding="utf-8",
            errors="backslashreplace",
            delay=True,
        )

    def _open(self) -> TextIOWrapper:
        path = Path(self.baseFilename)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(  # noqa: SIM115 (the handler closes it)
            path, self.mode, encoding=self.encoding, errors=self.errors, opener=private_opener
        )
        return cast(TextIOWrapper, file)

    def handleError(self, record: logging.LogRecord) -> None:
        # What could not be written would stay in the stream, and come up again when it is closed.
        stream, self.stream = self.stream, None
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()
