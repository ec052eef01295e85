"""How long a process lives: until it is told to end, or until the one that started it is gone."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from engine.cli.log import tell

# From being told to end to the end. What is not put away by then keeps nobody waiting.
END_WITHIN_S = 2.8

# How long the main thread may take to hear of a signal, before it is sent to it again.
_HEAR_WITHIN_S = 0.05

# A parent that hears nothing for several times that takes us for hanging.
_ALIVE_EVERY_S = 1.0

# Where the code of Python's import system says that it is from.
_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"

# Programs that pass Ctrl-C on may do so twice; a person's second one comes later than this.
_SECOND_CTRL_C_S = 0.3


@contextlib.contextmanager
def unwinding_on_signals() -> Iterator[None]:
    """Inside, Ctrl-C, SIGTERM and a closed terminal unwind the main thread, so that what was opened is put away.

    They raise KeyboardInterrupt, or SystemExit with 128 + the signal's number. Whatever does not let itself be unwound
    within END_WITHIN_S is left, and the process ended; a second Ctrl-C ends it at once.
    """
    # Windows knows Ctrl-C alone of them, which Python raises there by itself.
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_kill"):
        yield
        return
    ends = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP"):
        ends.append(signal.SIGHUP)
    # `nohup`, or a shell that starts something in the background, has a signal ignored, and means it.
    heeded = [number for number in ends if signal.getsignal(number) is not signal.SIG_IGN]
    with _Ending(heeded):
        yield


class _Ending:
    """The end of this process, from the first of `numbers` that comes to where all has been put away.

    A signal that comes while the main thread waits for its turn, right before it blocks, is not heard of until
    something wakes that thread: so another thread looks after it, and is told by the system itself.
    """

    def __init__(self, numbers: list[signal.Signals]) -> None:
        self._numbers = numbers
        self._main_thread = threading.get_ident()
        self._begun_s: float | None = None
        self._is_over = False

    def __enter__(self) -> None:
        self._coming, self._sending = os.pipe()
        os.set_blocking(self._sending, False)
        self._wakeup_before = signal.set_wakeup_fd(self._sending, warn_on_full_buffer=False)
        self._hook_before, sys.unraisablehook = sys.unraisablehook, self._on_swallowed
        threading.Thread(target=self._look_after, name="ending", daemon=True).start()
        self._before = {number: signal.signal(number, self._begin) for number in self._numbers}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._is_over = True
        sys.unraisablehook = self._hook_before
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._sending)

    def _begin(self, number: int, frame: FrameType | None) -> None:
        """On the main thread."""
        if self._begun_s is not None:
            return
        if _is_importing(frame):
            # Modules half imported swallow what is raised in them, or turn it into errors of their own. All that a
            # process has open outlives even a killed one well.
            os._exit(128 + number)
        self._begun_s = time.monotonic()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    def _on_swallowed(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Python's own callbacks, such as `__del__`, let nothing through: then it has to begin again."""
        if isinstance(unraisable.exc_value, KeyboardInterrupt | SystemExit):
            self._begun_s = None
        else:
            self._hook_before(unraisable)

    def _look_after(self) -> None:
        number = self._next(None)
        if number is not None:
            came_at_s = time.monotonic()
            while (left_s := came_at_s + END_WITHIN_S - time.monotonic()) > 0 and not self._is_over:
                again = self._next(min(left_s, _HEAR_WITHIN_S))
                if self._begun_s is None:
                    if again is None:  # what is sent comes back as one more that came
                        signal.pthread_kill(self._main_thread, number)
                elif again == signal.SIGINT and time.monotonic() > self._begun_s + _SECOND_CTRL_C_S:
                    break
            if not self._is_over:
                os._exit(128 + number)
        os.close(self._coming)

    def _next(self, timeout_s: float | None) -> int | None:
        """The next of the numbers that comes within the time; None when none does, or when all is over."""
        while select.select([self._coming], [], [], timeout_s)[0] and (data := os.read(self._coming, 1)):
            if data[0] in self._numbers:
                return data[0]
        return None


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT_SYSTEM:
            return True
        frame = frame.f_back
    return False


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


def say_alive(is_stuck: Callable[[], bool]) -> None:
    """From now on, tell the parent on standard output that this process has not stopped moving: a line a second.

    Not while `is_stuck()`: the thread that says it goes on where the one that computes does not.
    """
    threading.Thread(target=_go_on_saying_alive, args=(is_stuck,), name="alive", daemon=True).start()


def _go_on_saying_alive(is_stuck: Callable[[], bool]) -> None:
    while True:
        time.sleep(_ALIVE_EVERY_S)
        if is_stuck():
            continue
        # A parent that does not read must stop nobody here: others have something to say on the same output.
        if select.select([], [sys.stdout], [], 0)[1]:
            tell(json.dumps({"alive": True}), sys.stdout)


def _read_to_the_end(lines: queue.Queue[str]) -> None:
    # not sys.stdin: a thread that blocks inside its buffer would keep the interpreter from shutting down
    pending = b""
    with contextlib.suppress(OSError):  # one that was never there has reached its end, too
        while data := os.read(0, 4096):
            *whole, pending = (pending + data).split(b"\n")
            for line in whole:
                lines.put(line.decode("utf-8", "replace"))
    os.kill(os.getpid(), signal.SIGTERM)
