"""A cable between two ends that a test can hold, cut and let go: bytes are passed on as they come, or not at all."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

_PIECE_BYTES = 1 << 16


class _Call:
    """One connection, in two halves; while it is not `open`, nothing passes, `is_waited_for` once something came."""

    def __init__(self, caller: socket.socket, target: int, is_open: bool) -> None:
        self.open = threading.Event()
        self.is_waited_for = threading.Event()
        if is_open:
            self.open.set()
        self._caller = caller
        self._target = target
        self._called: socket.socket | None = None
        threading.Thread(target=self._run, name="relay-call", daemon=True).start()

    def cut(self) -> None:
        for end in (self._caller, self._called):
            if end is not None:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self.open.set()

    def _run(self) -> None:
        self.open.wait()
        with (
            contextlib.suppress(OSError),
            self._caller as caller,
            socket.create_connection(("127.0.0.1", self._target)) as called,
        ):
            self._called = called
            back = threading.Thread(target=self._pass_on, args=(called, caller), daemon=True)
            back.start()
            self._pass_on(caller, called)
            back.join()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE_BYTES):
                if not self.open.is_set():
                    self.is_waited_for.set()
                self.open.wait()
                sink.sendall(data)
        self.open.wait()
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


class Relay:
    """Listens on `port` and passes every connection on to the port `target` of this computer.

    Held, it takes calls and bytes and passes nothing on, not even that a connection has ended: to either end the other
    one looks like a computer whose plug was pulled.
    """

    def __init__(self) -> None:
        self.target = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._is_open = True
        self._calls: list[_Call] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Inside, nothing passes; afterwards all does, what was kept first."""
        self._is_open = False
        try:
            with self._held(self._calls):
                yield
        finally:
            with self._lock:
                self._is_open = True
                calls = list(self._calls)
            for call in calls:
                call.open.set()

    def all_held(self) -> contextlib.AbstractContextManager[None]:
        """The same for the connections that are there; new ones pass."""
        return self._held(self._calls)

    @contextlib.contextmanager
    def last_held(self) -> Iterator[threading.Event]:
        """The same for the connection that was made last; gives what is set when something has come on it."""
        call = self._calls[-1]
        call.is_waited_for.clear()
        with self._held([call]):
            yield call.is_waited_for

    @contextlib.contextmanager
    def _held(self, which: list[_Call]) -> Iterator[None]:
        with self._lock:
            calls = list(which)
        for call in calls:
            call.open.clear()
        try:
            yield
        finally:
            for call in calls:
                call.open.set()

    def cut(self) -> None:
        """Break all connections, at both ends."""
        with self._lock:
            calls, self._calls = self._calls, []
        for call in calls:
            call.cut()

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                with self._lock:
                    self._calls.append(_Call(caller, self.target, self._is_open))
