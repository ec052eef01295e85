"""Processes of Baton that another one starts: how they are started, heard and ended.

A child holds the other end of its parent's pipe and ends with it, so that none is left behind however the parent ends.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from engine.errors import ProcessFailed
from engine.paths import own_command

# A child that has not ended so long after being told to is killed; less than what its parent has for its own end.
_GRACE_S = 2.0

# A killed process is gone at once, but for one that waits for a disk.
_KILLED_TIMEOUT_S = 0.3

# Lines of a failed child's log that are shown.
_LOG_TAIL_LINES = 15


class Child:
    """A Baton command as a process of its own, in a session of its own: Ctrl-C reaches it through its parent alone.

    The command must know `--json` and `--exit-with-stdin`, which are added. Its log goes to the file `log`.
    """

    def __init__(self, name: str, words: Sequence[str], log: Path) -> None:
        self.name = name
        self._log = log
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                [*own_command(), *words, "--json", "--exit-with-stdin"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, name=f"{name}-events", daemon=True)
        self._give_up_at_s: float | None = None
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, key: str, *, timeout_s: float) -> dict[str, Any]:
        """The next of its lines with a true `key`. Raises ProcessFailed when it ends first, or takes too long."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise self._failure(f"was not ready within {timeout_s:.0f} s") from None
            if event is None:
                self._events.put(None)
                raise self._failure(self._end())
            if event.get(key):
                return event

    def tell(self, line: str) -> None:
        """Write a line to its standard input; one that has ended will be noticed elsewhere."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def check(self) -> None:
        """Raises ProcessFailed when the child has ended."""
        if not self.is_running:
            raise self._failure(self._end())

    def tell_to_end(self) -> None:
        """Returns at once; `close` waits. Several children end at the same time when all are told first."""
        if self._give_up_at_s is None:
            self._give_up_at_s = time.monotonic() + _GRACE_S
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def close(self) -> None:
        """End the child and wait for it; twice does no harm."""
        self.tell_to_end()
        give_up_at_s = self._give_up_at_s or 0.0
        try:
            self._process.wait(max(0.0, give_up_at_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILLED_TIMEOUT_S)
        self._reader.join(_KILLED_TIMEOUT_S)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        for event in _json_lines(self._process.stdout):
            self._events.put(event)
        self._events.put(None)

    def _end(self) -> str:
        """How it ended; its output has, and it follows."""
        try:
            return f"ended with status {self._process.wait(_GRACE_S)}"
        except subprocess.TimeoutExpired:
            return "has stopped talking"

    def _failure(self, what: str) -> ProcessFailed:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        tail = "".join(f"\n    {line}" for line in lines) or " (it wrote none)"
        return ProcessFailed(f"the {self.name} {what}. The last lines of its log:{tail}")


@contextlib.contextmanager
def ended_together(*children: Child) -> Iterator[None]:
    """At the end all `children` are told, so that closing them one by one takes no longer than the slowest."""
    try:
        yield
    finally:
        for child in children:
            child.tell_to_end()


def _json_lines(stream: IO[bytes] | None) -> Iterator[dict[str, Any]]:
    for line in stream or ():
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict):
                yield event
