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

# Commands that start others; a courier is none of these, as its environment tells OpenSSL something.
_START_OTHERS = {"node", "demo", "bench", "link", "report", "chat", "setup-peer"}

_OWN_NETWORK = "/proc/thread-self/ns/net"
_MAX_ORDER_BYTES = 1 << 18
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
_PLAIN |= {"pass_fds": (), "gid": None, "gids": None, "uid": None, "umask": -1, "process_group": -1}


def _read_once(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_ONCE) and name not in _READ_LATER
    }


def _network_of(args: Any) -> tuple[str | None, Any]:
    """The name and the rest of `ip netns exec NAME ...`; None and all of it where that is not how it begins."""
    if not isinstance(args, str | bytes) and list(args[1:3]) == ["netns", "exec"]:
        return args[3], args[4:]
    return None, args


class WarmStarts:
    """While `installed`, processes are begun by the one at the other end of the line that `call` opens at the first."""

    def __init__(self, call: Callable[[], socket.socket]) -> None:
        self._call = call
        self._line: socket.socket | None = None
        self._lock = threading.Lock()
        self._fixed = _read_once(os.environ)
        self._network = os.readlink(_OWN_NETWORK)

    def install(self) -> None:
        """In the place of what `Popen` itself does, which gets what cannot be forked."""
        warm = self

        def begin(popen: Any, *given: Any) -> None:
            asked = _arguments.bind(popen, *given).arguments
            network, args = _network_of(asked["args"])
            words = warm.words_of(args, asked["env"])
            if words is None or any(asked[name] != value for name, value in _PLAIN.items()):
                _execute_child(popen, *given)
                return
            streams = [asked[name] if asked[name] != -1 else own for own, name in enumerate(_STREAMS)]
            popen.pid = warm.start(
                words,
                asked["env"],
                streams,
                cwd=asked["cwd"],
                new_session=asked["start_new_session"],
                network=network,
            )
            popen._child_created = True
            popen._close_pipe_fds(*(asked[name] for name in _PIPES))

        subprocess.Popen._execute_child = begin  # type: ignore[attr-defined]

    def remove(self) -> None:
        subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]

    def words_of(self, args: Any, env: Mapping[str, str] | None) -> list[str] | None:
        """What follows `python -m engine`, where that is what is to be run and a fork would be no other process."""
        if isinstance(args, str | bytes) or not all(isinstance(word, str) for word in args):
            return None
        args = list(args)
        for way in _WAYS:
            if args[: len(way) + 1] == [sys.executable, *way]:
                is_alike = _read_once(os.environ if env is None else env) == self._fixed
                is_here = os.readlink(_OWN_NETWORK) == self._network
                return args[len(way) + 1 :] if is_alike and is_here else None
        return None

    def start(
        self,
        words: Sequence[str],
        env: Mapping[str, str] | None,
        streams: Sequence[int],
        *,
        cwd: Any,
        new_session: bool,
        network: str | None,
    ) -> int:
        """The number of a process that runs `baton WORDS`, in a network namespace of that name."""
        order = {
            "words": list(words),
            "env": dict(os.environ if env is None else env),
            "cwd": os.fspath(cwd) if cwd is not None else os.getcwd(),
            "session": bool(new_session),
            "network": network,
            "parent": os.getpid(),
        }
        with self._lock:
            if self._line is None:
                self._line = self._call()
            # The process between the two ends at once, and its child becomes the nearest subreaper's: ours.
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._line, [json.dumps(order).encode()], list(streams))
                answer = self._line.recv(64)
            finally:
                _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        if not answer:
            raise OSError("no process could be forked as it was asked for")
        return int(answer)


class WarmProcess:
    """The process that others are forked from; it ends when this object is closed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None

    def start(self) -> socket.socket:
        """Returns the line on which it is asked for forks."""
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        return self._line

    def close(self) -> None:
        if self._process is not None and self._line is not None:
            self._line.close()
            self._process.wait()


# In the process that is forked, and in its forks.


def _import_all() -> None:
    from engine.waiting import limit_spinning

    limit_spinning()
    from engine.quick_imports import quick_imports

    with quick_imports():
        import importlib

        import engine.__main__
        import engine.assembly
        import engine.node.daemon
        import engine.server.app
        import engine.server.run  # noqa: F401
        from engine.cli.main import COMMANDS

        for command in COMMANDS.values():
            importlib.import_module(command.module)
    gc.collect()
    gc.freeze()


def _serve(line: socket.socket) -> list[str]:
    """Fork whenever asked; comes back in each fork, with the words it is to run."""
    while True:
        order, streams, _, _ = socket.recv_fds(line, _MAX_ORDER_BYTES, len(_STREAMS))
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
                return _become(json.loads(order), streams, go)
            os._exit(0)
        os.close(go)
        os.waitpid(between, 0)
        for stream in streams:
            os.close(stream)
        line.send(os.read(come, 64))
        os.close(come)


def _become(order: dict[str, Any], streams: list[int], ready: int) -> list[str]:
    """Take on all of a new process but its program, and say so: who starts one finds it as it is to be."""
    if os.getppid() != order["parent"]:  # that has ended meanwhile
        os._exit(0)
    if order["session"]:
        os.setsid()
    if order["network"] is not None:
        _enter_network(order["network"])
    os.chdir(order["cwd"])
    words: list[str] = order["words"]
    if words[:1] and words[0] in _START_OTHERS:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            ours.close()
            for inherited in (*streams, ready):
                os.close(inherited)
            return _serve(theirs)
        theirs.close()
        WarmStarts(lambda: ours).install()
    for number, stream in enumerate(streams):  # which have higher numbers, as ours are open
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(order["env"])
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
    _import_all()
    words = _serve(socket.socket(fileno=int(sys.argv[1])))
    import engine.__main__

    sys.argv = [engine.__main__.__file__, *words]
    _end(engine.__main__.main())
