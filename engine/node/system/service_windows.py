"""The node as a scheduled task of Windows, which starts when its user logs on.

Built and checked as data: no part of it has run on Windows.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from engine.node.system.service import FOLDERS, Program, ServiceStatus, Tool, must_run, other_program_note

TASK = r"\Baton\Node"

_NAMESPACE = "http://schemas.microsoft.com/windows/2004/02/mit/task"

# States as the scheduler counts them, and what it says of a task that has not run yet or is running.
_RUNNING = 4
_NO_EXIT = (0x41301, 0x41303)

_ASK = (
    "$ErrorActionPreference='Stop'; $task = Get-ScheduledTask -TaskPath '\\Baton\\' -TaskName 'Node'; "
    "$info = $task | Get-ScheduledTaskInfo; "
    "ConvertTo-Json -Compress @{state=[int]$task.State; result=[int64]$info.LastTaskResult; "
    "since=([DateTimeOffset]$info.LastRunTime).ToUnixTimeSeconds()}"
)


def task_xml(program: Program, *, user: str) -> str:
    """The task. It is looked after every minute, since Windows starts again only what could not be started at all."""
    command, *arguments = _windowless(program.words)
    leaves = {
        "Triggers/LogonTrigger/Repetition/Interval": "PT1M",
        "Triggers/LogonTrigger/Repetition/StopAtDurationEnd": "false",
        "Triggers/LogonTrigger/UserId": user,
        "Principals/Principal/UserId": user,
        "Principals/Principal/LogonType": "InteractiveToken",
        "Principals/Principal/RunLevel": "LeastPrivilege",
        "Settings/MultipleInstancesPolicy": "IgnoreNew",
        "Settings/DisallowStartIfOnBatteries": "false",
        "Settings/StopIfGoingOnBatteries": "false",
        "Settings/StartWhenAvailable": "true",
        "Settings/ExecutionTimeLimit": "PT0S",
        "Settings/Priority": "5",  # what programs have; tasks get less by themselves
        "Actions/Exec/Command": command,
        "Actions/Exec/Arguments": subprocess.list2cmdline(arguments),
    }
    ElementTree.register_namespace("", _NAMESPACE)
    root = ElementTree.Element(f"{{{_NAMESPACE}}}Task", {"version": "1.2"})
    for path, text in leaves.items():
        node = root
        for name in path.split("/"):
            tag = f"{{{_NAMESPACE}}}{name}"
            found = node.find(tag)
            node = ElementTree.SubElement(node, tag) if found is None else found
        node.text = text
    return ElementTree.tostring(root, encoding="unicode")


class ScheduledTask:
    def __init__(self, program: Program, *, log: str, tool: Tool, user: str | None = None) -> None:
        self._program = program
        self._log = log
        self._tool = tool
        self._user = user or getpass.getuser()

    def changes(self) -> list[str]:
        # A task has no environment of its own.
        folders = [
            f"setx {name} {value}" for name, value in self._program.environment.items() if name in FOLDERS
        ]
        return [
            *(
                f"it will not know of a folder that this window names, unless you type: {line}"
                for line in folders
            ),
            f"the scheduled task {TASK} is made: it has {' '.join(self._program.words)} run as {self._user} without a "
            "window, from each logon on, and again within a minute should it end",
            "it is started now",
        ]

    def install(self) -> None:
        with tempfile.TemporaryDirectory(prefix="baton-") as folder:
            file = Path(folder) / "task.xml"
            file.write_text(task_xml(self._program, user=self._user), encoding="utf-16")
            must_run(self._tool, ["schtasks", "/Create", "/TN", TASK, "/XML", str(file), "/F"])
        must_run(self._tool, ["schtasks", "/Run", "/TN", TASK])

    def uninstall(self) -> list[str]:
        if self._installed_words() is None:
            return []
        self._tool(["schtasks", "/End", "/TN", TASK])  # complains where it does not run
        must_run(self._tool, ["schtasks", "/Delete", "/TN", TASK, "/F"])
        return [f"the scheduled task {TASK} is ended and removed"]

    def status(self) -> ServiceStatus:
        words = self._installed_words()
        found = {}
        if words is not None:
            with contextlib.suppress(ValueError):
                found = json.loads(self._tool(["powershell", "-NoProfile", "-Command", _ASK]).output)
        is_running = found.get("state") == _RUNNING
        result = found.get("result")
        return ServiceStatus(
            kind="scheduled task",
            where=TASK,
            log=self._log,
            installed=words is not None,
            running=is_running,
            since=found.get("since") if is_running else None,
            last_exit="" if result is None or result in _NO_EXIT else f"status {result}",
            words=words or (),
            notes=tuple(other_program_note(words or (), _written(_windowless(self._program.words)))),
        )

    def _installed_words(self) -> tuple[str, ...] | None:
        """What the installed task starts: the program, and all its arguments as one text."""
        done = self._tool(["schtasks", "/Query", "/TN", TASK, "/XML"])
        if done.status:
            return None
        with contextlib.suppress(ElementTree.ParseError, ValueError):
            # The declaration at its head names an encoding that what we got is not in any more.
            root = ElementTree.fromstring(done.output[done.output.index("<Task") :])
            names = {"task": _NAMESPACE}
            parts = [
                root.findtext(f".//task:Exec/task:{name}", "", names) for name in ("Command", "Arguments")
            ]
            return tuple(filter(None, parts))
        return ()


def _written(words: Sequence[str]) -> tuple[str, ...]:
    command, *arguments = words
    return tuple(filter(None, (command, subprocess.list2cmdline(arguments))))


def _windowless(words: Sequence[str]) -> list[str]:
    """`python.exe` would open a window, and closing that would end the node; `pythonw.exe` lies beside it."""
    first, *others = words
    if first.lower().endswith("\\python.exe"):
        first = f"{first[: -len('python.exe')]}pythonw.exe"
    return [first, *others]
