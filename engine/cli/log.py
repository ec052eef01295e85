"""Where the log of an engine goes: standard error, a line an event, and what is repeated only once in a while."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from typing import TextIO

from engine.log_lines import LineFormatter
from engine.repeats import Repeats

# The same line, or the same state of a link, is not said again within this.
SAY_AGAIN_S = 600.0
_LOG_AGAIN_S = 60.0

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to_stderr() -> None:
    """Log warnings and worse, and what Baton itself has to tell."""
    log_to(logging.StreamHandler(sys.stderr))


def log_to(handler: logging.Handler) -> None:
    """The same to wherever `handler` leads; each may be one of several."""
    handler.addFilter(OnceInAWhile(Repeats(_LOG_AGAIN_S)))
    handler.setFormatter(LineFormatter(_FORMAT))
    logging.getLogger().addHandler(handler)
    logging.getLogger("engine").setLevel(logging.INFO)


# `print` writes a line and its end apart, and threads that do so at once mix them up.
_telling = threading.Lock()


def tell(line: str, stream: TextIO) -> None:
    """Print a line, whole, from any thread. One that cannot be written, on a full disk, say, is lost."""
    with _telling, contextlib.suppress(OSError):
        stream.write(f"{line}\n")
        stream.flush()


class OnceInAWhile(logging.Filter):
    """Lets the same line pass once a window, with how many were left out since; a handler calls it one at a time."""

    def __init__(self, repeats: Repeats) -> None:
        super().__init__()
        self._repeats = repeats

    def filter(self, record: logging.LogRecord) -> bool:
        line = record.getMessage()
        n_unsaid = self._repeats.say(f"{record.name}: {line}")
        if n_unsaid:
            record.msg, record.args = "%s (and %d more like it before)", (line, n_unsaid)
        return n_unsaid is not None
