"""Handoffs seen from the slots: which slot's prompt the worker is prefilling, under which number.

Asks the route and the client; moves nothing itself and never waits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from engine.batching.request import Request
from engine.cache.spec import Landing
from engine.errors import PeerError
from engine.handoff.client_events import ClientEvent, ClientStatus, Finished, Released
from engine.handoff.route import Decision, RouteReason, choose

if TYPE_CHECKING:
    from engine.cache.sequence import SequenceState


class PrefillClient(Protocol):
    """The way to the worker. Nothing here blocks; `start` raises PeerError when the worker cannot be asked."""

    def status(self) -> ClientStatus: ...

    def start(
        self,
        request_id: int,
        tokens: Sequence[int],
        start: int,
        stop: int,
        landings: tuple[Landing, ...],
        chunk_tokens: int,
    ) -> None: ...

    def poll(self) -> list[ClientEvent]: ...

    def cancel(self, request_id: int) -> None: ...

    def on_wakeup(self, wakeup: Callable[[], None]) -> None: ...


class RemotePrefill:
    """The engine loop's side of all handoffs. At most one a slot; its number is never used again."""

    def __init__(self, client: PrefillClient | None, *, chunk_tokens: int, min_tokens: int) -> None:
        self._client = client
        self._chunk_tokens = chunk_tokens
        self._min_tokens = min_tokens
        self._numbers = itertools.count(1)
        self._slots: dict[int, int] = {}

    def on_wakeup(self, wakeup: Callable[[], None]) -> None:
        """Call `wakeup`, from any thread, whenever `poll` may have something."""
        if self._client is not None:
            self._client.on_wakeup(wakeup)

    def worker(self) -> ClientStatus | None:
        """How the worker is; None where none is configured. From any thread."""
        return self._client.status() if self._client is not None else None

    def decide(self, request: Request, *, n_tokens: int) -> Decision:
        """Where to prefill the `n_tokens` of the request that are not cached."""
        status = self.worker()
        return choose(
            asked=request.prefill,
            has_worker=status is not None,
            worker_ready=status is not None and status.ready,
            worker_note=status.note if status is not None else "",
            uncached_tokens=n_tokens,
            plain_text=request.plain_text,
            min_remote_tokens=self._min_tokens,
        )

    def start(
        self,
        slot: int,
        tokens: Sequence[int],
        sequence: SequenceState,
        start: int,
        stop: int,
        decision: Decision,
    ) -> Decision:
        """Ask the worker for positions [start, stop); returns `decision`, or a local one if it cannot be asked."""
        if self._client is None:
            return decision
        landings = sequence.prepare_landing(start, stop)
        number = next(self._numbers)
        try:
            self._client.start(number, tokens[:stop], start, stop, landings, self._chunk_tokens)
        except PeerError as error:
            return replace(decision, remote=False, reason=RouteReason.WORKER_NOT_READY, sentence=str(error))
        self._slots[number] = slot
        return decision

    def cancel(self, slot: int) -> None:
        """Stop the slot's handoff; its memory is free once `Released` or `Finished` has come."""
        for number, owner in self._slots.items():
            if owner == slot and self._client is not None:
                self._client.cancel(number)

    def poll(self) -> list[tuple[int, ClientEvent]]:
        """What has happened since the last call, with the slot it concerns."""
        if self._client is None or not self._slots:
            return []
        news = []
        for event in self._client.poll():
            slot = self._slots.get(event.request_id)
            if slot is None:
                continue
            if isinstance(event, Finished | Released):
                del self._slots[event.request_id]
            news.append((slot, event))
        return news
