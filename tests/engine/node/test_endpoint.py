"""The endpoint's client, against a small server on this computer."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from engine.errors import HostError, InvalidRequest, UserError
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
    endpoint.get("/props")
    assert server.asked == [("GET", "/props", None, "Bearer secret")]


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
        (500, b"<html>", HostError, "is not Baton .*status 500"),
        (404, b'"nothing"', HostError, "is not Baton .*status 404.*--port"),
        (401, b'{"error": {"message": 5}}', HostError, "is not Baton"),
        (401, b'{"error": {"message": "send a header"}}', UserError, "API key: set BATON_API_KEY"),
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
    with pytest.raises(NoEndpoint, match="baton node"):
        Endpoint("127.0.0.1", port).get("/health")


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/x", b"<html>"),
        ("/x", b"[" * 100_000),
        ("/health", b"[]"),
        ("/health", b'{"status": 7}'),
        ("/v1/models", b"{}"),
        ("/v1/models", b'{"data": [{"name": "other"}]}'),
        ("/slots", b'[{"id": 0, "state": 1}]'),
        ("/worker", b"{}"),
    ],
)
def test_what_is_found_elsewhere_is_not_ours(
    endpoint: Endpoint, server: FakeEndpoint, path: str, content: bytes
) -> None:
    server.answer = (200, content)
    with pytest.raises(HostError, match=r"what answers at http://127\.0\.0\.1:\d+ is not Baton"):
        endpoint.get(path)


@pytest.mark.parametrize("content", [b"<html>\n</html>\n", b"", b"data: <html>\n\n", b"data: [1]\n\n"])
def test_a_stream_of_something_else_is_not_ours(
    endpoint: Endpoint, server: FakeEndpoint, content: bytes
) -> None:
    server.answer = (200, content)
    with pytest.raises(HostError, match="is not Baton"):
        list(endpoint.stream("/v1/chat/completions", {}))


def test_a_server_that_does_not_speak_http_is_not_ours() -> None:
    def greet(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
            connection.recv(4096)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=greet, args=(server,))
        thread.start()
        with pytest.raises(HostError, match=r"is not Baton \(it does not speak HTTP\)"):
            Endpoint("127.0.0.1", server.getsockname()[1]).get("/health")
        thread.join(10)


def test_a_server_that_says_nothing_is_waited_for_no_longer_than_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(HostError, match="in time"):
        Endpoint("127.0.0.1", server.getsockname()[1]).get("/health", timeout_s=0.05)


@pytest.mark.parametrize("error", [socket.gaierror(socket.EAI_NONAME, "unknown"), UnicodeError("too long")])
def test_a_host_that_is_not_known_is_named(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with pytest.raises(UserError, match="--host nowhere: there is no computer of that name"):
        Endpoint("nowhere", 7117).get("/health")


def test_port_0_is_no_port_to_ask() -> None:
    with pytest.raises(UserError, match="--port 0 stands for a free one when serving"):
        Endpoint("127.0.0.1", 0)


def test_a_key_that_cannot_be_sent_is_named(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_API_KEY", "schlüssel")
    with pytest.raises(UserError, match="BATON_API_KEY"):
        endpoint.get("/slots")
