"""What the window itself remembers: its theme, size, page, and how far the first run came. Not the node's settings.

A small JSON file in the user's config folder. Losing it costs nothing but these.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

Choice = TypeVar("Choice", bound=Enum)


class Preferences:
    """Values by name; written when they change. A file that cannot be read or written is as none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            read = json.loads(path.read_text("utf-8"))
            if isinstance(read, dict):
                self._values = read

    def get(self, name: str, default: Any = None) -> Any:
        """A value of the type of `default`; `default` where there is none of it."""
        value = self._values.get(name, default)
        return value if default is None or isinstance(value, type(default)) else default

    def one_of(self, name: str, choices: type[Choice], default: Choice) -> Choice:
        """A value that is kept as one of an enum's; `default` where it is none of them any more."""
        try:
            return choices(self._values.get(name, default.value))
        except ValueError:
            return default

    def set(self, name: str, value: Any) -> None:
        if self._values.get(name) == value:
            return
        self._values[name] = value
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(self._values, file, indent=1)
            os.replace(temporary, self._path)
