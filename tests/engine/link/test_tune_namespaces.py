"""`link tune` for real, on a virtual cable in two network namespaces: done, used, undone, and killed in between.

The folders of the system's settings are temporary ones: those of socket buffers belong to the whole computer.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.bench import netns
from engine.errors import HostError
from engine.link.privileged import Order
from engine.link.tune import Profile, Sysctls, Way
from tests.engine.link.killed import killing

pytestmark = pytest.mark.root

HOST, OTHER_HOST = "10.71.17.5", "10.71.17.9"
PROFILE = Profile(interface="cable", host=HOST, mtu=9000, way=Way.IP)
SYSCTLS = Sysctls(
    values={
        "net.core.rmem_max": (33554432,),
        "net.ipv4.tcp_rmem": (4096, 131072, 33554432),
        "net.ipv4.tcp_slow_start_after_idle": (0,),
    }
)

# What the helper's process runs: itself, with the system's folders elsewhere.
HELPER = """
import sys
from pathlib import Path
from typing import Any
from engine.link.privileged import main
from engine.link.tune import Roots
etc, proc_sys, state = map(Path, sys.argv[1:])
sys.exit(main(sys.stdin.buffer.read(), Roots(etc=etc, proc_sys=proc_sys, state=state)))
"""


class Computer:
    """One end of the cable, with its own folders."""

    def __init__(self, end: netns.End, folder: Path) -> None:
        self.end = end
        self.roots = [folder / name for name in ("etc", "proc", "state")]
        self.etc, self.proc_sys, self.state = self.roots
        for name, value in {
            "net/core/rmem_max": "212992",
            "net/ipv4/tcp_rmem": "4096\t131072\t6291456",
            "net/ipv4/tcp_slow_start_after_idle": "1",
        }.items():
            file = self.proc_sys / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{value}\n")

    def inside(self, *words: str) -> str:
        return subprocess.run([*self.end.enter, *words], check=True, capture_output=True, text=True).stdout

    def helper(self, order: Order, *, before: str = "") -> subprocess.CompletedProcess[str]:
        code = before + HELPER
        return subprocess.run(
            [*self.end.enter, sys.executable, "-c", code, *map(str, self.roots)],
            input=msgspec.json.encode(order).decode(),
            capture_output=True,
            text=True,
            timeout=60,
        )

    def state_of_everything(self) -> tuple[Any, ...]:
        """All that tuning may change."""
        link = json.loads(self.inside("ip", "-json", "address", "show", "dev", "cable"))[0]
        addresses = sorted(found["local"] for found in link["addr_info"] if found["family"] == "inet")
        numbers = {
            str(file): file.read_text().split() for file in sorted(self.proc_sys.rglob("*")) if file.is_file()
        }
        files = [str(file) for file in self.etc.rglob("*") if file.is_file()]
        return link["mtu"], "UP" in link["flags"], addresses, numbers, files


@pytest.fixture
def computers(tmp_path: Path) -> Iterator[tuple[Computer, Computer]]:
    try:
        netns.check_possible()
    except HostError as error:
        pytest.skip(str(error))
    with netns.cable("10gbit") as ends:
        for end in ends:
            subprocess.run([*end.enter, "ip", "link", "set", "cable", "mtu", "1500"], check=True)
        here, there = (Computer(end, tmp_path / end.namespace) for end in ends)
        yield here, there


def test_a_plan_is_done_used_and_undone(computers: tuple[Computer, Computer]) -> None:
    here, there = computers
    at_first = here.state_of_everything()
    done = here.helper(Order(action="apply", changes=(PROFILE, SYSCTLS)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"ok": True}
    there_profile = msgspec.structs.replace(PROFILE, host=OTHER_HOST)
    assert there.helper(Order(action="apply", changes=(there_profile,))).returncode == 0

    # 8,972 bytes and 28 of headers, unbroken, over the new addresses: as a ping would, without needing one.
    code = f"""
import socket
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
probe.setsockopt(0, 10, 3)
probe.bind(("{HOST}", 0))
probe.settimeout(5)
probe.sendto(bytes(8972), ("{OTHER_HOST}", 9))
try:
    probe.sendto(bytes(8973), ("{OTHER_HOST}", 9))
except OSError as error:
    print(error.errno)
"""
    assert here.inside(sys.executable, "-c", code).strip() == "90"
    assert "dev cable" in here.inside("ip", "route", "get", OTHER_HOST)
    received = json.loads(there.inside("ip", "-json", "-statistics", "link", "show", "dev", "cable"))
    assert received[0]["stats64"]["rx"]["bytes"] > 9000
    assert (here.proc_sys / "net/core/rmem_max").read_text().split() == ["33554432"]
    assert (
        "net.ipv4.tcp_rmem = 4096 131072 33554432" in (here.etc / "sysctl.d/90-baton-link.conf").read_text()
    )

    tuned = here.state_of_everything()
    another = msgspec.structs.replace(PROFILE, mtu=8000)
    refused = here.helper(Order(action="apply", changes=(another,)))
    assert refused.returncode == 1 and "--undo" in json.loads(refused.stdout)["error"]
    here.inside("ip", "address", "flush", "dev", "cable", "scope", "global")
    assert here.helper(Order(action="apply", changes=(PROFILE, SYSCTLS))).returncode == 0
    assert here.state_of_everything()[:2] == tuned[:2] and HOST in here.state_of_everything()[2]
    here.inside("ip", "address", "replace", f"{here.end.host}/30", "dev", "cable")

    undone = here.helper(Order(action="undo"))
    assert undone.returncode == 0, undone.stdout + undone.stderr
    assert here.state_of_everything() == at_first
    assert not (here.state / "link-tune.json").exists()
    assert here.helper(Order(action="undo")).returncode == 0


@pytest.mark.parametrize(
    ("number", "when"),
    [(1, "before"), (1, "after"), (2, "after"), (3, "after"), (4, "before"), (5, "after"), (6, "after")],
)
def test_what_a_killed_helper_left_is_undone(
    computers: tuple[Computer, Computer], number: int, when: str
) -> None:
    here, _ = computers
    here.inside("ip", "link", "set", "cable", "down")
    at_first = here.state_of_everything()
    killed = here.helper(Order(action="apply", changes=(PROFILE, SYSCTLS)), before=killing(number, when))
    assert killed.returncode == -signal.SIGKILL
    assert (here.state_of_everything() == at_first) == (number == 1 and when == "before")
    refused = here.helper(Order(action="apply", changes=(PROFILE, SYSCTLS)))
    assert "--undo" in json.loads(refused.stdout)["error"]
    assert here.helper(Order(action="undo")).returncode == 0
    assert here.state_of_everything() == at_first


def test_an_undo_that_was_killed_goes_on(computers: tuple[Computer, Computer]) -> None:
    here, _ = computers
    at_first = here.state_of_everything()
    assert here.helper(Order(action="apply", changes=(PROFILE, SYSCTLS))).returncode == 0
    for number in (1, 2, 1):
        assert (
            here.helper(Order(action="undo"), before=killing(number, "after")).returncode == -signal.SIGKILL
        )
    assert here.helper(Order(action="undo")).returncode == 0
    assert here.state_of_everything() == at_first


@pytest.mark.parametrize(
    ("profile", "why"),
    [
        (msgspec.structs.replace(PROFILE, interface="lo"), "no cable"),
        (msgspec.structs.replace(PROFILE, interface="gone0"), "no interface gone0"),
        (msgspec.structs.replace(PROFILE, host="8.8.8.8"), "private"),
        (msgspec.structs.replace(PROFILE, way=Way.NETWORKSETUP), "not how interfaces are set up"),
    ],
)
def test_the_helper_checks_again(computers: tuple[Computer, Computer], profile: Profile, why: str) -> None:
    here, _ = computers
    at_first = here.state_of_everything()
    refused = here.helper(Order(action="apply", changes=(SYSCTLS, profile)))
    assert refused.returncode == 1 and why in json.loads(refused.stdout)["error"]
    assert here.state_of_everything() == at_first


def test_the_interface_with_the_default_route_is_left_alone(computers: tuple[Computer, Computer]) -> None:
    here, there = computers
    here.inside("ip", "route", "add", "default", "via", there.end.host)
    refused = here.helper(Order(action="apply", changes=(PROFILE,)))
    assert "left alone" in json.loads(refused.stdout)["error"]
