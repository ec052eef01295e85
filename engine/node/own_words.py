"""What one of Baton's own commands says while it works, as a child of the node: lines of JSON on standard output."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from engine.errors import ProcessFailed, UserError
from engine.node.supervisor import EXIT_USAGE, end_process, explain, to_its_end, whole_lines
from engine.paths import own_command

_MAX_LINE_BYTES = 1 << 16
_KEPT_LINES = 20


async def said_by(
    *words: str, environment: Mapping[str, str] | None = None
) -> AsyncGenerator[dict[str, Any], None]:
    """Run `baton WORDS`, a command that ends with its standard input, and give each line; closing ends it.

    `environment` is what is other than in our own.
    Raises UserError or ProcessFailed with the command's own sentence.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *own_command(),
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_MAX_LINE_BYTES,
            env={**os.environ, **(environment or {})},
        )
    except OSError as error:
        raise ProcessFailed(f"`baton {words[0]}` could not be started ({error.strerror or error})") from error
    complaints: deque[str] = deque(maxlen=_KEPT_LINES)
    complaining = asyncio.create_task(_keep_lines(process.stderr, complaints))
    try:
        async for line in whole_lines(process.stdout):
            with contextlib.suppress(ValueError):
                said = json.loads(line)
                if isinstance(said, dict):
                    yield said
        status = await process.wait()
        await complaining
        if status != 0:
            kind = UserError if status == EXIT_USAGE else ProcessFailed
            raise kind(explain(status, list(complaints)))
    finally:
        await to_its_end(end_process(process))
        complaining.cancel()


async def _keep_lines(stream: asyncio.StreamReader | None, lines: deque[str]) -> None:
    async for line in whole_lines(stream):
        lines.append(line.decode("utf-8", "replace").strip())
