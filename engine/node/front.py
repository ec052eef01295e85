"""The OpenAI endpoint of the node: it stays where it is while engines load, crash and change, and passes requests on.

A request goes to the engine of the model that it names, which is loaded where it is not; or, on a computer that
prefills for another one, to that other one. The engines check requests; here only the model's name is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import httpx
import msgspec
from msgspec import Meta
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.errors import BatonError, HostError, InvalidRequest, PeerError, PeerLost, ProtocolError
from engine.node.engines import Engines, LoadedEngine
from engine.node.peering.offers import Method, Offers
from engine.node.peering.peer_link import PeerLink
from engine.node.peering.peer_messages import MAX_MESSAGE_BYTES
from engine.node.recent import RecentRequests, Stage, Watch
from engine.server import sse
from engine.server.errors import Refused, error_body, status_of
from engine.server.exchange import Exchanges
from engine.server.guard import Guard
from engine.server.handlers import EXCEPTION_HANDLERS, body_of, content_of
from engine.server.json import JSONResponse
from engine.server.json import encode as encode_json
from engine.server.settings import MAX_BODY_BYTES, ServerSettings

log = logging.getLogger(__name__)

# Asked of the engine of one model.
_MODEL_PATHS = (
    "/v1/completions",
    "/chat/completions",
    "/v1/chat/completions",
    "/tokenize",
    "/detokenize",
)

# Asked of an engine about itself; `?model=` names one, else it is the one that was used last.
_ENGINE_PATHS = ("/slots", "/worker", "/events", "/metrics", "/requests/{id:path}")

# Loopback: an engine that does not take a connection at once is not there any more.
_CONNECT_TIMEOUT_S = 2.0

# A process that has ended is noticed at once.
_NOTICED_WITHIN_S = 1.0

# In a request's scope: the list of recent requests knows of it.
_IS_WATCHED = "baton.is_watched"

# Of a model's name or a path in the list of recent requests: a client may send whatever it likes.
_MAX_SHOWN_CHARS = 200

# Headers that speak of one connection only, or that are made anew.
_OWN_HEADERS = frozenset(
    {"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding"}
)

# What an answer that comes from a peer may say of itself.
_PEER_HEADERS = frozenset({"cache-control", "content-type", "retry-after", "x-accel-buffering"})

# What a peer may ask for on behalf of its own clients.
PASSED_ON = "endpoint.request"


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A request on its way: path with its query, method, and the whole body; and which news were heard already."""

    method: str
    path: str
    body: bytes
    model: str | None
    last_event_id: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if self.last_event_id is not None and _is_plain(self.last_event_id):
            headers["Last-Event-ID"] = self.last_event_id
        return headers


class Answer(Protocol):
    """What comes back: a status and headers first, then the body in parts."""

    status: int
    headers: list[tuple[str, str]]
    model: str  # that gives it, "" where that is not known
    computer: str  # that gives it, "" for this one

    def parts(self) -> AsyncIterator[bytes]: ...

    async def close(self) -> None: ...


class Front:
    """Routes requests. `decoder_of(model)` gives the link with the computer that decodes, None where this one does."""

    def __init__(
        self,
        engines: Engines,
        *,
        settings: ServerSettings,
        engine_key: str,
        decoder_of: Callable[[str | None], PeerLink | None],
        models: Callable[[], list[dict[str, Any]]],
        refresh: Callable[[], Awaitable[None]],
        problem_of: Callable[[str], str],
        keys: Callable[[], Collection[str]] | None = None,
        recent: RecentRequests | None = None,
    ) -> None:
        """`models` are those on this computer, as the endpoint lists them; `refresh` looks what there is now.

        `problem_of(name)` is why a model that is there is not among them. `keys` are the keys that are taken now, in
        place of that of `settings`. `recent` is told what models are asked.
        """
        self._engines = engines
        self._settings = settings
        self._decoder_of = decoder_of
        self._list = models
        self._refresh = refresh
        self._problem_of = problem_of
        self._keys = keys
        self._recent = recent or RecentRequests()
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
            headers={"Authorization": f"Bearer {engine_key}"},
            trust_env=False,
        )

    def build_app(self) -> Starlette:
        passing = self._pass_on
        app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/health", self._health),
                Route("/models", self._models),
                Route("/v1/models", self._models),
                Route("/models/load", self._load, methods=["POST"]),
                Route("/models/unload", self._unload, methods=["POST"]),
                Route("/v1/models/{model:path}", self._model),
                *(Route(path, passing, methods=["POST"]) for path in _MODEL_PATHS),
                *(Route(path, passing) for path in _ENGINE_PATHS),
            ],
            middleware=[
                Middleware(_TurnedAway, recent=self._recent),
                Middleware(Guard, settings=self._settings, keys=self._keys),
            ],
            exception_handlers=EXCEPTION_HANDLERS,
        )
        app.state.exchanges = Exchanges()
        return app

    def offer_methods(self, offers: Offers) -> None:
        """Let paired computers pass their clients' requests on to this one."""
        offers.streams[PASSED_ON] = Method(self._answer_peer, Ask, MAX_MESSAGE_BYTES)

    async def close(self) -> None:
        await self._client.aclose()

    # what the front answers itself

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _models(self, request: Request) -> Response:
        await self._refresh()
        return JSONResponse({"object": "list", "data": self._list()})

    async def _model(self, request: Request) -> Response:
        wanted = request.path_params["model"]
        await self._refresh()
        models = self._list()
        for model in models:
            if model["id"] == wanted:
                return JSONResponse(model)
        raise _no_such_model(wanted, models)

    async def _load(self, request: Request) -> Response:
        engine = await self._engines.load(await _named(request))
        return JSONResponse({"success": True, **engine.snapshot()})

    async def _unload(self, request: Request) -> Response:
        model = await _named(request)
        if not await self._engines.unload(model):
            raise InvalidRequest(f"{model} is not loaded", param="model")
        return JSONResponse({"success": True})

    # what is passed on

    async def _pass_on(self, request: Request) -> Any:
        body = await body_of(request, MAX_BODY_BYTES)
        # as it came: decoded, it may hold what no request line may
        path = request.scope["raw_path"].decode("latin-1")
        if query := request.scope["query_string"].decode("latin-1"):
            path += f"?{query}"
        model = _model_in(body) if body else request.query_params.get("model")
        ask = Ask(
            method=request.method,
            path=path,
            body=body,
            model=model,
            last_event_id=request.headers.get("last-event-id"),
        )
        watch = None
        if ask.method == "POST":
            request.scope[_IS_WATCHED] = True
            watch = self._recent.begin(ask.method, request.scope["path"], (model or "")[:_MAX_SHOWN_CHARS])
        return _Passing(self._ask, ask, request.app.state.exchanges, watch)

    async def _ask(self, ask: Ask) -> Answer:
        """Ask whoever decodes; this computer answers itself where the other one is just lost."""
        link = self._decoder_of(ask.model)
        if link is not None:
            try:
                return await self._ask_peer(link, ask)
            except PeerLost as error:
                log.info("%s decodes and is away, so that this computer answers: %s", link.peer.name, error)
        return await self._ask_here(ask)

    async def _ask_here(self, ask: Ask) -> Answer:
        """Ask the engine; one that ends before it says anything is asked again once it has been started again."""
        engine = await self._engine_for(ask)
        try:
            return await self._ask_engine(engine, ask)
        except httpx.HTTPError:
            await engine.process.until_gone(_NOTICED_WITHIN_S)
        engine = await self._engine_for(ask)
        try:
            return await self._ask_engine(engine, ask)
        except httpx.HTTPError as error:
            raise _engine_gone(engine) from error

    async def _ask_engine(self, engine: LoadedEngine, ask: Ask) -> Answer:
        request = self._client.build_request(
            ask.method, engine.url + ask.path, content=ask.body, headers=ask.headers
        )
        with contextlib.ExitStack() as using:
            if ask.method == "POST":  # who only looks at an engine keeps it from nothing
                using.enter_context(engine.in_use())
            response = await self._client.send(request, stream=True)
            return _EngineAnswer(engine, response, using.pop_all())

    async def _engine_for(self, ask: Ask) -> LoadedEngine:
        models = self._list()
        if ask.model and all(model["id"] != ask.model for model in models):
            await self._refresh()
            models = self._list()
        model = self._resolve(ask.model, models)
        if model is not None:
            # To look at an engine is no reason to load one.
            if ask.method == "POST" or self._engines.get(model) is not None:
                return await self._engines.use(model)
            raise Refused(f"{model} is not loaded", status=503, kind="unavailable_error")
        if (engine := self._engines.latest()) is not None:
            return engine
        if loading := self._engines.all():
            raise loading[0].still_loading()
        names = ", ".join(one["id"] for one in models) or "none is on this computer yet"
        raise Refused(
            f"no model is loaded: name one, as `model` in a request or --model of baton chat ({names})",
            status=503,
            kind="unavailable_error",
        )

    def _resolve(self, name: str | None, models: list[dict[str, Any]]) -> str | None:
        """The model that a request means. Without a name it is whatever is loaded, or the only one there is."""
        ids = [model["id"] for model in models]
        if name is None or name == "":
            return ids[0] if len(ids) == 1 and not self._engines.all() else None
        if name in ids:
            return name
        if problem := self._problem_of(name):
            raise InvalidRequest(f"{name[:100]} cannot be run: {problem}", param="model")
        raise _no_such_model(name, models)

    async def _ask_peer(self, link: PeerLink, ask: Ask) -> Answer:
        parts = link.stream(PASSED_ON, ask, gives=_Head | bytes)
        head = await anext(parts, None)
        if not isinstance(head, _Head):
            await parts.aclose()
            raise ProtocolError(
                f"what {link.peer.name} answers is no answer: both need the same version of Baton"
            )
        return _PeerAnswer(head, parts, computer=link.peer.name)

    async def _answer_peer(self, link: PeerLink, ask: Ask) -> AsyncGenerator[Any, None]:
        """A request that a client made at a peer's endpoint: head first, then the body's parts. Goes no further."""
        try:
            _check(ask)
            answer = await self._ask_here(ask)
        except BatonError as error:
            headers = {}
            if isinstance(error, Refused) and error.retry_after_s is not None:
                headers["retry-after"] = str(error.retry_after_s)
            yield _Head(status=status_of(error), headers={"content-type": "application/json", **headers})
            yield encode_json(error_body(error))
            return
        try:
            yield _Head(status=answer.status, headers=dict(answer.headers))
            async for part in answer.parts():
                yield part
        finally:
            await answer.close()


class _TurnedAway:
    """ASGI middleware: the list of recent requests has those as well that got no further than the door, as without
    the key, or for something that there is not."""

    def __init__(self, app: ASGIApp, recent: RecentRequests) -> None:
        self._app, self._recent = app, recent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_noting(message: Message) -> None:
            if (
                message["type"] == "http.response.start"
                and message["status"] >= 400
                and _IS_WATCHED not in scope
            ):
                watch = self._recent.begin(scope["method"], scope["path"][:_MAX_SHOWN_CHARS], "")
                watch.end(Stage.FAILED, message["status"])
            await send(message)

        is_asking = scope["type"] == "http" and scope["method"] == "POST"
        await self._app(scope, receive, send_noting if is_asking else send)


class _EngineAnswer:
    """What an engine answers; it counts as in use until this is closed."""

    def __init__(self, engine: LoadedEngine, response: httpx.Response, using: contextlib.ExitStack) -> None:
        self.status = response.status_code
        self.headers = [(name, value) for name, value in response.headers.items() if name not in _OWN_HEADERS]
        self.model, self.computer = engine.model.model_id, ""
        self._engine = engine
        self._response = response
        self._using = using

    async def parts(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._response.aiter_raw():
                yield part
        except httpx.HTTPError:
            yield _broken_off(self.headers, _engine_gone(self._engine))

    async def close(self) -> None:
        self._using.close()
        await self._response.aclose()
        # The two hold each other, and the body that was asked with; it would stay until Python looks for such rings.
        self._response.stream = httpx.ByteStream(b"")


class _PeerAnswer:
    """What the engine of a peer answers."""

    def __init__(self, head: _Head, parts: AsyncGenerator[Any, None], *, computer: str) -> None:
        self.status = head.status
        self.model, self.computer = "", computer
        self.headers = [
            (name, value)
            for name, value in head.headers.items()
            if name in _PEER_HEADERS and _is_plain(value)
        ]
        self._parts = parts

    async def parts(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._parts:
                if not isinstance(part, bytes):
                    raise ProtocolError("it sent what is no part of an answer")
                yield part
        except PeerError as error:
            yield _broken_off(self.headers, HostError(f"the other computer, which decodes, is gone: {error}"))

    async def close(self) -> None:
        await self._parts.aclose()


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    status: Annotated[int, Meta(ge=200, le=599)]
    headers: dict[str, str]


class _Passing:
    """Asks, and sends the answer on as it comes; an ASGI response. A client that goes takes its request with it."""

    def __init__(
        self,
        ask_it: Callable[[Ask], Awaitable[Answer]],
        ask: Ask,
        exchanges: Exchanges,
        watch: Watch | None = None,
    ) -> None:
        self._ask_it = ask_it
        self._ask = ask
        self._exchanges = exchanges
        self._watch = watch
        self._task: asyncio.Task[None] | None = None
        self._has_begun = self._is_closing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._exchanges.add(self)
        self._task = asyncio.create_task(self._send(send))
        client = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait([self._task, client], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._exchanges.discard(self)
            self._task.cancel()
            client.cancel()
            results = await asyncio.gather(self._task, client, return_exceptions=True)
            self._end_watch(results[0])
        if self._has_begun:
            return
        if isinstance(results[0], Exception):
            raise results[0]
        if self._is_closing:
            raise HostError("Baton is shutting down")

    def notify_closing(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._is_closing = True

    def _end_watch(self, result: object) -> None:
        if self._watch is None:
            return
        if isinstance(result, asyncio.CancelledError):
            self._watch.end(Stage.LEFT)
        elif isinstance(result, Exception):
            self._watch.end(Stage.FAILED, status_of(result) if isinstance(result, BatonError) else 500)
        else:
            self._watch.end(Stage.DONE)

    async def _send(self, send: Send) -> None:
        answer = await self._ask_it(self._ask)
        self._has_begun = True
        if self._watch is not None:
            self._watch.answered(answer.status, model=answer.model, computer=answer.computer)
        try:
            headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in answer.headers]
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            async for part in answer.parts():
                if self._watch is not None:
                    self._watch.part(part)
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await answer.close()


def _check(ask: Ask) -> None:
    """What a peer asks is what a client may ask here. Raises InvalidRequest."""
    path = ask.path.partition("?")[0]
    is_known = path in (*_MODEL_PATHS, *_ENGINE_PATHS) or path.startswith("/requests/")
    is_known = is_known and _is_plain(ask.path)
    if not is_known or ask.method not in ("GET", "HEAD", "POST"):
        raise InvalidRequest(f"there is no {path[:100]} here")


def _is_plain(value: str) -> bool:
    return value.isascii() and value.isprintable()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _named(request: Request) -> str:
    model = (await content_of(request, MAX_BODY_BYTES)).get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("model is missing: name the model", param="model")
    return model


class _ModelOnly(msgspec.Struct):
    model: Any = None


def _model_in(body: bytes) -> str | None:
    """The model that a request's body names. What is no JSON is for the engine to refuse."""
    try:
        model = msgspec.json.decode(body, type=_ModelOnly).model
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if model is not None and not isinstance(model, str):
        raise InvalidRequest("model must be text", param="model")
    return model


def _no_such_model(name: str, models: list[dict[str, Any]]) -> Refused:
    names = ", ".join(model["id"] for model in models) or "none yet: fetch one with `baton models get NAME`"
    return Refused(
        f"there is no model {name[:100]!r} here; there are: {names}", status=404, kind="invalid_request_error"
    )


def _engine_gone(engine: LoadedEngine) -> Refused:
    outcome = engine.process.last_outcome
    why = f": {outcome.reason}" if outcome is not None and not engine.is_ready else ""
    return Refused(
        f"the engine of {engine.model.model_id} ended while it answered{why}; it is being started again",
        status=503,
        kind="unavailable_error",
        retry_after_s=1,
    )


def _broken_off(headers: list[tuple[str, str]], error: BatonError) -> bytes:
    """How an answer ends that has begun and cannot go on: a stream's client is told why."""
    if dict(headers).get("content-type", "").startswith("text/event-stream"):
        return sse.data(error_body(error))
    return b""
