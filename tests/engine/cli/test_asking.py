"""`chat` and `status` against a small endpoint on this computer, and the figures of an answer."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from engine.cli.answer import Answer, telemetry_line
from engine.cli.main import main
from engine.errors import HostError
from engine.node.client import NodeClient
from engine.node.endpoint import Endpoint
from engine.node.presence import NodeNote

TIMINGS = {
    "predicted_per_second": 51.26,
    "handoff": {
        "prefill": "remote",
        "bytes": 14_100_000,
        "remote_tokens": 441,
        "reason": "asked_remote",
        "overlap": 0.981,
        "tail_ms": 1.25,
        "detail": "asked",
    },
}
SLOTS = [{"id": 0, "state": "decode", "n_cached_tokens": 12, "n_ctx": 4096}]


class FakeEndpoint(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[dict] = []
        self.timings: dict | None = TIMINGS
        self.worker: dict | None = None


class _Handler(BaseHTTPRequestHandler):
    server: FakeEndpoint

    def do_GET(self) -> None:
        answers = {
            "/health": {"status": "ok"},
            "/v1/models": {"data": [{"id": "tiny"}]},
            "/slots": SLOTS,
            "/worker": self.server.worker,
        }
        if answers[self.path] is None:
            self.send_error(404)
        else:
            self._send(json.dumps(answers[self.path]).encode())

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        is_chat = self.path == "/v1/chat/completions"
        chunks = [
            {"choices": [{"delta": {"content": text}} if is_chat else {"text": text}]}
            for text in ("", "A ", "race.")
        ]
        chunks.append({"choices": [], "usage": {"prompt_tokens": 442}, "timings": self.server.timings})
        events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        self._send("".join([*events, "data: [DONE]\n\n"]).encode())

    def _send(self, content: bytes) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[FakeEndpoint]:
    with FakeEndpoint() as fake:
        thread = threading.Thread(target=fake.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield fake
        fake.shutdown()
        thread.join(10)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.node.running.cache_dir", lambda: tmp_path)


def ticking():
    ticks = iter(range(100))
    return lambda: next(ticks) / 10


def test_an_answer_has_its_text_and_figures(server: FakeEndpoint) -> None:
    answer = Answer(Endpoint("127.0.0.1", server.server_port), {"messages": []}, clock=ticking())
    assert list(answer.texts()) == ["A ", "race."]
    assert answer.report() == {
        "answer": "A race.",
        "prefill": "remote",
        "prompt_tokens": 442,
        "handoff_bytes": 14_100_000,
        "overlap": 0.981,
        "tail_ms": 1.25,
        "ttft_ms": 100.0,
        "decode_tps": 51.3,
        "remote_tokens": 441,
        "reason": "asked_remote",
        "detail": "asked",
    }


def test_a_prompt_without_messages_is_completed(server: FakeEndpoint) -> None:
    answer = Answer(Endpoint("127.0.0.1", server.server_port), {"prompt": "Once"}, clock=ticking())
    assert list(answer.texts()) == ["A ", "race."]


def test_an_endpoint_without_timings_is_not_ours(server: FakeEndpoint) -> None:
    server.timings = None
    answer = Answer(Endpoint("127.0.0.1", server.server_port), {"messages": []}, clock=ticking())
    list(answer.texts())
    with pytest.raises(HostError, match="timings"):
        answer.report()


def test_a_local_prefill_moves_nothing_and_says_nothing_of_a_tail() -> None:
    report = {"prefill": "local", "prompt_tokens": 9, "handoff_bytes": 0, "tail_ms": None, "ttft_ms": 80.0}
    assert (
        telemetry_line({**report, "decode_tps": 50.0, "detail": "no worker is configured"})
        == "[prefill local (no worker is configured), 9 prompt tokens, TTFT 80 ms, 50.0 tok/s]"
    )


def test_chat_shows_the_answer_and_then_the_figures(server: FakeEndpoint, capsys) -> None:
    assert main(["chat", "What?", "--port", str(server.server_port), "--system", "Be brief."]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        "A race.\n\n[prefill remote, 442 prompt tokens, 14.1 MB moved, tail 1.2 ms, TTFT "
    )
    assert [message["role"] for message in server.bodies[0]["messages"]] == ["system", "user"]


def test_chat_prints_one_object_when_asked_to(server: FakeEndpoint, capsys) -> None:
    assert main(["chat", "What?", "--port", str(server.server_port), "--json", "--max-tokens", "5"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["answer"], report["reason"], report["detail"]) == ("A race.", "asked_remote", "asked")
    assert server.bodies[0]["max_tokens"] == 5


def test_chat_refuses_to_ask_nothing(capsys) -> None:
    assert main(["chat", " "]) == 2
    assert "ask something" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value", "sentence"),
    [
        ("--temperature", "nan", "--temperature nan: a number is needed here"),
        ("--temperature", "-1", "--temperature -1: at least 0"),
        ("--temperature", "1e9", "--temperature 1e9: at most 100"),
        ("--max-tokens", "0", "--max-tokens 0: at least 1"),
        ("--host", "http://x", "--host http://x: only the host stands here"),
        ("--port", "0", "--port 0 stands for a free one"),
        ("--system", "\udcff", "--system is not text in UTF-8"),
    ],
)
def test_chat_refuses_a_wrong_flag_before_it_asks(
    server: FakeEndpoint, capsys, flag: str, value: str, sentence: str
) -> None:
    assert main(["chat", "What?", "--port", str(server.server_port), f"{flag}={value}"]) == 2
    assert sentence in capsys.readouterr().err
    assert server.bodies == []


def test_chat_refuses_a_question_that_is_no_text(server: FakeEndpoint, capsys) -> None:
    assert main(["chat", "What \udcff?", "--port", str(server.server_port)]) == 2
    assert capsys.readouterr().err == (
        "baton: the question is not text in UTF-8 (character 6 is none): set the terminal to UTF-8\n"
    )
    assert server.bodies == []


@pytest.mark.parametrize(
    ("content", "status", "asked"),
    [("Was sagt Zoë?\r\n".encode(), 0, "Was sagt Zoë?\n"), (b"What \xff?", 2, None)],
)
def test_chat_takes_its_question_from_standard_input(
    server: FakeEndpoint, monkeypatch: pytest.MonkeyPatch, capsys, content: bytes, status: int, asked
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert main(["chat", "-", "--port", str(server.server_port)]) == status
    if asked is None:
        assert "standard input is not text in UTF-8 (byte 6 is wrong)" in capsys.readouterr().err
        assert server.bodies == []
    else:
        assert server.bodies[0]["messages"][0]["content"] == asked


def test_chat_says_that_a_stranger_answered(server: FakeEndpoint, capsys) -> None:
    server.timings = {"prompt_ms": 1}
    assert main(["chat", "What?", "--port", str(server.server_port)]) == 1
    assert "is not Baton (it sends no timings)" in capsys.readouterr().err


def test_an_answer_of_another_form_has_no_text(server: FakeEndpoint) -> None:
    class Strange(Endpoint):
        def stream(self, path, body):
            yield from ({"choices": ["?", {"delta": 1}]}, {"choices": None, "usage": 3, "timings": []})

    answer = Answer(Strange("127.0.0.1", server.server_port), {"messages": []}, clock=ticking())
    assert list(answer.texts()) == []


def test_status_lists_models_and_slots(server: FakeEndpoint, capsys) -> None:
    assert main(["status", "--port", str(server.server_port)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[2:] == ["ok", "tiny"]
    assert "decode" in lines[1]
    assert "12 of 4096 tokens" in lines[1]


CONNECTED = {
    "configured": True,
    "connected": True,
    "peer": "10.0.0.2:7118",
    "route": "auto",
    "crossover_tokens": None,
}


@pytest.mark.parametrize(
    ("worker", "words"),
    [
        ({"configured": False}, "none: prompts are prefilled here"),
        ({**CONNECTED}, "connected, 10.0.0.2:7118; both are still being measured"),
        ({**CONNECTED, "crossover_tokens": 320}, "connected, 10.0.0.2:7118; it is sooner from 320 tokens on"),
        ({**CONNECTED, "route": "always"}, "it prefills every prompt"),
        ({**CONNECTED, "route": "never"}, "prompts are prefilled here all the same (--route never)"),
        (
            {**CONNECTED, "local_tps": {"512": 900.0}, "remote_tps": {"512": 100.0}},
            "this computer is sooner at any length",
        ),
        (
            {"configured": True, "connected": False, "note": "10.0.0.2:7118 cannot be reached"},
            "not connected, prompts are prefilled here: 10.0.0.2:7118 cannot be reached",
        ),
    ],
)
def test_status_tells_of_the_worker(server: FakeEndpoint, capsys, worker: dict, words: str) -> None:
    server.worker = worker
    assert main(["status", "--port", str(server.server_port)]) == 0
    line = capsys.readouterr().out.splitlines()[2]
    assert line.split()[0] == "worker" and words in line
    assert main(["status", "--port", str(server.server_port), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["endpoint"]["worker"] == worker


def test_status_tells_what_the_link_was_granted(server: FakeEndpoint, capsys) -> None:
    link = {
        "data_streams": 2,
        "receive_asked_bytes": 32 << 20,
        "receive_granted_bytes": 8 << 20,
        "send_asked_bytes": 0,
        "send_granted_bytes": 5 << 18,
    }
    server.worker = {**CONNECTED, "link": link}
    assert main(["status", "--port", str(server.server_port)]) == 0
    line = capsys.readouterr().out.splitlines()[3]
    assert line.split()[0] == "link"
    assert "data streams: 2" in line
    assert "8.0 MiB to receive (32.0 MiB asked for)" in line
    assert "1.2 MiB to send (sized by the system)" in line


def test_status_of_an_endpoint_that_knows_no_workers(server: FakeEndpoint, capsys) -> None:
    assert main(["status", "--port", str(server.server_port)]) == 0
    assert "worker" not in capsys.readouterr().out


def test_status_without_an_endpoint_says_what_to_start(capsys) -> None:
    with FakeEndpoint() as closed:
        port = closed.server_port
    assert main(["status", "--port", str(port), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["endpoint"]["status"] == "absent"
    assert report["engines"] == []
    assert main(["status", "--port", str(port)]) == 1
    assert "baton node" in capsys.readouterr().out


def test_status_says_what_is_wrong_with_a_node_that_runs(
    server: FakeEndpoint, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hangs:
        endpoint = ""

        def get(self, path: str) -> None:
            raise HostError("the node (process 7) does not answer: end that process")

    monkeypatch.setattr(NodeClient, "find", Hangs)
    assert main(["status", "--port", str(server.server_port)]) == 0
    assert "the node (process 7) does not answer: end that process\n" in capsys.readouterr().out


def test_where_no_port_is_named_the_node_s_endpoint_is_asked(
    server: FakeEndpoint, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    note = NodeNote(pid=7, port=1, token="token", endpoint=url, started_at=0.0)
    monkeypatch.setattr("engine.node.endpoint.find_node", lambda: note)
    assert main(["chat", "What?"]) == 0
    assert capsys.readouterr().out.startswith("A race.")
    assert main(["status"]) == 0
    assert f"endpoint  {url}  ok" in capsys.readouterr().out
    assert Endpoint.named("127.0.0.1", 7118).port == 7118


@pytest.mark.parametrize(
    ("is_leaving", "words"), [(True, "ready, and loaded anew once its answers have ended"), (False, "ready")]
)
def test_status_tells_of_an_engine_that_begins_no_answer(
    server: FakeEndpoint, capsys, monkeypatch: pytest.MonkeyPatch, is_leaving: bool, words: str
) -> None:
    engine = {"model": "tiny", "state": "ready", "last_exits": [], "leaving": is_leaving}
    node = {"name": "here", "baton": "1", "engines": [engine], "joins": [], "workers": [], "notes": []}

    class Node:
        def get(self, path: str) -> dict:
            return {"node": node, "peers": []}

    monkeypatch.setattr(NodeClient, "find", Node)
    assert main(["status", "--port", str(server.server_port)]) == 0
    assert capsys.readouterr().out.splitlines()[1].strip() == f"decodes tiny: {words}"
