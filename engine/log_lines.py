"""How lines come into a log: each stays one, and of a mistake there is its kind and place and nothing it was made with.

Python quotes what it was given, `KeyError: 'a word of a prompt'`, and logs are read by others than prompts are for.
Other computers have names as they like, and one with an end of line in it would pretend to be a line of ours.
"""

from __future__ import annotations

import logging
import re
import traceback
from types import TracebackType
from typing import Any

# More than any sentence about what went wrong; what is longer quotes something.
_MAX_MESSAGE_CHARACTERS = 300

# A longer line is cut: no line of ours comes near it.
MAX_LINE_CHARACTERS = 4000

_QUOTED = re.compile(r"(['\"]).*\1|(['\"]).*\Z", re.DOTALL)


def one_line(text: str) -> str:
    """`text` without its line break, not too long, and with what a terminal would obey made visible."""
    text = text.rstrip("\r\n")[:MAX_LINE_CHARACTERS]
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def account_of(error: BaseException) -> str:
    """The traceback of `error` and of what led to it, the first first; in messages dots stand for what is quoted."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "\nwhich led to\n".join(map(_account_of_one, reversed(chain)))


class LineFormatter(logging.Formatter):
    """Formats what is logged as `one_line`, and an exception that comes with it as `account_of`, in lines below."""

    def format(self, record: logging.LogRecord) -> str:
        record.exc_text = None  # what another formatter made of it
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        return account_of(ei[1]) if ei[1] is not None else ""


def _account_of_one(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    message = _QUOTED.sub(_dots, str(error))[:_MAX_MESSAGE_CHARACTERS]
    places = "".join(traceback.format_tb(error.__traceback__))
    return f"Traceback (most recent call last):\n{places}{name}: {message}"


def _dots(found: re.Match[str]) -> Any:
    sign = found[1] or found[2]
    return f"{sign}...{sign}"
