"""Processes of Baton's that begin where their imports are done, which tests start by the hundred (Linux).

`WarmStarts` lets `subprocess.Popen` make each `python -m engine WORDS` as a fork of a process that has imported all of
it. What comes out is a process as any other: a child of the one that asked, with its streams, environment and session.
Nodes that were begun so begin their engines in the same way. What cannot be made so is started as ever: other programs,
and processes whose environment says something to Python or a library before the first import.

Run as a program, this file is the process that is forked. It imports nothing of the tests.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

_MODULE = "engine"
_WAYS = (("-P", "-m", _MODULE), ("-m", _MODULE))

# Whose values Python, OpenMP, OpenSSL or the allocator read once, before a fork could change them.
_READ_ONCE = (
    "PYTHON",
    "LD_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "OPENSSL_",
    "SSL_",
    "MALLOC_",
    "GLIBC_",
    "CUDA_",
)
_READ_LATER = {"PYTHON_KEYRING_BACKEND"}

_COURIER = "courier"

# Commands that start others, but for couriers: what these are forked from would have to begin with them.
_START_OTHERS = {"node", "demo", "bench", "link", "report", "chat", "setup-peer"}

# A line to the process that forks for this command in this environment, or None.
Lines = Callable[[str, Mapping[str, str]], socket.socket | None]

_OWN_NETWORK = "/proc/thread-self/ns/net"
_MAX_ORDER_BYTES = 1 << 18
_MAX_DESCRIPTORS = 16
_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWNS, _CLONE_NEWNET = 0x20000, 0x40000000
_MS_REC, _MS_SLAVE, _MNT_DETACH = 0x4000, 0x80000, 2

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_execute_child: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_arguments = inspect.signature(_execute_child)
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_STREAMS = ("p2cread", "c2pwrite", "errwrite")

# How `Popen` was asked by whoever asked for nothing else.
_PLAIN = {"executable": None, "preexec_fn": None, "close_fds": True, "shell": False, "restore_signals": True}
_PLAIN |= {"gid": None, "gids": None, "uid": None, "umask": -1, "process_group": -1}


def _read_once(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_ONCE) and name not in _READ_LATER
    }


def _words_of(args: Any) -> list[str] | None:
    """What follows `python -m engine`, where that is what is to be run."""
    if isinstance(args, str | bytes) or not all(isinstance(word, str) for word in args):
        return None
    for way in _WAYS:
        if list(args[: len(way) + 1]) == [sys.executable, *way]:
            return list(args[len(way) + 1 :])
    return None


def _network_of(args: Any) -> tuple[str | None, Any]:
    """The name and the rest of `ip netns exec NAME ...`; None and all of it where that is not how it begins."""
    if not isinstance(args, str | bytes) and list(args[1:3]) == ["netns", "exec"]:
        return args[3], args[4:]
    return None, args


class WarmStarts:
    """While installed, processes are begun by those that `lines` leads to."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._lock = threading.Lock()
        self._network = os.readlink(_OWN_NETWORK)

    def install(self) -> None:
        """In the place of what `Popen` itself does, which gets what cannot be forked."""
        warm = self

        def begin(popen: Any, *given: Any) -> None:
            asked = _arguments.bind(popen, *given).arguments
            network, args = _network_of(asked["args"])
            environment = os.environ if asked["env"] is None else asked["env"]
            words = _words_of(args)
            is_plain = all(asked[name] == value for name, value in _PLAIN.items())
            line = warm.line_to(words, environment) if is_plain and words is not None else None
            if words is None or line is None:
                _execute_child(popen, *given)
                return
            streams = [asked[name] if asked[name] != -1 else own for own, name in enumerate(_STREAMS)]
            order = {
                "words": words,
                "environment": dict(environment),
                "folder": os.fspath(asked["cwd"] or os.getcwd()),
                "descriptors": [int(number) for number in asked["pass_fds"]],
                "session": bool(asked["start_new_session"]),
                "network": network,
                "parent": os.getpid(),
            }
            try:
                popen.pid = warm.start(line, order, [*streams, *order["descriptors"]])
            except OSError:  # a start says what is wrong, if anything is
                _execute_child(popen, *given)
                return
            popen._child_created = True
            popen._close_pipe_fds(*(asked[name] for name in _PIPES))

        subprocess.Popen._execute_child = begin  # type: ignore[attr-defined]

    def remove(self) -> None:
        subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]

    def line_to(self, words: Sequence[str], environment: Mapping[str, str]) -> socket.socket | None:
        """To whom a fork for these is as a start would be; None where nobody is."""
        if os.readlink(_OWN_NETWORK) != self._network:
            return None
        with self._lock:
            return self._lines(words[0] if words else "", environment)

    def start(self, line: socket.socket, order: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """The number of a process that was begun as `order` has it."""
        with self._lock:
            # The process between the two ends at once, and its child becomes the nearest subreaper's: ours.
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(line, [json.dumps(order).encode()], descriptors)
                answer = line.recv(64)
            finally:
                _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        if not answer:
            raise OSError("no process could be forked as it was asked for")
        return int(answer)


class WarmProcesses:
    """The processes that others are forked from, each started when it is needed first: one for couriers, whose
    environment tells OpenSSL something, and one for all else.
    """

    def __init__(self) -> None:
        self._own = _read_once(os.environ)
        self._found: dict[bool, tuple[dict[str, str], subprocess.Popen[bytes], socket.socket]] = {}

    def line_to(self, command: str, environment: Mapping[str, str]) -> socket.socket | None:
        fixed, is_courier = _read_once(environment), command == _COURIER
        if fixed != self._own and not is_courier:
            return None
        if is_courier not in self._found:
            self._found[is_courier] = (fixed, *_start_warm(command, environment))
        known, _, line = self._found[is_courier]
        return line if fixed == known else None

    def close(self) -> None:
        for _, process, line in self._found.values():
            line.close()
            process.wait()


def _start_warm(
    command: str, environment: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        words = [sys.executable, "-P", __file__, str(theirs.fileno()), command]
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, env=dict(environment), pass_fds=[theirs.fileno()]
        )
    return process, ours


# In the process that is forked, and in its forks.


def _import_all(command: str) -> None:
    from engine.waiting import limit_spinning

    limit_spinning()
    from engine.quick_imports import quick_imports

    with quick_imports():
        import importlib

        import engine.__main__
        from engine.cli.main import COMMANDS

        if command == _COURIER:
            import engine.handoff.courier
            import engine.wire.packing
        else:
            import engine.assembly
            import engine.node.daemon
            import engine.server.app
            import engine.server.run  # noqa: F401

            for one in COMMANDS.values():
                importlib.import_module(one.module)
    gc.collect()
    gc.freeze()


def _serve(line: socket.socket) -> list[str]:
    """Fork whenever asked; comes back in each fork, with the words it is to run."""
    while True:
        order, descriptors, _, _ = socket.recv_fds(line, _MAX_ORDER_BYTES, _MAX_DESCRIPTORS)
        if not order:
            os._exit(0)
        come, go = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            if os.fork() == 0:
                while os.getppid() == between:
                    os.sched_yield()
                os.close(come)
                line.close()
                return _become(json.loads(order), descriptors, go)
            os._exit(0)
        os.close(go)
        os.waitpid(between, 0)
        for descriptor in descriptors:
            os.close(descriptor)
        line.send(os.read(come, 64))
        os.close(come)


def _become(order: dict[str, Any], descriptors: list[int], ready: int) -> list[str]:
    """Take on all of a new process but its program, and say so: who starts one finds it as it is to be."""
    if os.getppid() != order["parent"]:  # that has ended meanwhile
        os._exit(0)
    if order["session"]:
        os.setsid()
    if order["network"] is not None:
        _enter_network(order["network"])
    os.chdir(order["folder"])
    words: list[str] = order["words"]
    if words[:1] and words[0] in _START_OTHERS:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            ours.close()
            for inherited in (*descriptors, ready):
                os.close(inherited)
            return _serve(theirs)
        theirs.close()
        own = _read_once(os.environ)
        WarmStarts(lambda _, environment: ours if _read_once(environment) == own else None).install()
    # Above all that is open: no number that one is to have is another's.
    ready, *descriptors = (_moved(number, to_at_least=1000) for number in (ready, *descriptors))
    for number, descriptor in zip([0, 1, 2, *order["descriptors"]], descriptors, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(fd, mode, 1 if is_by_lines else -1, old.encoding, old.errors, closefd=False)
        for fd, mode, old, is_by_lines in (
            (0, "r", sys.stdin, False),
            (1, "w", sys.stdout, os.isatty(1)),
            (2, "w", sys.stderr, True),
        )
    )
    os.write(ready, str(os.getpid()).encode())
    os.close(ready)
    return words


def _enter_network(name: str) -> None:
    """As `ip netns exec` does: with the interfaces of that network in /sys, for this process alone."""
    network = os.open(f"/run/netns/{name}", os.O_RDONLY)
    _call("setns", network, _CLONE_NEWNET)
    os.close(network)
    _call("unshare", _CLONE_NEWNS)
    _call("mount", b"", b"/", b"none", _MS_SLAVE | _MS_REC, None)
    _call("umount2", b"/sys", _MNT_DETACH)
    _call("mount", name.encode(), b"/sys", b"sysfs", 0, None)


def _call(name: str, *arguments: Any) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def _moved(descriptor: int, *, to_at_least: int) -> int:
    import fcntl

    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD, to_at_least)
    os.close(descriptor)
    return moved


def _end(status: int) -> NoReturn:
    """As Python ends, but for taking apart all that was imported, which takes half a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    # A shell that runs the tests in the background has Ctrl-C ignored, and forks would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _import_all(sys.argv[2])
    words = _serve(socket.socket(fileno=int(sys.argv[1])))
    import engine.__main__

    sys.argv = [engine.__main__.__file__, *words]
    _end(engine.__main__.main())
