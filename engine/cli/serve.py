"""`baton serve`: the engine that answers, with its OpenAI endpoint and, where there is one, its worker."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import queue
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine import config
from engine.cli.lifetime import add_lifetime_flags, watch_stdin
from engine.cli.log import SAY_AGAIN_S, log_to_stderr, tell
from engine.cli.progress import ProgressBar, loading_bar
from engine.errors import InvalidRequest, UserError
from engine.handoff.target import Target
from engine.node.listening import listening_fault
from engine.node.models.library import Library
from engine.node.running import announce
from engine.quick_imports import quick_imports
from engine.repeats import Repeats

if TYPE_CHECKING:
    from engine.assembly import DecodeEngine

log = logging.getLogger(__name__)

EXAMPLE = """\
  baton serve --model smollm2-135m
  baton serve --model ./model.gguf --port 8080 --slots 2 --ctx 8192
  baton serve --model qwen2.5-coder-0.5b --peer 192.168.1.20:7118 --trust FINGERPRINT
"""

SETTINGS = [
    *(config.MODEL, config.HOST, config.PORT, config.SLOTS, config.CTX, config.CHUNK),
    *(config.ROUTE, config.PREFIX_CACHE),
    *(config.PEER, config.LISTEN, config.TRUST, config.IDENTITY),
    *(config.CODEC, config.DATA_STREAMS),
    *(config.KV_TYPE, config.WEIGHTS, config.DEVICE, config.THREADS),
]

# How often the worker is looked at, to say when it comes and goes.
_WATCH_EVERY_S = 0.1

# Open streams get a second of their own to end; then what is left of the loading.
_HTTP_GRACE_S = 1.5
_LOADER_GRACE_S = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    config.add_flags(parser, SETTINGS)
    add_lifetime_flags(parser)
    parser.add_argument(
        "--progress", action="store_true", help="print lines of JSON while the model is loaded, too"
    )


def run(args: argparse.Namespace) -> int:
    _check(args)
    from_stdin = (
        watch_stdin() if args.exit_with_stdin or args.peer == config.FROM_STDIN else queue.Queue[str]()
    )
    log_to_stderr()
    with ProgressBar(args.model) as progress:
        path = Library().resolve(args.model, progress)
    began_s = time.monotonic()
    with quick_imports():
        from engine.server.app import build_loading_app
        from engine.server.run import HttpServer
        from engine.server.settings import ServerSettings

    app = build_loading_app(ServerSettings(api_key=_api_key(), check_host=_is_local(args.host)))
    # the port is bound before the model is loaded: one that is taken is said at once
    server = HttpServer(app, host=args.host, port=args.port)
    service = _Service(args, path, server, app, from_stdin, began_s=began_s)
    try:
        service.run()
    finally:
        service.close()
    return 0


class _Service:
    """The engine behind the endpoint: loaded on a thread of its own while the endpoint answers that it is loading."""

    def __init__(
        self,
        args: argparse.Namespace,
        path: Path,
        server: Any,
        app: Any,
        from_stdin: queue.Queue[str],
        *,
        began_s: float,
    ) -> None:
        self._args = args
        self._path = path
        self._server = server
        self._app = app
        self._from_stdin = from_stdin
        self._began_s = began_s
        self._imports_s = 0.0
        self._engine: DecodeEngine | None = None
        self._closing = threading.Event()
        self._over = threading.Event()
        self._failure: Exception | None = None
        # The main thread does nothing but wait: so a signal to end unwinds it like that of any other command.
        self._http = threading.Thread(target=self._answer, name="http", daemon=True)
        self._loader = threading.Thread(target=self._load, name="loader", daemon=True)

    def run(self) -> None:
        """Answer until something fails, and raise that."""
        self._http.start()
        self._over.wait()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End what runs, each part within its time; a model half loaded ends with the process."""
        self._closing.set()
        self._server.stop()
        _join(self._http, _HTTP_GRACE_S)
        if self._engine is not None:
            self._engine.close()
        _join(self._loader, _LOADER_GRACE_S)

    def _answer(self) -> None:
        try:
            self._server.run(on_ready=lambda port: self._loader.start())
        except Exception as error:  # raised again on the main thread
            self._failure = self._failure or error
        finally:
            self._over.set()

    def _load(self) -> None:
        try:
            self._load_and_watch()
        except Exception as error:  # raised again on the main thread
            self._failure = error
            self._server.stop()

    def _load_and_watch(self) -> None:
        with quick_imports():
            from engine.assembly import open_decode_engine
            from engine.server.app import attach
        self._imports_s = time.monotonic() - self._began_s

        with loading_bar(f"loading {self._path.name}") as progress:
            advance = LoadingNews().say if self._args.progress else progress.advance
            self._engine = engine = open_decode_engine(self._args, self._path, advance, self._first_target)
        attach(self._app, engine.backend)
        note = {"role": "serve", "model": engine.backend.model.model_id, "url": self._server.url}
        with announce(note):
            self._say_ready(engine)
            self._watch_worker(engine)

    def _first_target(self) -> Target:
        """The worker to begin with, once that is known."""
        if self._args.peer == config.FROM_STDIN:
            return self._target_of(self._from_stdin.get())
        return Target(dial=self._args.peer, listen=self._args.listen, trust=self._args.trust or "")

    def _target_of(self, line: str) -> Target:
        target = Target.parse(line)
        if target.is_there and not target.trust:
            target = msgspec.structs.replace(target, trust=self._args.trust or "")
        return target

    def _follow_targets(self, engine: DecodeEngine) -> bool:
        """Take what standard input says of the worker while the engine runs; whether it said anything."""
        has_said = False
        with contextlib.suppress(queue.Empty):
            while True:
                line = self._from_stdin.get_nowait()
                has_said = True
                try:
                    engine.retarget(self._target_of(line))
                except InvalidRequest as error:
                    log.warning("%s", error)
        return has_said

    def _say_ready(self, engine: DecodeEngine) -> None:
        if self._args.json:
            listening = {} if engine.listen_port is None else {"listen_port": engine.listen_port}
            memory = engine.device_memory
            _print_event(
                ready=True,
                port=self._server.port,
                fingerprint=engine.fingerprint,
                took={"imports_s": self._imports_s, **asdict(engine.took)},
                device=None if memory is None else asdict(memory),
                **listening,
            )
            return
        tell(f"{engine.backend.model.model_id} answers at {self._server.url}/v1", sys.stderr)
        tell(f'Ask it:  baton chat "Hello" --port {self._server.port}', sys.stderr)
        if engine.fingerprint is None:
            return
        tell(f"This computer's fingerprint: {engine.fingerprint}", sys.stderr)
        if engine.listen_port is not None:
            tell(
                f"For the worker, on the other computer:\n  baton worker --model {self._args.model} "
                f"--dial THIS-COMPUTER:{engine.listen_port} --trust {engine.fingerprint}",
                sys.stderr,
            )
        elif engine.client is None:
            tell(
                "To let another computer prefill for this one, start there\n"
                f"  baton worker --model {self._args.model} --listen 0.0.0.0:{config.COURIER_PORT} "
                f"--trust {engine.fingerprint}\n"
                "and start this one again with --peer THERE:PORT --trust and the fingerprint that it prints",
                sys.stderr,
            )

    def _watch_worker(self, engine: DecodeEngine) -> None:
        """Say when the worker comes and goes, until the end."""
        if engine.client is None:
            self._closing.wait()
            return
        from engine.handoff.client_events import ClientStatus
        from engine.handoff.prefill_client import NO_WORKER, NOT_YET

        news = LinkWatch(Repeats(SAY_AGAIN_S), known=NOT_YET)
        listen_port = engine.listen_port
        while not self._closing.wait(_WATCH_EVERY_S):
            if self._follow_targets(engine):
                listen_port = None  # a new one is told even if it has the same number
            if self._args.json and engine.client.listen_port not in (None, listen_port):
                listen_port = engine.client.listen_port
                _print_event(listen_port=listen_port)
            status = engine.client.status() or ClientStatus(ready=False, note=NO_WORKER)
            if news.is_news(status.ready, status.note):
                self._say_worker(status.ready, status.note)

    def _say_worker(self, ready: bool, note: str) -> None:
        if self._args.json:
            _print_event(worker=ready, note=note)
        elif ready:
            tell("The worker is connected: it prefills long prompts", sys.stderr)
        else:
            tell(f"The worker is away ({note}): prompts are prefilled here", sys.stderr)


class LoadingNews:
    """Says how far the loading is, in hundredths; from any thread."""

    def __init__(self) -> None:
        self._said = 0

    def say(self, done: int, total: int) -> None:
        hundredths = 100 * done // total if total else 0
        if hundredths > self._said:
            self._said = hundredths
            _print_event(loading=hundredths / 100)


class LinkWatch:
    """Decides whether what is seen of the worker is to be said: that it came, and why it is away.

    A reason that changes is news: the worker may be there and not be trusted. One that was said lately is not, even if
    another came between. `known` is a reason that need not be said at first.
    """

    def __init__(self, said: Repeats, *, known: str) -> None:
        self._said = said
        self._said.say(known)
        self._was_ready = False

    def is_news(self, ready: bool, note: str) -> bool:
        came = ready and not self._was_ready
        self._was_ready = ready
        if ready:
            self._said.forget()
            return came
        return self._said.say(note) is not None


def _join(thread: threading.Thread, timeout_s: float) -> None:
    if thread.ident is not None:
        thread.join(timeout_s)


def _check(args: argparse.Namespace) -> None:
    if (args.peer not in (None, config.FROM_STDIN) or args.listen) and not args.trust:
        raise UserError("--trust is missing: it takes the fingerprint that the worker prints when it starts")
    if args.peer and args.listen:
        raise UserError(
            "--peer and --listen exclude each other: one of the two computers calls, the other waits"
        )
    if args.trust and not (args.peer or args.listen):
        raise UserError("--trust needs --peer HOST:PORT, or --listen HOST:PORT for a worker that calls")
    if not _is_local(args.host) and _api_key() is None:
        raise UserError(
            f"--host {args.host} opens the endpoint to the network: set BATON_API_KEY to a secret that "
            "clients must send"
        )
    if args.listen and (fault := listening_fault(*config.split_address(args.listen))):
        raise UserError(f"{config.LISTEN.flag} {args.listen}: {fault}")


def _api_key() -> str | None:
    return os.environ.get("BATON_API_KEY") or None


def _is_local(host: str) -> bool:
    return config.is_loopback(host)


def _print_event(**event: Any) -> None:
    tell(json.dumps(event), sys.stdout)
