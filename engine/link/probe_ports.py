"""The half of a probe that answers: a UDP and a TCP port for one other computer, one token and half a minute.

Blocking, on threads of its own; the socket calls in them leave the interpreter to others.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import logging
import secrets
import socket
import struct
import threading
import time

from engine.link.probe_wire import (
    HEAD_BYTES,
    IO_TIMEOUT_S,
    MAX_BURST_BYTES,
    MAX_PACKET_BYTES,
    RESULT,
    TOKEN_BYTES,
    Budget,
    Head,
    Kind,
    close_quietly,
    forbid_fragments,
    is_too_large,
    read_exactly,
    read_head,
    receive_all,
    receive_burst,
    resolve,
    send_for,
)

log = logging.getLogger(__name__)

# A probe ends within 15 seconds; whoever asked and vanished leaves nothing open for long.
MAX_OPEN_S = 30.0

# Connections that are served at once; a probe has eight at most.
_MAX_CONNECTIONS = 12


class ProbePorts:
    """Open from the start until `close`, or until MAX_OPEN_S are over. `host` is here, `peer_host` alone is answered.

    Raises OSError where a port cannot be opened.
    """

    def __init__(self, host: str, peer_host: str, *, open_s: float = MAX_OPEN_S) -> None:
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self._peer = _bare(peer_host)
        self._budget = Budget()
        self._ends_s = time.monotonic() + open_s
        self._slots = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        family, address = resolve(host, 0, socket.SOCK_DGRAM)
        self._udp = socket.socket(family, socket.SOCK_DGRAM)
        self._tcp = socket.socket(family, socket.SOCK_STREAM)
        try:
            forbid_fragments(self._udp)
            self._udp.bind(address)
            self._tcp.bind(address)
            self._tcp.listen(_MAX_CONNECTIONS)
        except BaseException:
            close_quietly(self._udp, self._tcp)
            raise
        self.udp_port: int = self._udp.getsockname()[1]
        self.tcp_port: int = self._tcp.getsockname()[1]
        self._threads = [
            threading.Thread(target=target, name=f"probe-{name}", daemon=True)
            for name, target in (("udp", self._answer_datagrams), ("tcp", self._accept))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_open(self) -> bool:
        return time.monotonic() < self._ends_s

    def close(self) -> None:
        """Ends every connection, and returns when the ports are closed."""
        self._ends_s = 0.0
        with contextlib.suppress(OSError):
            self._tcp.shutdown(socket.SHUT_RDWR)
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _is_known(self, head: Head, address: tuple[object, ...]) -> bool:
        return hmac.compare_digest(head.token, self.token) and _bare(str(address[0])) == self._peer

    def _answer_datagrams(self) -> None:
        with self._udp:
            while self.is_open:
                self._udp.settimeout(0.1)
                try:
                    data, address = self._udp.recvfrom(MAX_PACKET_BYTES)
                    head = read_head(data)
                except (TimeoutError, struct.error):
                    continue
                except OSError as error:  # an answer was refused earlier: the next may be wanted
                    log.debug("probe: %s", error)
                    continue
                if self._is_known(head, address):
                    self._answer(head, len(data), address)

    def _answer(self, head: Head, n_received: int, address: tuple[object, ...]) -> None:
        said = head._replace(size=n_received).pack()
        if head.kind == Kind.FILL:
            said = head.pack().ljust(min(head.size, MAX_PACKET_BYTES), b"\0")
        elif head.kind != Kind.ECHO:
            return
        if not self._budget.take(len(said)):
            return
        try:
            self._udp.sendto(said, address)
        except OSError as error:
            if is_too_large(error):
                with contextlib.suppress(OSError):
                    self._udp.sendto(head._replace(kind=Kind.TOO_LARGE).pack(), address)

    def _accept(self) -> None:
        with self._tcp:
            while self.is_open:
                self._tcp.settimeout(0.1)
                try:
                    connection, address = self._tcp.accept()
                except TimeoutError:
                    continue
                except OSError:
                    return
                if _bare(str(address[0])) != self._peer or not self._slots.acquire(blocking=False):
                    connection.close()
                    continue
                with self._lock:
                    self._connections.add(connection)
                threading.Thread(
                    target=self._serve, args=(connection, address), name="probe-connection", daemon=True
                ).start()

    def _serve(self, connection: socket.socket, address: tuple[object, ...]) -> None:
        try:
            with connection, contextlib.suppress(OSError):
                connection.settimeout(IO_TIMEOUT_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                head = read_head(read_exactly(connection, HEAD_BYTES))
                if self._is_known(head, address):
                    self._do(connection, head)
        finally:
            with self._lock:
                self._connections.discard(connection)
            self._slots.release()

    def _do(self, connection: socket.socket, head: Head) -> None:
        burst = b"\0" * min(head.size, MAX_BURST_BYTES)
        if head.kind == Kind.SINK:
            connection.sendall(RESULT.pack(*receive_all(connection, self._budget)))
        elif head.kind == Kind.SOURCE:
            send_for(connection, head.time_ms / 1000, self._budget)
        elif head.kind == Kind.BURSTS_IN and burst:
            while self.is_open and receive_burst(connection, len(burst), self._budget):
                connection.sendall(b"\0")
        elif head.kind == Kind.BURSTS_OUT:
            while self.is_open and connection.recv(1) and self._budget.take(len(burst)):
                connection.sendall(burst)


def _bare(host: str) -> object:
    """An address without its zone, comparable however it is written; IPv4 also where IPv6 carries it."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
