"""The worker's engine loop: takes requests from its courier, computes chunk by chunk, pushes each layer as it is done.

One request at a time in this form; others wait, and too many are told that the worker is busy. What computes is behind
`Prefiller`; no torch here.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import Protocol

from engine.batching.chunks import equal_chunks
from engine.errors import BatonError, OutOfMemory, ProcessFailed
from engine.handoff import channel as ch
from engine.handoff.courier_process import CourierProcess
from engine.handoff.failure import FailureCode
from engine.handoff.shared import SharedMemory
from engine.wire.messages import Code

_UINT32 = "I" if array("I").itemsize == 4 else "L"

log = logging.getLogger(__name__)

# Requests that may wait for the one being computed.
MAX_WAITING = 8

# A courier that does not answer a drain for so long has a dead link that it is about to notice.
_DRAIN_TIMEOUT_S = 30.0

Job = tuple[int, int]  # (link, request): numbers are the clients' own


class Prefiller(Protocol):
    """Computes K and V in the worker's cache memory."""

    def begin(self, tokens: list[int], start: int) -> int:
        """Take up a prompt of which positions from `start` on will be sent; how many before it are in the cache.

        At most `start`: what is sent is computed anew in the chunks that the client would cut itself, so that local
        and remote prefill give the same numbers.
        """

    def compute(self, first: int, end: int, on_layer: Callable[[int], None]) -> None:
        """Compute positions [first, end), all before being there; `on_layer(l)` when layer l's K and V are."""

    def spans(
        self, layer: int, first: int, end: int, *, final: bool, start: int, stop: int
    ) -> list[tuple[int, int]]:
        """(offset, bytes) in memory of what the chunk [first, end) sends for `layer`; may be empty."""


class PrefillWorker:
    """`run` serves until `close`; `on_link(note)` is told when a client comes (an empty note) or goes (why)."""

    def __init__(
        self,
        prefiller: Prefiller,
        config: ch.CourierConfig,
        memory: SharedMemory,
        on_link: Callable[[str], None] = lambda note: None,
    ) -> None:
        self._prefiller = prefiller
        self._courier = CourierProcess(
            config, memory, on_message=self._on_message, on_gone=self._on_courier_gone
        )
        self._on_link = on_link
        self._listens = config.listen is not None
        self._changed = threading.Condition()
        self._waiting: deque[ch.Asked] = deque()
        self._cancelled: set[Job] = set()
        self._current: Job | None = None
        self._finished: Job | None = None
        self._drained = 0
        self._drains = 0
        self._closing = False
        self._port: int | None = None
        self._failure = ""

    def open(self, timeout_s: float = 10.0) -> int | None:
        """Start the courier; where it is to listen, wait until it does and return its port.

        Raises ProcessFailed when it does not start, or cannot have its address.
        """
        self._courier.start()
        if not self._listens:
            return None
        with self._changed:
            self._changed.wait_for(lambda: self._port is not None or bool(self._failure), timeout_s)
            if self._port is None:
                raise ProcessFailed(self._failure or "the courier did not start in time")
            return self._port

    def close(self) -> None:
        """End the courier and make `run` return after the chunk it is in."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._courier.close()

    @property
    def courier_pid(self) -> int | None:
        """Of the courier that runs now, or None."""
        return self._courier.pid

    def run(self) -> None:
        while (asked := self._next()) is not None:
            if not (self._serve(asked) and self._wait_finished()):
                self._drain()
            with self._changed:
                self._cancelled.discard((asked.link, asked.request))
                self._current = None

    def _next(self) -> ch.Asked | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            if self._closing:
                return None
            asked = self._waiting.popleft()
            self._current = (asked.link, asked.request)
            return asked

    def _serve(self, asked: ch.Asked) -> bool:
        """Whether it was computed and pushed to the end."""
        try:
            return self._prefill(asked)
        except ProcessFailed:
            log.warning("the courier ended during a prefill")
        except OutOfMemory as error:
            self._abort(asked, Code.OUT_OF_MEMORY, str(error))
        except BatonError as error:
            self._abort(asked, Code.WORKER_FAILED, str(error))
        except Exception as error:
            log.exception("a prefill failed")
            self._abort(asked, Code.WORKER_FAILED, f"an internal error on the worker: {type(error).__name__}")
        return False

    def _prefill(self, asked: ch.Asked) -> bool:
        link, request = asked.link, asked.request
        tokens = _from_little_endian(asked.tokens)
        if self._is_cancelled(asked):
            return False
        held = self._prefiller.begin(tokens, asked.first)
        self._courier.send(ch.Accept(link=link, request=request, reused_tokens=held))
        started_us = now_us()
        # What the client has and this worker lacks is computed, and not sent.
        for first, end in equal_chunks(held, asked.first, asked.chunk_tokens):
            if self._is_cancelled(asked):
                return False
            self._prefiller.compute(first, end, lambda layer: None)
            self._courier.send(ch.Computed(link=link, request=request, computed_tokens=end))
        chunks = equal_chunks(asked.first, asked.stop, asked.chunk_tokens)
        times_us = []
        for index, (first, end) in enumerate(chunks):
            if self._is_cancelled(asked):
                return False
            final = index == len(chunks) - 1
            begun_us = now_us()
            self._chunk(asked, index, first, end, final=final)
            ended_us = now_us()
            times_us.append(ended_us - begun_us)
            if final:
                self._courier.send(
                    ch.ComputeEnded(
                        link=link,
                        request=request,
                        started_us=started_us,
                        ended_us=ended_us,
                        chunk_compute_us=tuple(times_us),
                    )
                )
            self._courier.send(ch.CommitChunk(link=link, request=request, chunk=index))
        return True

    def _chunk(self, asked: ch.Asked, index: int, first: int, end: int, *, final: bool) -> None:
        """Compute one chunk and push every layer of it as it is done."""

        def push(layer: int) -> None:
            spans = self._prefiller.spans(layer, first, end, final=final, start=asked.first, stop=asked.stop)
            if spans:
                self._courier.send(
                    ch.Push(
                        link=asked.link, request=asked.request, chunk=index, layer=layer, spans=tuple(spans)
                    )
                )

        self._prefiller.compute(first, end, push)

    def _abort(self, asked: ch.Asked, code: Code, message: str) -> None:
        try:
            self._courier.send(
                ch.AbortJob(link=asked.link, request=asked.request, code=code, message=message)
            )
        except ProcessFailed:
            return  # the client hears it from the broken link

    def _wait_finished(self) -> bool:
        """Wait until the client has all of the current job; False when it has gone or wants no more."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._finished == self._current or self._current in self._cancelled or self._closing
            )
            return self._finished == self._current

    def _drain(self) -> None:
        """Wait until nothing of what was pushed is still to be read from the cache: the next prompt overwrites it."""
        with self._changed:
            self._drains += 1
            token = self._drains
        try:
            self._courier.send(ch.Drain(token=token))
        except ProcessFailed:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._drained >= token or self._closing, _DRAIN_TIMEOUT_S)

    def _is_cancelled(self, asked: ch.Asked) -> bool:
        with self._changed:
            return self._closing or (asked.link, asked.request) in self._cancelled

    def _on_message(self, message: ch.FromCourier) -> None:
        with self._changed:
            self._take(message)
            self._changed.notify_all()
        match message:
            case ch.LinkUp():
                self._on_link("")
            case ch.LinkDown():
                self._on_link(message.message)

    def _take(self, message: ch.FromCourier) -> None:
        match message:
            case ch.Asked() if len(self._waiting) < MAX_WAITING:
                self._waiting.append(message)
            case ch.Asked():
                text = f"the worker has {MAX_WAITING} prompts waiting already"
                busy = ch.TurnAway(link=message.link, request=message.request, code=Code.BUSY, message=text)
                self._courier.send(busy)
            case ch.AskedCancelled():
                job = (message.link, message.request)
                self._waiting = deque(w for w in self._waiting if (w.link, w.request) != job)
                if job == self._current:
                    self._cancelled.add(job)
            case ch.JobFinished():
                self._finished = (message.link, message.request)
            case ch.Drained():
                self._drained = max(self._drained, message.token)
            case ch.Listening():
                self._port = message.port
            case ch.LinkDown() if message.code == FailureCode.CANNOT_LISTEN:
                self._failure = message.message

    def _on_courier_gone(self, reason: str) -> None:
        log.error("%s; it is started again", reason)
        with self._changed:
            self._waiting.clear()
            if self._current is not None:
                self._cancelled.add(self._current)
            self._drained = self._drains
            self._changed.notify_all()
        self._on_link(reason)


def now_us() -> int:
    """The clock of all times that engines and couriers of one computer exchange."""
    return time.monotonic_ns() // 1000


def _from_little_endian(tokens: bytes) -> list[int]:
    unpacked = array(_UINT32, tokens)
    if sys.byteorder == "big":
        unpacked.byteswap()
    return unpacked.tolist()
