"""`GET /events`: a snapshot of the engine, then its news as they come, to any number of listeners.

Each listener keeps a place in the engine's own feed and has no queue: one that is slow, or comes back too late, is told
how much he has missed and gets a snapshot anew.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.batching.feed import Numbered
from engine.batching.journal import News, SlotsNews
from engine.batching.snapshot import SlotSnapshot
from engine.server import sse
from engine.server.backend import Backend, Engine
from engine.server.errors import Refused, loading
from engine.server.exchange import Exchanges
from engine.server.listeners import Listeners
from engine.server.telemetry import news_body, snapshot_body

# Windows and dashboards of one computer; more than that is a client that forgets to hang up.
MAX_LISTENERS = 64

# How often the slots are looked at while someone listens: counts that move with each token are no news of their own.
SLOTS_EVERY_S = 0.5

# News that go out in one piece: a listener far behind shall not hold up the others.
_BATCH = 128

# How long a client waits before it comes back.
_RETRY = b"retry: 1000\n\n"


class Hub(Listeners[News]):
    """All listeners of one engine, and what they are told alike."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.journal.feed)
        self.engine = engine
        # Numbers begin anew with each engine: what a client has seen of another one is nothing here.
        self.run = secrets.token_hex(4)
        self._ticker: asyncio.Task[None] | None = None
        self._seen: tuple[SlotSnapshot, ...] = ()
        self._worded: dict[int, bytes] = {}

    @property
    def is_full(self) -> bool:
        return self.n_listeners >= MAX_LISTENERS

    def add(self, listener: asyncio.Event) -> None:
        super().add(listener)
        if self.n_listeners == 1:
            self._seen = self.engine.snapshot().slots
            self._ticker = asyncio.create_task(self._watch_slots())

    def discard(self, listener: asyncio.Event) -> None:
        super().discard(listener)
        if not self.n_listeners and self._ticker is not None:
            self._ticker.cancel()

    def place(self, number: int) -> str:
        """The id of an event, which a client that comes back says it has seen."""
        return f"{self.run}-{number}"

    def worded(self, numbered: Numbered[News]) -> bytes:
        """The event of one piece of news, made once for all who listen."""
        number = numbered.number
        if number not in self._worded:
            if len(self._worded) >= _BATCH:
                self._worded.clear()
            name, body = news_body(numbered.item)
            self._worded[number] = sse.event(name, body, number=self.place(number))
        return self._worded[number]

    async def _watch_slots(self) -> None:
        while True:
            await asyncio.sleep(SLOTS_EVERY_S)
            slots = self.engine.snapshot().slots
            if slots != self._seen:
                self._seen = slots
                self.feed.say(SlotsNews(slots=slots))


class EventStream:
    """One listener; an ASGI response. `last_event_id` is what the client says it has seen."""

    def __init__(
        self, hub: Hub, exchanges: Exchanges, *, last_event_id: str | None, heartbeat_s: float
    ) -> None:
        self._hub = hub
        self._exchanges = exchanges
        self._heartbeat_s = heartbeat_s
        self._woken = asyncio.Event()
        self._is_over = False
        self._place = self._place_of(last_event_id)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._exchanges.add(self)
        self._hub.add(self._woken)
        client = asyncio.create_task(_when_gone(receive, self.notify_closing))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": sse.HEADERS})
            await send(_part(_RETRY if self._place is not None else _RETRY + self._snapshot()))
            while not self._is_over:
                await send(_part(await self._next()))
            await send(_part(b"", last=True))
        finally:
            client.cancel()
            self._hub.discard(self._woken)
            self._exchanges.discard(self)
            await asyncio.gather(client, return_exceptions=True)

    def notify_closing(self) -> None:
        """The client has gone, or the server is stopping."""
        self._is_over = True
        self._woken.set()

    async def _next(self) -> bytes:
        """What is sent next: news, a heartbeat where there are none, nothing at the end."""
        # Cleared before reading: what comes after that wakes again.
        self._woken.clear()
        if not self._is_over and not (parts := self._news()):
            try:
                await asyncio.wait_for(self._woken.wait(), self._heartbeat_s)
            except TimeoutError:
                return sse.KEEPALIVE
            parts = self._news()
        return b"" if self._is_over else parts

    def _news(self) -> bytes:
        place = self._place or 0
        news = self._hub.feed.after(place, at_most=_BATCH)
        if news is None:
            return sse.event("lost", {"events": self._hub.feed.last - place}) + self._snapshot()
        if news:
            self._place = news[-1].number
        return b"".join(map(self._hub.worded, news))

    def _snapshot(self) -> bytes:
        # The place first: news that the snapshot holds already come again, and say what is so.
        self._place = self._hub.feed.last
        body = snapshot_body(self._hub.engine)
        return sse.event("snapshot", body, number=self._hub.place(self._place))

    def _place_of(self, last_event_id: str | None) -> int | None:
        """Where a client goes on; None for one that begins, or has seen another engine's."""
        found = re.fullmatch(r"([0-9a-f]{8})-([0-9]{1,15})", last_event_id or "")
        if found is None or found[1] != self._hub.run or int(found[2]) > self._hub.feed.last:
            return None
        return int(found[2])


async def events(request: Request) -> ASGIApp:
    """A listener; who asks for the head alone gets that, and no stream."""
    state = request.app.state
    backend: Backend | None = state.backend
    if backend is None:
        raise loading()
    if request.method == "HEAD":
        return Response(media_type="text/event-stream")
    hub: Hub = state.hub
    if hub.is_full:
        raise Refused(
            f"{MAX_LISTENERS} listeners are connected already", status=503, kind="unavailable_error"
        )
    return EventStream(
        hub,
        state.exchanges,
        last_event_id=request.headers.get("last-event-id"),
        heartbeat_s=state.settings.keepalive_s,
    )


async def _when_gone(receive: Receive, tell: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    tell()


def _part(body: bytes, *, last: bool = False) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": not last}
