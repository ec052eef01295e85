"""`python -m engine`: the command line of Baton without its window, as a program of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

__all__ = ["main"]

# Statuses above it tell of a signal.
_SIGNALLED = 128


def main(words: Sequence[str] | None = None) -> int:
    """Run this process's command line, or `words`, and return the exit status; told to end, the process ends in here.

    Before a command runs and after it nothing is open yet or any more, and Ctrl-C simply ends the process: in the midst
    of an import it could not be raised without a traceback.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)

    from engine.cli.main import main as run

    status = run(words)
    if status > _SIGNALLED:
        # Threads may still compute, and Python would wait for them; nothing of theirs is worth waiting for.
        _flush()
        os._exit(status)
    return status


def _end_at_once(number: int, frame: FrameType | None) -> None:
    os._exit(_SIGNALLED + number)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()


if __name__ == "__main__":
    sys.exit(main())
