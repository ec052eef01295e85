"""A helper that kills itself in the middle of its work, as a crash or a lost current would."""

from __future__ import annotations

# Run before the helper's own code.
_KILLED = """
import os, signal, sys
from engine.link import privileged
perform, n = privileged._perform, 0
def performing(operation, run):
    global n
    n += 1
    if n == NUMBER and WHEN == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    perform(operation, run)
    if n == NUMBER:
        os.kill(os.getpid(), signal.SIGKILL)
privileged._perform = performing
"""


def killing(number: int, when: str) -> str:
    """`when` is before or after the step of that number, from 1 on."""
    return _KILLED.replace("NUMBER", str(number)).replace("WHEN", repr(when))
