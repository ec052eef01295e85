"""The scheduled task, as data and under pretended tools: no Windows is needed, and none has run it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from engine.errors import HostError
from engine.node.system.service import Done, Program
from engine.node.system.service_windows import TASK, ScheduledTask, task_xml

PYTHON = "C:\\Users\\Ada B\\baton\\python.exe"
PROGRAM = Program(words=(PYTHON, "-m", "engine", "a b", "node"), environment={})
NAMES = {"t": "http://schemas.microsoft.com/windows/2004/02/mit/task"}


class PretendedScheduler:
    """What `schtasks` and PowerShell answer, as far as a service can tell."""

    def __init__(self) -> None:
        self.task: str | None = None
        self.is_running = False
        self.fault = ""

    def __call__(self, words: Sequence[str]) -> Done:
        if self.fault:
            return Done(status=1, output="", complaint=self.fault)
        if words[0] == "powershell":
            state, result = (4, 0x41301) if self.is_running else (3, 3221225786)
            return Done(
                status=0, output=json.dumps({"state": state, "result": result, "since": 1_700_000_000})
            )
        assert words[0] == "schtasks" and words[2:4] == ["/TN", TASK]
        match words[1]:
            case "/Create":
                assert words[4] == "/XML" and words[6] == "/F"
                self.task = Path(words[5]).read_text(encoding="utf-16")
                return Done(status=0, output="SUCCESS")
            case _ if self.task is None:
                return Done(
                    status=1, output="", complaint="ERROR: The system cannot find the file specified."
                )
            case "/Query":
                return Done(status=0, output=f'<?xml version="1.0" encoding="UTF-16"?>\r\n{self.task}\r\n')
            case "/Run":
                self.is_running = True
            case "/End":
                self.is_running = False
            case "/Delete":
                self.task = None
        return Done(status=0, output="SUCCESS")


@pytest.fixture
def scheduler() -> PretendedScheduler:
    return PretendedScheduler()


def service_of(scheduler: PretendedScheduler, program: Program = PROGRAM) -> ScheduledTask:
    return ScheduledTask(program, log="node.log", tool=scheduler, user="HOME\\ada")


def test_the_task_as_data() -> None:
    root = ElementTree.fromstring(task_xml(PROGRAM, user="HOME\\ada"))

    def text(path: str) -> str | None:
        return root.findtext("/".join(f"t:{name}" for name in path.split("/")), None, NAMES)

    assert text("Actions/Exec/Command") == "C:\\Users\\Ada B\\baton\\pythonw.exe"
    assert text("Actions/Exec/Arguments") == '-m engine "a b" node'
    assert text("Triggers/LogonTrigger/UserId") == text("Principals/Principal/UserId") == "HOME\\ada"
    assert text("Triggers/LogonTrigger/Repetition/Interval") == "PT1M"
    assert text("Settings/MultipleInstancesPolicy") == "IgnoreNew"
    assert text("Settings/ExecutionTimeLimit") == "PT0S"  # for ever
    assert text("Principals/Principal/RunLevel") == "LeastPrivilege"
    # the schema wants these in this order
    (trigger,) = root.iterfind("t:Triggers/t:LogonTrigger", NAMES)
    assert [child.tag.partition("}")[2] for child in trigger] == ["Repetition", "UserId"]


def test_installing_twice_is_installing_once(scheduler: PretendedScheduler) -> None:
    service_of(scheduler).install()
    first = scheduler.task
    service_of(scheduler).install()
    assert scheduler.task == first and scheduler.is_running
    assert service_of(scheduler).status().notes == ()


def test_what_a_task_cannot_be_told_is_said(scheduler: PretendedScheduler) -> None:
    program = Program(words=PROGRAM.words, environment={"PYTHONSAFEPATH": "1", "BATON_MODELS": "D:\\models"})
    told = service_of(scheduler, program).changes()
    assert "setx BATON_MODELS D:\\models" in told[0]
    assert not any("setx" in change for change in service_of(scheduler).changes())


def test_another_baton_is_seen(scheduler: PretendedScheduler) -> None:
    service_of(scheduler).install()
    new = Program(words=("C:\\new\\baton.exe", "node"), environment={})
    assert "C:\\new\\baton.exe" in service_of(scheduler, new).status().notes[0]


def test_status(scheduler: PretendedScheduler) -> None:
    assert not service_of(scheduler).status().installed
    service_of(scheduler).install()
    status = service_of(scheduler).status()
    assert (status.installed, status.running, status.since, status.last_exit) == (
        True,
        True,
        1_700_000_000,
        "",
    )
    scheduler.is_running = False
    status = service_of(scheduler).status()
    assert (status.running, status.since, status.last_exit) == (False, None, "status 3221225786")


def test_uninstalling(scheduler: PretendedScheduler) -> None:
    assert service_of(scheduler).uninstall() == []
    service_of(scheduler).install()
    assert len(service_of(scheduler).uninstall()) == 1
    assert scheduler.task is None and not scheduler.is_running


def test_what_a_tool_complains_of_is_passed_on(scheduler: PretendedScheduler) -> None:
    scheduler.fault = "ERROR: Access is denied."
    with pytest.raises(HostError, match=r"Access is denied\."):
        service_of(scheduler).install()
