"""The node under macOS's launchd: an agent of the user who is logged in, or a daemon that needs nobody to log in.

Built and checked as data: no part of it has run on a Mac.
"""

from __future__ import annotations

import os
import plistlib
import pwd
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError

from engine.errors import HostError, UserError
from engine.files import write_whole
from engine.node.system.service import (
    Program,
    ServiceStatus,
    Tool,
    as_host_errors,
    must_run,
    other_program_note,
)
from engine.paths import node_log, service_log

LABEL = "baton.node"

# A job that was ended leaves launchd a moment later, and cannot be brought in again before that.
_LEAVES_WITHIN_S = 10.0
_LOOK_AGAIN_S = 0.25

AGENT_TRADE_OFF = (
    "a LaunchAgent runs while you are logged in. macOS asks whether it may find devices on your local network, and "
    "may deny it without asking when it was started without Baton's window; then the other computer has to call this "
    "one. It may use your keychain"
)
DAEMON_TRADE_OFF = (
    "a LaunchDaemon starts with the computer, before anybody logs in, and macOS lets it use the local network without "
    "asking. Installing it takes an administrator's password, and it cannot open your keychain: keys are kept in a "
    "file that only you can read"
)


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The user as whom the node runs."""

    name: str
    uid: int
    home: Path


@dataclass(frozen=True, kw_only=True)
class Kind:
    """An agent or a daemon: the folder of its plist, and the domain that launchd knows it in."""

    name: str
    folder: Path
    domain: str
    is_system: bool
    trade_off: str


def agent_of(owner: Owner) -> Kind:
    return Kind(
        name="LaunchAgent",
        folder=owner.home / "Library" / "LaunchAgents",
        domain=f"gui/{owner.uid}",
        is_system=False,
        trade_off=AGENT_TRADE_OFF,
    )


DAEMON = Kind(
    name="LaunchDaemon",
    folder=Path("/Library/LaunchDaemons"),
    domain="system",
    is_system=True,
    trade_off=DAEMON_TRADE_OFF,
)


def plist_of(program: Program, kind: Kind, owner: Owner) -> dict[str, Any]:
    """The job: started again unless it ended well, and not held back as something in the background would be."""
    if kind.is_system:
        program = program.before_login()
    job: dict[str, Any] = {
        "Label": LABEL,
        "ProgramArguments": list(program.words),
        "EnvironmentVariables": dict(program.environment),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 10,
        "ProcessType": "Interactive",
        "Umask": 0o077,
        "WorkingDirectory": str(owner.home),
        "StandardOutPath": os.devnull,
        # What the node cannot write into its own log, because it did not come so far.
        "StandardErrorPath": str(_owners(service_log(), owner)),
    }
    if kind.is_system:
        job["UserName"] = owner.name
        job["EnvironmentVariables"] |= {"HOME": str(owner.home), "USER": owner.name, "LOGNAME": owner.name}
    return job


def launchd_service(program: Program, *, system: bool | None, tool: Tool) -> LaunchdService:
    """The kind that `system` asks for; where it is None the daemon if one is installed, else the agent."""
    uid = os.getuid()
    # `sudo` runs us as root, on behalf of the user whose node it is.
    if uid == 0 and (given := os.environ.get("SUDO_UID", "")).isdecimal():
        uid = int(given)
    entry = pwd.getpwuid(uid)
    owner = Owner(name=entry.pw_name, uid=uid, home=Path(entry.pw_dir))
    if system is None:
        system = (DAEMON.folder / f"{LABEL}.plist").exists()
    kind = DAEMON if system else agent_of(owner)
    return LaunchdService(program, kind=kind, owner=owner, is_root=os.geteuid() == 0, tool=tool)


class LaunchdService:
    def __init__(
        self,
        program: Program,
        *,
        kind: Kind,
        owner: Owner,
        is_root: bool,
        tool: Tool,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._program = program
        self._kind = kind
        self._owner = owner
        self._path = kind.folder / f"{LABEL}.plist"
        self._target = f"{kind.domain}/{LABEL}"
        self._is_root = is_root
        self._tool = tool
        self._sleep = sleep

    def changes(self) -> list[str]:
        self._check_user()
        changes = [self._kind.trade_off]
        if self._installed() != self._job():
            words = " ".join(self._job()["ProgramArguments"])
            changes.append(f"{self._path} is written: it has {words} run as {self._owner.name}")
        when = "whenever the Mac is" if self._kind.is_system else "whenever you log in"
        return [*changes, f"it is started now, and {when}"]

    def install(self) -> None:
        self._check_user()
        if self._installed() == self._job() and self._is_loaded():
            return
        self._unload()
        with as_host_errors(self._path):
            self._make_log_folder()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, plistlib.dumps(self._job()), synced=True)
            # launchd takes no job from a file that others may write.
            self._path.chmod(0o644)
        must_run(self._tool, ["launchctl", "enable", self._target])
        must_run(self._tool, ["launchctl", "bootstrap", self._kind.domain, str(self._path)])

    def uninstall(self) -> list[str]:
        if not self._path.exists():
            return []
        self._check_user()
        self._unload()
        with as_host_errors(self._path):
            self._path.unlink()
        return [f"{LABEL} is ended, and {self._path} removed"]

    def status(self) -> ServiceStatus:
        job = self._installed()
        words = tuple(map(str, (job or {}).get("ProgramArguments", ())))
        done = self._tool(["launchctl", "print", self._target])
        found = _first_values(done.output) if done.status == 0 else {}
        pid = found.get("pid", "")
        notes = other_program_note(words, self._program.words)
        if job is not None and not found:
            notes.append("launchd does not have it loaded: type `baton service install` again")
        return ServiceStatus(
            kind=self._kind.name,
            where=str(self._path),
            log=f"{_owners(node_log(), self._owner)}; before it begins, {_owners(service_log(), self._owner)}",
            installed=job is not None,
            running=found.get("state") == "running",
            pid=int(pid) if pid.isdecimal() else None,
            last_exit=_last_exit(found.get("last exit code", "")),
            n_restarts=max(0, int(runs) - 1) if (runs := found.get("runs", "")).isdecimal() else None,
            words=words,
            notes=tuple(notes),
        )

    def _job(self) -> dict[str, Any]:
        return plist_of(self._program, self._kind, self._owner)

    def _installed(self) -> dict[str, Any] | None:
        """The job that is installed; an empty one where its file cannot be understood."""
        try:
            with as_host_errors(self._path):
                if not self._path.exists():
                    return None
                job = plistlib.loads(self._path.read_bytes())
        except (ValueError, ExpatError):
            return {}
        return job if isinstance(job, dict) else {}

    def _check_user(self) -> None:
        if self._kind.is_system and not self._is_root:
            raise UserError(
                "a LaunchDaemon is the system's, and only an administrator installs or removes one: type the same "
                "command again with `sudo` before it"
            )
        if not self._kind.is_system and self._is_root:
            raise UserError("a LaunchAgent is a user's own: type the same command again without sudo")

    def _make_log_folder(self) -> None:
        """For the user whose node it is, also where root installs it: launchd makes files and no folders."""
        folder = _owners(service_log(), self._owner).parent
        if not folder.exists():
            folder.mkdir(parents=True)
            if self._is_root:
                os.chown(folder, self._owner.uid, -1, follow_symlinks=False)

    def _is_loaded(self) -> bool:
        return self._tool(["launchctl", "print", self._target]).status == 0

    def _unload(self) -> None:
        if not self._is_loaded():
            return
        self._tool(["launchctl", "bootout", self._target])
        for _ in range(round(_LEAVES_WITHIN_S / _LOOK_AGAIN_S)):
            if not self._is_loaded():
                return
            self._sleep(_LOOK_AGAIN_S)
        raise HostError(
            f"launchd does not end {LABEL}: log out and in again, and type the same command again"
        )


def _owners(path: Path, owner: Owner) -> Path:
    """A path in the home of whoever runs this process, as it is in that of `owner`."""
    return owner.home / path.relative_to(Path.home()) if path.is_relative_to(Path.home()) else path


def _first_values(printed: str) -> dict[str, str]:
    """What `launchctl print` says of the job itself: the first of each name, for what is nested comes later."""
    found: dict[str, str] = {}
    for name, value in re.findall(r"^\s*([a-z ]+?) = (.*?)\s*$", printed, re.MULTILINE):
        found.setdefault(name, value)
    return found


def _last_exit(code: str) -> str:
    """Such as `78: EX_CONFIG`, or `(never exited)`."""
    number = code.partition(":")[0]
    return f"status {number}" if number.isdecimal() else ""
