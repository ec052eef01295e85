"""Runs Baton's own commands as processes, for what the node does not do itself. Knows nothing of Qt."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Collection, Sequence
from typing import Any

from app.node.faults import AppError
from app.words import translate

# Administrators may be asked for a password meanwhile.
_WITHIN_S = 180.0


class CommandFailed(AppError):
    """It ended with an error; its text is what it said."""


async def run_baton(command: Sequence[str], *words: str, good: Collection[int] = (0,)) -> str:
    """What `command words` prints. Raises CommandFailed with its own last words where its status is no good one."""
    options: dict[str, Any] = {}
    if sys.platform == "win32":
        options = {"creationflags": subprocess.CREATE_NO_WINDOW}
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            *words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )
    except OSError as error:
        raise CommandFailed(
            translate("Node", "Baton could not start its own command: {}.").format(error.strerror or error)
        ) from error
    try:
        async with asyncio.timeout(_WITHIN_S):
            out, err = await process.communicate()
    except TimeoutError:
        raise CommandFailed(
            translate("Node", "`{0}` did not end within {1} s.").format(
                f"baton {' '.join(words)}", f"{_WITHIN_S:.0f}"
            )
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode not in good:
        said = [line for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
        failed = translate("Node", "`{}` failed.").format(f"baton {' '.join(words)}")
        raise CommandFailed(_sentence(said[-1]) if said else failed)
    return out.decode("utf-8", "replace")


def _sentence(text: str) -> str:
    text = text.strip().removeprefix("baton: ").removeprefix("error: ")
    return text[:1].upper() + text[1:]
