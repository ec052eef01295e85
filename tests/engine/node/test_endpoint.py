"""The endpoint's client, against a small server on this computer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from engine.errors import HostError, InvalidRequest
from engine.node.endpoint import Endpoint, NoEndpoint

Answer = tuple[int, bytes]


class FakeEndpoint(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer: Answer = (200, b"{}")
        self.asked: list[tuple[str, str, object, str | None]] = []


class _Handler(BaseHTTPRequestHandler):
    server: FakeEndpoint

    def do_GET(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.server.asked.append((self.command, self.path, body, self.headers.get("authorization")))
        status, content = self.server.answer
        self.send_response(status)
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEndpoint]:
    monkeypatch.delenv("BATON_API_KEY", raising=False)
    with FakeEndpoint() as fake:
        thread = threading.Thread(target=fake.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield fake
        fake.shutdown()
        thread.join(10)


@pytest.fixture
def endpoint(server: FakeEndpoint) -> Endpoint:
    return Endpoint("127.0.0.1", server.server_port)


def events(*payloads: object) -> bytes:
    lines = [
        f"data: {payload if isinstance(payload, str) else json.dumps(payload)}\n\n" for payload in payloads
    ]
    return "".join(lines).encode()


def test_get_returns_what_is_there(endpoint: Endpoint, server: FakeEndpoint) -> None:
    server.answer = (200, b'{"status": "ok"}')
    assert endpoint.get("/health") == {"status": "ok"}
    assert server.asked == [("GET", "/health", None, None)]


def test_the_key_is_taken_from_the_environment(
    endpoint: Endpoint, server: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_API_KEY", "secret")
    endpoint.get("/slots")
    assert server.asked == [("GET", "/slots", None, "Bearer secret")]


def test_a_stream_ends_at_its_mark_and_passes_over_comments(endpoint: Endpoint, server: FakeEndpoint) -> None:
    server.answer = (200, events({"n": 1}) + b": still here\n\n" + events({"n": 2}, "[DONE]", {"n": 3}))
    assert list(endpoint.stream("/v1/chat/completions", {"messages": []})) == [{"n": 1}, {"n": 2}]
    assert server.asked[0][2] == {"messages": [], "stream": True}


def test_a_stream_without_its_mark_is_an_error(endpoint: Endpoint, server: FakeEndpoint) -> None:
    server.answer = (200, events({"n": 1}))
    stream = endpoint.stream("/v1/chat/completions", {})
    assert next(stream) == {"n": 1}
    with pytest.raises(HostError, match="broke off"):
        next(stream)


def test_an_error_inside_a_stream_is_raised(endpoint: Endpoint, server: FakeEndpoint) -> None:
    server.answer = (200, events({"n": 1}, {"error": {"message": "out of memory"}}))
    with pytest.raises(HostError, match="out of memory"):
        list(endpoint.stream("/v1/chat/completions", {}))


@pytest.mark.parametrize(
    ("status", "content", "kind", "sentence"),
    [
        (400, b'{"error": {"message": "the prompt is too long"}}', InvalidRequest, "the prompt is too long"),
        (503, b'{"error": {"message": "still loading"}}', HostError, "still loading"),
        (500, b"<html>", HostError, "status 500"),
        (404, b'"nothing"', InvalidRequest, "status 404"),
    ],
)
def test_refusals_keep_the_endpoints_own_sentence(
    endpoint: Endpoint,
    server: FakeEndpoint,
    status: int,
    content: bytes,
    kind: type[Exception],
    sentence: str,
) -> None:
    server.answer = (status, content)
    asks: list[Callable[[], object]] = [lambda: endpoint.get("/x"), lambda: list(endpoint.stream("/x", {}))]
    for ask in asks:
        with pytest.raises(kind, match=sentence):
            ask()


def test_nothing_there_says_what_to_start() -> None:
    with FakeEndpoint() as closed:
        port = closed.server_port
    with pytest.raises(NoEndpoint, match="baton serve"):
        Endpoint("127.0.0.1", port).get("/health")
