"""How long a process lives: until it is told to end, or until the one that started it is gone."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

EXIT_TERMINATED = 143  # 128 + SIGTERM, as shells have it


@contextlib.contextmanager
def unwinding_on_sigterm() -> Iterator[None]:
    """Inside, SIGTERM unwinds the main thread like Ctrl-C does, so that what was opened is put away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def add_lifetime_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one line of JSON when ready")
    parser.add_argument(
        "--exit-with-stdin",
        action="store_true",
        help="end when standard input does: a parent that holds its other end takes this process with it",
    )


def watch_stdin() -> None:
    """End this process with SIGTERM once standard input reaches its end; what comes in on it is not looked at."""
    threading.Thread(target=_wait_for_end, name="stdin-watch", daemon=True).start()


def _wait_for_end() -> None:
    # not sys.stdin: a thread that blocks inside its buffer would keep the interpreter from shutting down
    while os.read(sys.__stdin__.fileno() if sys.__stdin__ else 0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(EXIT_TERMINATED)
