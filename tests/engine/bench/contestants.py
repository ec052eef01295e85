"""Starts the fake contestant in the words of its configuration."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from engine.bench.subject import Subject

PROGRAM = Path(__file__).with_name("fake_contestant.py")


def fake(name: str = "fake", **config: Any) -> Subject:
    return Subject(name, [sys.executable, "-S", str(PROGRAM), json.dumps(config)])
