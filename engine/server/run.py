"""Runs an app on a port until it is told to stop; knows sockets, signals and uvicorn, and nothing of the app."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from engine.errors import InvalidRequest
from engine.server.settings import DEFAULT_HOST

# Open streams are told to end at once; what has not ended after this is cut.
GRACE_S = 1

_BACKLOG = 128


class HttpServer:
    """One app on one port. The port is bound when this is made; `port` says which, also for a wish of 0.

    Raises InvalidRequest when the address cannot be had.
    """

    def __init__(self, app: Starlette, *, host: str = DEFAULT_HOST, port: int = 0) -> None:
        self._socket = _bind(host, port)
        self.host = host
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            loop="asyncio",
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
        )
        self._server = _Server(config, on_closing=app.state.exchanges.close_all)

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    def run(self, on_ready: Callable[[int], None] | None = None) -> None:
        """Serve until `stop`, SIGINT or SIGTERM; returns within about a second of it, open streams or not.

        `on_ready` is called with the port once requests are answered. On the main thread signals are taken care of
        and given back afterwards; a second SIGINT does not wait for anyone.
        """
        self._server.on_ready = on_ready and (lambda: on_ready(self.port))
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    async def serve(self) -> None:
        """As `run`, on the event loop of the caller, who takes care of signals."""
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        """End `run`; from any thread."""
        self._server.should_exit = True


def serve(
    app: Starlette, host: str = DEFAULT_HOST, port: int = 0, on_ready: Callable[[int], None] | None = None
) -> None:
    """Serve `app` until a signal; see HttpServer."""
    HttpServer(app, host=host, port=port).run(on_ready)


class _Server(uvicorn.Server):
    """uvicorn's, but a signal ends `run` instead of the process, so that the rest can be put away too."""

    def __init__(self, config: uvicorn.Config, *, on_closing: Callable[[], None]) -> None:
        super().__init__(config)
        self.on_ready: Callable[[], None] | None = None
        self._on_closing = on_closing

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.on_ready is not None:
            self.on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_closing()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.handle_exit(number, frame)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise InvalidRequest(
            f"cannot listen on {host}: {error.strerror or error}; choose another with --host", param="host"
        ) from error
    try:
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise InvalidRequest(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port", param="port"
        ) from error
    return listener
