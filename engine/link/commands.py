"""Runs the system's own tools: words in, text out in plain English, no shell, bounded in time."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence

from engine.errors import HostError

# The words of a command; what it wrote on standard output. Raises HostError with its complaint.
Runner = Callable[[Sequence[str]], str]

# PowerShell alone takes seconds to start.
_TIMEOUT_S = 20.0


def run_command(words: Sequence[str]) -> str:
    """The real `Runner`."""
    program = shutil.which(words[0])
    if program is None:
        raise HostError(f"`{words[0]}` is not installed, and what is asked needs it")
    try:
        done = subprocess.run(
            [program, *words[1:]],
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            env={**os.environ, "LC_ALL": "C"},  # NetworkManager's, for one, answer in the user's language
            start_new_session=True,  # Ctrl-C reaches it through us, so that none is cut in half
        )
    except subprocess.CalledProcessError as error:
        complaint = (error.stderr or error.stdout).decode("utf-8", "replace").strip()
        raise HostError(
            f"`{' '.join(words)}` failed: {complaint or f'exit status {error.returncode}'}"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"`{words[0]}` could not be run: {error}") from error
    return done.stdout.decode("utf-8", "replace")
