"""`baton link selftest` against a small endpoint whose two ways differ as a test wants."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from engine.cli.main import main

WORKER = {"configured": True, "connected": True, "peer": "10.0.0.2:7118"}
Alter = Callable[[dict[str, Any]], None]


def answer_of(body: dict[str, Any]) -> dict[str, Any]:
    """Sixteen tokens that depend on the prompt, each with two likely ones."""
    tokens = [(sum(body["prompt"]) + index) % 50 for index in range(body["max_tokens"])]
    return {
        "tokens": tokens,
        "choices": [
            {
                "logprobs": {
                    "tokens": [f"t{token}" for token in tokens],
                    "token_logprobs": [-0.5 for _ in tokens],
                    "top_logprobs": [{f"t{token}": -0.5, "other": -0.53, "far": -4.0} for token in tokens],
                }
            }
        ],
        "timings": {
            "prompt_ms": 12.0,
            "handoff": {
                "prefill": body["prefill"],
                "reason": "asked_remote",
                "detail": "the request asked for remote prefill",
                "bytes": 1000,
                "tail_ms": 1.0,
            },
        },
    }


class FakeEndpoint(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.worker: dict[str, Any] = WORKER
        self.prompts: list[list[int]] = []
        self.codec: str | None = "raw"
        self.alter: Alter = lambda answer: None

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == "/tokenize":
            return {"tokens": list(range(5, 90))}
        assert body["cache_prompt"] is False and body["temperature"] == 0
        found = answer_of(body)
        if body["prefill"] == "remote":
            self.alter(found)
        else:
            self.prompts.append(body["prompt"])
        return found


class _Handler(BaseHTTPRequestHandler):
    server: FakeEndpoint

    def do_GET(self) -> None:
        handoff = {"codec": self.server.codec} if self.server.codec else None
        timeline = {"handoff": handoff} if self.server.prompts else None
        slot = {"id": 0, "state": "idle", "n_cached_tokens": 0, "n_ctx": 600, "timeline": timeline}
        self._send({"/worker": self.server.worker, "/slots": [slot]}[self.path])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self._send(self.server.answer(self.path, body))

    def _send(self, answer: object) -> None:
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[FakeEndpoint]:
    with FakeEndpoint() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


def selftest(server: FakeEndpoint, *words: str) -> int:
    return main(["link", "selftest", "--port", str(server.server_port), *words])


def parts(place: int, spelling: str) -> Alter:
    def alter(answer: dict[str, Any]) -> None:
        answer["tokens"][place:] = [99] * (len(answer["tokens"]) - place)
        answer["choices"][0]["logprobs"]["tokens"][place] = spelling

    return alter


def test_the_same_answers(server: FakeEndpoint, capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest(server) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split()[0]) for line in lines[:-1]] == [2, 33, 511, 512, 513, 514]
    assert all(line.endswith("same answer") for line in lines[:-1])
    assert lines[-1] == "6 prompts gave the same answer either way"
    assert [len(prompt) for prompt in server.prompts] == [2, 33, 511, 512, 513, 514]
    assert len({tuple(prompt[:2]) for prompt in server.prompts}) == 6


def test_answers_that_part_at_a_near_tie(server: FakeEndpoint, capsys: pytest.CaptureFixture[str]) -> None:
    server.alter = parts(3, "other")
    assert selftest(server, "--lengths", "40", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    (row,) = report["prompts"]
    assert (report["passed"], row["same"], row["near_tie"], row["diverges_at"]) == (True, False, True, 3)
    assert row["margin"] == pytest.approx(0.03)


@pytest.mark.parametrize("spelling", ["far", "never seen"])
def test_answers_that_part(server: FakeEndpoint, capsys: pytest.CaptureFixture[str], spelling: str) -> None:
    server.alter = parts(5, spelling)
    assert selftest(server, "--lengths", "40,50") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("PARTS at token 5, by 3.500")
    assert lines[-1].startswith("the two computers do not compute the same")


def test_answers_that_part_because_rows_came_in_8_bits(
    server: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    server.alter, server.codec = parts(5, "far"), "int8"
    assert selftest(server, "--lengths", "40") == 1
    assert "answers may part with --codec int8" in capsys.readouterr().out.splitlines()[-1]


def test_a_prompt_that_stayed_here_was_not_tested(
    server: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    def stay(answer: dict[str, Any]) -> None:
        answer["timings"]["handoff"] |= {"prefill": "local", "detail": "the worker is busy"}

    server.alter, server.codec = stay, None
    assert selftest(server, "--lengths", "40") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        lines[0],
        "1 of 1 prompts could not be prefilled by the worker",
    ]
    assert lines[0].endswith("not prefilled by the worker: the worker is busy")


@pytest.mark.parametrize(
    ("worker", "status", "words"),
    [
        ({"configured": False}, 2, "this endpoint has no worker"),
        (
            {"configured": True, "connected": False, "note": "the cable is out"},
            1,
            "not connected: the cable is out",
        ),
    ],
)
def test_without_a_worker(
    server: FakeEndpoint,
    capsys: pytest.CaptureFixture[str],
    worker: dict[str, Any],
    status: int,
    words: str,
) -> None:
    server.worker = worker
    assert selftest(server) == status
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ("1", "2 at least"),
        ("585", "room for prompts of 584 tokens"),
        ("x", "whole numbers"),
        ("", "whole numbers"),
    ],
)
def test_lengths_that_cannot_be(
    server: FakeEndpoint, capsys: pytest.CaptureFixture[str], lengths: str, words: str
) -> None:
    assert selftest(server, "--lengths", lengths) == 2
    assert words in capsys.readouterr().err
