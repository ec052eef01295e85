"""Where the log of an engine goes: standard error, a line an event."""

from __future__ import annotations

import logging
import sys

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to_stderr() -> None:
    """Log warnings and worse, and what Baton itself has to tell."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format=_FORMAT)
    logging.getLogger("engine").setLevel(logging.INFO)
