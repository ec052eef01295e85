"""`baton service`, where no service can be installed, and what it prints where one is."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from engine.cli import service
from engine.cli.main import main
from engine.errors import HostError
from engine.node.system.service import ServiceStatus


class PretendedService:
    """Installed already; `fault` is raised by what changes something."""

    def __init__(self, status: ServiceStatus, fault: str = "") -> None:
        self._status = status
        self._fault = fault
        self.calls: list[str] = []

    def changes(self) -> list[str]:
        return ["a file is written", "it is started"]

    def install(self) -> None:
        self.calls.append("install")
        if self._fault:
            raise HostError(self._fault)

    def uninstall(self) -> list[str]:
        self.calls.append("uninstall")
        return ["it is ended"]

    def status(self) -> ServiceStatus:
        return self._status


RUNNING = ServiceStatus(
    kind="systemd user unit",
    where="/home/ada/baton.service",
    log="node.log",
    installed=True,
    running=True,
    pid=4711,
    since=1_700_000_000.0,
    n_restarts=1,
    lingering=True,
    words=("/opt/baton", "node"),
    notes=("it starts another one",),
)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> PretendedService:
    pretended = PretendedService(RUNNING)
    monkeypatch.setattr(service, "own_service", lambda **_: pretended)
    return pretended


def test_what_will_change_is_said_first(pretended: PretendedService, capsys) -> None:
    assert main(["service", "install", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "This would change:",
        "  - a file is written",
        "  - it is started",
    ]
    assert pretended.calls == []
    assert main(["service", "install"]) == 0
    assert pretended.calls == ["install"]
    assert capsys.readouterr().out.startswith("This changes:\n  - a file is written\n")


def test_a_failure_is_one_sentence(pretended: PretendedService, capsys) -> None:
    pretended._fault = "`systemctl` failed: no"
    assert main(["service", "install"]) == 1
    assert capsys.readouterr().err == "baton: `systemctl` failed: no\n"


def test_status_at_a_glance_and_as_data(pretended: PretendedService, capsys) -> None:
    assert main(["service", "status"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("service    running, process 4711, since 2023-11-1")
    assert "started again 1 time\n" in out and "starts with the computer" in out
    assert out.endswith("note       it starts another one\n")
    assert main(["service", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pid"] == 4711


def test_uninstall_says_what_it_did(pretended: PretendedService, capsys) -> None:
    assert main(["service", "uninstall"]) == 0
    assert capsys.readouterr().out == "it is ended\n"


def test_none_is_not_running(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    nothing = ServiceStatus(kind="systemd user unit", where="x", log="y")
    monkeypatch.setattr(service, "own_service", lambda **_: PretendedService(nothing))
    assert service.run(argparse.Namespace(action="status", system=None, json=False)) == 1
    assert "baton service install" in capsys.readouterr().out


@pytest.mark.skipif(not Path("/proc").exists(), reason="Linux alone can have systemd")
@pytest.mark.skipif(Path("/run/systemd/system").exists(), reason="systemd runs here")
def test_without_systemd_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert main(["service", "install"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "systemd does not run on this computer" in err and "@reboot" in err
    assert main(["service", "status", "--json"]) == 1
    assert main(["service", "uninstall"]) == 0
    assert list(tmp_path.iterdir()) == []
