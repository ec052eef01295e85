"""The helper, with the system's tools played: what it refuses, records, does and puts back."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.errors import HostError, UserError
from engine.link import tune_journal
from engine.link.interfaces import Network
from engine.link.privileged import Order, carry_out, check, main, read_order
from engine.link.tune import Change, Firewall, Profile, Roots, Sysctls, Way
from engine.link.tune_journal import Journal
from tests.engine.link.networks import interface, network

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the helper of Linux")

PROFILE = Profile(interface="eth1", host="10.71.17.5", mtu=9000, way=Way.IP)
SYSCTLS = Sysctls(values={"net.core.rmem_max": (33554432,)})
NETWORK = network(
    interface("eth1", max_mtu=9194), interface("eth0", "192.168.1.2/24"), routes={"0.0.0.0/0": "eth0"}
)


class System:
    """Its tools and files. `fails` is the word of a command that is refused."""

    def __init__(self, folder: Path, fails: str = "") -> None:
        self.roots = Roots(etc=folder / "etc", proc_sys=folder / "proc", state=folder / "state")
        self.fails = fails
        self.ran: list[str] = []
        self.said: list[dict[str, Any]] = []
        self.network: Network = NETWORK
        self.rmem_max = self.roots.proc_sys / "net/core/rmem_max"
        self.rmem_max.parent.mkdir(parents=True)
        self.rmem_max.write_text("212992\n")

    def run(self, words: Sequence[str]) -> str:
        text = " ".join(words)
        if self.fails and self.fails in text:
            raise HostError(f"`{text}` failed: no")
        if "show" not in text:
            self.ran.append(text)
        return "something"

    def carry_out(self, action: str, *changes: Change) -> None:
        order = Order(action=action, changes=changes)
        carry_out(order, self.said.append, self.roots, run=self.run, read=lambda run: self.network)


@pytest.fixture(autouse=True)
def any_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests need not be root's; whose the journal is has a test of its own."""
    monkeypatch.setattr(tune_journal, "_check_owner", lambda file, found: None)


def test_changes_are_made_said_and_undone_the_other_way_round(tmp_path: Path) -> None:
    system = System(tmp_path)
    system.carry_out("apply", PROFILE, SYSCTLS)
    assert system.ran == ["ip link set dev eth1 mtu 9000", "ip address replace 10.71.17.5/24 dev eth1"]
    assert system.rmem_max.read_text() == "33554432"
    assert [line["done"].partition(":")[0] for line in system.said] == [
        *system.ran,
        f"write {system.roots.sysctl_file}",
        f"write 33554432 to {system.rmem_max}",
    ]
    assert system.roots.sysctl_file.stat().st_mode & 0o777 == 0o644
    system.ran.clear()
    system.carry_out("undo")
    assert system.ran == ["ip address delete 10.71.17.5/24 dev eth1", "ip link set dev eth1 mtu 1500"]
    assert system.rmem_max.read_text() == "212992" and not system.roots.sysctl_file.exists()
    assert Journal(system.roots.state).entries == []


def test_what_was_there_is_on_the_disk_before_anything_is_changed(tmp_path: Path) -> None:
    system = System(tmp_path)
    seen: list[int] = []
    run = system.run

    def looking(words: Sequence[str]) -> str:
        if "mtu" in words:
            seen.append(Journal(system.roots.state).entries[0].before.mtu)
        return run(words)

    system.run = looking  # type: ignore[method-assign]
    system.carry_out("apply", PROFILE)
    assert seen == [1500]


def test_a_step_that_fails_puts_everything_back(tmp_path: Path) -> None:
    system = System(tmp_path, fails="address replace")
    with pytest.raises(HostError, match=r"address replace.*everything was put back"):
        system.carry_out("apply", SYSCTLS, PROFILE)
    assert system.ran[-1] == "ip link set dev eth1 mtu 1500"
    assert system.rmem_max.read_text() == "212992" and not system.roots.sysctl_file.exists()
    assert Journal(system.roots.state).entries == []


def test_what_cannot_be_put_back_is_told_and_tried_again(tmp_path: Path) -> None:
    system = System(tmp_path)
    system.carry_out("apply", SYSCTLS, PROFILE)
    system.fails = "mtu 1500"
    with pytest.raises(HostError, match=r"mtu 1500.*--undo` again"):
        system.carry_out("undo")
    assert system.rmem_max.read_text() == "212992"
    assert [entry.change for entry in Journal(system.roots.state).entries] == [PROFILE]
    system.fails = ""
    system.carry_out("undo")
    assert Journal(system.roots.state).entries == []


def test_a_second_plan_waits_for_the_first_to_be_undone(tmp_path: Path) -> None:
    system = System(tmp_path)
    system.carry_out("apply", SYSCTLS)
    with pytest.raises(UserError, match="--undo"):
        system.carry_out("apply", PROFILE)
    assert system.ran == []


def test_what_a_start_of_the_system_forgot_is_done_again(tmp_path: Path) -> None:
    system = System(tmp_path)
    system.carry_out("apply", PROFILE, SYSCTLS)
    before = Journal(system.roots.state).entries
    system.ran.clear()
    system.carry_out("apply", PROFILE)
    assert system.ran == ["ip link set dev eth1 mtu 9000", "ip address replace 10.71.17.5/24 dev eth1"]
    assert Journal(system.roots.state).entries == before
    with pytest.raises(UserError, match="--undo"):
        system.carry_out("apply", msgspec.structs.replace(PROFILE, mtu=8000))
    system.carry_out("undo")
    assert system.ran[-1] == "ip link set dev eth1 mtu 1500" and system.rmem_max.read_text() == "212992"


@pytest.mark.parametrize(
    ("change", "found", "why"),
    [
        (PROFILE, network(interface("eth0")), "no interface eth1"),
        (PROFILE, network(interface("eth1"), routes={"0.0.0.0/0": "eth1"}), "left alone"),
        (PROFILE, network(interface("eth1", max_mtu=4000)), "4000 at most"),
        (PROFILE, network(interface("eth1"), routes={"10.0.0.0/8": "vpn0"}), "in use"),
        (PROFILE, network(interface("eth1", port="Ethernet")), "another interface"),
        (msgspec.structs.replace(PROFILE, host="1.1.1.1"), NETWORK, "private"),
        (msgspec.structs.replace(PROFILE, way=Way.POWERSHELL), NETWORK, "not how"),
        (Sysctls(values={"kernel.modprobe": (1,)}), NETWORK, "no setting that Baton changes"),
        (Sysctls(values={"net.core.wmem_max": (33554432,)}), NETWORK, "no setting net.core.wmem_max"),
        (Firewall(peer_host="10.71.17.9"), NETWORK, "Windows"),
    ],
)
def test_everything_is_checked_again_before_anything_is_changed(
    tmp_path: Path, change: Change, found: Network, why: str
) -> None:
    system = System(tmp_path)
    system.network = found
    with pytest.raises(UserError, match=why):
        system.carry_out("apply", SYSCTLS, change)
    assert system.ran == [] and system.said == []
    assert system.rmem_max.read_text() == "212992\n"


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b'{"action": "run"}', b'{"action": "apply", "words": ["reboot"]}', b" " * 100_000],
)
def test_what_is_no_order_is_refused(data: bytes) -> None:
    with pytest.raises(UserError):
        read_order(data)


def test_errors_are_said_as_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(b"nonsense", System(tmp_path).roots) == 1
    assert "no plan of Baton's" in msgspec.json.decode(capsys.readouterr().out)["error"]


@pytest.mark.parametrize("content", [b"[3]", b"{}", b'[{"change": {"type": "run"}}]'])
def test_a_journal_that_cannot_be_read_stops_everything(tmp_path: Path, content: bytes) -> None:
    system = System(tmp_path)
    system.roots.state.mkdir()
    (system.roots.state / "link-tune.json").write_bytes(content)
    for action in ("apply", "undo"):
        with pytest.raises(HostError, match="by hand"):
            system.carry_out(action, SYSCTLS)
    assert system.ran == []


def test_a_journal_that_others_may_have_written_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = System(tmp_path)
    system.carry_out("apply", SYSCTLS)
    monkeypatch.undo()
    file = system.roots.state / "link-tune.json"
    file.chmod(0o666)
    with pytest.raises(HostError, match="somebody else"):
        Journal(system.roots.state)


@pytest.mark.parametrize("host", ["8.8.8.8", "10.71.17.0", "999.1.1.1", "0.0.0.0"])
def test_the_firewall_is_opened_for_one_computer_of_a_home_alone(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    check(Firewall(peer_host="10.71.17.9"), NETWORK, {})
    with pytest.raises(UserError):
        check(Firewall(peer_host=host), NETWORK, {})
