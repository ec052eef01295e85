"""The HTTP endpoint: routes, and how a request's body becomes an exchange with the engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from engine.errors import InvalidRequest, PromptTooLong
from engine.server import status
from engine.server.answers import ChatShape, CompletionShape
from engine.server.backend import Backend, ChatTemplate, Engine, ModelInfo, Tokenizer
from engine.server.errors import loading
from engine.server.events import Hub, events
from engine.server.exchange import Exchange, Exchanges
from engine.server.fields import Fields
from engine.server.guard import Guard
from engine.server.handlers import EXCEPTION_HANDLERS, content_of
from engine.server.json import JSONResponse
from engine.server.metrics import metrics, new_registry
from engine.server.schema import ChatAsk, Prompt, parse_chat, parse_completion
from engine.server.settings import MAX_TOKENIZE_CHARS, ServerSettings

log = logging.getLogger(__name__)


def build_app(
    engine: Engine,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    model_info: ModelInfo,
    settings: ServerSettings,
) -> Starlette:
    """The endpoint of a loaded model."""
    app = build_loading_app(settings)
    attach(app, Backend(engine=engine, tokenizer=tokenizer, template=template, model=model_info))
    return app


def build_loading_app(settings: ServerSettings) -> Starlette:
    """The endpoint of a model that is still being loaded: everything is answered 503 until `attach`."""
    app = Starlette(
        routes=[
            Route("/health", status.health),
            Route("/v1/health", status.health),
            Route("/models", status.models),
            Route("/v1/models", status.models),
            Route("/v1/models/{model:path}", status.model),
            Route("/slots", status.slots),
            Route("/requests/{id:path}", status.timeline),
            Route("/worker", status.worker),
            Route("/events", events),
            Route("/metrics", metrics),
            Route("/tokenize", _tokenize, methods=["POST"]),
            Route("/detokenize", _detokenize, methods=["POST"]),
            Route("/v1/completions", _completions, methods=["POST"]),
            Route("/chat/completions", _chat_completions, methods=["POST"]),
            Route("/v1/chat/completions", _chat_completions, methods=["POST"]),
        ],
        middleware=[Middleware(Guard, settings=settings)],
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.state.settings = settings
    app.state.backend = None
    app.state.hub = None
    app.state.metrics = None
    app.state.exchanges = Exchanges()
    return app


def attach(app: Starlette, backend: Backend) -> None:
    """The model is loaded: answer from now on."""
    app.state.hub = Hub(backend.engine)
    app.state.metrics = new_registry(backend)
    app.state.backend = backend


async def _completions(request: Request) -> ASGIApp:
    content = await content_of(request, request.app.state.settings.max_body_bytes)
    backend = _backend(request)
    ask = parse_completion(content)
    prompts = [await asyncio.to_thread(_encode, backend, prompt) for prompt in ask.prompts]
    return _exchange(request, ask=ask, shape=CompletionShape(backend.tokenizer), prompts=prompts)


async def _chat_completions(request: Request) -> ASGIApp:
    content = await content_of(request, request.app.state.settings.max_body_bytes)
    backend = _backend(request)
    if backend.template is None:
        raise InvalidRequest("this model has no chat template: use /v1/completions")
    ask = parse_chat(content)
    prompt = await asyncio.to_thread(_render, backend.template, ask, backend.engine.n_ctx)
    return _exchange(request, ask=ask, shape=ChatShape(backend.tokenizer), prompts=[prompt])


def _encode(backend: Backend, prompt: Prompt) -> Sequence[int]:
    n_ctx = backend.engine.n_ctx
    if isinstance(prompt, tuple):
        if len(prompt) >= n_ctx:
            raise PromptTooLong(n_prompt_tokens=len(prompt), n_ctx=n_ctx)
        return prompt
    backend.tokenizer.check_fits(prompt, n_ctx)
    return backend.tokenizer.encode(prompt, add_special=True, parse_special=True)


def _render(template: ChatTemplate, ask: ChatAsk, n_ctx: int) -> list[int]:
    return template.encode(
        ask.messages,
        tools=ask.tools or None,
        add_generation_prompt=ask.add_generation_prompt,
        variables=ask.variables,
        n_ctx=n_ctx,
        continue_final_message=ask.continue_final_message,
    )


def _exchange(request: Request, **parts: Any) -> Exchange:
    state = request.app.state
    return Exchange(_backend(request), state.settings, state.exchanges, **parts)


async def _tokenize(request: Request) -> Response:
    """llama-server's /tokenize: `content` to `tokens`, with their spelling on request."""
    fields = Fields(await content_of(request, request.app.state.settings.max_body_bytes))
    tokenizer = _backend(request).tokenizer
    text = fields.text("content", "")
    if len(text) > MAX_TOKENIZE_CHARS:
        raise InvalidRequest(
            f"content has {len(text)} characters, at most {MAX_TOKENIZE_CHARS} are taken at once: send it in parts",
            param="content",
        )
    add_special, parse_special = fields.flag("add_special", False), fields.flag("parse_special", True)
    ids = await asyncio.to_thread(
        tokenizer.encode, text, add_special=add_special, parse_special=parse_special
    )
    if not fields.flag("with_pieces", False):
        return JSONResponse({"tokens": ids})
    return JSONResponse({"tokens": [{"id": id_, "piece": _piece(tokenizer, id_)} for id_ in ids]})


async def _detokenize(request: Request) -> Response:
    """llama-server's /detokenize: `tokens` to `content`."""
    fields = Fields(await content_of(request, request.app.state.settings.max_body_bytes))
    tokenizer = _backend(request).tokenizer
    ids = fields.items("tokens")
    if not all(isinstance(id_, int) and 0 <= id_ < tokenizer.n_vocab for id_ in ids):
        raise InvalidRequest(
            f"tokens must hold ids from 0 to {tokenizer.n_vocab - 1} and nothing else", param="tokens"
        )
    return JSONResponse({"content": tokenizer.decode(ids, special=True)})


def _piece(tokenizer: Tokenizer, token_id: int) -> str | list[int]:
    """A token's text, or its bytes where they are not text by themselves."""
    spelling = tokenizer.token_bytes(token_id, special=True)
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return list(spelling)


def _backend(request: Request) -> Backend:
    backend: Backend | None = request.app.state.backend
    if backend is None:
        raise loading()
    return backend
