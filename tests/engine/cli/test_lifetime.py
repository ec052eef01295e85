"""The end of a process by a signal: heard of in every state, bounded in time, and without a traceback."""

from __future__ import annotations

import array
import json
import select
import signal
import subprocess
import sys
import threading
import time

import pytest

from engine.cli.lifetime import unwinding_on_signals

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends signals")

if sys.platform != "win32":
    import fcntl
    import termios

LONG_S = 30.0

# Ctrl-C comes when the module named by the first argument is looked for.
IMPORTING = """
import signal, sys
wanted = sys.argv[1]
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
from app.__main__ import main
sys.argv[1:] = ["models", "list"]
sys.exit(main())
"""

# What runs is told to end by the first signal and does not; END_WITHIN_S and _SECOND_CTRL_C_S are argument 1 and 2.
STUBBORN = """
import signal, sys, time
from engine.cli import lifetime
lifetime.END_WITHIN_S, lifetime._SECOND_CTRL_C_S = float(sys.argv[1]), float(sys.argv[2])
signal.signal(signal.SIGINT, signal.default_int_handler)
with lifetime.unwinding_on_signals():
    try:
        signal.raise_signal(int(sys.argv[3]))
    finally:
        for number in sys.argv[4:]:
            time.sleep(0.01)
            signal.raise_signal(int(number))
        time.sleep(60)
"""


def status_of(script: str, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=LONG_S
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "module",
    ["engine", "engine.cli.main", "argparse", "engine.cli.models", "engine.node.models.catalogue", "json"],
)
def test_ctrl_c_during_an_import_is_quiet(module: str) -> None:
    assert status_of(IMPORTING, module) == (130, "")


@pytest.fixture(autouse=True)
def python_s_own_handler():
    """A shell that runs the tests in the background has Ctrl-C ignored."""
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, inherited)


def test_a_signal_that_another_thread_took_wakes_the_main_thread() -> None:
    def take_it() -> None:
        time.sleep(0.1)  # the main thread sleeps by then; if not, it hears of it anyhow
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), unwinding_on_signals():
        threading.Thread(target=take_it).start()
        threading.Event().wait(LONG_S)
        pytest.fail("nobody was told")


def test_what_a_callback_swallows_is_raised_again() -> None:
    class Swallows:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), unwinding_on_signals():
        Swallows()
        threading.Event().wait(LONG_S)
        pytest.fail("nobody was told")


def test_an_ignored_signal_stays_ignored() -> None:
    inherited = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with unwinding_on_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, inherited)


def test_everything_is_as_before_afterwards() -> None:
    hook, handler = sys.unraisablehook, signal.getsignal(signal.SIGTERM)
    with unwinding_on_signals():
        assert signal.getsignal(signal.SIGTERM) is not handler
    assert (sys.unraisablehook, signal.getsignal(signal.SIGTERM)) == (hook, handler)
    fd = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(fd)
    assert fd == -1


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda value: value.name
)
def test_what_does_not_unwind_in_time_is_cut_off(number: signal.Signals) -> None:
    assert status_of(STUBBORN, "0.2", "0", str(int(number))) == (128 + number, "")


def test_a_second_ctrl_c_waits_for_nothing() -> None:
    began = time.monotonic()
    assert status_of(STUBBORN, "50", "0", str(int(signal.SIGINT)), str(int(signal.SIGINT))) == (130, "")
    assert time.monotonic() - began < LONG_S


def test_one_ctrl_c_that_comes_twice_is_one() -> None:
    words = ("0.5", "10", *[str(int(signal.SIGINT))] * 3)
    began = time.monotonic()
    assert status_of(STUBBORN, *words) == (130, "")
    assert time.monotonic() - began > 0.5


SAYING_ALIVE = """
import sys, threading
from engine.cli import lifetime
from engine.cli.log import tell
lifetime._ALIVE_EVERY_S = 0.0
stuck = threading.Event()
lifetime.say_alive(stuck.is_set)
sys.stdin.readline()
tell("still here", sys.stderr)
sys.stdin.readline()
"""

# All of a pipe's pages but the last.
FULL_BYTES = 15 * 4096


def test_whoever_is_stuck_does_not_say_that_it_lives() -> None:
    program = SAYING_ALIVE.replace("sys.stdin.readline()", "stuck.set()", 1).replace(
        'tell("still here", sys.stderr)', 'print("silent from here", flush=True)'
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        while process.stdout.readline() != b"silent from here\n":
            pass
        # One may have been on its way; a thread that is not silent says thousands.
        assert len(process.communicate(b"\n", timeout=LONG_S)[0].splitlines()) <= 1


@pytest.mark.skipif(sys.platform != "linux", reason="counts what Linux's pipes hold")
def test_signs_of_life_come_again_and_again_and_wait_for_no_reader() -> None:
    """A parent that does not read keeps nobody else from saying something."""
    with subprocess.Popen(
        [sys.executable, "-c", SAYING_ALIVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        for _ in range(3):
            assert json.loads(process.stdout.readline()) == {"alive": True}
        held = array.array("i", [0])
        until_s = time.monotonic() + LONG_S
        while held[0] <= FULL_BYTES and time.monotonic() < until_s:
            fcntl.ioctl(process.stdout, termios.FIONREAD, held)
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert select.select([process.stderr], [], [], LONG_S)[0]
        assert process.stderr.readline() == b"still here\n"
        process.kill()
