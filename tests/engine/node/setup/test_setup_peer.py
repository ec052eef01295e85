"""Setting up another computer: over an ssh that leads into a home folder of its own, and by the line to paste."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import HostError, PeerUnreachable, UserError
from engine.node.setup import setup_peer
from engine.node.setup.own_wheel import Archive
from engine.node.setup.setup_peer import (
    Offer,
    RemoteRefused,
    SetupOptions,
    check_target,
    control_folder,
    run_steps,
    ssh_steps,
)
from tests.engine.node.setup.setup_room import Room, make_room, small_archive, write_tool

TARGET = "me@spark.local"

TIMEOUT_S = 60.0

# A node of an older installation would keep the place.
FIRST_CALLS = ["one node --stop", "one node --json", "one pair --json"]

posix = pytest.mark.skipif(os.name != "posix", reason="the ssh of these tests is a shell script")


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Room:
    return make_room(tmp_path, monkeypatch)


def set_up(archive: Archive, options: SetupOptions | None = None) -> list[dict[str, Any]]:
    with control_folder() as control:
        steps = ssh_steps(TARGET, archive, options or SetupOptions(), control=control)
        return list(run_steps(steps, TARGET))


@posix
def test_it_is_installed_once_replaced_when_another_comes_and_undone_whole(room: Room) -> None:
    before = room.files()
    said = set_up(small_archive())
    assert {"ssh_host": "192.0.2.9"} in said
    assert said[-2:] == [{"code": "1234-5678", "port": 7120}, {"paired": {"name": "near"}}]
    assert room.calls() == FIRST_CALLS
    assert room.files() == before

    marker = (room.app / "venv" / "installed.json").stat().st_mtime_ns
    said = set_up(small_archive())
    assert "installed here already" in str(said)
    assert (room.app / "venv" / "installed.json").stat().st_mtime_ns == marker
    assert room.calls()[3:] == ["one --version", "one node --json", "one pair --json"]

    set_up(small_archive("two"), SetupOptions(service=True))
    assert room.calls()[6:] == ["two service install", "two pair --json"]

    said = set_up(small_archive("two"), SetupOptions(remove=True))
    assert "Removed" in str(said) and not room.app.exists()
    assert room.calls()[8:] == ["two service uninstall", "two node --stop"]
    assert room.files() == before
    assert "Nothing" in str(set_up(small_archive("two"), SetupOptions(remove=True)))


def run_line(line: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TMPDIR": str(tmp_path), **environment}
    return subprocess.run(
        line, shell=True, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, check=False
    )


@contextlib.contextmanager
def served(archive: Archive) -> Iterator[Offer]:
    """Until it has been given out."""
    offer = Offer(archive, "127.0.0.1")
    serving = threading.Thread(target=offer.wait)
    serving.start()
    try:
        yield offer
    finally:
        serving.join(TIMEOUT_S)
        offer.close()


BROKEN = 'one", file=sys.stderr); sys.exit("The port is taken") if words[0] == "node" else print("'


@posix
def test_after_each_failure_it_goes_on_where_that_was(room: Room, tmp_path: Path) -> None:
    """Killed while it made the environment, then without network, then with a node that fails; at last by the line."""
    (room.app / "venv" / "bin").mkdir(parents=True)
    (room.app / "venv" / "bin" / "python").write_text("half a file")
    with pytest.raises(
        RemoteRefused, match=r"no-such-package-of-anybody.*has to reach the Python package index"
    ):
        set_up(small_archive(requires="no-such-package-of-anybody>=1"))
    assert room.calls() == []
    with pytest.raises(RemoteRefused, match="the node does not start: The port is taken"):
        set_up(small_archive(BROKEN))
    (room.home / "calls").unlink()

    home = {"HOME": str(room.home), "XDG_DATA_HOME": "", "PYTHONPATH": "", "PIP_NO_INDEX": "1"}
    with served(small_archive()) as offer:
        done = run_line(offer.line(), tmp_path, **home)
    assert done.returncode == 0, done.stderr
    assert room.calls() == [*FIRST_CALLS[:2], "one pair"]
    assert "Baton is installed" in done.stdout and "1234-5678" in done.stdout


@posix
@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        ("exit 255", PeerUnreachable, "try `ssh me@spark.local` by itself"),
        ("cat > /dev/null; exit 127", RemoteRefused, "no python3; install Python 3.11"),
        ("cat > /dev/null; exit 3", RemoteRefused, "status 3"),
        (
            """cat > /dev/null; echo '{"refused": "its processor is none"}'; exit 2""",
            RemoteRefused,
            "me@spark.local: its processor is none",
        ),
        ("cat > /dev/null; echo '[1]'; echo '{'; exit 3", RemoteRefused, "status 3"),
    ],
)
def test_what_ssh_ends_with_is_told(
    room: Room, tmp_path: Path, script: str, error: type[Exception], words: str
) -> None:
    write_tool(tmp_path / "tools" / "ssh", f"#!/bin/sh\n{script}\n")
    with pytest.raises(error, match=words):
        set_up(small_archive())


def test_without_ssh_the_other_way_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="--print-command"):
        set_up(small_archive())


def test_the_steps_are_data_without_a_password_twice() -> None:
    options = SetupOptions(index="https://example.org/whl;rm -rf ~", service=True)
    send, install = ssh_steps("me@[fe80::1%eth0]", small_archive(), options, control=Path("/tmp/x"))
    assert send.words[0] == install.words[0] == "ssh"
    assert "ControlPath=/tmp/x/%C" in send.words and send.words[-3:-1] == ("--", "me@[fe80::1%eth0]")
    assert send.stdin == small_archive().data and install.stdin == b""
    script = subprocess.run(
        ["sh", "-c", f'set -- {install.words[-1]}; printf %s "$3"'],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "--json --service --index 'https://example.org/whl;rm -rf ~'" in script


@pytest.mark.parametrize(
    "target", ["-oProxyCommand=x", "", "a b", "me@host;id", "$(id)", "x" * 300, "me@`id`"]
)
def test_what_is_no_target_is_refused(target: str) -> None:
    with pytest.raises(UserError, match="USER@HOST"):
        check_target(target)


SAYS_HELLO = (
    b"import sys, zipfile\nprint('hello from', len(zipfile.ZipFile(sys.argv[0]).namelist()), sys.argv[1:])\n"
)


def test_the_line_fetches_checks_and_runs_once(tmp_path: Path) -> None:
    with served(small_archive(script=SAYS_HELLO)) as offer:
        done = run_line(offer.line(python=sys.executable), tmp_path)
    assert (done.returncode, done.stdout) == (0, "hello from 3 []\n")
    assert list(tmp_path.iterdir()) == []
    assert run_line(offer.line(python=sys.executable), tmp_path).returncode != 0


def test_something_else_in_its_place_is_not_run(tmp_path: Path) -> None:
    """Somebody on the way serves another archive: the line knows the digest of the true one."""
    true, false = small_archive(), small_archive(script=SAYS_HELLO)
    with served(false) as offer:
        done = run_line(offer.line(python=sys.executable).replace(false.sha256, true.sha256), tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    assert "not what was promised" in done.stderr


def test_nobody_gets_it_without_the_line() -> None:
    taken: list[str | None] = []
    offer = Offer(small_archive(), "127.0.0.1")
    serving = threading.Thread(target=lambda: taken.append(offer.wait(for_s=TIMEOUT_S)))
    serving.start()
    url = offer.line().split("'")[1]
    with pytest.raises(urllib.error.HTTPError, match="404") as refused:
        urllib.request.urlopen(url.rpartition("/")[0] + "/", timeout=TIMEOUT_S)
    refused.value.close()
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        assert answer.read() == small_archive().data
    serving.join(TIMEOUT_S)
    offer.close()
    assert taken == ["127.0.0.1"]


def test_the_line_ends_with_its_time() -> None:
    offer = Offer(small_archive(), "127.0.0.1")
    assert offer.wait(for_s=0.01) is None
    offer.close()


def test_strangers_who_say_nothing_keep_nobody_waiting(tmp_path: Path) -> None:
    with contextlib.ExitStack() as held, served(small_archive(script=SAYS_HELLO)) as offer:
        place = urllib.parse.urlsplit(offer.line().split("'")[1])
        for _ in range(5):
            held.enter_context(socket.create_connection((place.hostname, place.port)))
        began_s = time.monotonic()
        done = run_line(offer.line(python=sys.executable), tmp_path)
        took_s = time.monotonic() - began_s
    assert (done.returncode, done.stdout) == (0, "hello from 3 []\n")
    assert took_s < setup_peer._REQUEST_TIMEOUT_S


def test_an_address_of_another_computer_cannot_be_offered_at() -> None:
    with pytest.raises(UserError, match=r"--address 192\.0\.2\.77"):
        Offer(small_archive(), "192.0.2.77")


def test_a_connection_that_has_died_is_noticed() -> None:
    for step in ssh_steps(TARGET, small_archive(), SetupOptions()):
        assert "ServerAliveInterval=15" in step.words[: step.words.index("--")]


def test_an_offer_asks_no_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(socket, "getfqdn", lambda name="": asked.append(name) or name)
    Offer(small_archive(), "127.0.0.1").close()
    assert asked == []


def test_no_more_is_read_than_was_promised() -> None:
    """Whoever is between the two computers could send without end."""
    archive = small_archive()
    offer = Offer(archive, "127.0.0.1")
    offer.close()
    assert f".read({len(archive.data)})" in offer.line()
