"""Progress on standard error: a bar where a person watches, a line now and then where a log is written."""

from __future__ import annotations

import json
import sys
import threading
import time
from types import TracebackType
from typing import Any, Self

from engine.cli.log import tell

# A log gets a line when this much more is done, and one at the end.
_LINE_SHARE = 0.25

# A program is told so often.
_EVERY_S = 0.2

# Jobs that end sooner show nothing.
_DELAY_S = 0.5


class ProgressBar:
    """Shows one job of `label`; counts are bytes. A context manager, and a `Progress` of the model library.

    May be told from several threads; what comes after the end is not shown.
    """

    def __init__(self, label: str, *, delay_s: float = 0.0) -> None:
        self._label = label
        self._shown_after = time.monotonic() + delay_s
        self._is_terminal = sys.stderr.isatty()
        self._bar: Any = None
        self._next_share = 0.0
        self._is_over = False
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._is_over = True
            if self._bar is not None:
                self._bar.close()

    def note(self, sentence: str) -> None:
        if self._bar is not None:
            self._bar.clear()
        tell(f"{self._label}: {sentence}", sys.stderr)

    def advance(self, done: int, total: int) -> None:
        with self._lock:
            if self._is_over or time.monotonic() < self._shown_after:
                return
            if self._is_terminal:
                self._draw(done, total)
            else:
                self._log(done, total)

    def _draw(self, done: int, total: int) -> None:
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(
                desc=self._label,
                total=total,
                initial=done,
                unit="B",
                unit_scale=True,
                dynamic_ncols=True,
                leave=False,
            )
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def _log(self, done: int, total: int) -> None:
        share = done / total if total else 1.0
        if share < self._next_share:
            return
        tell(f"{self._label}: {int(share * 100)}% of {total / 1e6:.0f} MB", sys.stderr)
        self._next_share = (share // _LINE_SHARE + 1) * _LINE_SHARE


class ProgressLines:
    """One job's progress as lines of JSON on standard output, for a program: bytes, now and then, and notes."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def note(self, sentence: str) -> None:
        print(json.dumps({"note": sentence}), flush=True)

    def advance(self, done: int, total: int) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s or done >= total:
            self._next_s = now_s + _EVERY_S
            print(json.dumps({"done_bytes": done, "total_bytes": total}), flush=True)


def loading_bar(label: str) -> ProgressBar:
    """A bar that appears only when the job takes long enough to be watched."""
    return ProgressBar(label, delay_s=_DELAY_S)
