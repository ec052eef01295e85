"""A real systemd user manager in namespaces of its own, for tests: it sees no process but those that it starts.

Root and Linux only. It has a /run, a home, a control group and a loopback of its own; `loginctl` finds nobody to talk
to in it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MANAGER = Path("/lib/systemd/systemd")
_TIMEOUT_S = 120.0  # other work may hold the cores

# Only the group that is ours stays mounted: a manager makes groups wherever it finds some.
_SCRIPT = """
set -e
ip link set lo up
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/user/0
chmod 700 /run/user/0
umount -R /sys/fs/cgroup
if [ "$BATON_CGROUP" = 2 ]; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
else
    mount -t tmpfs tmpfs /sys/fs/cgroup
    mkdir /sys/fs/cgroup/systemd
    mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
fi
"$0" --user --log-level=warning &
wait $!
"""


def missing() -> str:
    """What keeps such a room from being made here; nothing where nothing does."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux"
    tools = [name for name in ("unshare", "nsenter", "systemctl", "ip") if not shutil.which(name)]
    if tools or not MANAGER.exists():
        return f"needs systemd and {', '.join(tools)}"
    return "" if _group_parent() is not None else "needs control groups that may be made"


@dataclass(frozen=True, kw_only=True)
class Room:
    home: Path
    _pid: int
    _environment: dict[str, str]

    def run(self, words: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a program inside, and wait for it."""
        return subprocess.run(
            ["nsenter", "-t", str(self._pid), "-m", "-n", "-p", "-C", *words],
            env={**self._environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )


@contextlib.contextmanager
def systemd_room() -> Iterator[Room]:
    with contextlib.ExitStack() as opened:
        # short: the path of a socket has little room
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="room-", dir="/tmp")))
        group = _new_group()
        opened.callback(_remove_group, group)
        ready = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        ready.settimeout(_TIMEOUT_S)
        ready.bind(str(folder / "ready"))
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder / "home"),
            "XDG_RUNTIME_DIR": "/run/user/0",
            "BATON_CGROUP": "1" if group.parent.name == "systemd" else "2",
        }
        (folder / "home").mkdir()
        process = subprocess.Popen(
            [
                "unshare",
                "-m",
                "-C",
                "-f",
                "-p",
                "--mount-proc",
                "--kill-child",
                "sh",
                "-c",
                _SCRIPT,
                str(MANAGER),
            ],
            env={**environment, "NOTIFY_SOCKET": str(folder / "ready")},
            stdin=subprocess.DEVNULL,
            stderr=opened.enter_context((folder / "stderr").open("wb")),
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
        )
        opened.callback(process.wait, _TIMEOUT_S)
        give_up = opened.enter_context(contextlib.ExitStack())
        give_up.callback(process.kill)
        try:
            while b"READY=1" not in ready.recv(4096):
                pass
        except TimeoutError:
            raise AssertionError((folder / "stderr").read_text()) from None
        first = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
        # with its first process all others of the room end, and only then does `unshare`
        give_up.pop_all()
        opened.callback(os.kill, first, signal.SIGKILL)
        yield Room(home=folder / "home", _pid=first, _environment=environment)


def _group_parent() -> Path | None:
    root = Path("/sys/fs/cgroup")
    for parent in (root / "systemd", root):
        if (parent / "cgroup.procs").exists() and os.access(parent, os.W_OK):
            return parent
    return None


def _new_group() -> Path:
    parent = _group_parent()
    assert parent is not None
    return Path(tempfile.mkdtemp(prefix="baton-test-", dir=parent))


def _remove_group(group: Path) -> None:
    for folder, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
