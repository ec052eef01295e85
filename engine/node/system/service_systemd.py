"""The node as a systemd user unit: started with the user's session, or with the computer where the user lingers."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import shlex
import signal
from dataclasses import replace
from pathlib import Path

from engine.errors import HostError, UserError
from engine.files import write_whole
from engine.node.system.service import (
    Done,
    Program,
    ServiceStatus,
    Tool,
    as_host_errors,
    must_run,
    other_program_note,
)
from engine.paths import config_dir, node_log

UNIT = "baton.service"

# From this version on the time between two restarts may grow.
_GROWING_DELAY_VERSION = 254

_PROPERTIES = (
    *("LoadState", "ActiveState", "SubState", "MainPID", "ExecMainStartTimestamp", "ExecMainCode"),
    *("ExecMainStatus", "NRestarts", "UnitFileState"),
)

# What ExecMainCode counts, as waitid does.
_EXITED, _KILLED, _DUMPED = "1", "2", "3"


def unit_text(program: Program, *, version: int) -> str:
    """The unit for systemd of this `version`.

    It is started again however it fails, at first at once, and never given up. Told to end it is left ended: 129, 130
    and 143 are how Baton says that. An engine that memory ran out for takes nobody else along.
    """
    delays = ["RestartSec=1"]
    if version >= _GROWING_DELAY_VERSION:
        # The count of restarts is not forgotten in a long life, so the longest delay is one that can be waited for.
        delays = ["RestartSec=500ms", "RestartSteps=5", "RestartMaxDelaySec=10"]
    environment = [f"Environment={_quoted(f'{name}={value}')}" for name, value in program.environment.items()]
    # ":" keeps systemd from replacing what begins with a dollar sign.
    first, *others = program.words
    command = " ".join([_quoted(f":{first}"), *map(_quoted, others)])
    return "\n".join(
        [
            "# Written by `baton service install`, which writes it again; `baton service uninstall` removes it.",
            "[Unit]",
            "Description=Baton: two computers answer as one",
            "StartLimitIntervalSec=0",
            "",
            "[Service]",
            "Type=exec",
            f"ExecStart={command}",
            *environment,
            "Restart=on-failure",
            *delays,
            "SuccessExitStatus=129 130 143",
            "KillMode=mixed",
            "TimeoutStopSec=10",
            "OOMPolicy=continue",
            "UMask=0077",
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )


def command_of(unit: str) -> tuple[str, ...]:
    """The words that a unit starts, as `unit_text` writes them; none where it has no such line."""
    line = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    if line is None:
        return ()
    words = [_unquoted(word) for word in re.findall(r'"(?:[^"\\]|\\.)*"|\S+', line[1])]
    return (words[0].removeprefix(":"), *words[1:]) if words else ()


def systemd_service(program: Program, *, linger: bool, tool: Tool) -> SystemdService:
    """The unit of the user who runs this process."""
    configs = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return SystemdService(
        program,
        folder=configs / "systemd" / "user",
        note=config_dir() / "service.json",
        user=getpass.getuser(),
        linger=linger,
        is_booted=Path("/run/systemd/system").is_dir(),
        tool=tool,
    )


class SystemdService:
    """`folder` is where the user's units are, `note` the file that remembers what is to be undone."""

    def __init__(
        self,
        program: Program,
        *,
        folder: Path,
        note: Path,
        user: str,
        linger: bool,
        is_booted: bool,
        tool: Tool,
    ) -> None:
        self._program = program
        self._path = folder / UNIT
        self._note = note
        self._user = user
        self._linger = linger
        self._is_booted = is_booted
        self._tool = tool

    def changes(self) -> list[str]:
        self._check_systemd()
        changes = []
        if self._installed_text() != self._text():
            changes.append(
                f"{self._path} is written: it has {' '.join(self._wanted().words)} run as {self._user}"
            )
        changes.append(f"{UNIT} is started now, and whenever {self._user} logs in")
        if self._starts_before_login():
            changes.append(
                "it does not use the system keyring, which is locked until somebody logs in: this computer's key is "
                "kept in a file that only you can read"
            )
        if self._linger and not self._lingers():
            changes.append(
                f"lingering is turned on for {self._user} (loginctl enable-linger), so that the programs of this user "
                "start with the computer and go on after a logout"
            )
        return changes

    def install(self) -> None:
        self._check_systemd()
        text = self._text()
        is_changed = self._installed_text() != text
        if is_changed:
            with as_host_errors(self._path):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self._path, text.encode(), synced=True)
        must_run(self._tool, _systemctl("daemon-reload"))
        must_run(self._tool, _systemctl("enable", UNIT))
        must_run(self._tool, _systemctl("restart" if is_changed else "start", UNIT))
        if self._linger and not self._lingers():
            self._enable_lingering()

    def uninstall(self) -> list[str]:
        done = []
        if self._path.exists():
            if self._is_booted:
                self._check_systemd()
                must_run(self._tool, _systemctl("disable", "--now", UNIT))
            with as_host_errors(self._path):
                self._path.unlink()
            if self._is_booted:
                must_run(self._tool, _systemctl("daemon-reload"))
                # A unit that had failed would be remembered, under a file that is gone.
                self._tool(_systemctl("reset-failed", UNIT))
            done.append(f"{UNIT} does not run any more, and {self._path} is removed")
        if self._was_turned_on_here():
            must_run(self._tool, ["loginctl", "disable-linger", self._user])
            with as_host_errors(self._note):
                self._note.unlink(missing_ok=True)
            done.append(f"lingering is turned off again for {self._user}")
        return done

    def status(self) -> ServiceStatus:
        text = self._installed_text()
        words = command_of(text or "")
        known = ServiceStatus(
            kind="systemd user unit",
            where=str(self._path),
            log=f"{node_log()}, or journalctl --user -u {UNIT}",
            installed=text is not None,
            words=words,
        )
        notes = other_program_note(words, self._program.words)
        if fault := self._fault():
            return replace(known, notes=(*notes, fault))
        done = self._tool(_systemctl("show", UNIT, "--timestamp=unix", f"--property={','.join(_PROPERTIES)}"))
        if done.status:
            return replace(known, notes=(*notes, f"systemd does not tell how it is: {done.complaint}"))
        found = dict(line.partition("=")[::2] for line in done.output.splitlines())
        lingering = self._lingers()
        if text is not None:
            notes += _state_notes(found, lingering=lingering, user=self._user)
        return replace(
            known,
            running=found.get("ActiveState") == "active",
            pid=int(found.get("MainPID") or 0) or None,
            since=_seconds(found.get("ExecMainStartTimestamp", ""))
            if found.get("MainPID", "0") != "0"
            else None,
            last_exit=_last_exit(found.get("ExecMainCode", ""), found.get("ExecMainStatus", "")),
            n_restarts=int(found.get("NRestarts") or 0),
            lingering=lingering,
            notes=tuple(notes),
        )

    def _text(self) -> str:
        done = self._tool(["systemctl", "--version"])
        version = re.match(r"systemd (\d+)", done.output)
        return unit_text(self._wanted(), version=int(version[1]) if version else 0)

    def _wanted(self) -> Program:
        return self._program.before_login() if self._starts_before_login() else self._program

    def _starts_before_login(self) -> bool:
        return self._linger or self._lingers()

    def _installed_text(self) -> str | None:
        with as_host_errors(self._path):
            if not self._path.exists():
                return None
            return self._path.read_text(encoding="utf-8", errors="replace")

    def _fault(self) -> str:
        """Why systemd cannot run anything for this user; nothing where it can."""
        by_hand = shlex.join(self._program.words)
        if not self._is_booted:
            return (
                "systemd does not run on this computer, so it cannot start Baton: have whatever starts programs here "
                f"run `{by_hand}`; where there is cron, `crontab -e` takes the line: @reboot {by_hand}"
            )
        done = self._tool(_systemctl("show-environment"))
        if done.status:
            return (
                f"the systemd of {self._user} cannot be reached ({_first_line(done)}): log in as {self._user}, at the "
                "screen or by ssh and not through su or sudo, and type the same command again"
            )
        return ""

    def _check_systemd(self) -> None:
        if fault := self._fault():
            raise UserError(fault)

    def _lingers(self) -> bool:
        # Of a user who neither lingers nor is logged in, loginctl knows nothing and complains.
        done = self._tool(["loginctl", "show-user", self._user, "--property=Linger", "--value"])
        return done.status == 0 and done.output.strip() == "yes"

    def _enable_lingering(self) -> None:
        # Noted before it is done: what is not noted is never undone.
        with as_host_errors(self._note):
            self._note.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._note, json.dumps({"lingering_turned_on_for": self._user}).encode())
        done = self._tool(["loginctl", "enable-linger", self._user])
        if done.status:
            self._note.unlink(missing_ok=True)
            raise HostError(
                f"Baton runs now, and whenever {self._user} is logged in; lingering could not be turned on "
                f"({_first_line(done)}): to have it start with the computer and go on after a logout, type "
                f"sudo loginctl enable-linger {self._user}"
            )

    def _was_turned_on_here(self) -> bool:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return bool(json.loads(self._note.read_bytes()).get("lingering_turned_on_for") == self._user)
        return False


def _systemctl(*words: str) -> list[str]:
    return ["systemctl", "--user", *words]


def _first_line(done: Done) -> str:
    lines = (done.complaint or done.output).strip().splitlines()
    return lines[0] if lines else f"status {done.status}"


def _seconds(timestamp: str) -> float | None:
    """What `--timestamp=unix` writes, such as @1700000000."""
    return float(timestamp[1:]) if re.fullmatch(r"@\d+", timestamp) else None


def _last_exit(code: str, status: str) -> str:
    if code == _EXITED:
        return f"status {status}"
    if code in (_KILLED, _DUMPED):
        with contextlib.suppress(ValueError):
            return f"ended by {signal.Signals(int(status)).name}"
        return f"ended by signal {status}"
    return ""


def _state_notes(found: dict[str, str], *, lingering: bool, user: str) -> list[str]:
    """What is amiss with a unit that is installed."""
    notes = []
    state, detail = found.get("ActiveState", ""), found.get("SubState", "")
    if state == "activating" and detail == "auto-restart":
        notes.append("it ended and is about to be started again; the log says why")
    elif state == "failed":
        notes.append(f"it has failed; when the log's reason is mended, type systemctl --user start {UNIT}")
    elif state == "inactive":
        notes.append(f"it was ended; to start it, type systemctl --user start {UNIT}")
    if found.get("UnitFileState") not in ("enabled", None):
        notes.append(f"{user}'s next login does not start it: type `baton service install` again")
    if not lingering:
        notes.append(
            f"it runs only while {user} is logged in: `baton service install` turns lingering on, and it starts with "
            "the computer"
        )
    return notes


def _quoted(word: str) -> str:
    """A word as units write it; a percent sign stands for something else unless it is doubled."""
    word = word.replace("%", "%%")
    if re.fullmatch(r"[\w@%+=:,./-]+", word, re.ASCII):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _unquoted(word: str) -> str:
    if word.startswith('"'):
        word = re.sub(r"\\(.)", r"\1", word[1:-1])
    return word.replace("%%", "%")
