"""`link tune` where systemd-networkd looks after the interfaces: a real one, in namespaces of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.bench import netns
from engine.errors import HostError
from engine.link.privileged import Order
from engine.link.tune import Profile, Way
from engine.link.tune_linux import find_way

pytestmark = pytest.mark.root

NETWORKD = Path("/lib/systemd/systemd-networkd")
PROFILE = Profile(interface="cable", host="10.71.17.5", mtu=9000, way=Way.NETWORKD)
TIMEOUT_S = 10.0

# With nothing of this computer's but its programs. Where /sys cannot be written, networkd does not wait for udev.
ROOM = """
set -e
mount -o remount,ro /sys
for folder in /run /etc/systemd/network /var/lib; do mount -t tmpfs tmpfs $folder; done
mkdir -p /run/dbus /run/systemd/netif
chown systemd-network:systemd-network /run/systemd/netif
dbus-daemon --system --fork --nopidfile
"$0" &
echo ready
read end
"""

HELPER = """
import sys
from engine.link.privileged import main
from engine.link.tune import system_roots
sys.exit(main(sys.stdin.buffer.read(), system_roots()))
"""


class Room:
    """One end of a cable, with a networkd of its own; other programs are run beside it."""

    def __init__(self, pid: int) -> None:
        self._enter = ["nsenter", "-t", str(pid), "-m", "-n", "-p"]

    def run(self, *words: str, given: str = "") -> str:
        done = subprocess.run(
            [*self._enter, *words], input=given, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def helper(self, order: Order) -> None:
        self.run(sys.executable, "-c", HELPER, given=msgspec.json.encode(order).decode())

    def link(self) -> tuple[int, list[str]]:
        """MTU and IPv4 addresses."""
        found = json.loads(self.run("ip", "-json", "address", "show", "dev", "cable"))[0]
        return found["mtu"], [each["local"] for each in found["addr_info"] if each["family"] == "inet"]

    def setup(self) -> str:
        """What networkd says of the cable."""
        lines = self.run("networkctl", "--no-pager", "--no-legend", "list", "cable")
        return lines.split()[-1]

    def until(self, look: Callable[[], Any], wanted: Any) -> None:
        """networkd does what it is told in its own time."""
        give_up_at = time.monotonic() + TIMEOUT_S
        while (found := look()) != wanted:
            assert time.monotonic() < give_up_at, found
            time.sleep(0.05)


@pytest.fixture
def room() -> Iterator[Room]:
    try:
        netns.check_possible()
    except HostError as error:
        pytest.skip(str(error))
    missing = [tool for tool in ("dbus-daemon", "networkctl", "nsenter", "unshare") if not shutil.which(tool)]
    if missing or not NETWORKD.exists() or not Path("/etc/systemd/network").is_dir():
        pytest.skip(f"needs systemd-networkd, {', '.join(missing)}")
    with netns.cable("10gbit") as (end, _):
        subprocess.run([*end.enter, "ip", "link", "set", "cable", "mtu", "1500"], check=True)
        words = [*end.enter, "unshare", "-m", "-p", "-f", "--mount-proc", "--kill-child"]
        process = subprocess.Popen(
            [*words, "sh", "-c", ROOM, str(NETWORKD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            if process.stdout.readline() != "ready\n":
                pytest.skip("no systemd-networkd can be started here")
            first = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
            made = Room(first)
            made.until(made.setup, "unmanaged")
            yield made
            os.kill(first, signal.SIGKILL)
        finally:
            process.kill()
            process.communicate()


def test_a_file_of_our_own_wins_and_goes(room: Room) -> None:
    at_first = room.link()
    room.helper(Order(action="apply", changes=(PROFILE,)))
    room.until(room.setup, "configured")
    room.until(room.link, (9000, [*at_first[1], "10.71.17.5"]))
    assert "default" not in room.run("ip", "route")
    room.helper(Order(action="undo"))
    room.until(room.setup, "unmanaged")
    room.until(room.link, at_first)


def test_what_somebody_else_set_up_is_back_afterwards(room: Room) -> None:
    """Another file for the same interface is left as it is, and holds again."""
    theirs = "[Match]\nName=cable\n[Link]\nMTUBytes=4000\n[Network]\nAddress=192.168.77.1/24\n"
    room.run("ip", "address", "flush", "dev", "cable", "scope", "global")
    room.run("tee", "/etc/systemd/network/10-theirs.network", given=theirs)
    room.run("networkctl", "reload")
    room.until(room.link, (4000, ["192.168.77.1"]))
    room.helper(Order(action="apply", changes=(PROFILE,)))
    room.until(lambda: (room.link()[0], "10.71.17.5" in room.link()[1]), (9000, True))
    room.helper(Order(action="undo"))
    room.until(room.link, (4000, ["192.168.77.1"]))
    assert room.run("cat", "/etc/systemd/network/10-theirs.network") == theirs
    assert room.run("ls", "/etc/systemd/network").split() == ["10-theirs.network"]


def test_nobody_is_taken_for_networkd_where_systemd_does_not_run() -> None:
    def run(words: Any) -> str:
        raise HostError("System has not been booted with systemd")

    assert find_way(run, "cable") is Way.IP
