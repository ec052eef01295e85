"""The installed service as it is in life: a real systemd starts the node, and starts it again when it was killed."""

from __future__ import annotations

import json
import os
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.node.system.service_systemd import UNIT
from engine.paths import own_command
from tests.engine.node.system import systemd_room

pytestmark = pytest.mark.root

# Asks the control API until another process than the one named answers, and prints what it says of itself.
_ASK = """
import json, sys, time
from engine.errors import BatonError
from engine.node.client import NodeClient
end = time.monotonic() + 100
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


# Asks the endpoint in ways that are answered and in ways that are not, and prints the statuses.
_CHAT = """
import http.client, json, sys, time
key, phrase, model, n_asks = sys.argv[1:]
content = [{"role": "user", "content": phrase}]
asks = [
    {"model": model, "messages": content, "max_tokens": 8, "temperature": 0},
    {"model": model, "messages": content, "max_tokens": 8, "stream": True, "temperature": 0},
    {"model": phrase, "messages": content},
    {"model": model, "messages": [{"role": phrase, "content": phrase}]},
    {"model": model, "messages": [{"role": "user", "content": phrase * 2000}]},
    {"model": model, "messages": content, "tools": [{"type": "function", "function": {"name": phrase}}]},
    {"model": model, "messages": content, "temperature": phrase},
    {"model": model, "prompt": phrase, phrase: phrase},
    phrase,
]
for ask in asks[: int(n_asks)]:
    for attempt in range(200):
        connection = http.client.HTTPConnection("127.0.0.1", 7117, timeout=60)
        body = ask if isinstance(ask, str) else json.dumps(ask)
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "X-Odd": phrase}
        connection.request("POST", "/v1/chat/completions", body, headers)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        if answer.status != 503:
            break
        time.sleep(0.1)
    print(answer.status, flush=True)
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
    assert "it was ended" in str(found["notes"])  # and is not about to be started again

    assert "removed" in baton("service", "uninstall")
    assert list((room.home / ".config/systemd/user").rglob("baton*")) == []


def test_nothing_of_a_chat_is_in_a_log_or_in_a_report(room: systemd_room.Room, smollm2_path: Path) -> None:
    """The journal is not there in the room; what a node writes to standard error it writes to its log."""
    phrase, key = "violet herons dislike accordions", "k3y-of-a-client-7731"
    models = {"BATON_MODELS": str(smollm2_path.parent)}
    assert room.run([*own_command(), "service", "install", "--no-linger"], **models).returncode == 0
    assert room.run([sys.executable, "-c", _ASK, "0"], PYTHONPATH=os.getcwd()).returncode == 0
    done = room.run([sys.executable, "-c", _CHAT, key, phrase, "smollm2-135m", "9"])
    statuses = done.stdout.split()
    assert statuses[:2] == ["200", "200"] and len(statuses) == 9, done.stdout + done.stderr
    assert all(status.startswith("4") for status in statuses[6:])

    # something to log: the engine is killed, and answers again
    ask = "from engine.node.client import NodeClient; print(NodeClient.find().get('/state')['engines'][0]['pid'])"
    asked = room.run([sys.executable, "-c", ask], PYTHONPATH=os.getcwd())
    assert asked.returncode == 0, asked.stderr
    assert room.run(["kill", "-KILL", asked.stdout.strip()]).returncode == 0
    assert room.run([sys.executable, "-c", _CHAT, key, phrase, "smollm2-135m", "1"]).stdout == "200\n"
    texts = {path.name: path.read_text() for path in (room.home / ".local/state/baton/log").iterdir()}
    assert "SIGKILL" in texts["node.log"]
    assert {name for name, text in texts.items() if "herons" in text or key in text} == set()
    told = json.loads(room.run([*own_command(), "report", "--json", "--output", str(room.home)]).stdout)
    with zipfile.ZipFile(told["file"]) as archive:
        found = {name: archive.read(name).decode() for name in archive.namelist()}
    assert "SIGKILL" in json.dumps(json.loads(found["node.json"])["engines"][0]["last_exits"])
    assert "SIGKILL" in found["logs/node.log"]
    assert {name for name, text in found.items() if "herons" in text or key in text} == set()
