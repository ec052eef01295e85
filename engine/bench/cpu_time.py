"""Processor time of another process of ours."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """User and system time of a running process, in seconds; 0.0 where the system does not tell."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists():
        # the command's name, in brackets, may hold anything
        fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    try:
        shown = subprocess.run(
            ["ps", "-o", "time=", "-p", str(pid)], capture_output=True, text=True, check=True, timeout=5
        ).stdout
        return _parse(shown.strip())
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0.0


def _parse(shown: str) -> float:
    """[[days-]hours:]minutes:seconds, as `ps` writes it."""
    days, _, clock = shown.rpartition("-")
    seconds = 0.0
    for part in clock.split(":"):
        seconds = 60 * seconds + float(part)
    return 86_400 * int(days or 0) + seconds
