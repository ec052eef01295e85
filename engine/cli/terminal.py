"""What a command prints does not steer the user's terminal, whoever wrote it: a paired computer, or a model."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

# C0, C1 and DEL: what terminals obey. Ends of lines and tabs stay, and on standard error the return of a progress bar.
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_OBEYED_BUT_RETURN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


class _Shown:
    """A terminal that is told of such characters, and not given them."""

    def __init__(self, stream: Any, obeyed: re.Pattern[str]) -> None:
        self._stream = stream
        self._obeyed = obeyed

    def write(self, text: str) -> int:
        self._stream.write(self._obeyed.sub(lambda found: f"\\x{ord(found[0]):02x}", text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def harmless_output() -> Iterator[None]:
    """Standard output and standard error show control characters where they are terminals."""
    before = sys.stdout, sys.stderr
    if sys.stdout is not None and sys.stdout.isatty():
        sys.stdout = cast(TextIO, _Shown(sys.stdout, _OBEYED))
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr = cast(TextIO, _Shown(sys.stderr, _OBEYED_BUT_RETURN))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
