"""The latest lines of the node's log and of its engines' in one row, for who watches them. Bounded; no files here.

What is secret is taken out before a line comes here; no prompt or answer is in any log.
"""

from __future__ import annotations

import logging
import re
import time

import msgspec

from engine.batching.feed import Feed
from engine.log_lines import LineFormatter, one_line
from engine.node.reporting.redaction import without_secrets

# A few hundred kilobytes of ordinary lines.
KEPT_LOG_LINES = 2000

NODE = "node"

_LEVELS = {"DEBUG": "info", "INFO": "info", "WARNING": "warning", "ERROR": "error", "CRITICAL": "error"}

# As our own processes begin a line: the time, the level, and who says it.
_OWN_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([A-Z]+) (.*)", re.DOTALL)


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """`source` is "node", or what the engine's file of the log folder is called; `level` info, warning or error."""

    at: float
    source: str
    level: str
    text: str


class LogFeed(Feed[LogLine]):
    """Any thread may write."""

    def __init__(self, *, keep: int = KEPT_LOG_LINES) -> None:
        super().__init__(keep=keep)
        self.keep = keep

    def write(self, source: str, line: str) -> None:
        """A line of an engine, as it wrote it to standard error."""
        own = _OWN_LINE.fullmatch(line.rstrip("\r\n"))
        self._add(source, _LEVELS.get(own[1], "info") if own else "info", own[2] if own else line)

    def handler(self) -> logging.Handler:
        """For the node's own log."""
        return _Handler(self)

    def record(self, level: str, text: str) -> None:
        """What the node itself has logged, a line or more."""
        for line in text.splitlines():
            self._add(NODE, _LEVELS.get(level, "info"), line)

    def last_lines(self, n: int) -> tuple[int, list[LogLine]]:
        """The last lines, `n` of them or as many as are kept, and the number of the last one."""
        found = None
        while found is None:  # others write meanwhile, and a line may just have been dropped
            place = self.last
            found = self.after(max(0, place - min(n, self.keep)), at_most=n)
        return (found[-1].number if found else place), [numbered.item for numbered in found]

    def _add(self, source: str, level: str, text: str) -> None:
        shown = without_secrets(one_line(text))
        self.say(LogLine(at=time.time(), source=source, level=level, text=shown))


class _Handler(logging.Handler):
    """Lines as the log file has them, without the time and the level, which stand beside them."""

    def __init__(self, feed: LogFeed) -> None:
        super().__init__()
        self._feed = feed
        self._formatter = LineFormatter("%(name)s: %(message)s")

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self._formatter.format(record)
        except (TypeError, ValueError):  # what was logged does not fit its own words
            self.handleError(record)
            return
        self._feed.record(record.levelname, text)
