"""The launchd job, as data and under a pretended launchctl: no Mac is needed, and none has run it."""

from __future__ import annotations

import os
import plistlib
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import HostError, UserError
from engine.node.system.service import Done, Program
from engine.node.system.service_launchd import DAEMON, LABEL, Kind, LaunchdService, Owner, agent_of, plist_of

PROGRAM = Program(
    words=("/Applications/Baton.app/x", "node"), environment={"BATON_MODELS": "/Volumes/models"}
)

PRINTED = """\
gui/501/baton.node = {
\tactive count = 1
\tpath = /Users/ada/Library/LaunchAgents/baton.node.plist
\ttype = LaunchAgent
\tstate = running

\tprogram = /Applications/Baton.app/x
\truns = 3
\tpid = 815
\tlast exit code = 78: EX_CONFIG
\tspawn type = interactive (4)

\tresource coalition = {
\t\tID = 700
\t\ttype = resource
\t\tstate = active
\t\tpid = 1
\t}
}
"""


class PretendedLaunchd:
    """What `launchctl` does, as far as a service can tell; a job that is booted out is there for a moment more."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.job: dict[str, object] | None = None
        self.stays_for = 0
        self._leaves = False

    def __call__(self, words: Sequence[str]) -> Done:
        assert words[0] == "launchctl"
        match list(words[1:]):
            case ["print", _]:
                if self._leaves:
                    self.stays_for -= 1
                    if self.stays_for < 0:
                        self.job, self._leaves = None, False
                if self.job is None:
                    return Done(status=113, output="", complaint="Could not find service")
                return Done(status=0, output=PRINTED)
            case ["bootstrap", domain, path]:
                self.said.append(f"bootstrap {domain}")
                if self.job is not None:
                    return Done(status=5, output="", complaint="Bootstrap failed: 5: Input/output error")
                self.job = plistlib.loads(Path(path).read_bytes())
            case ["bootout", _]:
                self.said.append("bootout")
                self._leaves = True
                return Done(status=36, output="", complaint="Operation now in progress")
            case ["enable", _]:
                self.said.append("enable")
        return Done(status=0, output="")


@pytest.fixture
def launchd() -> PretendedLaunchd:
    return PretendedLaunchd()


@pytest.fixture
def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Owner:
    monkeypatch.setattr("engine.paths.log_dir", lambda: tmp_path / "Library" / "Logs" / "baton")
    return Owner(name="ada", uid=501, home=tmp_path)


def service_of(
    launchd: PretendedLaunchd,
    owner: Owner,
    program: Program = PROGRAM,
    *,
    kind: Kind | None = None,
    is_root: bool = False,
) -> LaunchdService:
    return LaunchdService(
        program,
        kind=kind or agent_of(owner),
        owner=owner,
        is_root=is_root,
        tool=launchd,
        sleep=lambda seconds: None,
    )


def test_the_agent_as_data(owner: Owner) -> None:
    job = plistlib.loads(plistlib.dumps(plist_of(PROGRAM, agent_of(owner), owner)))
    assert job["Label"] == LABEL
    assert job["ProgramArguments"] == list(PROGRAM.words)
    assert job["EnvironmentVariables"] == {"BATON_MODELS": "/Volumes/models"}
    assert (job["RunAtLoad"], job["KeepAlive"]) == (True, {"SuccessfulExit": False})
    assert job["ProcessType"] == "Interactive"  # nothing slows an engine down
    assert "UserName" not in job


def test_the_daemon_is_not_roots(owner: Owner) -> None:
    job = plist_of(PROGRAM, DAEMON, owner)
    assert job["UserName"] == "ada"
    assert job["ProgramArguments"] == [*PROGRAM.words, "--keyring", "never"]  # the keychain is locked then
    assert job["EnvironmentVariables"]["HOME"] == str(owner.home)
    assert PROGRAM.environment == {"BATON_MODELS": "/Volumes/models"}


def test_the_trade_off_is_told_before_anything_is_done(launchd: PretendedLaunchd, owner: Owner) -> None:
    assert "local network" in service_of(launchd, owner).changes()[0]
    daemon = service_of(launchd, owner, kind=DAEMON, is_root=True).changes()
    assert "keychain" in daemon[0] and "password" in daemon[0]
    assert launchd.said == [] and list(owner.home.iterdir()) == []


def test_logs_are_the_owners_also_where_root_installs(
    launchd: PretendedLaunchd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/var/root"))
    monkeypatch.setattr("engine.paths.log_dir", lambda: Path("/var/root/Library/Logs/baton"))
    given = []
    monkeypatch.setattr(os, "chown", lambda path, uid, gid, follow_symlinks: given.append((path, uid)))
    ada = Owner(name="ada", uid=501, home=tmp_path / "ada")
    service = service_of(launchd, ada, kind=replace(DAEMON, folder=tmp_path / "daemons"), is_root=True)
    service.install()
    folder = tmp_path / "ada" / "Library" / "Logs" / "baton"
    assert launchd.job is not None and launchd.job["StandardErrorPath"] == str(folder / "service.log")
    assert folder.is_dir() and given == [(folder, 501)]
    assert service.status().log.startswith(str(folder / "node.log"))


def test_installing_twice_leaves_a_running_one_alone(launchd: PretendedLaunchd, owner: Owner) -> None:
    service_of(launchd, owner).install()
    assert launchd.said == ["enable", "bootstrap gui/501"]
    assert launchd.job == plist_of(PROGRAM, agent_of(owner), owner)
    (file,) = (owner.home / "Library" / "LaunchAgents").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    service_of(launchd, owner).install()
    assert launchd.said == ["enable", "bootstrap gui/501"]


def test_a_changed_one_is_brought_in_once_the_old_one_has_left(
    launchd: PretendedLaunchd, owner: Owner
) -> None:
    service_of(launchd, owner).install()
    new = Program(words=("/Applications/New.app/x", "node"), environment={})
    assert "/Applications/New.app/x" in service_of(launchd, owner, new).status().notes[0]
    launchd.stays_for = 5
    service_of(launchd, owner, new).install()
    assert launchd.job is not None and launchd.job["ProgramArguments"] == list(new.words)
    assert service_of(launchd, owner, new).status().notes == ()


def test_one_that_does_not_leave_is_not_waited_for_for_ever(launchd: PretendedLaunchd, owner: Owner) -> None:
    service_of(launchd, owner).install()
    launchd.stays_for = 10**6
    with pytest.raises(HostError, match="log out and in again"):
        service_of(launchd, owner).uninstall()


def test_a_folder_that_cannot_be_written_is_told(launchd: PretendedLaunchd, owner: Owner) -> None:
    (owner.home / "Library").write_text("no folder")
    with pytest.raises(HostError, match=r"baton\.node\.plist cannot be .*check who owns"):
        service_of(launchd, owner).install()


def test_uninstalling(launchd: PretendedLaunchd, owner: Owner) -> None:
    assert service_of(launchd, owner).uninstall() == []
    service_of(launchd, owner).install()
    assert len(service_of(launchd, owner).uninstall()) == 1
    assert launchd.job is None and not service_of(launchd, owner).status().installed


def test_status(launchd: PretendedLaunchd, owner: Owner) -> None:
    service_of(launchd, owner).install()
    status = service_of(launchd, owner).status()
    assert (status.installed, status.running, status.pid) == (True, True, 815)
    assert (status.n_restarts, status.last_exit) == (2, "status 78")
    launchd.job = None
    status = service_of(launchd, owner).status()
    assert (status.installed, status.running, "does not have it loaded" in status.notes[0]) == (
        True,
        False,
        True,
    )


def test_a_broken_plist_is_replaced(launchd: PretendedLaunchd, owner: Owner) -> None:
    service = service_of(launchd, owner)
    service.install()
    (file,) = (owner.home / "Library" / "LaunchAgents").iterdir()
    file.write_text("<plist")
    assert service.status().words == ()
    service.install()
    assert service.status().words == PROGRAM.words


def test_each_kind_has_its_own_user(launchd: PretendedLaunchd, owner: Owner, tmp_path: Path) -> None:
    daemon = replace(DAEMON, folder=tmp_path / "daemons")
    with pytest.raises(UserError, match="with `sudo` before it"):
        service_of(launchd, owner, kind=daemon).install()
    with pytest.raises(UserError, match="without sudo"):
        service_of(launchd, owner, is_root=True).install()
    service_of(launchd, owner, kind=daemon, is_root=True).install()
    assert launchd.said[-1] == "bootstrap system"
