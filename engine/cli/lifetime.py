"""How long a process lives: until it is told to end, or until the one that started it is gone."""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def unwinding_on_sigterm() -> Iterator[None]:
    """Inside, SIGTERM and a closed terminal unwind the main thread like Ctrl-C, so that what was opened is put away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ends = [signal.SIGTERM]
    # `nohup` has the closing of the terminal ignored, and means it.
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        ends.append(signal.SIGHUP)
    before = [signal.signal(number, _exit) for number in ends]
    try:
        yield
    finally:
        for number, handler in zip(ends, before, strict=True):
            signal.signal(number, handler)


def add_lifetime_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one line of JSON when ready")
    parser.add_argument(
        "--exit-with-stdin",
        action="store_true",
        help="end when standard input does: a parent that holds its other end takes this process with it",
    )


def watch_stdin() -> queue.Queue[str]:
    """End this process with SIGTERM once standard input reaches its end; returns where the lines go that come in."""
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read_to_the_end, args=(lines,), name="stdin-watch", daemon=True).start()
    return lines


def _read_to_the_end(lines: queue.Queue[str]) -> None:
    # not sys.stdin: a thread that blocks inside its buffer would keep the interpreter from shutting down
    pending = b""
    while data := os.read(0, 4096):
        *whole, pending = (pending + data).split(b"\n")
        for line in whole:
            lines.put(line.decode("utf-8", "replace"))
    os.kill(os.getpid(), signal.SIGTERM)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
