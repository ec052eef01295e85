"""The computer is kept awake while a model can be asked, and only then; what cannot be done is said."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.node.system import awake as awake_module
from engine.node.system.awake import Awake, CannotHold, OnLost, keep_running


class PretendedSystem:
    """What holds; `fault` is why it does not, and `blocked` keeps it from answering."""

    def __init__(self) -> None:
        self.fault = ""
        self.n_held = 0
        self.n_asked = 0
        self.blocked = threading.Event()
        self.blocked.set()
        self.threads: list[int] = []

    @contextlib.contextmanager
    def hold(self, on_lost: OnLost) -> Iterator[str]:
        self.n_asked += 1
        self.blocked.wait(20)
        if self.fault:
            raise CannotHold(self.fault)
        self.n_held += 1
        self.threads.append(threading.get_ident())
        yield "pretended"
        self.threads.append(threading.get_ident())
        self.n_held -= 1


class Watched:
    """An Awake, and waiting for what it says."""

    def __init__(
        self, hold: Callable[[OnLost], contextlib.AbstractContextManager[str]], ask_again_s: float = 1e6
    ) -> None:
        self._changed = asyncio.Event()
        self.awake = Awake(on_change=self._changed.set, hold=hold, ask_again_s=ask_again_s)

    async def until(self, is_so: Callable[[dict], bool]) -> dict:
        async with asyncio.timeout(20):
            while not is_so(self.awake.snapshot()):
                self._changed.clear()
                await self._changed.wait()
        return self.awake.snapshot()


@pytest.fixture
def system() -> PretendedSystem:
    return PretendedSystem()


def test_awake_from_the_first_model_to_the_last(system: PretendedSystem) -> None:
    async def story() -> None:
        watched = Watched(system.hold)
        await watched.awake.start()
        assert watched.awake.snapshot() == {"held": False, "since": None, "why": "", "method": "", "note": ""}
        watched.awake.serve(["qwen"])
        held = await watched.until(lambda found: found["held"])
        assert (held["why"], held["method"], held["note"]) == ("qwen can be asked", "pretended", "")
        watched.awake.serve(["qwen", "gemma"])
        watched.awake.serve(["gemma"])
        now = watched.awake.snapshot()
        assert (now["since"], now["why"], system.n_asked) == (held["since"], "gemma can be asked", 1)
        watched.awake.serve([])
        assert watched.awake.snapshot() == {"held": False, "since": None, "why": "", "method": "", "note": ""}
        watched.awake.serve(["qwen"])
        await watched.until(lambda found: found["held"])
        await watched.awake.close()
        assert (system.n_held, system.n_asked) == (0, 2)
        # the same thread asks and lets go
        assert system.threads[0] == system.threads[1] or system.threads[0] == system.threads[2]

    asyncio.run(story())


def test_a_system_that_is_slow_keeps_nobody_waiting(system: PretendedSystem) -> None:
    async def story() -> None:
        watched = Watched(system.hold)
        system.blocked.clear()
        watched.awake.serve(["qwen"])
        assert not watched.awake.snapshot()["held"]
        watched.awake.serve([])
        watched.awake.serve(["gemma"])
        system.blocked.set()
        found = await watched.until(lambda found: found["held"])
        assert found["why"] == "gemma can be asked"
        await watched.awake.close()

    asyncio.run(story())


def test_what_is_not_wanted_any_more_may_fail(system: PretendedSystem) -> None:
    first_may_fail = threading.Event()

    @contextlib.contextmanager
    def hold(on_lost: OnLost) -> Iterator[str]:
        system.n_asked += 1
        if system.n_asked == 1:
            first_may_fail.wait(20)
            raise CannotHold("too late")
        yield "pretended"

    async def story() -> None:
        watched = Watched(hold)
        watched.awake.serve(["qwen"])
        first = watched.awake._holding
        assert first is not None
        watched.awake.serve([])
        watched.awake.serve(["gemma"])
        await watched.until(lambda found: found["held"])
        first_may_fail.set()
        await asyncio.to_thread(first.join, 20)
        await asyncio.sleep(0)  # what it has said is heard
        found = watched.awake.snapshot()
        assert (found["held"], found["note"]) == (True, "")
        await watched.awake.close()

    asyncio.run(story())


def test_what_cannot_be_done_is_said_and_tried_again(system: PretendedSystem) -> None:
    async def story() -> None:
        watched = Watched(system.hold, ask_again_s=0)
        system.fault = "no bus"
        watched.awake.serve(["qwen"])
        found = await watched.until(lambda found: bool(found["note"]))
        assert (found["held"], "power settings" in found["note"]) == (False, True)
        system.fault = ""
        found = await watched.until(lambda found: found["held"])
        assert found["note"] == "" and system.n_asked >= 2
        await watched.awake.close()
        assert system.n_held == 0

    asyncio.run(story())


def test_nothing_is_tried_again_for_a_model_that_has_gone(system: PretendedSystem) -> None:
    async def story() -> None:
        watched = Watched(system.hold, ask_again_s=0.001)
        system.fault = "no bus"
        watched.awake.serve(["qwen"])
        await watched.until(lambda found: bool(found["note"]))
        system.fault = ""
        watched.awake.serve([])
        await asyncio.sleep(0.01)  # ten times what it would take
        found = watched.awake.snapshot()
        assert (found["held"], found["note"]) == (False, "")

    asyncio.run(story())


@pytest.mark.skipif(sys.platform != "linux", reason="D-Bus is Linux's")
@pytest.mark.parametrize("address", [None, "", "unix:path=/no/such/bus", "nonsense"])
def test_without_a_bus_nothing_breaks(monkeypatch: pytest.MonkeyPatch, address: str | None) -> None:
    monkeypatch.delenv("WAKEPY_FAKE_SUCCESS", raising=False)
    monkeypatch.setenv("PATH", "/no/such/folder")  # nor a systemd
    if address is None:
        monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS", raising=False)
    else:
        monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", address)

    async def story() -> None:
        watched = Watched(keep_running)
        watched.awake.serve(["qwen"])
        found = await watched.until(lambda found: bool(found["note"]))
        assert (found["held"], found["note"][:10]) == (False, "no desktop")
        await watched.awake.close()

    asyncio.run(story())


# Grants what is not refused, runs what it is to run, and writes down when it began and when it ended.
_INHIBIT = """#!/bin/sh
case " {refused} " in *" $1 "*) echo "Access denied as a matter of fact" >&2; exit 1;; esac
echo "$1" >> "{log}"
shift 3
"$@"
echo "let go" >> "{log}"
"""


def play_systemd(folder: Path, monkeypatch: pytest.MonkeyPatch, *refused: str) -> Path:
    """A `systemd-inhibit`, and no desktop; returns its log."""
    log = folder / "inhibit.log"
    program = folder / "systemd-inhibit"
    program.write_text(_INHIBIT.format(log=log, refused=" ".join(refused)))
    program.chmod(0o755)
    monkeypatch.delenv("WAKEPY_FAKE_SUCCESS", raising=False)
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/no/such/bus")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return log


@pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")
@pytest.mark.parametrize(
    ("refused", "granted", "note"),
    [((), "sleep:idle", ""), (("--what=sleep:idle",), "idle", "login screen")],
    ids=["at the screen", "a service"],
)
def test_without_a_desktop_systemd_holds_on_as_long_as_a_model_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: tuple[str, ...], granted: str, note: str
) -> None:
    log = play_systemd(tmp_path, monkeypatch, *refused)

    async def story() -> None:
        watched = Watched(keep_running)
        watched.awake.serve(["qwen"])
        found = await watched.until(lambda found: found["held"] or bool(found["note"]))
        assert (found["held"], found["method"]) == (True, f"systemd-inhibit ({granted})")
        assert note in found["note"] and bool(note) == bool(found["note"])
        assert log.read_text() == f"--what={granted}\n"
        await watched.awake.close()
        assert log.read_text() == f"--what={granted}\nlet go\n"

    asyncio.run(story())


@pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")
@pytest.mark.parametrize("lasted", [True, False], ids=["after long", "soon"])
def test_what_holds_on_and_is_ended_by_somebody_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lasted: bool
) -> None:
    log = play_systemd(tmp_path, monkeypatch)
    monkeypatch.setattr(awake_module, "_LASTED_S", -1.0 if lasted else 1e6)
    started: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen):
        def __init__(self, *args, **options) -> None:
            super().__init__(*args, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)

    async def story() -> None:
        watched = Watched(keep_running, ask_again_s=1e6 if lasted else 0.0)
        watched.awake.serve(["qwen"])
        await watched.until(lambda found: found["held"])
        started[-1].kill()
        await watched.until(lambda found: not found["held"])
        await watched.until(lambda found: found["held"])
        assert len(started) == 2 and started[-1].poll() is None
        await watched.awake.close()
        assert len(started) == 2 and log.read_text().count("--what=sleep:idle") == 2

    asyncio.run(story())


@pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")
def test_what_systemd_refuses_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = play_systemd(tmp_path, monkeypatch, "--what=sleep:idle", "--what=idle")
    with pytest.raises(CannotHold, match="Access denied as a matter of fact"), keep_running():
        pass
    assert not log.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")
def test_a_node_that_is_killed_keeps_nothing_awake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = play_systemd(tmp_path, monkeypatch)
    code = (
        "import os, signal\nfrom engine.node.system.awake import keep_running\n"
        "with keep_running(): os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    give_up_at_s = time.monotonic() + 20
    while "let go" not in log.read_text() and time.monotonic() < give_up_at_s:
        time.sleep(0.01)
    assert log.read_text() == "--what=sleep:idle\nlet go\n"


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A D-Bus of its own."""
    if sys.platform != "linux" or not shutil.which("dbus-daemon"):
        pytest.skip("needs dbus-daemon")
    process = subprocess.Popen(
        ["dbus-daemon", "--session", "--nofork", "--print-address"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", address)
    yield address
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_desktop_on_a_real_bus_is_asked_and_let_go(bus: str) -> None:
    """A pretended GNOME on a real D-Bus."""
    from jeepney import MessageType, message_bus, new_method_return
    from jeepney.io.blocking import Proxy, open_dbus_connection

    asked: list[tuple[str, tuple]] = []
    connection = open_dbus_connection(bus)
    assert Proxy(message_bus, connection).RequestName("org.gnome.SessionManager") == (1,)

    def answer() -> None:
        while len(asked) < 2:
            message = connection.receive(timeout=20)
            if message.header.message_type is not MessageType.method_call:
                continue
            member = message.header.fields[3]
            asked.append((member, message.body))
            connection.send(new_method_return(message, *(("u", (7,)) if member == "Inhibit" else ())))

    desktop = threading.Thread(target=answer, daemon=True)
    desktop.start()

    async def story() -> None:
        watched = Watched(keep_running)
        watched.awake.serve(["qwen"])
        found = await watched.until(lambda found: found["held"] or bool(found["note"]))
        assert (found["held"], found["method"]) == (True, "org.gnome.SessionManager")
        await watched.awake.close()

    asyncio.run(story())
    desktop.join(20)
    connection.close()
    assert [name for name, _ in asked] == ["Inhibit", "Uninhibit"]
    assert asked[0][1][3] == 4 and asked[1][1] == (7,)  # against suspending, and with the same cookie
