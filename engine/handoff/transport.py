"""Sockets of the handoff: addresses, TLS connections tuned for bulk data, and the threads that serve them.

One thread a socket. Data sockets carry one way only, so that no TLS object is ever used by two threads at once; the
control socket, which needs both ways, belongs to one thread that waits for bytes, for words to send and for the next
heartbeat. What the bytes mean is `engine.wire`'s business; what an event leads to is the link's.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import logging
import queue
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import psutil

from engine.errors import HostError, InvalidRequest, PeerLost, PeerUnreachable, PeerUntrusted
from engine.handoff.client_events import LinkSetup
from engine.handoff.streams import Load
from engine.wire.client import DataStream
from engine.wire.connection import Event
from engine.wire.limits import (
    HANDSHAKE_TIMEOUT_S,
    HEARTBEAT_INTERVAL_S,
    MIN_SOCKET_BUFFER_BYTES,
    SOCKET_BUFFER_BYTES,
)

log = logging.getLogger(__name__)

# What a connection is for, agreed in the TLS handshake: nothing has to be sent before it is known.
CONTROL_PROTOCOL = "baton/1"
DATA_PROTOCOL = "baton-data/1"

# Kernel keepalive, beside our own heartbeat: notices a peer that vanished while we have nothing to send.
_KEEPALIVE_IDLE_S = 15
_KEEPALIVE_INTERVAL_S = 5
_KEEPALIVE_PROBES = 3

_READ_BYTES = 1 << 16

# So much of a payload is received between two words of it to the protocol: a sign of life, and Python's time.
_ADVANCE_BYTES = 1 << 18

# How long a receiving thread's load is added up: more than it takes to empty a full buffer of the socket.
_LOAD_SPAN_S = 0.25


@dataclass(frozen=True, kw_only=True)
class Address:
    """A host and a port; the host may be a name, an IPv4 or an IPv6 address, with its zone where it has one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """HOST:PORT or [IPV6]:PORT; raises InvalidRequest for anything else."""
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise InvalidRequest(f"{text!r} is not an address: write HOST:PORT, such as 192.168.1.20:7118")
        return cls(host=host, port=int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def connect(address: Address) -> socket.socket:
    """A tuned TCP connection; raises PeerUnreachable."""
    failure: OSError | UnicodeError = OSError("it has no address")
    try:
        places = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise PeerUnreachable(f"{address} cannot be found: {reason_of(error)}") from error
    for family, kind, protocol, _, place in places:
        try:
            connection = socket.socket(family, kind, protocol)
        except OSError as error:
            failure = error
            continue
        try:
            # Before the call: what the other end may send ahead is agreed in it.
            tune(connection)
            connection.settimeout(HANDSHAKE_TIMEOUT_S)
            connection.connect(place)
            return connection
        except OSError as error:
            connection.close()
            failure = error
    if _wants_zone(address.host):
        raise PeerUnreachable(
            f"{address} is an address of one cable or network alone: name it after a percent sign, such as "
            f"[{address.host}%eth0]:{address.port}"
        ) from failure
    raise PeerUnreachable(f"{address} cannot be reached: {reason_of(failure)}") from failure


def _wants_zone(host: str) -> bool:
    """Whether it is an IPv6 address that exists on every link anew, with no word about which one is meant."""
    with contextlib.suppress(ValueError):
        number = ipaddress.ip_address(host)
        return isinstance(number, ipaddress.IPv6Address) and number.is_link_local and number.scope_id is None
    return False


def listen(address: Address) -> socket.socket:
    """A listening socket; raises PeerUnreachable when the address cannot be had here."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        # Looked up, since an address of one link alone is bound by the number of its zone, which only this tells.
        place = socket.getaddrinfo(address.host, address.port, family=family, type=socket.SOCK_STREAM)[0][4]
        listener = socket.create_server(
            place,
            family=family,
            backlog=64,
            # "any address" means any, also where the system would take IPv6 alone
            dualstack_ipv6=address.host == "::" and socket.has_dualstack_ipv6(),
        )
    except (OSError, UnicodeError) as error:
        raise PeerUnreachable(
            f"this computer cannot listen on {address}: {reason_of(error)}; choose another --listen HOST:PORT"
        ) from error
    # Connections inherit the buffers of their listener; set later, they would not count in the handshake.
    _set_buffers(listener)
    return listener


def called_from(place: tuple[Any, ...]) -> Address:
    """The address of an accepted caller; an IPv4 one is written as such, also where an IPv6 socket took its call."""
    return Address(host=place[0].removeprefix("::ffff:") if "." in place[0] else place[0], port=place[1])


def link_setup(connection: socket.socket, *, data_streams: int) -> LinkSetup:
    """What the system grants this one of a link's data connections."""
    return LinkSetup(
        data_streams=data_streams,
        receive_asked_bytes=_buffer_bytes(socket.SO_RCVBUF),
        receive_granted_bytes=connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF),
        send_asked_bytes=_buffer_bytes(socket.SO_SNDBUF),
        send_granted_bytes=connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF),
    )


def tune(connection: socket.socket) -> None:
    """Large buffers, no delay, keepalive."""
    _set_buffers(connection)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_S),
        ("TCP_KEEPALIVE", _KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _set_buffers(connection: socket.socket) -> None:
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        n_bytes = _buffer_bytes(option)
        if n_bytes:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, option, n_bytes)


@functools.cache
def _buffer_bytes(option: int) -> int:
    """How large a buffer to ask for: the largest that the system does not refuse, halving from the largest wanted.

    0 where it grants so little, without a word, that its own choice by measuring the connection gets further: a buffer
    once set is never grown again.
    """
    with socket.socket() as probe:
        n_bytes = SOCKET_BUFFER_BYTES
        while n_bytes >= MIN_SOCKET_BUFFER_BYTES:
            try:
                probe.setsockopt(socket.SOL_SOCKET, option, n_bytes)
                break
            except OSError:
                n_bytes //= 2
        granted = probe.getsockopt(socket.SOL_SOCKET, option)
    name = "receive" if option == socket.SO_RCVBUF else "send"
    if granted < MIN_SOCKET_BUFFER_BYTES:
        log.info(
            "the system grants %s buffers of %d KiB only: its own sizing is left on", name, granted >> 10
        )
        return 0
    log.debug("%s buffers of %.1f MiB", name, granted / (1 << 20))
    return n_bytes


def secure(
    connection: socket.socket, context: ssl.SSLContext, *, server_name: str | None = None
) -> ssl.SSLSocket:
    """TLS to be spoken over a connected socket, as the caller when `server_name` is given. `shake_hands` follows.

    What was given is of no use any more: close and abort what is returned. Raises PeerLost.
    """
    connection.settimeout(HANDSHAKE_TIMEOUT_S)
    try:
        return context.wrap_socket(
            connection,
            server_side=server_name is None,
            server_hostname=server_name,
            do_handshake_on_connect=False,
        )
    except (OSError, ValueError) as error:
        connection.close()
        raise PeerLost(_why_not_secure(error)) from error


class Handshaking(Protocol):
    def do_handshake(self) -> None: ...


def shake_hands(connection: Handshaking) -> None:
    """The TLS handshake, all of it within HANDSHAKE_TIMEOUT_S.

    Raises PeerUntrusted for a certificate that is not the trusted one, PeerLost for all else.
    """
    try:
        connection.do_handshake()
    except ssl.SSLCertVerificationError as error:
        raise PeerUntrusted(
            "the computer there shows another certificate than the trusted one: compare the fingerprints"
        ) from error
    except (OSError, ValueError) as error:
        raise PeerLost(_why_not_secure(error)) from error


# What OpenSSL calls it, and what it means to a person.
_TLS_REASONS = {
    "HTTP_REQUEST": "the other end speaks plain HTTP; only another Baton can talk to this port",
    "HTTPS_PROXY_REQUEST": "the other end takes this for a web proxy; only another Baton can talk to this port",
    "CALLBACK_FAILED": "the other end asked for a name that is not Baton's: it may be a browser",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the other end showed no certificate",
    **dict.fromkeys(
        (
            "BAD_RECORD_TYPE",
            "NO_SHARED_CIPHER",
            "PACKET_LENGTH_TOO_LONG",
            "RECORD_LAYER_FAILURE",
            "UNEXPECTED_MESSAGE",
            "UNKNOWN_PROTOCOL",
            "UNSUPPORTED_PROTOCOL",
            "WRONG_VERSION_NUMBER",
        ),
        "the other end does not speak TLS 1.3 as Baton does: it may be another program",
    ),
}


def _why_not_secure(error: OSError | ValueError) -> str:
    """Why no secure connection came about, as a sentence that fits both ends."""
    if isinstance(error, TimeoutError):
        return f"the other end said nothing of use for {HANDSHAKE_TIMEOUT_S:g} s"
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionError):
        return "the other end hung up before the connection was secure"
    if isinstance(error, ssl.SSLError):
        words = (error.reason or "TLS failed").replace("_", " ").lower()
        return _TLS_REASONS.get(error.reason, f"no secure connection came about: {words}")
    return f"no secure connection came about: {reason_of(error)}"


def handshake(
    connection: socket.socket, context: ssl.SSLContext, *, server_name: str | None = None
) -> ssl.SSLSocket:
    """`secure` and `shake_hands` at once; closes the socket when that fails."""
    tls = secure(connection, context, server_name=server_name)
    try:
        shake_hands(tls)
    except BaseException:
        tls.close()
        raise
    return tls


def read_exactly(connection: ssl.SSLSocket, n_bytes: int) -> bytes:
    """`n_bytes` from a connection with a timeout; raises PeerLost when they do not come."""
    data = b""
    try:
        while len(data) < n_bytes:
            more = connection.recv(n_bytes - len(data))
            if not more:
                raise PeerLost("the other computer closed the connection")
            data += more
    except OSError as error:
        raise PeerLost(f"the connection broke: {reason_of(error)}") from error
    return data


def abort(connection: socket.socket) -> None:
    """Break a connection and wake every thread that waits on it; the descriptor stays until `close`."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


# Threads that are being started, and since when. One for which memory runs out at the wrong moment dies before it can
# say that it runs, and whoever started it waits for that for ever.
_being_started: dict[threading.Thread, float] = {}


def start(thread: threading.Thread) -> None:
    """Raises HostError where this computer has no room for another thread."""
    _being_started[thread] = time.monotonic()
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise HostError("this computer has no room for another thread: end other programs") from error
    finally:
        _being_started.pop(thread, None)


def a_start_hangs(*, longer_than_s: float) -> bool:
    """Whether a thread that was to be started so long ago does not run, and never will."""
    begun = list(_being_started.values())
    return bool(begun) and time.monotonic() - min(begun) > longer_than_s


class Waker:
    """Wakes a thread out of `select`."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)

    def fileno(self) -> int:
        return self._read.fileno()

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            self._write.send(b"\0")

    def clear(self) -> None:
        with contextlib.suppress(OSError):
            while self._read.recv(4096):
                pass

    def close(self) -> None:
        self._read.close()
        self._write.close()


class ControlSocket:
    """The thread of one control connection.

    `on_bytes(data)` takes what came, `output()` gives what is to go, `on_tick()` runs once a heartbeat; all are called
    on this thread alone. `on_end(error)` is the last call, with what ended it. Errors raised by the callbacks end it
    too; `last_words(error)` may then give a few bytes to say so.
    """

    def __init__(
        self,
        connection: ssl.SSLSocket,
        *,
        on_bytes: Callable[[bytes], None],
        output: Callable[[], bytes],
        on_tick: Callable[[], None],
        last_words: Callable[[BaseException], bytes],
        on_end: Callable[[BaseException], None],
    ) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._on_bytes = on_bytes
        self._output = output
        self._on_tick = on_tick
        self._last_words = last_words
        self._on_end = on_end
        self._waker = Waker()
        self._unsent = b""
        self._stopped_by: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        start(self._thread)

    def wake(self) -> None:
        """There may be output."""
        self._waker.wake()

    def stop(self, error: BaseException) -> None:
        """End the connection for that reason; `on_end` follows on its own thread."""
        self._stopped_by = error
        self._waker.wake()

    def join(self, timeout_s: float) -> None:
        """Wait until the last words are said and the connection is closed."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while True:
                self._send()
                self._wait()
                if self._stopped_by is not None:
                    raise self._stopped_by
                self._read()
                self._on_tick()
        except Exception as error:
            self._farewell(error)
            self._on_end(error)
        finally:
            self._waker.close()
            with contextlib.suppress(OSError):
                self._connection.close()

    def _wait(self) -> None:
        if self._connection.pending():
            return
        writers = [self._connection] if self._unsent else []
        waker = self._waker.fileno()
        readable, _, _ = select.select(
            [self._connection.fileno(), waker], writers, [], HEARTBEAT_INTERVAL_S / 2
        )
        if waker in readable:
            self._waker.clear()

    def _read(self) -> None:
        while True:
            try:
                data = self._connection.recv(_READ_BYTES)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as error:
                raise PeerLost(f"the connection broke: {reason_of(error)}") from error
            if not data:
                raise PeerLost("the other computer closed the connection")
            self._on_bytes(data)

    def _send(self) -> None:
        self._unsent += self._output()
        while self._unsent:
            try:
                sent = self._connection.send(self._unsent)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as error:
                raise PeerLost(f"the connection broke: {reason_of(error)}") from error
            self._unsent = self._unsent[sent:]

    def _farewell(self, error: BaseException) -> None:
        words = self._unsent + self._last_words(error)
        with contextlib.suppress(OSError, ValueError):
            if words:
                self._connection.send(words)


def reason_of(error: OSError | ValueError) -> str:
    """What an error says, without its number."""
    strerror = error.strerror if isinstance(error, OSError) else None
    return strerror or str(error) or type(error).__name__


@dataclass(frozen=True, kw_only=True)
class Outgoing:
    """Bytes to send in order; dropped unsent when `wanted()` says so by then. `sent()` is called either way.

    The `parts` are taken one by one as they are sent, on the sender's thread, so they may be made only then.
    """

    parts: Iterable[bytes | memoryview]
    wanted: Callable[[], bool]
    sent: Callable[[], None] | None = None


class DataSender:
    """The thread that writes one data connection. `on_end(error)` is its last call when the connection breaks.

    What is `put` before the connection is there waits for it: requests come on another one, and may be sooner.
    """

    def __init__(self, on_end: Callable[[BaseException], None]) -> None:
        self._connection: ssl.SSLSocket | None = None
        self._on_end = on_end
        self._queue: queue.SimpleQueue[Outgoing | None] = queue.SimpleQueue()
        self._broken = False
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="data-out", daemon=True)

    @property
    def is_attached(self) -> bool:
        return self._connection is not None

    def attach(self, connection: ssl.SSLSocket) -> None:
        """Send over this connection, from now on."""
        connection.settimeout(None)
        self._connection = connection
        try:
            start(self._thread)
        except HostError:
            self._connection = None
            raise

    def put(self, outgoing: Outgoing) -> None:
        with self._lock:
            if not self._closed:
                self._queue.put(outgoing)
                return
        if outgoing.sent is not None:
            outgoing.sent()

    def backlog(self) -> int:
        return self._queue.qsize()

    def stop(self) -> None:
        """Break the connection; what is queued is dropped, `sent` called for each."""
        self._broken = True
        if self._connection is not None:
            # Before anybody hears that his frame is dealt with: what is sent now is still read from his memory.
            abort(self._connection)
        with self._lock:
            self._closed = True
            self._queue.put(None)
        if self._connection is None:
            self._drop()

    def join(self) -> None:
        if self.is_attached:
            self._thread.join()

    def _run(self) -> None:
        connection = self._connection
        if connection is None:
            raise ValueError("a sender without a connection")
        while (outgoing := self._queue.get()) is not None:
            if not self._broken and outgoing.wanted():
                self._send(connection, outgoing)
            if outgoing.sent is not None:
                outgoing.sent()
        with contextlib.suppress(OSError):
            connection.close()

    def _drop(self) -> None:
        while (outgoing := self._queue.get()) is not None:
            if outgoing.sent is not None:
                outgoing.sent()

    def _send(self, connection: ssl.SSLSocket, outgoing: Outgoing) -> None:
        try:
            for part in outgoing.parts:
                connection.sendall(part)
        except OSError as error:
            self._broken = True
            self._on_end(PeerLost(f"a data connection broke: {reason_of(error)}"))
        except Exception as error:
            # Made here, a part may fail for want of memory: half a frame is out, and nothing can follow it.
            self._broken = True
            self._on_end(error)


class DataReceiver:
    """The thread that reads one data connection into the cache memory.

    `lock` guards the stream's connection state; `on_events` gets what a whole frame led to, with the lock held.
    `on_load` hears now and then, while frames come, how busy the thread was.
    """

    def __init__(
        self,
        connection: ssl.SSLSocket,
        stream: DataStream,
        *,
        lock: threading.Lock,
        on_events: Callable[[list[Event]], None],
        on_load: Callable[[Load], None],
        on_end: Callable[[BaseException], None],
    ) -> None:
        connection.settimeout(None)
        self._connection = connection
        self._stream = stream
        self._lock = lock
        self._on_events = on_events
        self._on_load = on_load
        self._on_end = on_end
        self._thread = threading.Thread(target=self._run, name="data-in", daemon=True)

    def start(self) -> None:
        start(self._thread)

    def stop(self) -> None:
        """Break the connection; after `join` nothing is written to memory any more."""
        abort(self._connection)

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            self._receive()
        except OSError as error:
            self._on_end(PeerLost(f"a data connection broke: {reason_of(error)}"))
        except Exception as error:
            self._on_end(error)
        finally:
            with contextlib.suppress(OSError):
                self._connection.close()

    def _receive(self) -> None:
        stream = self._stream
        seen = _load()
        while True:
            view = stream.buffer()
            is_rest = len(view) <= _ADVANCE_BYTES
            if not is_rest:
                view = view[:_ADVANCE_BYTES]
            self._fill(view)
            if not is_rest:
                stream.advance(len(view))
                continue
            stream.unpack()
            with self._lock:
                events = stream.advance(len(view))
                if events:
                    self._on_events(events)
            if time.monotonic() - seen.wall_s >= _LOAD_SPAN_S:
                now = _load()
                self._on_load(now.since(seen))
                seen = now

    def _fill(self, view: memoryview) -> None:
        """Receive until `view` is full. A call gives one TLS record: this loop runs 61 thousand times a GB."""
        # `read` is what `recv_into` calls, after a look at its arguments that costs as much as the call itself.
        read: Callable[[int, memoryview], int] = self._connection.read  # type: ignore[assignment]
        due = len(view)
        while due:
            n_bytes = read(due, view)
            if n_bytes == due:
                return
            if not n_bytes:
                raise PeerLost("the other computer closed a data connection")
            view = view[n_bytes:]
            due -= n_bytes


def _load() -> Load:
    """Of the calling thread since its start, and of all cores since theirs; differences mean something."""
    return Load(wall_s=time.monotonic(), cpu_s=time.thread_time(), idle_s=psutil.cpu_times().idle)
