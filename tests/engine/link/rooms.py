"""One end of a virtual cable with a network service of its own, in namespaces that end with it. Root and Linux only."""

from __future__ import annotations

import contextlib
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
from tests.engine.link.killed import killing

TIMEOUT_S = 15.0

# Nothing of this computer's but its programs. Where /sys cannot be written, nobody waits for udev.
_ROOM = """
set -e
mount -o remount,ro /sys
for folder in /run /var/lib; do mount -t tmpfs tmpfs $folder; done
mkdir -p /run/dbus
dbus-daemon --system --fork --nopidfile
{service}
echo ready
read end
"""

_HELPER = """
import sys
from engine.link.privileged import main
from engine.link.tune import system_roots
sys.exit(main(sys.stdin.buffer.read(), system_roots()))
"""


class Room:
    """Programs are run inside, beside the service."""

    def __init__(self, pid: int) -> None:
        self._enter = ["nsenter", "-t", str(pid), "-m", "-n", "-p"]

    def run(self, *words: str, given: str = "") -> str:
        done = subprocess.run(
            [*self._enter, *words], input=given, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def helper(self, order: Order) -> None:
        self.run(sys.executable, "-c", _HELPER, given=msgspec.json.encode(order).decode())

    def killed_helper(self, order: Order, number: int, when: str) -> None:
        """Killed by itself before or after its step of that number."""
        subprocess.run(
            [*self._enter, sys.executable, "-c", killing(number, when) + _HELPER],
            input=msgspec.json.encode(order),
            capture_output=True,
            timeout=TIMEOUT_S,
        )

    def link(self) -> tuple[int, list[str]]:
        """MTU and IPv4 addresses."""
        found = json.loads(self.run("ip", "-json", "address", "show", "dev", "cable"))[0]
        return found["mtu"], sorted(each["local"] for each in found["addr_info"] if each["family"] == "inet")

    def until(self, look: Callable[[], Any], wanted: Any) -> None:
        """Services do what they are told in their own time."""
        give_up_at = time.monotonic() + TIMEOUT_S
        while (found := look()) != wanted:
            assert time.monotonic() < give_up_at, found
            time.sleep(0.05)


@contextlib.contextmanager
def room(service: str, *programs: str) -> Iterator[Room]:
    """`service` are lines of shell that start it in the background; skips where a program is missing."""
    try:
        netns.check_possible()
    except HostError as error:
        pytest.skip(str(error))
    needed = ("dbus-daemon", "nsenter", "unshare", *programs)
    missing = [program for program in needed if not shutil.which(program)]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    with netns.cable("10gbit") as (end, _):
        subprocess.run([*end.enter, "ip", "link", "set", "cable", "mtu", "1500"], check=True)
        words = [*end.enter, "unshare", "-m", "-p", "-f", "--mount-proc", "--kill-child"]
        process = subprocess.Popen(
            [*words, "sh", "-c", _ROOM.format(service=service)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            if process.stdout.readline() != "ready\n":
                pytest.skip("such namespaces cannot be made here")
            first = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
            yield Room(first)
            os.kill(first, signal.SIGKILL)
        finally:
            process.kill()
            process.communicate()
