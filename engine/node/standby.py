"""A process in waiting: it has imported what an engine needs, most of the time from a crash to the next answer.

While a model is loaded there is one. The next engine that is started, whichever it is, begins in it: one that crashed
and comes back, another model, a worker for the other computer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

import msgspec

from engine.node.supervisor import end_process, start_new_process

log = logging.getLogger(__name__)

# An engine that has just begun to answer has the processor for itself.
_PREPARE_AFTER_S = 5.0

# Who unloads one model often loads another, or the same one with other settings.
_DISMISS_AFTER_S = 60.0


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a process in waiting becomes: `baton WORDS`, with that in its environment beside what is there."""

    words: tuple[str, ...]
    environment: dict[str, str] = {}


class Standby:
    """On the node's event loop. `environment` is that of all engines."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        prepare_after_s: float = _PREPARE_AFTER_S,
        dismiss_after_s: float = _DISMISS_AFTER_S,
    ) -> None:
        self._environment = dict(environment)
        self._prepare_after_s = prepare_after_s
        self._dismiss_after_s = dismiss_after_s
        self._is_wanted = False
        self._process: asyncio.subprocess.Process | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def pid(self) -> int | None:
        """Of the process that waits."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def want(self, is_wanted: bool) -> None:
        """Whether one is to wait: a while later it is there, or gone."""
        if is_wanted is not self._is_wanted:
            self._is_wanted = is_wanted
            self._forget_timer()
        if self._timer is not None or self._preparing is not None or is_wanted is (self.pid is not None):
            return
        after_s = self._prepare_after_s if is_wanted else self._dismiss_after_s
        self._timer = asyncio.get_running_loop().call_later(after_s, self._prepare_or_dismiss)

    async def start(
        self, words: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> asyncio.subprocess.Process:
        """A process that runs `baton WORDS`: the one that waits, or a new one. Raises OSError."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None or process.stdin is None:
            return await start_new_process(words, environment)
        added = dict((environment or {}).items() - self._environment.items())
        process.stdin.write(msgspec.json.encode(Order(words=tuple(words), environment=added)) + b"\n")
        return process

    async def close(self) -> None:
        self._is_wanted = False
        self._forget_timer()
        if self._preparing is not None:
            await self._preparing
        if self._process is not None:
            await end_process(self._process)
        await asyncio.gather(*self._ending)

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _prepare_or_dismiss(self) -> None:
        self._timer = None
        if self._is_wanted:
            self._preparing = asyncio.create_task(self._prepare(), name="standby")
        elif self._process is not None:
            ending = asyncio.create_task(end_process(self._process), name="standby's end")
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            self._process = None

    async def _prepare(self) -> None:
        try:
            self._process = await start_new_process(["standby"], self._environment)
        except OSError as error:
            log.warning("no process could be started to wait: %s", error.strerror or error)
        finally:
            self._preparing = None
        self.want(self._is_wanted)
