"""What was learned of prefill speeds, kept in the cache folder between starts; losing it costs nothing but learning.

One small file for each pair of model and worker, and each way of computing it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

from engine.files import write_whole
from engine.handoff.rates import PrefillRates

_MAX_BYTES = 65536

# Files that are kept, the newest; every demo and every change of a setting makes one.
_MAX_FILES = 64


class KnownRates:
    """`facts` are all that the speeds depend on: model, worker, device, threads, form of the weights, chunk."""

    def __init__(self, folder: Path, *facts: object) -> None:
        key = hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
        self._path = folder / f"{key}.json"

    def load(self) -> PrefillRates:
        """What was saved for these facts; nothing known where there is none, or none that can be read."""
        try:
            with self._path.open("rb") as file:
                return PrefillRates.from_json(json.loads(file.read(_MAX_BYTES)))
        except (OSError, ValueError, RecursionError):
            return PrefillRates()

    def save(self, rates: PrefillRates) -> None:
        """Write the file whole or not at all; where that cannot be done, nothing is said."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, json.dumps(rates.to_json()).encode())
            self._forget_old()

    def _forget_old(self) -> None:
        files = sorted(self._path.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for path in files[:-_MAX_FILES]:
            path.unlink(missing_ok=True)
