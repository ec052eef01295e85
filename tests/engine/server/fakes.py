"""A server over the fake model: a vocabulary of bytes, a one-line template, and ways to ask."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager

import httpx

from engine.errors import InvalidRequest, PromptTooLong
from engine.server.app import build_app
from engine.server.backend import ModelInfo
from engine.server.run import HttpServer
from engine.server.settings import ServerSettings
from tests.engine.batching.fakes import END, N_VOCAB, TIMEOUT_S, Bench

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


class ByteTokenizer:
    n_vocab = N_VOCAB
    end_ids = frozenset({END})

    def check_fits(self, text, n_ctx):
        if len(text) > 100 * n_ctx:
            raise PromptTooLong(n_prompt_tokens=len(text) // 2, n_ctx=n_ctx, at_least=True)

    def encode(self, text, *, add_special, parse_special):
        if "\ud800" in text:
            raise InvalidRequest("half a character")
        return ([257] if add_special else []) + list(text.encode())

    def decode(self, ids, *, special=False):
        return b"".join(self.token_bytes(id_, special=special) for id_ in ids).decode("utf-8", "replace")

    def token_bytes(self, token_id, *, special=False):
        if token_id < 256:
            return bytes([token_id])
        return f"<{token_id}>".encode() if special else b""


class LineTemplate:
    """`role: content` a line; remembers what it was given."""

    def encode(
        self,
        messages,
        *,
        tools=None,
        add_generation_prompt=True,
        variables=None,
        n_ctx=None,
        continue_final_message=False,
    ):
        self.given = {"tools": tools, "variables": variables}
        if any("abracadabra" in message["content"] for message in messages):
            raise InvalidRequest("the template knows no magic", param="messages")
        text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        ByteTokenizer().check_fits(text, n_ctx)
        if continue_final_message:
            return list(text.removesuffix("\n").encode())
        return list((text + ("assistant: " if add_generation_prompt else "")).encode())


class WatchedEngine:
    """The loop, telling when a request was cancelled."""

    def __init__(self, loop) -> None:
        self._loop = loop
        self.cancelled = threading.Semaphore(0)

    def cancel(self, request_id) -> None:
        self._loop.cancel(request_id)
        self.cancelled.release()

    def wait_cancelled(self) -> None:
        assert self.cancelled.acquire(timeout=TIMEOUT_S)

    def __getattr__(self, name):
        return getattr(self._loop, name)


class Stand:
    """A bench with an app on it."""

    def __init__(self, bench, **settings) -> None:
        self.bench = bench
        self.model = bench.model
        self.engine = WatchedEngine(bench.loop)
        self.template = LineTemplate()
        self.app = build_app(
            self.engine,
            ByteTokenizer(),
            self.template,
            ModelInfo(
                model_id="fake", created=1, n_ctx_train=4096, n_vocab=N_VOCAB, n_params=7, size_bytes=9
            ),
            ServerSettings(**settings),
        )

    def call(self, method, path, *, app=None, **request):
        """One request without a socket."""
        return call(app or self.app, method, path, **request)

    def post(self, path, body, **request):
        return self.call("POST", path, json=body, **request)

    def chat(self, **body):
        return self.post(CHAT, {"messages": HELLO, "max_tokens": 6, "temperature": 0} | body)

    def complete(self, prompt="hello", **body):
        return self.post("/v1/completions", {"prompt": prompt, "max_tokens": 6, "temperature": 0} | body)


def call(app, method, path, **request):
    async def run():
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await asyncio.wait_for(client.request(method, path, **request), TIMEOUT_S)

    return asyncio.run(run())


@contextmanager
def stand(*, bench=None, **settings):
    with Bench(**({"n_ctx": 512} | (bench or {}))) as made:
        yield Stand(made, **settings)


@contextmanager
def serving(app):
    """The app on a real socket; yields its URL."""
    server = HttpServer(app)
    ready = threading.Event()
    thread = threading.Thread(target=server.run, args=(lambda port: ready.set(),))
    thread.start()
    assert ready.wait(TIMEOUT_S)
    try:
        yield server.url
    finally:
        server.stop()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def events(response) -> list:
    """The data of a stream's events, comments left out; the last one is "[DONE]" where it ended well."""
    found = []
    for block in response.text.split("\n\n"):
        if block.startswith("data: "):
            data = block.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
    return found
