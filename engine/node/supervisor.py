"""One engine process: started, heard, watched, started again when it ends, and every end explained.

It knows that a child says what it is in lines of JSON on standard output, logs on standard error, and ends with its
standard input; and nothing of what an engine does.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import logging
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from engine.errors import ProcessFailed
from engine.node.reporting.logs import RotatingLog
from engine.paths import own_command

log = logging.getLogger(__name__)

# Waits before an engine that ended is started again; doubled each time. One that was ready and ends for the first time,
# or after it ran well, is started again at once.
FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 30.0
RAN_WELL_S = 60.0

# An engine's endpoint is looked at so often; one that says nothing so many times in a row hangs.
_HEALTH_EVERY_S = 2.0
_HEALTH_TIMEOUT_S = 3.0
_HEALTH_MISSES = 3

# One without an endpoint says that it lives (`lifetime.say_alive`); after so many looks without a word it hangs.
_SILENT_LOOKS = 8

# The largest models take minutes to load from a slow disk. Who says nothing for longer hangs before it is ready.
_LOAD_WITHIN_S = 600.0

# What an engine takes to put away what it has open; after that it is killed.
_GRACE_S = 2.0

# Ends that are kept, and the lines of the log that are kept with each.
_KEPT_OUTCOMES = 8
_KEPT_LINES = 20

# A line of an engine's standard output is a short object.
_MAX_LINE_BYTES = 1 << 16

# What says that a process lives, and nothing else.
ALIVE = {"alive": True}

# What a command ends with when it was asked for what cannot be: another try would end alike.
EXIT_USAGE = 2


class State(enum.StrEnum):
    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"  # it ended, and will be started again
    FAILED = "failed"  # it ended for a reason that another start would not change
    STOPPED = "stopped"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a process ended: when (Unix time), after how long, why in a sentence, and the last lines of its log."""

    at: float
    ran_s: float
    status: int | None
    reason: str
    log_lines: tuple[str, ...]

    def snapshot(self) -> dict[str, Any]:
        return {
            "at": self.at,
            "ran_s": self.ran_s,
            "status": self.status,
            "reason": self.reason,
            "log": list(self.log_lines),
        }


@dataclass(frozen=True, kw_only=True)
class Start:
    """How a process got ready: when (Unix time), after how long, and what of that its own parts took, as it told.

    `away_s` is the time since the one before it had ended, None for a first one. All in seconds.
    """

    at: float
    took_s: float
    away_s: float | None
    parts: Mapping[str, float]

    def snapshot(self) -> dict[str, Any]:
        return {"at": self.at, "took_s": self.took_s, "away_s": self.away_s, **self.parts}


# Starts `baton WORDS` with an environment (None: our own), its standard streams being pipes. Raises OSError.
StartProcess = Callable[[Sequence[str], Mapping[str, str] | None], Awaitable[asyncio.subprocess.Process]]


class EngineProcess:
    """Keeps `baton WORDS --json --exit-with-stdin` running from `start` to `stop`.

    `on_change` hears of each new state, `on_event` of each line that is news. One that hangs is ended, and started
    again: one with an endpoint when that does not answer, another one when it does not say any more that it lives.
    `start_process` makes each process; by itself a new one is started.
    """

    def __init__(
        self,
        name: str,
        words: Sequence[str],
        *,
        log: RotatingLog,
        on_change: Callable[[], None],
        on_event: Callable[[dict[str, Any]], None] = lambda event: None,
        environment: Mapping[str, str] | None = None,
        start_process: StartProcess | None = None,
        has_endpoint: bool = True,
    ) -> None:
        self.name = name
        self.words = tuple(words)
        self.state = State.STOPPED
        self.ready: dict[str, Any] = {}
        self.outcomes: deque[Outcome] = deque(maxlen=_KEPT_OUTCOMES)
        self.n_starts = 0
        self.last_start: Start | None = None
        self.since_s = time.time()
        self._log = log
        self._on_change = on_change
        self._on_event = on_event
        self._environment = environment
        self._start_process = start_process or start_new_process
        self._has_endpoint = has_endpoint
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._stopping = False
        self._hung = ""
        self._began_s = 0.0
        self._ended_s: float | None = None
        self._told: dict[str, str] = {}
        self._n_lines = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def port(self) -> int | None:
        """Of the process that is ready now."""
        return self.ready.get("port") if self.state is State.READY else None

    @property
    def last_outcome(self) -> Outcome | None:
        return self.outcomes[-1] if self.outcomes else None

    def start(self) -> None:
        """Returns at once; `until_settled` waits."""
        if self._keeper is None or self._keeper.done():
            self._stopping = False
            self._begin()
            self._keeper = asyncio.create_task(self._keep(), name=f"keep {self.name}")

    async def until_settled(self, timeout_s: float) -> bool:
        """Wait until it is ready, or will not be; whether that was within the time."""
        return await self._until(lambda: self.state in (State.READY, State.FAILED, State.STOPPED), timeout_s)

    async def until_tried(self, timeout_s: float) -> None:
        """Wait, no longer than that, until it is clear how this start has gone."""
        await self._until(lambda: self.state is not State.STARTING, timeout_s)

    async def until_changed(self) -> None:
        """Wait for the next state, or the next thing that it says."""
        self._changed.clear()
        await self._changed.wait()

    async def until_gone(self, timeout_s: float) -> None:
        """Wait, no longer than that, until a process that was ready is not any more."""
        await self._until(lambda: self.state is not State.READY, timeout_s)

    async def _until(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not is_so():
                    await self.until_changed()
                return True
        return False

    def tell(self, topic: str, line: str) -> None:
        """Say a line to the process, and to each one after it; what was said of the same topic before is void."""
        self._told[topic] = line
        self._write(line)

    async def stop(self) -> None:
        """End the process, and start none again; who is cancelled meanwhile waits for that all the same."""
        self._stopping = True
        await to_its_end(self._stop())

    async def start_anew(self) -> None:
        """End the process, and start it again with `words` as they are now; returns when that has begun."""
        n_starts, process = self.n_starts, self._process
        if self._keeper is None or self._keeper.done():
            self.start()
            return
        if process is not None and process.returncode is None:
            self._hung = "it was ended to be started anew, with other settings"
            await end_process(process)
        over = (State.FAILED, State.STOPPED)
        await self._until(lambda: self.n_starts > n_starts or self.state in over, LONGEST_WAIT_S + _GRACE_S)

    async def _stop(self) -> None:
        if self._keeper is None:
            return
        process = self._process
        if process is not None and process.returncode is None:
            await end_process(process)
        if self.state is State.WAITING:
            self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        self._log.close()
        self._set(State.STOPPED)

    def snapshot(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "state": self.state,
            "pid": self.pid,
            "port": self.port,
            "since": self.since_s,
            "starts": self.n_starts,
            "last_start": self.last_start.snapshot() if self.last_start is not None else None,
            "last_exits": [outcome.snapshot() for outcome in self.outcomes],
        }

    async def _keep(self) -> None:
        wait_s = 0.0
        while True:
            outcome = await self._run_once()
            self._ended_s = time.monotonic()
            self.outcomes.append(outcome)
            if self._stopping:
                return
            log.warning("%s ended after %.1f s: %s", self.name, outcome.ran_s, outcome.reason)
            if outcome.status == EXIT_USAGE:
                self._set(State.FAILED)
                return
            if outcome.ran_s > RAN_WELL_S:
                wait_s = 0.0
            elif not self.ready:
                wait_s = max(wait_s, FIRST_WAIT_S)
            self._set(State.WAITING)
            await asyncio.sleep(wait_s)
            wait_s = min(max(2 * wait_s, FIRST_WAIT_S), LONGEST_WAIT_S)
            self._begin()

    def _begin(self) -> None:
        self.n_starts += 1
        self._set(State.STARTING)

    async def _run_once(self) -> Outcome:
        began_s = self._began_s = time.monotonic()
        self.ready, self._hung = {}, ""
        try:
            process = await self._start_process(
                (*self.words, "--json", "--exit-with-stdin"), self._environment
            )
        except OSError as error:
            return self._outcome(None, began_s, f"it could not be started: {error.strerror or error}")
        self._process = process
        if self._stopping and process.returncode is None:
            process.kill()  # it has nothing to put away yet
        for line in self._told.values():
            self._write(line)
        logging_task = asyncio.create_task(self._read_log(process))
        health = asyncio.create_task(self._watch_health(process))
        try:
            await self._read_events(process)
            status = await process.wait()
            await asyncio.wait([logging_task], timeout=_GRACE_S)
            return self._outcome(status, began_s, self._hung or explain(status, self._log.tail(_KEPT_LINES)))
        finally:
            logging_task.cancel()
            health.cancel()
            if process.returncode is None:
                process.kill()

    def _outcome(self, status: int | None, began_s: float, reason: str) -> Outcome:
        return Outcome(
            at=time.time(),
            ran_s=time.monotonic() - began_s,
            status=status,
            reason=reason,
            log_lines=tuple(self._log.tail(_KEPT_LINES)),
        )

    async def _read_events(self, process: asyncio.subprocess.Process) -> None:
        async for line in whole_lines(process.stdout):
            self._n_lines += 1
            try:
                event = json.loads(line)
            except ValueError:
                event = None
            if not isinstance(event, dict):
                log.warning("%s said what is not understood, and was not heard", self.name)
                continue
            if event.get("ready"):
                self.ready = event
                self.last_start = self._started(event.get("took"))
                self._set(State.READY)
            elif event != ALIVE:
                self._on_event(event)
                self._changed.set()

    def _started(self, parts: Any) -> Start:
        now_s = time.monotonic()
        return Start(
            at=time.time(),
            took_s=now_s - self._began_s,
            away_s=None if self._ended_s is None else now_s - self._ended_s,
            parts=parts if isinstance(parts, dict) else {},
        )

    async def _read_log(self, process: asyncio.subprocess.Process) -> None:
        async for line in whole_lines(process.stderr):
            self._log.write(line.decode("utf-8", "replace"))

    async def _watch_health(self, process: asyncio.subprocess.Process) -> None:
        """Kill an engine that hangs: while it loads, or after it has said that it is ready."""
        async with httpx.AsyncClient(timeout=_HEALTH_TIMEOUT_S, trust_env=False) as client:
            # Counted in looks: a computer that slept has not looked meanwhile.
            n_missed, n_silent, n_lines, heard_s = 0, 0, self._n_lines, time.monotonic()
            complaint: str | None = None
            while not await _ends(process, within_s=_HEALTH_EVERY_S):
                n_silent = n_silent + 1 if n_lines == self._n_lines else 0
                n_lines = self._n_lines
                if self.port is not None and self._has_endpoint:
                    complaint = await _complaint(client, self.port)
                    n_missed = 0 if complaint is None else n_missed + 1
                    is_well, hangs = n_missed == 0, n_missed >= _HEALTH_MISSES
                elif self.state is State.READY:
                    is_well, hangs = n_silent == 0, n_silent >= _SILENT_LOOKS and not self._has_endpoint
                else:
                    is_well, hangs = n_silent == 0, n_silent * _HEALTH_EVERY_S >= _LOAD_WITHIN_S
                if is_well:
                    heard_s = time.monotonic()
                if hangs:
                    silent_s = time.monotonic() - heard_s
                    why = complaint or f"it had stopped answering for {silent_s:.0f} s"
                    self._hung = f"{why}, and was ended"
                    process.kill()
                    return

    def _write(self, line: str) -> None:
        process = self._process
        if process is not None and process.returncode is None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.write(line.encode() + b"\n")

    def _set(self, state: State) -> None:
        if state is self.state:
            return
        self.state, self.since_s = state, time.time()
        self._changed.set()
        self._on_change()

    def failure(self) -> ProcessFailed:
        """What to tell whoever waits for it: why it is not ready."""
        outcome = self.last_outcome
        why = outcome.reason if outcome is not None else "it is being started"
        return ProcessFailed(f"{self.name}: {why}")


async def _ends(process: asyncio.subprocess.Process, *, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            await process.wait()
    except TimeoutError:
        return False
    return True


async def _complaint(client: httpx.AsyncClient, port: int) -> str | None:
    """What is wrong with the engine there: None where nothing is, "" where it says nothing at all."""
    try:
        response = await client.get(f"http://127.0.0.1:{port}/health")
    except httpx.HTTPError:
        return ""
    if response.status_code == httpx.codes.INTERNAL_SERVER_ERROR:
        return "it did not compute any more, though it had something to do"
    return None


async def start_new_process(
    words: Sequence[str], environment: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *own_command(),
        *words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        limit=_MAX_LINE_BYTES,
        start_new_session=sys.platform != "win32",
        env=environment,
    )


async def end_process(process: asyncio.subprocess.Process) -> None:
    """Close a child's standard input, by which it is told to end; one that does not is killed."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(_GRACE_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Do it; who is cancelled meanwhile, however often, waits for it all the same: half a process is nobody's."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()


async def whole_lines(stream: asyncio.StreamReader | None) -> AsyncIterator[bytes]:
    """The lines that come; what is too long for one is left out."""
    if stream is None:
        return
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # longer than the limit
            continue
        if not line:
            return
        yield line


def explain(status: int, log_lines: Sequence[str]) -> str:
    """Why a process of ours ended with `status`, as a sentence; its own last words where it had any."""
    if status < 0:
        return _of_signal(-status)
    for line in reversed(log_lines):
        if status and line.startswith("baton: "):
            return line.removeprefix("baton: ")
    if status > 128:
        return _of_signal(status - 128)
    return "it ended by itself" if status == 0 else f"it failed with status {status}; its log has the details"


def _of_signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"it was ended by signal {number}"
    if name == "SIGKILL":
        return "it was killed (SIGKILL); the system does that when memory runs out"
    if name in ("SIGTERM", "SIGINT", "SIGHUP"):
        return f"it was told to end ({name})"
    return f"it crashed ({name})"
