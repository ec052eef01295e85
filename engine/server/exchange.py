"""One HTTP request being answered: its requests to the engine, and the answer sent whole or as a stream.

A client that goes takes its requests with it, at once.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from engine.batching.request import Event, Failed, Finished, FinishReason, Progress, Request, Token
from engine.errors import BatonError, HostError
from engine.server import json, sse
from engine.server.answers import Choice, Shape, progress_body, timings_body, usage_body
from engine.server.backend import Backend
from engine.server.errors import error_body, error_response
from engine.server.inbox import Inbox
from engine.server.schema import Ask
from engine.server.settings import ServerSettings

log = logging.getLogger(__name__)

_DONE = b"data: [DONE]\n\n"


class _Notice(enum.Enum):
    """What is not the engine's news."""

    TICK = "time for a sign of life"
    GONE = "the client has gone"
    CLOSING = "the server is stopping"


@dataclass(frozen=True, kw_only=True, slots=True)
class _News:
    """An event of one choice."""

    index: int
    event: Event


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


class Open(Protocol):
    """An answer that takes time."""

    def notify_closing(self) -> None: ...


class Exchanges:
    """All exchanges, and other streams, that are open, so that a stopping server can end them."""

    def __init__(self) -> None:
        self._open: set[Open] = set()

    def add(self, exchange: Open) -> None:
        self._open.add(exchange)

    def discard(self, exchange: Open) -> None:
        self._open.discard(exchange)

    def close_all(self) -> None:
        """Tell every open exchange to end; called on the event loop."""
        for exchange in self._open:
            exchange.notify_closing()


class Exchange:
    """Answers one HTTP request; an ASGI response.

    `prompts` are token ids, each continued `ask.n` times. Raises BatonError when made, if the engine refuses.
    """

    def __init__(
        self,
        backend: Backend,
        settings: ServerSettings,
        exchanges: Exchanges,
        *,
        ask: Ask,
        shape: Shape,
        prompts: Sequence[Sequence[int]],
    ) -> None:
        self._engine = backend.engine
        self._settings = settings
        self._exchanges = exchanges
        self._ask = ask
        self._shape = shape
        self._prompts = prompts
        self._id = shape.id_prefix + secrets.token_urlsafe(18)
        self._created = int(time.time())
        self._model = backend.model.model_id
        self._inbox: Inbox[_News | _Notice] = Inbox()
        self._choices = [Choice(index=index) for index in range(len(prompts) * ask.n)]
        self._opened: set[int] = set()
        self._submitted: list[str] = []
        self._submit()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._exchanges.add(self)
        try:
            async with self._watch(receive):
                if self._ask.stream:
                    await self._send_stream(scope, receive, send)
                else:
                    await self._send_whole(scope, receive, send)
        except ClientGone:
            log.info("%s: the client has gone", self._id)
        finally:
            self._exchanges.discard(self)
            self._cancel()

    def notify_closing(self) -> None:
        self._inbox.put(_Notice.CLOSING)

    # Towards the engine.

    def _submit(self) -> None:
        try:
            for choice in self._choices:
                request = self._request(choice.index)
                self._engine.submit(request)
                self._submitted.append(request.request_id)
        except BatonError:
            self._cancel()
            raise

    def _request(self, index: int) -> Request:
        sampling = self._ask.sampling
        nth = index % self._ask.n
        if sampling.seed is not None and nth:
            sampling = replace(sampling, seed=sampling.seed + nth)
        inbox = self._inbox

        def sink(event: Event) -> None:
            inbox.put(_News(index=index, event=event))

        return Request(
            request_id=f"{self._id}-{index}",
            tokens=tuple(self._prompts[index // self._ask.n]),
            sink=sink,
            sampling=sampling,
            prefill=self._ask.prefill,
            slot=self._ask.slot,
        )

    def _cancel(self) -> None:
        """End what the engine has not finished; harmless for what it has."""
        for index, request_id in enumerate(self._submitted):
            if self._choices[index].finished is None:
                self._engine.cancel(request_id)

    # Towards the client.

    @asynccontextmanager
    async def _watch(self, receive: Receive) -> AsyncIterator[None]:
        """While it lasts, the inbox hears of the client's going and, in a stream, of the time."""
        tasks = [asyncio.create_task(self._watch_client(receive))]
        if self._ask.stream:
            tasks.append(asyncio.create_task(self._tick()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch_client(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._inbox.put(_Notice.GONE)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._settings.keepalive_s)
            self._inbox.put(_Notice.TICK)

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            while any(choice.finished is None for choice in self._choices):
                for news in await self._take():
                    self._note(news)
        except BatonError as error:
            await error_response(error)(scope, receive, send)
            return
        await json.JSONResponse(self._whole())(scope, receive, send)

    async def _send_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Until something has been sent an error is an HTTP status, after it an event of the stream."""
        started = False
        parts: list[bytes] = []
        try:
            while any(choice.finished is None for choice in self._choices):
                for news in await self._take():
                    parts.extend(self._parts_of(news))
                if parts:
                    started = await self._send_parts(send, parts, started)
                    parts = []
            await self._send_parts(send, [*self._usage_parts(), _DONE], started, last=True)
        except BatonError as error:
            if started:
                await self._send_parts(send, [*parts, sse.data(error_body(error))], started, last=True)
            else:
                await error_response(error)(scope, receive, send)

    async def _take(self) -> list[_News | _Notice]:
        items = await self._inbox.take()
        if _Notice.GONE in items:
            raise ClientGone
        return items

    async def _send_parts(self, send: Send, parts: list[bytes], started: bool, *, last: bool = False) -> bool:
        if not started:
            await send({"type": "http.response.start", "status": 200, "headers": sse.HEADERS})
        await send({"type": "http.response.body", "body": b"".join(parts), "more_body": not last})
        return True

    def _note(self, news: _News | _Notice) -> None:
        """Take one piece of news into its choice; raises the error of a failed one."""
        if news is _Notice.CLOSING:
            # why is not known here: to unload a model is to end its engine
            raise HostError("the model was unloaded, or Baton was stopped, while it answered")
        if isinstance(news, _Notice):
            return
        choice = self._choices[news.index]
        match news.event:
            case Token():
                choice.add(news.event)
            case Finished(reason=FinishReason.CANCELLED):
                # We cancel only what nobody waits for: this one, the engine ended.
                raise HostError("the engine is stopping")
            case Finished():
                choice.end(news.event)
            case Failed():
                raise news.event.error

    def _parts_of(self, news: _News | _Notice) -> Iterator[bytes]:
        """The stream's events that one piece of news leads to."""
        self._note(news)
        if news is _Notice.TICK:
            yield sse.KEEPALIVE
        if isinstance(news, _Notice):
            return
        choice = self._choices[news.index]
        if isinstance(news.event, Progress):
            if self._ask.return_progress:
                yield from self._opening(choice)
                yield self._chunk(self._shape.part(choice), prompt_progress=progress_body(news.event))
        elif isinstance(news.event, Token | Finished):
            yield from self._opening(choice)
            yield from self._answer_parts(choice)

    def _opening(self, choice: Choice) -> Iterator[bytes]:
        if choice.index not in self._opened:
            self._opened.add(choice.index)
            opening = self._shape.opening(choice.index)
            if opening is not None:
                yield self._chunk(opening)

    def _answer_parts(self, choice: Choice) -> Iterator[bytes]:
        tokens = {"tokens": choice.tokens} if self._ask.return_tokens and choice.tokens else {}
        if choice.text or choice.logprobs or tokens:
            yield self._chunk(self._shape.part(choice), **tokens)
            choice.drain()
        if choice.finished is not None:
            yield self._chunk(self._shape.closing(choice), timings=timings_body(choice.finished.timings))

    def _usage_parts(self) -> Iterator[bytes]:
        """With include_usage one chunk more, without choices."""
        if not self._ask.include_usage:
            return
        extra = {"usage": self._usage()}
        (first, *others) = self._choices
        if not others and first.finished is not None:
            extra["timings"] = timings_body(first.finished.timings)
        yield sse.data(self._frame(self._shape.chunk_name, []) | extra)

    def _chunk(self, choice: dict[str, Any], **extra: Any) -> bytes:
        return sse.data(self._frame(self._shape.chunk_name, [choice]) | extra)

    def _whole(self) -> dict[str, Any]:
        answer = self._frame(self._shape.whole_name, [self._shape.whole(choice) for choice in self._choices])
        answer["usage"] = self._usage()
        if self._choices[0].finished is not None:
            answer["timings"] = timings_body(self._choices[0].finished.timings)
        if self._ask.return_tokens:
            answer["tokens"] = self._choices[0].tokens
        return answer

    def _frame(self, name: str, choices: list[Any]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": name,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    def _usage(self) -> dict[str, Any]:
        return usage_body(
            ((choice.index, choice.finished.usage) for choice in self._choices if choice.finished),
            self._ask.n,
        )
