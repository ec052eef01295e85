"""The courier: the process beside an engine that owns its LAN sockets and moves KV. No torch, no Qt.

It is started by its engine with a channel and the cache's memory, keeps the link to the other computer up (it calls, or
waits to be called), and ends when the engine does. Which side of the protocol it speaks is the engine's role, whoever
called.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.cache.spec import KVType
from engine.errors import (
    BatonError,
    HostError,
    PeerError,
    PeerLost,
    PeerUntrusted,
    ProcessFailed,
    ProtocolError,
)
from engine.handoff import channel as ch
from engine.handoff.codec_choice import CodecChooser
from engine.handoff.failure import FailureCode, Going
from engine.handoff.link import ClientLink, Link, WorkerLink, describe
from engine.handoff.shared import SharedMemory
from engine.handoff.streams import StreamCount
from engine.handoff.transport import (
    CONTROL_PROTOCOL,
    DATA_PROTOCOL,
    Address,
    a_start_hangs,
    abort,
    called_from,
    connect,
    handshake,
    listen,
    read_exactly,
    secure,
    shake_hands,
    start,
    tune,
)
from engine.node.trust.identity import (
    INTRODUCTION_NAME,
    INTRODUCTION_PROTOCOL,
    MUTUAL_NAME,
    Identity,
    TrustStore,
    answer_introduction,
    check_peer,
    introduce,
    introduction_context,
    listener_context,
    mutual_context,
)
from engine.repeats import Repeats
from engine.wire.blocks import LosslessSpeed
from engine.wire.client import ClientConnection
from engine.wire.codec import (
    CODECS,
    FRAME_HEADER,
    STREAM_MESSAGES,
    FrameKind,
    decode_frame_header,
    decode_message,
    encode_message,
)
from engine.wire.limits import (
    HANDSHAKE_TIMEOUT_S,
    MAX_DATA_STREAMS,
    MAX_LINKS,
    MAX_STREAM_CONTROL_BYTES,
    MAX_UNAUTHENTICATED,
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    SESSION_BYTES,
)
from engine.wire.messages import Attach, Hello, HelloReply, Role
from engine.wire.worker import WorkerConnection

log = logging.getLogger(__name__)

# Waits between two calls of a computer that does not answer: short at first, for one that is just restarting.
_FIRST_WAIT_S = 0.25
_LONGEST_WAIT_S = 5.0

# A line of the log for the first caller of a kind who is turned away, and one more each time this is over.
_COUNT_STRANGERS_S = 60.0

# A thread runs within milliseconds; and the last words to all links are said within this time, or not at all.
_START_S = 3.0
_GOODBYE_S = 2.0

_SWITCH_INTERVAL_S = 0.00005


def main() -> None:
    """Run as a process: settings on standard input, news over the channel, faults on standard error."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="courier: %(message)s")
    # Threads hand each frame on to one another; the usual 5 ms turn would be the whole tail.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    # Ctrl-C reaches the whole group; the engine decides when its courier ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.excepthook = end_with_thread
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=ch.CourierConfig)
    channel = ch.Channel(socket.socket(fileno=config.channel_descriptor))
    memory = SharedMemory(config.memory_descriptor, config.memory_bytes)
    courier = Courier(config, channel, memory)
    threading.Thread(target=_watch, args=(courier.closing,), name="watchdog", daemon=True).start()
    courier.run()
    # Threads may still wait on sockets; nothing of theirs is worth waiting for.
    os._exit(0)


def end_with_thread(died: threading.ExceptHookArgs) -> None:
    """A thread that dies of a mistake takes its courier along: the engine starts another, where all are there."""
    log.critical("a thread of the courier died", exc_info=died.exc_value)
    os._exit(1)


def _import_packing() -> None:
    """What packs rows needs numpy, which is not waited for: the first handoff of a link is raw unless set otherwise."""
    import engine.wire.packing  # noqa: F401


def _lossless_speed(kv_type: KVType) -> LosslessSpeed:
    from engine.wire.packing import lossless_speed

    return lossless_speed(kv_type)


def _watch(closing: threading.Event) -> None:
    """End a courier whose threads wait for one that never came to run, and one that cannot say goodbye."""
    while not closing.wait(ch.ALIVE_EVERY_S):
        if a_start_hangs(longer_than_s=_START_S):
            log.critical("a thread could not be started for want of memory")
            os._exit(1)
    time.sleep(_GOODBYE_S)
    os._exit(0)


def now_us() -> int:
    """The clock of all times that engines and couriers of one computer exchange."""
    return time.monotonic_ns() // 1000


class Courier:
    """Everything a courier does; `run` returns when the engine has gone."""

    def __init__(self, config: ch.CourierConfig, channel: ch.Channel, memory: SharedMemory) -> None:
        self._config = config
        self._channel = channel
        self._memory = memory
        self._identity = Identity.load_or_create(Path(config.identity_dir))
        self._trust = TrustStore(Path(config.trust_dir))
        self._trust.trust(config.fingerprint)
        self._lock = threading.Lock()
        self._links: dict[int, Link] = {}
        self._numbers = itertools.count(1)
        self.closing = threading.Event()
        self._callers: dict[ssl.SSLSocket, None] = {}
        self._turned_away = Repeats(_COUNT_STRANGERS_S)
        self._engine_silent_s = 0.0
        self._streams = StreamCount(config.data_streams)

    def run(self) -> None:
        address = Address.parse(self._config.dial or self._config.listen or "")
        if self._config.dial:
            threading.Thread(target=self._call, args=(address,), name="dialler", daemon=True).start()
        else:
            try:
                listener = listen(address)
            except PeerError as error:
                self._emit(ch.LinkDown(link=0, code=FailureCode.CANNOT_LISTEN, message=str(error)))
                return
            self._emit(ch.Listening(port=listener.getsockname()[1]))
            threading.Thread(target=self._accept, args=(listener,), name="listener", daemon=True).start()
        threading.Thread(target=self._stay_alive, name="alive", daemon=True).start()
        threading.Thread(target=_import_packing, name="packing", daemon=True).start()
        while (message := self._channel.receive(ch.FROM_ENGINE)) is not None:
            self._engine_silent_s = 0.0
            self._obey(message)
        self.closing.set()
        for link in self._all_links():
            link.end(Going("it was stopped"))
        for link in self._all_links():
            link.over.wait(1.0)

    # The engine's side.

    def _emit(self, message: ch.Message) -> None:
        # When the engine has gone, the channel's reader ends this process.
        with contextlib.suppress(ProcessFailed):
            self._channel.send(message)

    def _stay_alive(self) -> None:
        """Tell the engine that we are there, and see that it is. A stopped engine cannot serve, whatever we answer."""
        while not self.closing.wait(ch.ALIVE_EVERY_S):
            self._emit(ch.Alive())
            self._count_strangers()
            # Counted in turns of this loop: a courier that was stopped itself has not counted meanwhile.
            self._engine_silent_s += ch.ALIVE_EVERY_S
            if self._engine_is_stuck:
                for link in self._all_links():
                    link.end(Going("its engine has stopped moving"))

    @property
    def _engine_is_stuck(self) -> bool:
        return self._engine_silent_s > ch.SILENCE_S

    def _obey(self, message: ch.FromEngine) -> None:
        match message:
            case ch.Alive():
                pass
            case ch.Ask():
                link = self._client_link()
                if link is not None:
                    link.ask(message)
                    return
                text = "the link to the worker has just ended"
                self._emit(
                    ch.AskFailed(
                        request=message.request,
                        code=FailureCode.PEER_LOST,
                        message=text,
                        committed=message.first,
                    )
                )
                self._emit(ch.AskReleased(request=message.request))
            case ch.WarmUp():
                link = self._client_link()
                if link is not None:
                    link.warm(message)
            case ch.CancelAsk():
                link = self._client_link()
                if link is not None:
                    link.cancel(message.request)
            case ch.Drain():
                self._drain(message.token)
            case _:
                self._obey_worker(message)

    def _obey_worker(
        self,
        message: ch.Accept
        | ch.TurnAway
        | ch.Push
        | ch.CommitChunk
        | ch.Computed
        | ch.ComputeEnded
        | ch.AbortJob,
    ) -> None:
        link = self._link(message.link)
        if not isinstance(link, WorkerLink):
            return
        match message:
            case ch.Accept():
                link.accept(message)
            case ch.TurnAway():
                link.turn_away(message)
            case ch.Push():
                link.push(message)
            case ch.CommitChunk():
                link.commit(message)
            case ch.Computed():
                link.computed(message)
            case ch.ComputeEnded():
                link.compute_ended(message)
            case ch.AbortJob():
                link.abort_job(message)

    def _drain(self, token: int) -> None:
        """Answer once every stream has dealt with what is queued on it now."""
        remaining = _Countdown(lambda: self._emit(ch.Drained(token=token)))
        for link in self._all_links():
            if isinstance(link, WorkerLink):
                remaining.expect(link.drain(remaining.done))
        remaining.ready()

    # Links.

    def _all_links(self) -> list[Link]:
        with self._lock:
            return list(self._links.values())

    def _link(self, number: int) -> Link | None:
        with self._lock:
            return self._links.get(number)

    def _client_link(self) -> ClientLink | None:
        links = [link for link in self._all_links() if isinstance(link, ClientLink)]
        return links[-1] if links else None

    def _new_link(self, control: ssl.SSLSocket, peer: str) -> Link:
        if self._engine_is_stuck:
            raise PeerLost("the engine here has stopped moving")
        number = next(self._numbers)
        link = self._client(number, control, peer) if self._is_client else self._worker(number, control, peer)
        older = self._all_links()
        with self._lock:
            self._links[number] = link
        # A decode side has one worker: who connects anew has lost the old link, whether we noticed or not.
        limit = 1 if self._is_client else MAX_LINKS
        for surplus in older[: max(0, len(older) + 1 - limit)]:
            surplus.end(Going("a newer connection took the place of this one"))
        try:
            link.start()
        except HostError:
            self._forget(link)
            raise
        return link

    @property
    def _is_client(self) -> bool:
        return self._config.role is Role.DECODE

    def _client(self, number: int, control: ssl.SSLSocket, peer: str) -> ClientLink:
        hello = Hello(
            protocol_major=PROTOCOL_MAJOR,
            protocol_minor=PROTOCOL_MINOR,
            role=Role.DECODE,
            session=os.urandom(SESSION_BYTES),
            identity=self._config.identity,
            codecs=CODECS,
            data_streams=self._streams.wanted,
        )
        connection = ClientConnection(hello=hello, clock=now_us)
        return ClientLink(
            number,
            connection,
            control,
            peer=peer,
            emit=self._emit,
            on_over=self._forget,
            memory=self._memory,
            chooser=CodecChooser(
                self._config.codec,
                speed=functools.partial(_lossless_speed, self._config.identity.kv_type),
            ),
            streams=self._streams,
        )

    def _worker(self, number: int, control: ssl.SSLSocket, peer: str) -> WorkerLink:
        reply = HelloReply(
            protocol_major=PROTOCOL_MAJOR,
            protocol_minor=PROTOCOL_MINOR,
            role=Role.PREFILL,
            identity=self._config.identity,
            codecs=CODECS,
            data_streams=self._config.data_streams or MAX_DATA_STREAMS,
            max_prompt_tokens=self._config.max_prompt_tokens,
        )
        connection = WorkerConnection(reply=reply, clock=now_us)
        return WorkerLink(
            number, connection, control, peer=peer, emit=self._emit, on_over=self._forget, memory=self._memory
        )

    def _forget(self, link: Link) -> None:
        with self._lock:
            self._links.pop(link.number, None)

    # Calling.

    def _call(self, address: Address) -> None:
        """Keep one link to `address` up until the engine goes."""
        wait_s = _FIRST_WAIT_S
        introduced = False
        while not self.closing.is_set():
            try:
                if not introduced:
                    self._introduce_to(address)
                    introduced = True
                link = self._dial(address)
            except (BatonError, OSError) as error:
                introduced = introduced and not isinstance(error, PeerLost | PeerUntrusted)
                code, message = describe(error)
                self._emit(ch.LinkDown(link=0, code=code, message=message))
            else:
                wait_s = _FIRST_WAIT_S if link.opened.is_set() and link.failure is None else wait_s
                link.over.wait()
                if isinstance(link.failure, PeerLost):
                    wait_s = _FIRST_WAIT_S
            self.closing.wait(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _introduce_to(self, address: Address) -> None:
        """Exchange certificates where only fingerprints are known; each side checks the other's against its own."""
        context = introduction_context(self._identity, server_side=False)
        tls = handshake(connect(address), context, server_name=INTRODUCTION_NAME)
        with tls:
            self._trust.pin(introduce(tls, self._identity, self._config.fingerprint))

    def _dial(self, address: Address) -> Link:
        """A link whose data connections are attached; raises PeerError."""
        control = self._dial_one(address, CONTROL_PROTOCOL)
        link = self._new_link(control, str(address))
        if not link.opened.wait(HANDSHAKE_TIMEOUT_S):
            link.end(PeerLost(f"{address} did not say hello within {HANDSHAKE_TIMEOUT_S:g} s"))
            link.over.wait()
        session = link.session
        if link.over.is_set() or session is None:
            return link
        try:
            for index in range(link.n_streams):
                data = self._dial_one(address, DATA_PROTOCOL)
                attach = Attach(session=session, stream=index)
                data.sendall(encode_message(attach))
                link.attach(data, attach)
        except (BatonError, OSError) as error:
            link.end(PeerLost(f"a data connection broke: {error}") if isinstance(error, OSError) else error)
        return link

    def _dial_one(self, address: Address, protocol: str) -> ssl.SSLSocket:
        peer = self._peer_certificate()
        context = mutual_context(self._identity, server_side=False, peer_der=peer, protocols=(protocol,))
        tls = handshake(connect(address), context, server_name=MUTUAL_NAME)
        try:
            check_peer(tls, peer)
            if tls.selected_alpn_protocol() != protocol:
                raise PeerLost(f"what answers at {address} is not a Baton courier")
        except PeerError:
            tls.close()
            raise
        return tls

    def _peer_certificate(self) -> bytes:
        certificate = self._trust.certificate(self._config.fingerprint)
        if certificate is None:
            raise PeerUntrusted("the other computer's certificate is not known yet")
        return certificate

    # Being called.

    def _accept(self, listener: socket.socket) -> None:
        while not self.closing.is_set():
            try:
                connection, peer = listener.accept()
            except OSError:
                # Out of descriptors, or a caller that has gone already: neither ends the listener.
                self.closing.wait(0.05)
                continue
            name = str(called_from(peer))
            greeter = threading.Thread(
                target=self._greet, args=(connection, name), name="greeter", daemon=True
            )
            try:
                start(greeter)
            except HostError as error:
                log.warning("a caller from %s cannot be answered: %s", name, error)
                connection.close()

    def _admit(self, tls: ssl.SSLSocket) -> None:
        """Count a caller that has not proved anything yet; the oldest of too many is cut off."""
        with self._lock:
            self._callers[tls] = None
            surplus = list(self._callers)[:-MAX_UNAUTHENTICATED]
            for oldest in surplus:
                del self._callers[oldest]
        for oldest in surplus:
            abort(oldest)

    def _greet(self, connection: socket.socket, peer: str) -> None:
        """Bring a caller through the handshake to what it came for."""
        tls: ssl.SSLSocket | None = None
        try:
            tune(connection)
            context = listener_context(
                self._identity,
                self._trust,
                self._config.fingerprint,
                protocols=(CONTROL_PROTOCOL, DATA_PROTOCOL),
            )
            tls = secure(connection, context)
            self._admit(tls)
            shake_hands(tls)
            self._receive_caller(tls, peer)
        except Exception as error:
            # Anyone may call: a mistake that he finds in us ends his call, and not the courier.
            self._turn_away(peer, tls, error)
            (tls or connection).close()
        finally:
            with self._lock:
                if tls is not None:
                    self._callers.pop(tls, None)

    def _turn_away(self, peer: str, tls: ssl.SSLSocket | None, error: Exception) -> None:
        """Log it, but not each of many: anyone can call as often as he likes."""
        reason = str(error)
        # What a lost connection says is one of a few sentences; others may hold what the caller chose.
        kind = reason if isinstance(error, PeerLost) else type(error).__name__
        with self._lock:
            if tls is not None and tls not in self._callers:
                kind = reason = f"more than {MAX_UNAUTHENTICATED} callers at once did not say who they are"
            is_news = self._turned_away.say(reason, kind=kind) is not None
        if is_news:
            mistake = None if isinstance(error, BatonError | OSError) else error
            log.info("a caller from %s was turned away: %s", peer, reason, exc_info=mistake)

    def _count_strangers(self) -> None:
        with self._lock:
            counts = self._turned_away.overdue()
        for reason, n_callers in counts:
            log.info("%d more like it in the last minute: %s", n_callers, reason)

    def _receive_caller(self, tls: ssl.SSLSocket, peer: str) -> None:
        protocol = tls.selected_alpn_protocol()
        if protocol == INTRODUCTION_PROTOCOL:
            with tls:
                answer_introduction(tls, self._trust)
            return
        check_peer(tls, self._peer_certificate())
        if protocol == CONTROL_PROTOCOL:
            self._new_link(tls, peer)
        elif protocol == DATA_PROTOCOL:
            attach = _read_attach(tls)
            for link in self._all_links():
                if link.session == attach.session:
                    link.attach(tls, attach)
                    return
            raise ProtocolError("a data connection of a session that is not open here")
        else:
            raise ProtocolError("a caller that did not say what it wants")


def _read_attach(tls: ssl.SSLSocket) -> Attach:
    head = read_exactly(tls, FRAME_HEADER.size)
    kind, n_bytes = decode_frame_header(head, max_body_bytes=MAX_STREAM_CONTROL_BYTES)
    if kind is not FrameKind.CONTROL:
        raise ProtocolError("cache data before the data connection was attached")
    message = decode_message(read_exactly(tls, n_bytes), STREAM_MESSAGES)
    if not isinstance(message, Attach):
        raise ProtocolError("a data connection that began without attaching")
    return message


class _Countdown:
    """Calls `finish` once, when it is `ready` and as many `done` have come as were to be `expect`ed."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish
        self._lock = threading.Lock()
        self._due = 1

    def expect(self, count: int) -> None:
        with self._lock:
            self._due += count

    def done(self) -> None:
        with self._lock:
            self._due -= 1
            over = self._due == 0
        if over:
            self._finish()

    def ready(self) -> None:
        self.done()
