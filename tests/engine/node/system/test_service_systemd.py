"""The systemd user unit: as data, under a pretended systemd, as systemd-analyze sees it, and under a real one."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import HostError, UserError
from engine.node.system.service import Done, Program
from engine.node.system.service_systemd import UNIT, SystemdService, command_of, unit_text
from tests.engine.node.system import systemd_room

PROGRAM = Program(
    words=("/opt/baton/python", "-m", "engine", "node"), environment={"BATON_MODELS": "/models"}
)


class PretendedSystemd:
    """What `systemctl --user` and `loginctl` do, as far as a service can tell; `down` is a complaint instead."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.down = ""
        self.cannot_linger = ""
        self.lingers = False
        self.loaded: str | None = None
        self.is_enabled = False
        self.started: list[str] = []
        self.is_running = False

    def __call__(self, words: Sequence[str]) -> Done:
        match list(words):
            case ["systemctl", "--version"]:
                return Done(status=0, output="systemd 255 (255.4-1ubuntu8)\n+PAM\n")
            case ["loginctl", "show-user", "ada", *_]:
                if not self.lingers:
                    return Done(
                        status=1, output="", complaint="Failed to get user: not logged in or lingering"
                    )
                return Done(status=0, output="yes\n")
            case ["loginctl", action, "ada"]:
                if self.cannot_linger:
                    return Done(status=1, output="", complaint=self.cannot_linger)
                self.said.append(action)
                self.lingers = action == "enable-linger"
                return Done(status=0, output="")
            case ["systemctl", "--user", *rest]:
                return self._systemctl(rest)
        raise AssertionError(words)

    def _systemctl(self, words: list[str]) -> Done:
        if self.down:
            return Done(status=1, output="", complaint=self.down)
        match words:
            case ["show-environment"]:
                return Done(status=0, output="PATH=/bin\n")
            case ["show", *_]:
                return Done(status=0, output=self._properties())
        self.said.append(" ".join(words))
        match words:
            case ["daemon-reload"]:
                path = self.folder / UNIT
                self.loaded = path.read_text() if path.exists() else None
                return Done(status=0, output="")
        if self.loaded is None:
            return Done(status=5, output="", complaint=f"Unit {UNIT} not loaded.")
        match words:
            case ["enable", _]:
                self.is_enabled = True
            case ["start", _] if self.is_running:
                pass
            case ["start" | "restart", _]:
                self.is_running = True
                self.started.append(self.loaded)
            case ["disable", "--now", _]:
                self.is_enabled = self.is_running = False
            case _:
                raise AssertionError(words)
        return Done(status=0, output="")

    def _properties(self) -> str:
        return "\n".join(
            [
                f"MainPID={4711 if self.is_running else 0}",
                "NRestarts=2",
                f"ExecMainStartTimestamp={'@1700000000' if self.is_running else 'n/a'}",
                f"ExecMainCode={0 if self.is_running else 2}",
                f"ExecMainStatus={0 if self.is_running else 9}",
                "LoadState=loaded",
                f"ActiveState={'active' if self.is_running else 'failed'}",
                f"SubState={'running' if self.is_running else 'failed'}",
                f"UnitFileState={'enabled' if self.is_enabled else 'disabled'}",
            ]
        )


@pytest.fixture
def systemd(tmp_path: Path) -> PretendedSystemd:
    return PretendedSystemd(tmp_path / "units")


def service_of(
    systemd: PretendedSystemd,
    program: Program = PROGRAM,
    *,
    linger: bool = True,
    is_booted: bool = True,
) -> SystemdService:
    return SystemdService(
        program,
        folder=systemd.folder,
        note=systemd.folder.parent / "config" / "service.json",
        user="ada",
        linger=linger,
        is_booted=is_booted,
        tool=systemd,
    )


@given(words=st.lists(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1), min_size=1))
def test_a_unit_says_its_command_and_it_can_be_read_back(words: list[str]) -> None:
    words = [f"/{words[0]}", *words[1:]]
    printable = [word for word in words if word.isprintable()]
    if printable != words:
        return
    assert command_of(unit_text(Program(words=tuple(words), environment={}), version=255)) == tuple(words)


def test_a_unit_without_a_command_has_none() -> None:
    assert command_of("") == ()
    assert command_of("[Service]\nExecStart=\n") == ()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not on this computer")
@pytest.mark.parametrize("name", ["plain", "a folder", "50%h $HOME", "größer"])
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    program = folder / "baton"
    program.symlink_to("/bin/true")
    # another version would not know all that is written for a newer one
    first = subprocess.run(["systemctl", "--version"], capture_output=True, text=True).stdout.split()[1]
    unit = tmp_path / UNIT
    unit.write_text(
        unit_text(
            Program(words=(str(program), 'say "x\\y"'), environment={"BATON_MODELS": f'{folder}/"\\n"'}),
            version=int(first),
        )
    )
    done = _analyze(unit)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    # and it would find what is wrong
    unit.write_text(unit.read_text().replace("KillMode=mixed", "KillMode=gently\nRestrat=no"))
    assert "gently" in (complaint := _analyze(unit).stderr) and "Restrat" in complaint
    program.unlink()
    assert "not executable" in _analyze(unit).stderr


def _analyze(unit: Path) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as runtime:
        return subprocess.run(
            ["systemd-analyze", "--user", "verify", str(unit)],
            env={**os.environ, "XDG_RUNTIME_DIR": runtime},
            capture_output=True,
            text=True,
        )


def test_delays_that_grow_are_asked_for_where_systemd_knows_them() -> None:
    assert "RestartMaxDelaySec" in unit_text(PROGRAM, version=254)
    assert "RestartMaxDelaySec" not in unit_text(PROGRAM, version=253)
    assert "RestartSec" in unit_text(PROGRAM, version=253)


def test_it_is_told_before_it_is_done(systemd: PretendedSystemd) -> None:
    told = service_of(systemd).changes()
    assert systemd.said == [] and not systemd.folder.exists()
    assert [str(systemd.folder / UNIT) in told[0], "lingering" in told[-1]] == [True, True]
    assert not any("lingering" in change for change in service_of(systemd, linger=False).changes())


def test_installing_twice_leaves_a_running_one_alone(systemd: PretendedSystemd) -> None:
    service_of(systemd).install()
    assert (systemd.is_enabled, systemd.lingers, len(systemd.started)) == (True, True, 1)
    assert command_of(systemd.started[0]) == PROGRAM.before_login().words
    service_of(systemd).install()
    assert (systemd.is_enabled, systemd.lingers, len(systemd.started)) == (True, True, 1)
    assert service_of(systemd).status().notes == ()


def test_another_baton_is_seen_and_takes_over(systemd: PretendedSystemd, tmp_path: Path) -> None:
    service_of(systemd).install()
    new = Program(words=("/opt/new/python", "-m", "engine", "node"), environment={})
    (note,) = service_of(systemd, new).status().notes
    assert "/opt/baton/python" in note and "/opt/new/python" in note and "not there any more" in note
    service_of(systemd, new).install()
    assert [command_of(unit) for unit in systemd.started] == [
        PROGRAM.before_login().words,
        new.before_login().words,
    ]
    assert service_of(systemd, new).status().notes == ()


def test_the_keyring_is_left_alone_where_the_node_starts_before_a_login(systemd: PretendedSystemd) -> None:
    service = service_of(systemd, linger=False)
    assert not any("system keyring" in change for change in service.changes())
    service.install()
    assert command_of(systemd.started[-1]) == PROGRAM.words
    systemd.lingers = True  # an administrator's doing: nobody asked for it here
    assert any("system keyring" in change for change in service.changes())
    service.install()
    assert command_of(systemd.started[-1]) == (*PROGRAM.words, "--keyring", "never")
    assert service.status().notes == ()


def test_a_folder_that_cannot_be_written_is_told(systemd: PretendedSystemd) -> None:
    systemd.folder.write_text("no folder")
    with pytest.raises(HostError, match=r"units/baton\.service cannot be .*check who owns"):
        service_of(systemd).install()


def test_uninstalling_undoes_all_that_installing_did(systemd: PretendedSystemd) -> None:
    service_of(systemd).install()
    assert len(service_of(systemd).uninstall()) == 2
    assert not systemd.is_running and not systemd.is_enabled and not systemd.lingers
    assert list(systemd.folder.iterdir()) == []
    assert list((systemd.folder.parent / "config").iterdir()) == []
    assert service_of(systemd).uninstall() == []


def test_lingering_that_was_on_before_stays_on(systemd: PretendedSystemd) -> None:
    systemd.lingers = True
    service_of(systemd).install()
    service_of(systemd).uninstall()
    assert systemd.lingers and not {"enable-linger", "disable-linger"} & set(systemd.said)


def test_lingering_that_may_not_be_turned_on_leaves_the_service_running(systemd: PretendedSystemd) -> None:
    systemd.cannot_linger = "Could not enable linger: Access denied"
    with pytest.raises(HostError, match=r"Access denied.*sudo loginctl enable-linger ada"):
        service_of(systemd).install()
    assert systemd.is_running
    status = service_of(systemd).status()
    assert (status.lingering, "only while ada is logged in" in status.notes[0]) == (False, True)
    systemd.lingers = True  # an administrator's doing
    service_of(systemd).uninstall()
    assert systemd.lingers


def test_status_says_how_it_is(systemd: PretendedSystemd) -> None:
    assert not service_of(systemd).status().installed
    service_of(systemd).install()
    status = service_of(systemd).status()
    assert (status.installed, status.running, status.pid, status.since) == (True, True, 4711, 1_700_000_000.0)
    assert (status.lingering, status.n_restarts, status.last_exit) == (True, 2, "")
    assert status.words == PROGRAM.before_login().words and UNIT in status.log
    json.dumps(status.as_json())
    systemd.is_running = False
    status = service_of(systemd).status()
    assert (status.running, status.pid, status.since, status.last_exit) == (
        False,
        None,
        None,
        "ended by SIGKILL",
    )
    assert f"systemctl --user start {UNIT}" in status.notes[0]


def test_without_systemd_there_is_something_else_to_do(systemd: PretendedSystemd) -> None:
    service = service_of(systemd, is_booted=False)
    for action in (service.changes, service.install):
        with pytest.raises(
            UserError, match=r"systemd does not run.*@reboot /opt/baton/python -m engine node$"
        ):
            action()
    assert systemd.said == [] and not systemd.folder.exists()
    assert "@reboot" in service.status().notes[0]
    assert service.uninstall() == []


def test_a_systemd_that_cannot_be_reached_is_explained(systemd: PretendedSystemd) -> None:
    systemd.down = "Failed to connect to bus: No medium found\nmore"
    with pytest.raises(UserError, match=r"\(Failed to connect to bus: No medium found\): log in as ada"):
        service_of(systemd).install()
    assert not systemd.folder.exists()
    systemd.down = ""
    service_of(systemd).install()
    systemd.down = "Failed to connect to bus"
    with pytest.raises(UserError, match="log in as ada"):  # it may still run, and could not be ended
        service_of(systemd).uninstall()
    assert (systemd.folder / UNIT).exists()
    assert len(service_of(systemd, is_booted=False).uninstall()) == 2 and not (systemd.folder / UNIT).exists()


def test_what_a_tool_complains_of_is_passed_on(systemd: PretendedSystemd) -> None:
    systemd.folder.mkdir()
    service = service_of(systemd)
    service.install()
    systemd.loaded = None
    with pytest.raises(HostError, match=r"`systemctl --user disable --now baton.service` failed: Unit"):
        service.uninstall()
    assert (systemd.folder / UNIT).exists()


@pytest.fixture(scope="module")
def room() -> Iterator[systemd_room.Room]:
    if lacks := systemd_room.missing():
        pytest.skip(lacks)
    with systemd_room.systemd_room() as room:
        yield room


@pytest.mark.root
def test_a_real_systemd_installs_it_starts_it_again_and_removes_it(
    room: systemd_room.Room, tmp_path: Path
) -> None:
    """What is started tells its process number, as seen in the room, whenever it starts."""
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard,
    ):
        heard.settimeout(20)
        heard.bind(f"{folder}/heard")
        code = (
            "import os, signal, socket\n"
            "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(str(os.getpid()).encode(), os.environ['SAY_TO'])\n"
            "signal.signal(signal.SIGTERM, lambda *_: os._exit(143))\n"
            "signal.pause()"
        ).replace("\n", "; ")
        arguments = json.dumps({"code": code, "say_to": f"{folder}/heard", "folder": str(tmp_path)})

        def do(action: str) -> str:
            done = room.run([sys.executable, "-c", _IN_THE_ROOM, action, arguments], PYTHONPATH=os.getcwd())
            assert done.returncode == 0, done.stderr
            return done.stdout

        do("install")
        first = int(heard.recv(64))
        status = json.loads(do("status"))
        assert (status["running"], status["pid"], status["installed"]) == (True, first, True)
        assert status["since"] > 1_700_000_000

        do("install")  # the same again
        assert json.loads(do("status"))["pid"] == first

        assert room.run(["kill", "-KILL", str(first)]).returncode == 0
        second = int(heard.recv(64))
        status = json.loads(do("status"))
        assert (status["running"], status["pid"], status["n_restarts"]) == (True, second, 1)

        # told to end it stays ended, and is not taken for one that failed
        assert room.run(["systemctl", "--user", "stop", UNIT]).returncode == 0
        status = json.loads(do("status"))
        assert (status["running"], status["last_exit"]) == (False, "status 143")
        assert "was ended" in status["notes"][0]

        do("install")
        assert int(heard.recv(64)) != second
        do("uninstall")
        assert not json.loads(do("status"))["installed"]
        assert room.run(["systemctl", "--user", "is-active", UNIT]).stdout.strip() == "inactive"


_IN_THE_ROOM = """
import json, pathlib, sys
from engine.node.system.service import Program, run_tool
from engine.node.system.service_systemd import SystemdService
given = json.loads(sys.argv[2])
service = SystemdService(
    Program(words=(sys.executable, "-c", given["code"]), environment={"SAY_TO": given["say_to"]}),
    folder=pathlib.Path.home() / ".config/systemd/user",
    note=pathlib.Path(given["folder"]) / "service.json",
    user="root",
    linger=False,
    is_booted=pathlib.Path("/run/systemd/system").is_dir(),
    tool=run_tool,
)
answer = getattr(service, sys.argv[1])()
print(json.dumps(answer.as_json()) if sys.argv[1] == "status" else answer)
"""
