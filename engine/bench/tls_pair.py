"""The yardstick of a saturated link: one bare TLS connection between two processes of Python, with nothing to decide.

The same certificates, cipher and socket settings as the couriers', and memory as cold: it is read and written from one
end to the other. `Pair` is the bench's side; `main` is the program of either end, which answers JSON lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.bench.subject import Subject
from engine.errors import PeerLost
from engine.handoff.courier_process import tls_environment
from engine.handoff.shared import SharedMemory
from engine.handoff.transport import Address, connect, handshake, listen, tune
from engine.node.trust.identity import MUTUAL_NAME, Identity, check_peer, mutual_context
from engine.paths import own_command

_WRITE_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """What one transfer took, from the first write until the receiver said that it has all."""

    n_bytes: int
    took_s: float
    cpu_s: float

    @property
    def goodput_gbps(self) -> float:
        return 8e-9 * self.n_bytes / self.took_s

    @property
    def cpu_s_per_gb(self) -> float:
        return self.cpu_s / (self.n_bytes / 1e9)


class Pair:
    """Two ends, connected. `transfer` as often as wanted."""

    def __init__(self, sender: Subject, receiver: Subject, n_bytes: int) -> None:
        self._sender = sender
        self._receiver = receiver
        self._n_bytes = n_bytes

    def transfer(self) -> Transfer:
        received, sent = _both(
            lambda: self._receiver.ask("receive", n_bytes=self._n_bytes),
            lambda: self._sender.ask("send", n_bytes=self._n_bytes),
        )
        return Transfer(
            n_bytes=self._n_bytes, took_s=sent["seconds"], cpu_s=sent["cpu_s"] + received["cpu_s"]
        )


@contextlib.contextmanager
def connected(
    folder: Path,
    *,
    host: str,
    source: SharedMemory,
    landing: SharedMemory,
    n_bytes: int,
    enter_sender: Sequence[str] = (),
    enter_receiver: Sequence[str] = (),
) -> Iterator[Pair]:
    """A pair that moves the first `n_bytes` of `source` to `landing`; keys are kept in `folder`."""
    sender_folder, receiver_folder = folder / "sender", folder / "receiver"
    Identity.load_or_create(sender_folder)
    Identity.load_or_create(receiver_folder)
    with (
        _end("the TLS sender", enter_sender, source) as sender,
        _end("the TLS receiver", enter_receiver, landing) as receiver,
    ):
        common = {"n_bytes": n_bytes}
        sender.ask(
            "open", **common, descriptor=source.descriptor, own=str(sender_folder), peer=str(receiver_folder)
        )
        receiver.ask(
            "open", **common, descriptor=landing.descriptor, own=str(receiver_folder), peer=str(sender_folder)
        )
        port = sender.ask("listen", host=host)["port"]
        _both(lambda: sender.ask("accept"), lambda: receiver.ask("dial", host=host, port=port))
        yield Pair(sender, receiver, n_bytes)


def _end(name: str, enter: Sequence[str], memory: SharedMemory) -> Subject:
    command = [*enter, *own_command(), "bench", "handoff", "--tls-end"]
    return Subject(name, command, pass_fds=(memory.descriptor,), env=tls_environment())


def _both(
    first: Callable[[], dict[str, Any]], second: Callable[[], dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(first)
        answer = second()
        return beside.result(), answer


class _End:
    """One end of the pair, in its own process."""

    _memory: SharedMemory
    _own: Identity
    _peer_der: bytes
    _listener: socket.socket
    _tls: ssl.SSLSocket

    def open(self, descriptor: int, n_bytes: int, own: str, peer: str) -> dict[str, Any]:
        self._memory = SharedMemory(descriptor, n_bytes)
        self._memory.prefault(0, n_bytes)
        self._own = Identity.load_or_create(Path(own))
        self._peer_der = Identity.load_or_create(Path(peer)).certificate_der
        return {}

    def listen(self, host: str) -> dict[str, Any]:
        self._listener = listen(Address(host=host, port=0))
        return {"port": self._listener.getsockname()[1]}

    def accept(self) -> dict[str, Any]:
        connection, _ = self._listener.accept()
        tune(connection)
        return self._secure(connection, server_side=True)

    def dial(self, host: str, port: int) -> dict[str, Any]:
        return self._secure(connect(Address(host=host, port=port)), server_side=False)

    def _secure(self, connection: socket.socket, *, server_side: bool) -> dict[str, Any]:
        context = mutual_context(self._own, server_side=server_side, peer_der=self._peer_der)
        self._tls = handshake(connection, context, server_name=None if server_side else MUTUAL_NAME)
        check_peer(self._tls, self._peer_der)
        self._tls.settimeout(None)
        return {}

    def send(self, n_bytes: int) -> dict[str, Any]:
        view, send = self._memory.buffer, self._tls.sendall
        cpu_before_s, begun_s = time.process_time(), time.monotonic()
        for at in range(0, n_bytes, _WRITE_BYTES):
            send(view[at : min(at + _WRITE_BYTES, n_bytes)])
        if not self._tls.recv(1):
            raise PeerLost("the other end of the TLS pair has ended")
        return {"seconds": time.monotonic() - begun_s, "cpu_s": time.process_time() - cpu_before_s}

    def receive(self, n_bytes: int) -> dict[str, Any]:
        view, receive = self._memory.buffer[:n_bytes], self._tls.recv_into
        cpu_before_s = time.process_time()
        at = 0
        while at < n_bytes:
            came = receive(view[at:])
            if came == 0:
                raise PeerLost("the other end of the TLS pair has ended")
            at += came
        self._tls.sendall(b"\0")
        return {"cpu_s": time.process_time() - cpu_before_s}


def main() -> int:
    """Answer until standard input ends."""
    end = _End()
    commands: dict[str, Callable[..., dict[str, Any]]] = {
        "open": end.open,
        "listen": end.listen,
        "accept": end.accept,
        "dial": end.dial,
        "send": end.send,
        "receive": end.receive,
    }
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        fields = json.loads(line)
        try:
            answer = commands[fields.pop("command")](**fields)
        except Exception as error:  # told to whoever asked
            answer = {"error": str(error) or type(error).__name__}
        print(json.dumps(answer), flush=True)
    os._exit(0)
