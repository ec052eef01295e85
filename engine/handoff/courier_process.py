"""An engine's courier seen from the engine: started, listened to, started again when it ends."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.errors import ProcessFailed
from engine.handoff import channel as ch
from engine.handoff.shared import SharedMemory
from engine.handoff.transport import Address
from engine.paths import own_command

log = logging.getLogger(__name__)

# Waits before a courier that ended is started again; doubled each time it ends soon.
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0

# Prefers the cipher that takes the least time; Python has no call for the ciphers of TLS 1.3.
_TLS_SETTINGS = Path(__file__).with_name("courier_tls.cnf")

# A courier multiplies no matrices, for which numpy would start a thread a core.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}

# How long a courier may take to say goodbye to its peer.
_GOODBYE_S = 2.0


class CourierProcess:
    """Runs a courier on `memory` for as long as the engine lives.

    `on_message` gets all that it says and `on_gone(reason)` hears when it has ended, with nothing of it left that could
    touch the memory; both are called on one thread of this object's own. Descriptors in `config` are filled in here.
    Without a `config` there is no courier, until `reconfigure` brings one.
    """

    def __init__(
        self,
        config: ch.CourierConfig | None,
        memory: SharedMemory,
        *,
        on_message: Callable[[ch.FromCourier], None],
        on_gone: Callable[[str], None],
    ) -> None:
        self._config = config
        self._memory = memory
        self._on_message = on_message
        self._on_gone = on_gone
        self._channel: ch.Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = threading.Event()
        # Set to end a wait: by `close`, and when there is another configuration.
        self._disturbed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="courier-channel", daemon=True)

    def start(self) -> None:
        """Returns once the first courier has been started; raises ProcessFailed when it cannot be."""
        self._spawn()
        self._thread.start()

    def reconfigure(self, config: ch.CourierConfig | None) -> None:
        """End the courier, and start another with `config` where there is one. Not from `on_message` or `on_gone`."""
        self._config = config
        self._disturbed.set()
        channel = self._channel
        if channel is not None:
            channel.interrupt()

    @property
    def pid(self) -> int | None:
        """Of the courier that runs now."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def send(self, message: ch.Message) -> None:
        """Raises ProcessFailed when no courier is there to take it."""
        channel = self._channel
        if channel is None:
            raise ProcessFailed("the courier has ended and is being started again")
        channel.send(message)

    def close(self) -> None:
        """End the courier and wait for it. Not from `on_message` or `on_gone`."""
        self._closing.set()
        self._disturbed.set()
        channel = self._channel
        if channel is not None:
            channel.interrupt()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        wait_s = _FIRST_WAIT_S
        while True:
            heard = self._listen()
            wait_s = _FIRST_WAIT_S if heard else min(2 * wait_s, _LONGEST_WAIT_S)
            self._disturbed.wait(wait_s if self._config is not None else None)
            if self._closing.is_set():
                return
            self._disturbed.clear()
            try:
                self._spawn()
            except ProcessFailed as error:
                log.error("%s", error)
                self._on_gone(str(error))

    def _listen(self) -> bool:
        """Hear the running courier out, until it has ended or is not wanted; whether it has said anything."""
        channel, process = self._channel, self._process
        if channel is None or process is None:
            return False
        heard = False
        try:
            while not self._disturbed.is_set():
                silence_s = ch.SILENCE_S if heard else ch.START_S
                message = channel.receive(ch.FROM_COURIER, silence_s=silence_s)
                if message is None:
                    break
                heard = True
                self._hear(channel, message)
        except ProcessFailed as error:
            log.error("the courier is ended: %s", error)
            process.kill()
        self._channel = None
        channel.close()
        # Its memory is ours again only when the process is gone, not when its channel is.
        try:
            process.wait(_GOODBYE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._disturbed.is_set() and not self._closing.is_set():
            self._on_gone("there is another worker now" if self._config is not None else "there is no worker")
        elif not self._closing.is_set():
            self._on_gone(f"the courier ended with exit status {process.returncode}")
        return heard

    def _keep_port(self, port: int) -> None:
        """A courier that is started again has to be found where the first one was."""
        config = self._config
        if config is not None and config.listen is not None and not self._disturbed.is_set():
            address = Address(host=Address.parse(config.listen).host, port=port)
            self._config = msgspec.structs.replace(config, listen=str(address))

    def _hear(self, channel: ch.Channel, message: ch.FromCourier) -> None:
        if isinstance(message, ch.Alive):
            with contextlib.suppress(ProcessFailed):
                channel.send(message)
            return
        if isinstance(message, ch.Listening):
            self._keep_port(message.port)
        self._on_message(message)

    def _spawn(self) -> None:
        if self._config is None:
            return
        ours, theirs = socket.socketpair()
        config = msgspec.structs.replace(
            self._config,
            channel_descriptor=theirs.fileno(),
            memory_descriptor=self._memory.descriptor,
            memory_bytes=self._memory.n_bytes,
        )
        try:
            process = subprocess.Popen(
                [*config.start_through, *own_command(), "courier"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env=_ONE_THREAD | tls_environment(),
                pass_fds=(theirs.fileno(), self._memory.descriptor),
            )
        except OSError as error:
            ours.close()
            raise ProcessFailed(f"the courier process could not be started: {error}") from error
        finally:
            theirs.close()
        if process.stdin is not None:
            try:
                with process.stdin as stdin:
                    stdin.write(msgspec.json.encode(config) + b"\n")
            except OSError as error:
                log.error("the courier did not take its settings: %s", error)
        self._process = process
        self._channel = ch.Channel(ours)


def tls_environment() -> dict[str, str]:
    """Ours, with settings for the courier's TLS where the user has none."""
    return {"OPENSSL_CONF": str(_TLS_SETTINGS)} | dict(os.environ)
