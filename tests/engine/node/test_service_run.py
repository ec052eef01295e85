"""The installed service as it is in life: a real systemd starts the node, and starts it again when it was killed."""

from __future__ import annotations

import json
import os
import sys
import time
import zipfile
from collections.abc import Iterator

import pytest

from engine.node.service_systemd import UNIT
from engine.paths import own_command
from tests.engine.node import systemd_room

pytestmark = pytest.mark.root

# Asks the control API until another process than the one named answers, and prints what it says of itself.
_ASK = """
import json, sys, time
from engine.errors import BatonError
from engine.node.client import NodeClient
end = time.monotonic() + 30
while True:
    try:
        found = NodeClient.find().get("/state")["node"]
        if str(found["pid"]) != sys.argv[1]:
            print(json.dumps(found))
            break
    except BatonError as error:
        if time.monotonic() > end:
            raise
    time.sleep(0.02)
"""


@pytest.fixture
def room() -> Iterator[systemd_room.Room]:
    if lacks := systemd_room.missing():
        pytest.skip(lacks)
    with systemd_room.systemd_room() as room:
        yield room


def test_a_killed_node_is_back_and_an_ended_one_is_not(room: systemd_room.Room) -> None:
    def baton(*words: str, status: int = 0) -> str:
        done = room.run([*own_command(), *words])
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    def answering(not_pid: int = 0) -> int:
        done = room.run([sys.executable, "-c", _ASK, str(not_pid)], PYTHONPATH=os.getcwd())
        assert done.returncode == 0, done.stderr + baton("service", "status", status=1)
        return int(json.loads(done.stdout)["pid"])

    def service() -> dict[str, object]:
        done = room.run([*own_command(), "service", "status", "--json"])
        found: dict[str, object] = json.loads(done.stdout)
        return found

    baton("service", "status", status=1)
    baton("service", "install", "--no-linger")
    first = answering()
    found = service()
    assert (found["running"], found["pid"], found["words"]) == (True, first, [*own_command(), "node"])

    # a report of a running node has what it says of itself, and not the token that it was asked with
    told = json.loads(baton("report", "--json", "--output", str(room.home)))
    token = json.loads((room.home / ".cache/baton/node/node.json").read_bytes())["token"]
    with zipfile.ZipFile(told["file"]) as archive:
        everything = "".join(archive.read(name).decode() for name in archive.namelist())
        assert json.loads(archive.read("node.json"))["node"]["pid"] == first
    assert token not in everything

    began_s = time.monotonic()
    assert room.run(["kill", "-KILL", str(first)]).returncode == 0
    second = answering(not_pid=first)
    print(f"killed and answering again after {time.monotonic() - began_s:.2f} s")
    found = service()
    assert (found["running"], found["pid"], found["n_restarts"]) == (True, second, 1)

    # an end that was asked for is none that is mended
    baton("node", "--stop")
    for _ in range(200):
        found = service()
        if not found["running"]:
            break
    assert (found["running"], found["last_exit"], found["n_restarts"]) == (False, "status 0", 1)

    assert room.run(["systemctl", "--user", "start", UNIT]).returncode == 0
    third = answering(not_pid=second)
    assert room.run(["kill", "-TERM", str(third)]).returncode == 0
    for _ in range(200):
        found = service()
        if not found["running"]:
            break
    assert (found["running"], found["last_exit"]) == (False, "status 143")

    assert "removed" in baton("service", "uninstall")
    assert list((room.home / ".config/systemd/user").rglob("baton*")) == []
