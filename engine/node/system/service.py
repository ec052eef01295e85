"""The service that keeps this computer's node running, with nobody at the keyboard: one interface for every system.

What each system wants is in a file of its own: `service_systemd.py`, `service_launchd.py`, `service_windows.py`. They
make units as data and run a system's own tools; here is what a user is told, and what is run.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from engine.errors import HostError, UserError
from engine.files import file_error
from engine.paths import node_log, own_command

# A tool of the system that has not answered by then hangs.
_TOOL_TIMEOUT_S = 30.0

_NO_TOOL = 127  # as shells have it

# Where the node looks for files, where the user's shell says so; no secret is among them.
FOLDERS = ("BATON_MODELS", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a tool of the system answered."""

    status: int
    output: str
    complaint: str = ""


Tool = Callable[[Sequence[str]], Done]


def run_tool(words: Sequence[str]) -> Done:
    """Run a tool of the system, in plain English; one that is missing or hangs has a status and a complaint, too."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TOOL_TIMEOUT_S,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        return Done(status=_NO_TOOL, output="", complaint=f"{words[0]} is not on this computer")
    except subprocess.TimeoutExpired:
        return Done(status=_NO_TOOL, output="", complaint=f"{words[0]} did not answer")
    except OSError as error:
        return Done(status=_NO_TOOL, output="", complaint=f"{words[0]} cannot be run ({error.strerror})")
    return Done(
        status=done.returncode,
        output=done.stdout.decode("utf-8", "replace"),
        complaint=done.stderr.decode("utf-8", "replace").strip(),
    )


def must_run(tool: Tool, words: Sequence[str]) -> None:
    """Raises HostError with what the tool complains of."""
    done = tool(words)
    if done.status:
        why = done.complaint or done.output.strip() or f"it ended with status {done.status}"
        raise HostError(f"`{' '.join(words)}` failed: {why}")


@contextlib.contextmanager
def as_host_errors(path: Path) -> Iterator[None]:
    """Raises HostError where the unit in `path`, or what belongs to it, cannot be read or written."""
    try:
        yield
    except OSError as error:
        raise file_error(f"the service's file {path}", error) from error


@dataclass(frozen=True, kw_only=True)
class Program:
    """What a service starts: the words of the node, and the environment that it needs beyond what the system gives."""

    words: tuple[str, ...]
    environment: Mapping[str, str]

    @classmethod
    def own(cls, environ: Mapping[str, str] = os.environ) -> Program:
        """This very Baton's node, with the folders that `environ` names."""
        # A folder of the name `engine` where a service happens to start is none of ours.
        environment = {"PYTHONSAFEPATH": "1"}
        for name in FOLDERS:
            if value := environ.get(name):
                environment[name] = str(Path(value).expanduser().absolute())
        if source := environ.get("BATON_MODEL_SOURCE"):
            environment["BATON_MODEL_SOURCE"] = source
        return cls(words=(*own_command(), "node"), environment=environment)

    def before_login(self) -> Program:
        """The same for a node that starts before anybody has logged in: the system keyring is locked then."""
        return replace(self, words=(*self.words, "--keyring", "never"))

    def check(self) -> None:
        """Raises UserError for what no unit can say."""
        if any(not text.isprintable() for text in (*self.words, *self.environment.values())):
            raise UserError(
                f"{self.words[0]}: a path with line breaks or other invisible characters cannot be started by the "
                "system; rename its folder"
            )


@dataclass(frozen=True, kw_only=True)
class ServiceStatus:
    """What is known of the service. `since` is in seconds since 1970, of the present run.

    `words` are what the installed one starts. `lingering` is whether it goes on when its user logs out, None where the
    kind of service settles it. `notes` are sentences on what is amiss and what to do.
    """

    kind: str
    where: str
    log: str
    installed: bool = False
    running: bool = False
    pid: int | None = None
    since: float | None = None
    last_exit: str = ""
    n_restarts: int | None = None
    lingering: bool | None = None
    words: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default_factory=tuple)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Service(Protocol):
    """One kind of service. All raise UserError or HostError with a sentence."""

    def changes(self) -> list[str]:
        """What `install` is about to change on this computer, a sentence each; it changes nothing itself."""

    def install(self) -> None:
        """Install and start it; one that is there already is brought up to date, and left running where nothing is."""

    def uninstall(self) -> list[str]:
        """End and remove it, and undo what came with it; says what was done, and nothing where there was none."""

    def status(self) -> ServiceStatus: ...


def own_service(*, system: bool | None = None, linger: bool = True, tool: Tool = run_tool) -> Service:
    """The service of this user on this system.

    `system` asks for one that runs without any login, where there are two kinds (macOS); None takes whichever is
    installed. `linger` is whether it goes on after its user has logged out, where that is a choice (Linux).
    """
    program = Program.own()
    program.check()
    if sys.platform == "darwin":
        from engine.node.system.service_launchd import launchd_service

        return launchd_service(program, system=system, tool=tool)
    if system:
        raise UserError("--system is a choice of macOS alone: leave it out here")
    if sys.platform == "win32":
        from engine.node.system.service_windows import ScheduledTask

        return ScheduledTask(program, log=str(node_log()), tool=tool)
    from engine.node.system.service_systemd import systemd_service

    return systemd_service(program, linger=linger, tool=tool)


def other_program_note(installed: Sequence[str], own: Sequence[str]) -> list[str]:
    """What to say of a service that starts another Baton than this one, with whatever flags."""
    if not installed or list(installed[: len(own)]) == list(own):
        return []
    gone = "" if os.path.exists(installed[0]) else ", which is not there any more"
    return [
        f"it starts {' '.join(installed)}{gone}; this Baton is {' '.join(own)}: to have it started instead, type "
        "`baton service install` again"
    ]
