"""Keeps this computer from going to sleep while a model is there to be asked; the screen may go dark.

A desktop is asked by `wakepy`, whatever it is; macOS, and systemd on Linux without a desktop, have a program that holds
on as long as it runs, and is started again when somebody ends it. Each wish is held by a thread of its own: the system
may take its time, and whoever asked has to let go, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

log = logging.getLogger(__name__)

# A desktop that was not there yet, because nobody had logged in, may be by then.
_ASK_AGAIN_S = 300.0

# Nobody waits for longer than that for the system to hear that it may sleep again.
_LET_GO_WITHIN_S = 2.0

_NOBODY_THERE = (
    "no desktop is there that could be asked to keep this computer awake, and systemd does not do it either; should it "
    "go to sleep by itself, turn that off in its power settings"
)
_IN_PART = (
    "systemd keeps this computer from going to sleep by itself, but not a login screen from sending it there: should "
    "one do so, turn that off in its power settings"
)
_LOST = "what held was ended"
_REFUSED = "the system does not keep this computer awake for a program; turn sleep off in its power settings"


# What systemd is asked for. Whoever has no session at this computer, as a service has none, gets the last alone.
_WHATS = ("sleep:idle", "idle")
_IDLE_METHOD = "systemd-inhibit (idle)"

_CAFFEINATE = "caffeinate"

# One that has held for so long, and is ended, is started again at once; else with the next try.
_LASTED_S = 60.0

# A program that has been told to end by its input does so at once.
_ENDS_WITHIN_S = 5.0


class CannotHold(Exception):
    """The system does not do it; the message is for the log."""


OnLost = Callable[[], None]


@contextlib.contextmanager
def keep_running(on_lost: OnLost = lambda: None) -> Iterator[str]:
    """Keep this computer awake inside; gives the name of the method. All in one thread. Raises CannotHold.

    `on_lost` is called, from any thread, should it not be kept awake any more though nobody has left.
    """
    if sys.platform == "darwin":
        with _held_by([_CAFFEINATE, "cat"], on_lost):
            yield _CAFFEINATE
        return
    from wakepy import keep

    with keep.running(on_fail="pass") as mode:
        if mode.active_method is not None:
            yield mode.active_method.name
            return
        fault = mode.result.get_failure_text(style="inline")
    if sys.platform != "linux":
        raise CannotHold(fault)
    with _held_by_systemd(fault, on_lost) as method:
        yield method


@contextlib.contextmanager
def _held_by_systemd(fault: str, on_lost: OnLost) -> Iterator[str]:
    """The same by systemd, of what it grants; `fault` is what else was tried. Raises CannotHold."""
    with contextlib.ExitStack() as held:
        for what in _WHATS:
            try:
                held.enter_context(_inhibited(what, on_lost))
            except CannotHold as error:
                fault = f"{error}; {fault}"
            else:
                yield f"systemd-inhibit ({what})"
                return
    raise CannotHold(fault)


def _inhibited(what: str, on_lost: OnLost) -> AbstractContextManager[None]:
    words = ["systemd-inhibit", f"--what={what}", "--who=Baton", "--why=a model can be asked", "cat"]
    return _held_by(words, on_lost)


@contextlib.contextmanager
def _held_by(words: Sequence[str], on_lost: OnLost) -> Iterator[None]:
    """Have a program hold on inside. It ends with our end of its input, also when this process is killed."""
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    except OSError as error:
        raise CannotHold(f"{words[0]} cannot be run: {error.strerror or error}") from error
    with process:
        assert process.stdin and process.stdout and process.stderr
        try:
            # `cat` is started when the system has granted it, and says the line again.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(b"held\n")
                process.stdin.flush()
            if not process.stdout.readline():
                complaint = process.stderr.read().decode("utf-8", "replace").strip()
                raise CannotHold(f"{words[0]}: {complaint or 'it ended at once'}")
            threading.Thread(
                target=_tell_of_its_end, args=(process, on_lost), name="held", daemon=True
            ).start()
            yield
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(_ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _tell_of_its_end(process: subprocess.Popen[bytes], on_lost: OnLost) -> None:
    process.wait()
    on_lost()


class Awake:
    """On one event loop; `serve` says what there is to stay awake for. `hold` is as `keep_running`."""

    def __init__(
        self,
        *,
        on_change: Callable[[], None],
        hold: Callable[[OnLost], AbstractContextManager[str]] = keep_running,
        ask_again_s: float = _ASK_AGAIN_S,
    ) -> None:
        self._on_change = on_change
        self._hold = hold
        self._ask_again_s = ask_again_s
        self._names: tuple[str, ...] = ()
        self._holding: _Holding | None = None
        self._again: asyncio.TimerHandle | None = None
        self._method = ""
        self._since: float | None = None
        self._note = ""

    async def start(self) -> None:
        """Nothing is asked for before there is a model."""

    async def close(self) -> None:
        holding = self._holding
        self.serve(())
        if holding is not None:
            await asyncio.to_thread(holding.join, _LET_GO_WITHIN_S)

    def serve(self, names: Collection[str]) -> None:
        """The models that can be asked now; with none the computer may sleep. Returns at once."""
        if tuple(names) == self._names:
            return
        self._names = tuple(names)
        if self._names and self._holding is None:
            self._ask()
        elif not self._names:
            self._let_go()
        self._on_change()

    def snapshot(self) -> dict[str, Any]:
        """`held` with since when and how; `why` names the models, `note` says what could not be done, and why."""
        return {
            "held": self._since is not None,
            "since": self._since,
            "why": f"{', '.join(self._names)} can be asked" if self._names else "",
            "method": self._method,
            "note": self._note,
        }

    def _ask(self) -> None:
        loop = asyncio.get_running_loop()

        def answered(holding: _Holding, method: str, fault: str) -> None:
            # a loop that has ended does not care
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._answered, holding, method, fault)

        self._holding = _Holding(self._hold, answered)
        self._holding.start()

    def _let_go(self) -> None:
        if self._again is not None:
            self._again.cancel()
        if self._holding is not None:
            self._holding.let_go()
        self._holding = self._again = self._since = None
        self._method = self._note = ""

    def _answered(self, holding: _Holding, method: str, fault: str) -> None:
        if holding is not self._holding:
            return
        if fault == _LOST:
            held_s = time.time() - (self._since or 0.0)
            log.warning(
                "what kept this computer awake (%s) was ended by somebody: it is asked for again",
                self._method,
            )
            self._holding = self._since = None
            self._method = self._note = ""
            self._again = asyncio.get_running_loop().call_later(
                0.0 if held_s > _LASTED_S else self._ask_again_s, self._ask
            )
        elif fault:
            log.info("this computer cannot be kept awake: %s", fault.partition("! Tried")[0])
            self._holding = None
            self._note = _NOBODY_THERE if sys.platform == "linux" else _REFUSED
            self._again = asyncio.get_running_loop().call_later(self._ask_again_s, self._ask)
        else:
            log.info("this computer is kept awake (%s)", method)
            self._method, self._since = method, time.time()
            self._note = _IN_PART if method == _IDLE_METHOD else ""
        self._on_change()


class _Holding(threading.Thread):
    """Asks the system, tells how that went, and holds on until it is told to let go."""

    def __init__(
        self,
        hold: Callable[[OnLost], AbstractContextManager[str]],
        answered: Callable[[_Holding, str, str], None],
    ) -> None:
        super().__init__(name="awake", daemon=True)
        self._hold = hold
        self._answered = answered
        self._may_go = False
        self._is_over = threading.Event()

    def let_go(self) -> None:
        self._may_go = True
        self._is_over.set()

    def run(self) -> None:
        try:
            with self._hold(self._is_over.set) as method:
                self._answered(self, method, "")
                self._is_over.wait()
                was_lost = not self._may_go
            if was_lost:
                self._answered(self, "", _LOST)
        except Exception as error:  # whatever a desktop's answer does to the library, the node goes on
            self._answered(self, "", str(error) or type(error).__name__)
