"""`baton setup-peer`: what it says, and the whole way between two network namespaces, with real nodes at both ends."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.bench import netns
from engine.cli.main import main
from engine.errors import HostError
from tests.engine.node.setup.setup_room import write_tool

PATIENCE_S = 60.0


def test_a_dry_run_shows_every_command_and_calls_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no ssh in it
    assert main(["setup-peer", "me@spark.local", "--dry-run", "--service"]) == 0
    shown = capsys.readouterr().out
    for words in ("ssh -o", "me@spark.local", "-m venv", "--no-deps", "baton service install", "a code"):
        assert words in shown
    assert main(["setup-peer", "me@spark.local", "--dry-run", "--json"]) == 0
    steps = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [step["words"][0] for step in steps if "step" in step] == ["ssh", "ssh"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "say one of USER@HOST, --print-command"),
        (["me@host", "--print-command"], "say one of"),
        (["me@host;id"], "no computer that ssh could call"),
        (["--print-command", "--address", "192.0.2.77"], "--address 192.0.2.77"),
    ],
)
def test_what_cannot_be_is_said(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["setup-peer", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_updates_are_allowed_and_forbidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config" / "allow-updates"
    monkeypatch.setattr("engine.cli.setup_peer.updates_file", lambda: file)
    assert main(["setup-peer", "--allow-updates", "yes"]) == 0
    assert file.exists()
    for _ in range(2):
        assert main(["setup-peer", "--allow-updates", "no"]) == 0
        assert not file.exists()
    monkeypatch.setattr("engine.cli.node.updates_file", lambda: file)
    monkeypatch.delenv("BATON_API_KEY", raising=False)
    assert (
        main(["node", "--allow-updates", "--host", "0.0.0.0"]) == 2
    )  # what follows is refused: there is no key
    assert file.exists()


# Leads into the other namespace and home. Packages come from this environment, and Baton itself alone by pip.
_SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
shift 2
export SSH_CONNECTION="{near} 50000 {far} 22" PIP_NO_DEPS=1 PIP_NO_INDEX=1
exec {enter} env {environment} sh -c "$*"
"""


class Computer:
    """One end of the cable, with a home folder of its own."""

    def __init__(self, end: netns.End, home: Path, packages: Path) -> None:
        self.end = end
        self.home = home
        home.mkdir()
        self.environment = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(packages),
            "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
        }

    def baton(
        self, *words: str, tools: Path | None = None, python: str = sys.executable
    ) -> subprocess.Popen[str]:
        environment = dict(self.environment)
        if tools is not None:
            environment["PATH"] = f"{tools}{os.pathsep}{environment['PATH']}"
        return subprocess.Popen(
            [*self.end.enter, python, "-m", "engine", *words],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def fail(self, *words: str) -> str:
        """What a command complains of."""
        process = self.baton(*words)
        _, complaint = process.communicate(timeout=PATIENCE_S)
        assert process.returncode != 0
        return complaint

    def ask(
        self, *words: str, tools: Path | None = None, python: str = sys.executable
    ) -> list[dict[str, Any]]:
        """The lines of JSON that a command says."""
        process = self.baton(*words, tools=tools, python=python)
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said
        return [json.loads(line) for line in said.splitlines()]


@pytest.fixture
def ends() -> Iterator[tuple[netns.End, netns.End]]:
    try:
        netns.check_possible()
    except HostError as error:
        pytest.skip(str(error))
    with netns.cable("1gbit") as made:
        yield made


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """All that Baton needs, without Baton and without pip."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(("baton", "__editable__", "pip", "setuptools")):
            (folder / path.name).symlink_to(path)
    return folder


@pytest.mark.root
def test_one_command_installs_starts_and_pairs_another_computer(
    tmp_path: Path, ends: tuple[netns.End, netns.End], packages: Path
) -> None:
    near, far = (
        Computer(end, tmp_path / name, packages) for end, name in zip(ends, ("near", "far"), strict=True)
    )
    tools = tmp_path / "tools"
    tools.mkdir()
    write_tool(
        tools / "ssh",
        _SSH.format(
            near=near.end.host,
            far=far.end.host,
            enter=" ".join(far.end.enter),
            environment=" ".join(f"{name}={value}" for name, value in far.environment.items()),
        ),
    )
    node = near.baton("node", "--json", "--name", "near", "--exit-with-stdin")
    try:
        assert node.stdout is not None
        assert json.loads(node.stdout.readline())["ready"]
        said = near.ask("setup-peer", "me@far", "--json", tools=tools)
        (paired,) = [line["paired"] for line in said if "paired" in line]
        (peer,) = json.loads(_text(near, "pair", "list", "--json"))
        assert peer["node_id"] == paired["node_id"]
        there = far.home / ".local" / "share" / "baton" / "app"

        # The other computer's own, allowed there, and replaced from here over the link.
        far_python = str(there / "venv" / "bin" / "python")
        assert "takes no updates" in near.fail("setup-peer", "--update", peer["node_id"])
        far.ask("setup-peer", "--allow-updates", "yes", "--json", python=far_python)
        before = instance_of(near, peer["node_id"])
        (updated,) = near.ask("setup-peer", "--update", peer["node_id"], "--json")
        assert updated["version"]
        wait_for(lambda: instance_of(near, peer["node_id"]) not in (None, before))

        near.ask("setup-peer", "me@far", "--remove", "--json", tools=tools)
        assert not there.exists()
    finally:
        with contextlib.suppress(AssertionError):
            near.ask("setup-peer", "me@far", "--remove", "--json", tools=tools)
        node.communicate(timeout=PATIENCE_S)


def _text(computer: Computer, *words: str) -> str:
    return computer.baton(*words).communicate(timeout=PATIENCE_S)[0]


def instance_of(computer: Computer, node_id: str) -> str | None:
    """What was drawn at the start of another node, as far as it was found."""
    code = "import json; from engine.node.client import NodeClient as C; print(json.dumps(C.find().get('/discovery')))"
    said = subprocess.run(
        [*computer.end.enter, sys.executable, "-c", code],
        env=computer.environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return next((one["instance"] for one in json.loads(said)["found"] if one["node_id"] == node_id), None)


def wait_for(is_so: Callable[[], bool]) -> None:
    give_up_at_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < give_up_at_s
