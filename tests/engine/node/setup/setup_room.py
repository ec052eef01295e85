"""Another computer as far as setting it up goes: a home folder, an `ssh` that leads into it, and a small Baton."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.node.setup import own_wheel
from engine.node.setup.installer import CONSTRAINTS
from engine.node.setup.own_wheel import Archive

# In place of Baton: writes down what it was asked for. Its node starts once, and its code is always the same.
_ENGINE = """
import os, sys
words = sys.argv[1:]
with open(os.path.expanduser("~/calls"), "a") as calls:
    print("{mark}", *words, file=calls)
running = os.path.expanduser("~/running")
if words[0] == "node" and "--stop" in words:
    os.unlink(running)
elif words[0] == "node":
    if os.path.exists(running):
        sys.exit(2)
    open(running, "w").close()
    print('{{"ready": true}}', flush=True)
elif words[0] == "pair":
    print('{{"code": "1234-5678", "port": 7120}}', flush=True)
    print('{{"paired": {{"name": "near"}}}}', flush=True)
"""

# Takes ssh's options, and gives the rest to a shell in the other home, with a greeting as some computers have.
_SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
shift 2
export HOME="{home}" SSH_CONNECTION="192.0.2.7 50000 192.0.2.9 22"
unset XDG_DATA_HOME XDG_CACHE_HOME XDG_CONFIG_HOME PYTHONPATH
export PIP_NO_INDEX=1 PIP_CONFIG_FILE=/dev/null PIP_CACHE_DIR="{home}/pip-cache"
echo "Welcome to another computer"
exec sh -c "$*"
"""


@dataclass(frozen=True, kw_only=True)
class Room:
    home: Path

    @property
    def app(self) -> Path:
        if sys.platform == "darwin":
            return self.home / "Library" / "Application Support" / "baton" / "app"
        return self.home / ".local" / "share" / "baton" / "app"

    def calls(self) -> list[str]:
        """What its Baton was asked for."""
        file = self.home / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def files(self) -> set[str]:
        """All of the home folder but what belongs to the app, to pip, and to the small Baton itself."""
        # pip asks a rustc that is there for its version, and that may write down something of its own
        ours = (self.app, *(self.home / name for name in ("pip-cache", ".rustup", "calls", "running")))
        return {
            str(path.relative_to(self.home))
            for path in self.home.rglob("*")
            if path.is_file() and not any(path.is_relative_to(each) for each in ours)
        }


def make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Room:
    """Its `ssh` comes first in the PATH."""
    home, tools = tmp_path / "home", tmp_path / "tools"
    home.mkdir()
    tools.mkdir()
    (home / ".profile").write_text("# the user's own\n")
    write_tool(tools / "ssh", _SSH.format(home=home))
    write_tool(tools / "python3", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    return Room(home=home)


def write_tool(path: Path, script: str) -> None:
    path.write_text(script)
    path.chmod(0o755)


def small_archive(mark: str = "one", *, requires: str = "", script: bytes | None = None) -> Archive:
    """The real installer, with the small Baton in its wheel; `script` in place of the installer."""
    info = "baton-0.1.0.dist-info"
    metadata = "Metadata-Version: 2.1\nName: baton\nVersion: 0.1.0\n"
    if requires:
        metadata += f"Requires-Dist: {requires}\n"
    wheel = {
        "engine/__init__.py": b"",
        "engine/__main__.py": _ENGINE.format(mark=mark).encode(),
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": own_wheel._WHEEL.encode(),
    }
    wheel[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*wheel, f"{info}/RECORD"]).encode()
    content = {
        "__main__.py": script or Path(own_wheel.installer.__file__).read_bytes(),
        CONSTRAINTS: b"",
        "baton-0.1.0-py3-none-any.whl": own_wheel._zip(wheel),
    }
    return Archive(version="0.1.0", data=own_wheel._zip(content))
