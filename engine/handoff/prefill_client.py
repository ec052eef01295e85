"""The decode engine's way to the worker: asks its courier, and turns what that says into events for the loop.

Nothing here waits for the network, or for anything. A request's memory is free once `Finished` or `Released` has come.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from array import array
from collections import deque
from collections.abc import Callable, Sequence

from engine.cache.spec import Landing
from engine.errors import PeerLost, PeerUnreachable, ProcessFailed
from engine.handoff import channel as ch
from engine.handoff.client_events import (
    Accepted,
    ClientEvent,
    ClientStatus,
    Committed,
    Failed,
    Finished,
    LinkChanged,
    LinkSetup,
    Released,
)
from engine.handoff.courier_process import CourierProcess
from engine.handoff.failure import FailureCode
from engine.handoff.shared import SharedMemory
from engine.handoff.telemetry import HandoffRecord

_UINT32 = "I" if array("I").itemsize == 4 else "L"

log = logging.getLogger(__name__)

# Why there is no link, as long as nothing has been heard of the worker.
NOT_YET = "no worker has connected yet"
NO_WORKER = "there is no worker"

# Records of handoffs that are kept for whoever asks.
_KEPT_RECORDS = 256


class PrefillClient:
    """`start` a handoff, `poll` for what became of it; see `batching.remote.PrefillClient` for the contract."""

    def __init__(self, config: ch.CourierConfig | None, memory: SharedMemory) -> None:
        """Without a `config` there is no worker, until `retarget` brings one."""
        self._courier = CourierProcess(
            config, memory, on_message=self._on_message, on_gone=self._on_courier_gone
        )
        self._lock = threading.Lock()
        self._events: deque[ClientEvent | LinkChanged] = deque()
        self._told = LinkChanged(status=ClientStatus(ready=False, note=NOT_YET))
        self._records: deque[HandoffRecord] = deque(maxlen=_KEPT_RECORDS)
        self._live: dict[int, bool] = {}  # by number: whether its failure has been told
        self._wakeup: Callable[[], None] = lambda: None
        self._link: int | None = None
        self._peer = ""
        self._setup: LinkSetup | None = None
        self._note = NOT_YET
        self._port: int | None = None
        self._has_worker = config is not None
        self._listens = config is not None and config.listen is not None
        self._heard_of_listening = threading.Event()
        self._failure = ""

    def open(self, timeout_s: float = 10.0) -> int | None:
        """Start the courier; where it is to listen, wait until it does and return its port.

        Raises ProcessFailed when it does not start, or cannot have its address.
        """
        self._courier.start()
        if not self._listens:
            return None
        self._heard_of_listening.wait(timeout_s)
        if self._port is None:
            self.close()
            raise ProcessFailed(self._failure or "the courier did not start in time")
        return self._port

    def retarget(self, config: ch.CourierConfig | None) -> None:
        """Work with another worker from now on, or with none. What is under way with the last one fails."""
        with self._lock:
            self._has_worker = config is not None
            self._port = None
        self._courier.reconfigure(config)

    @property
    def listen_port(self) -> int | None:
        """Where a worker may call; None where it is called, and until the courier listens."""
        return self._port

    def close(self) -> None:
        self._courier.close()

    @property
    def courier_pid(self) -> int | None:
        """Of the courier that runs now, or None."""
        return self._courier.pid

    def on_wakeup(self, wakeup: Callable[[], None]) -> None:
        self._wakeup = wakeup

    def status(self) -> ClientStatus | None:
        """How the worker is; None where there is none."""
        with self._lock:
            return self._status() if self._has_worker else None

    def start(
        self,
        request_id: int,
        tokens: Sequence[int],
        start: int,
        stop: int,
        landings: tuple[Landing, ...],
        chunk_tokens: int,
        *,
        reuse: bool = True,
    ) -> None:
        """Ask for positions [start, stop) of `tokens`; without `reuse` the worker computes all of them anew.

        Raises PeerUnreachable or PeerLost when that cannot be asked.
        """
        ask = ch.Ask(
            request=request_id,
            tokens=_little_endian(tokens[:stop]),
            first=start,
            stop=stop,
            chunk_tokens=chunk_tokens,
            landings=landings,
            reuse=reuse,
        )
        with self._lock:
            if self._link is None:
                raise PeerUnreachable(self._note)
            self._live[request_id] = False
            try:
                self._courier.send(ask)
            except ProcessFailed as error:
                del self._live[request_id]
                raise PeerLost(str(error)) from error

    def warm(self, tokens: Sequence[int]) -> None:
        """Tell the worker what the next prompt will begin with. It does with that what it can."""
        with contextlib.suppress(ProcessFailed):
            self._courier.send(ch.WarmUp(tokens=_little_endian(tokens)))

    def cancel(self, request_id: int) -> None:
        with self._lock:
            if self._live.get(request_id) is not False:
                return
            try:
                self._courier.send(ch.CancelAsk(request=request_id))
            except ProcessFailed:
                return  # its end releases the request

    def poll(self) -> list[ClientEvent | LinkChanged]:
        events = []
        while self._events:
            events.append(self._events.popleft())
        return events

    def recent(self) -> tuple[HandoffRecord, ...]:
        """The last handoffs that were finished, the oldest first."""
        with self._lock:
            return tuple(self._records)

    def _on_message(self, message: ch.FromCourier) -> None:
        with self._lock:
            self._take(message)
        self._wakeup()

    def _take(self, message: ch.FromCourier) -> None:
        match message:
            case ch.LinkUp():
                self._link = message.link
                self._peer = message.peer
                self._setup = message.setup
                self._tell_link()
            case ch.LinkDown():
                if message.code == FailureCode.CANNOT_LISTEN:
                    self._failure = message.message
                    self._heard_of_listening.set()
                if message.link == self._link:
                    self._link = None
                if self._link is None:
                    self._note = message.message
                    self._tell_link(message.code)
            case ch.Listening():
                self._port = message.port
                self._heard_of_listening.set()
            case ch.AskAccepted():
                self._events.append(Accepted(request_id=message.request, reused_tokens=message.reused_tokens))
            case ch.AskCommitted():
                self._events.append(
                    Committed(
                        request_id=message.request,
                        first=message.first,
                        stop=message.stop,
                        final=message.final,
                        payload_bytes=message.payload_bytes,
                        place=message.place,
                        compute_ms=message.compute_ms,
                        computed_s=message.computed_s,
                        layers=message.layers,
                    )
                )
            case ch.AskFinished():
                self._live.pop(message.request, None)
                record = _record(message)
                self._records.append(record)
                self._events.append(
                    Finished(
                        request_id=message.request,
                        payload_bytes=message.payload_bytes,
                        overlap=message.overlap,
                        tail_ms=message.tail_us / 1000,
                        compute_ms=record.compute_ms,
                        receive_ms=record.receive_ms,
                        wire_bytes=message.wire_bytes,
                        codec=message.codec,
                        codec_reason=message.codec_reason,
                    )
                )
            case ch.AskFailed():
                self._live[message.request] = True
                self._events.append(
                    Failed(request_id=message.request, code=message.code, message=message.message)
                )
            case ch.AskReleased():
                self._live.pop(message.request, None)
                self._events.append(Released(request_id=message.request))

    def _status(self) -> ClientStatus:
        if self._link is not None:
            return ClientStatus(ready=True, peer=self._peer, setup=self._setup)
        return ClientStatus(ready=False, note=self._note)

    def _tell_link(self, code: str = "") -> None:
        """Each new call of an absent worker fails alike; that is news once."""
        changed = LinkChanged(status=self._status(), code=code)
        if changed != self._told:
            self._told = changed
            self._events.append(changed)

    def _on_courier_gone(self, reason: str) -> None:
        log.warning("the way to the worker is closed: %s", reason)
        with self._lock:
            self._link = None
            self._note = reason
            self._tell_link(FailureCode.COURIER_ENDED)
            for request_id, told in self._live.items():
                if not told:
                    self._events.append(
                        Failed(request_id=request_id, code=FailureCode.COURIER_ENDED, message=reason)
                    )
                self._events.append(Released(request_id=request_id))
            self._live.clear()
        self._wakeup()


def _record(finished: ch.AskFinished) -> HandoffRecord:
    return HandoffRecord(
        request_id=finished.request,
        payload_bytes=finished.payload_bytes,
        overlap=finished.overlap,
        tail_ms=finished.tail_us / 1000,
        compute_ms=finished.compute_us / 1000,
        receive_ms=(finished.last_byte_us - finished.first_byte_us) / 1000,
        wire_bytes=finished.wire_bytes,
        codec=finished.codec,
        codec_reason=finished.codec_reason,
    )


def _little_endian(tokens: Sequence[int]) -> bytes:
    packed = array(_UINT32, tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
