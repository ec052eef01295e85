"""`baton link tune`: what it shows, when it asks, and what it has the helper do."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.cli.main import main
from engine.errors import HostError
from engine.link import elevate, tune, tuning
from engine.link.privileged import Order
from engine.link.tune import Plan, Profile, Roots, Sysctls, Way
from engine.link.tuning import Preview
from engine.node.client import NodeClient
from engine.node.presence import NoNode

CHANGES = (
    Profile(interface="eth1", host="10.71.17.5", mtu=9000, way=Way.IP),
    Sysctls(values={"net.core.rmem_max": (33554432,)}),
)
STEPS = ("ip link set dev eth1 mtu 9000", "write 33554432 to /proc/sys/net/core/rmem_max")


class System:
    """What the node would answer, and what the helper was told."""

    def __init__(self) -> None:
        self.preview = Preview(
            plan=Plan(interface="eth1", changes=CHANGES, notes=("it lasts until a restart",)),
            steps=STEPS,
            blocked=False,
        )
        self.paths: list[str] = []
        self.orders: list[Order] = []
        self.in_force: tuple[str, ...] = ()

    def get(self, path: str, *, timeout_s: float) -> Any:
        assert timeout_s > 30  # which the other computer may take
        self.paths.append(path)
        return json.loads(msgspec.json.encode(self.preview))

    def run_helper(self, order: Order, say: Any) -> None:
        self.orders.append(order)
        say({"done": "it"})


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    found = System()
    monkeypatch.setattr(NodeClient, "find", lambda: found)
    monkeypatch.setattr(elevate, "run_helper", found.run_helper)
    monkeypatch.setattr(tuning, "what_undo_does", lambda: found.in_force)
    return found


def test_a_dry_run_shows_every_step_and_changes_nothing(
    system: System, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["link", "tune", "--dry-run", "--interface", "eth1", "--mtu", "8000"]) == 0
    said = capsys.readouterr().out
    assert all(step in said for step in STEPS) and "until a restart" in said
    assert system.paths == ["/link/tune?interface=eth1&mtu=8000"] and system.orders == []
    assert main(["link", "tune", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["changes"][0]["host"] == "10.71.17.5"


def test_applying_shows_first_and_then_does_exactly_that(
    system: System, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["link", "tune", "--apply", "--yes"]) == 0
    said = capsys.readouterr().out
    assert said.index(STEPS[0]) < said.index("done; ")
    assert system.orders == [Order(action="apply", changes=CHANGES)]


@pytest.mark.parametrize("action", ["--apply", "--undo"])
def test_nothing_is_changed_where_nobody_can_be_asked(
    system: System, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    system.in_force = STEPS
    monkeypatch.setattr("sys.stdin", None)
    assert main(["link", "tune", action]) == 2
    assert "--yes" in capsys.readouterr().err and system.orders == []


@pytest.mark.parametrize(("answer", "is_done"), [("y", True), ("YES", True), ("", False), ("n", False)])
def test_a_person_is_asked(
    system: System, monkeypatch: pytest.MonkeyPatch, answer: str, is_done: bool
) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", lambda question: answer)
    assert main(["link", "tune", "--apply"]) == (0 if is_done else 2)
    assert bool(system.orders) == is_done


def test_a_tuned_computer_is_left_alone(system: System, capsys: pytest.CaptureFixture[str]) -> None:
    system.preview = Preview(plan=Plan(interface="eth1", changes=()), steps=(), blocked=False)
    for action in ("--dry-run", "--apply"):
        assert main(["link", "tune", action]) == 0
        assert "eth1 is tuned already" in capsys.readouterr().out
    assert system.orders == []


def test_what_is_in_force_is_undone_first(system: System, capsys: pytest.CaptureFixture[str]) -> None:
    system.preview = msgspec.structs.replace(system.preview, blocked=True)
    assert main(["link", "tune", "--apply", "--yes"]) == 2
    assert "--undo" in capsys.readouterr().err and system.orders == []


def test_undo(system: System, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["link", "tune", "--undo", "--yes"]) == 0
    assert "nothing is in force" in capsys.readouterr().out and system.orders == []
    system.in_force = STEPS
    assert main(["link", "tune", "--undo", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"steps": [{"done": "it"}]}
    assert system.orders == [Order(action="undo")]


def test_without_a_node_this_computer_plans_alone(
    system: System, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def find() -> None:
        raise NoNode("no node runs")

    asked: list[dict[str, Any]] = []

    def preview(node_id: str, **rest: Any) -> Preview:
        asked.append(rest)
        return system.preview

    monkeypatch.setattr(NodeClient, "find", find)
    monkeypatch.setattr(tuning, "preview", preview)
    assert main(["link", "tune", "--dry-run", "--interface", "eth1"]) == 0
    assert asked == [{"interface": "eth1", "mtu": None}] and STEPS[0] in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["--apply", "--undo"], ["--apply", "--mtu", "100"]])
def test_what_cannot_be_asked_is_told(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["link", "tune", *words]) == 2
    assert capsys.readouterr().err


def test_the_helper_takes_its_order_as_an_argument_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As macOS' and Windows' dialogs start it; nothing is in force here, and so nothing is done."""
    roots = Roots(etc=tmp_path, proc_sys=tmp_path, state=tmp_path)
    monkeypatch.setattr(tune, "system_roots", lambda: roots)
    order = base64.urlsafe_b64encode(msgspec.json.encode(Order(action="undo"))).decode()
    assert main(["privileged", "--order", order]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True}
    assert main(["privileged", "--order", "x"]) == 2


def test_a_helper_that_fails_is_told(
    system: System, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_helper(order: Order, say: Any) -> None:
        raise HostError("everything was put back")

    monkeypatch.setattr(elevate, "run_helper", run_helper)
    assert main(["link", "tune", "--apply", "--yes"]) == 1
    assert "everything was put back" in capsys.readouterr().err
