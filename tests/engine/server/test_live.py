"""The endpoint on a real socket: the `openai` client, disconnects, shutdown."""

import asyncio
import importlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest

from engine.batching.request import FinishReason
from engine.errors import InvalidRequest
from engine.server.inbox import Inbox
from engine.server.run import HttpServer
from tests.engine.batching.fakes import TIMEOUT_S
from tests.engine.server.fakes import CHAT, HELLO, serving, stand


@pytest.fixture
def live():
    with (
        stand(bench={"n_slots": 2, "n_ctx": 4096, "chunk_tokens": 8}, keepalive_s=0.02) as s,
        serving(s.app) as url,
    ):
        s.url = url
        yield s


@pytest.fixture(scope="module")
def openai():
    """Imported where it is used: that takes longer than all tests of this file."""
    return importlib.import_module("openai")


@pytest.fixture
def client(live, openai):
    with openai.OpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S) as made:
        yield made


def test_openai_client_chats(live, client):
    answer = client.chat.completions.create(model="fake", messages=HELLO, max_tokens=6, temperature=0)
    expected = bytes(live.bench.alone("user: hello\nassistant: ", max_tokens=6)).decode()
    assert answer.choices[0].message.content == expected
    assert answer.usage.completion_tokens == 6
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.model_extra["timings"]["predicted_n"] == 6


def test_openai_client_streams(client):
    whole = client.chat.completions.create(model="fake", messages=HELLO, max_tokens=9, temperature=0)
    stream = client.chat.completions.create(
        model="fake",
        messages=HELLO,
        max_tokens=9,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"prefill": "local", "return_progress": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 9


def test_openai_client_completes_and_lists(client):
    answer = client.completions.create(model="fake", prompt=list(b"hello"), max_tokens=4, logprobs=2)
    assert len(answer.choices[0].logprobs.tokens) == 4
    assert client.models.list().data[0].id == "fake"
    assert client.models.retrieve("fake").id == "fake"


def test_openai_client_understands_our_errors(client, openai):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="fake", prompt="x" * 5000)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.body["n_ctx"] == 4096
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="fake", messages=HELLO, temperature=-1)
    assert caught.value.param == "temperature"


def test_two_streams_interleave_and_do_not_mix(live):
    bodies = [
        {"prompt": f"secret {name}", "max_tokens": 40, "temperature": 0, "stream": True} for name in "ab"
    ]
    live.model.hold()
    texts = ["", ""]

    def read(index):
        with httpx.stream(
            "POST", live.url + "/v1/completions", json=bodies[index], timeout=TIMEOUT_S
        ) as response:
            for chunk in sse(response):
                texts[index] += chunk["choices"][0]["text"]

    threads = [threading.Thread(target=read, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    live.model.release()
    for thread in threads:
        thread.join(TIMEOUT_S)
    for index, body in enumerate(bodies):
        prompt = [257, *body["prompt"].encode()]
        assert texts[index] == bytes(live.bench.alone(prompt, max_tokens=40)).decode()


def sse(response):
    return data_of(response.iter_lines())


def data_of(lines):
    for line in lines:
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def start(live, body, until):
    """Send a chat and hang up once `until(response)` returns."""
    body = {"messages": HELLO, "temperature": 0} | body
    with httpx.stream("POST", live.url + CHAT, json=body, timeout=TIMEOUT_S) as response:
        until(response)


def test_hanging_up_while_decoding_frees_the_slot(live):
    start(live, {"stream": True}, lambda response: next(sse(response)))
    live.engine.wait_cancelled()
    assert live.bench.ask("next").last.reason is FinishReason.LENGTH
    assert [slot.state for slot in live.bench.loop.snapshot().slots] == ["idle", "idle"]


def test_hanging_up_while_prefilling_frees_the_slot_within_a_chunk(live):
    live.model.hold()
    long = [{"role": "user", "content": "x" * 2000}]
    start(live, {"stream": True, "messages": long}, lambda response: next(response.iter_lines()))
    live.engine.wait_cancelled()
    n_steps = len(live.model.steps)
    live.model.release()
    assert live.bench.ask("a", max_tokens=1).last.reason is FinishReason.LENGTH
    assert len(live.model.steps) <= n_steps + 1


def test_hanging_up_on_a_whole_answer_frees_the_slot(live):
    live.model.hold()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(live.url + CHAT, json={"messages": HELLO}, timeout=0.2)
    live.engine.wait_cancelled()
    live.model.release()
    assert live.bench.ask("next").last.reason is FinishReason.LENGTH


def test_a_silent_prefill_says_that_it_lives(live):
    live.model.hold()

    def two_comments(response):
        lines = (line for line in response.iter_lines() if line)
        assert [next(lines), next(lines)] == [":", ":"]
        live.model.release()
        chunks = list(data_of(lines))
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"

    start(live, {"stream": True, "max_tokens": 3}, two_comments)


def test_an_error_after_the_first_chunk_is_an_event_of_the_stream(live, caplog):
    live.model.hold()
    live.model.allow(5)
    live.model.fail_when = lambda step: len(live.model.steps) > 5
    live.model.fail_next = RuntimeError("bad kernel")

    def read(response):
        assert response.status_code == 200
        chunks = sse(response)
        assert next(chunks)["choices"]
        live.model.release()
        assert "bad kernel" in list(chunks)[-1]["error"]["message"]

    start(live, {"stream": True}, read)


def test_openai_client_raises_an_error_in_the_stream(live, client, openai, caplog):
    live.model.hold()
    live.model.allow(5)
    live.model.fail_when = lambda step: len(live.model.steps) > 5
    live.model.fail_next = RuntimeError("bad kernel")
    stream = client.chat.completions.create(model="fake", messages=HELLO, stream=True)
    next(stream)
    live.model.release()
    with pytest.raises(openai.APIError, match="bad kernel"):
        list(stream)


def test_connections_that_say_nothing_do_not_matter(live):
    host, port = "127.0.0.1", int(live.url.rpartition(":")[2])
    idle = [socket.create_connection((host, port)) for _ in range(20)]
    for connection in idle[10:]:
        connection.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        connection.close()
    assert httpx.get(live.url + "/health", timeout=2).status_code == 200
    for connection in idle[:10]:
        connection.close()


def test_stopping_ends_open_streams_at_once():
    with stand(bench={"n_ctx": 4096}) as s:
        server = HttpServer(s.app)
        ready = threading.Event()
        thread = threading.Thread(target=server.run, args=(lambda port: ready.set(),))
        thread.start()
        assert ready.wait(TIMEOUT_S)
        s.model.hold()
        s.model.allow(3)
        body = {"prompt": "hello", "stream": True}
        with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=TIMEOUT_S) as response:
            chunks = sse(response)
            next(chunks)
            began = time.monotonic()
            server.stop()
            last = list(chunks)[-1]
        thread.join(TIMEOUT_S)
        assert time.monotonic() - began < 2
        assert last["error"]["message"] == "the model was unloaded, or Baton was stopped, while it answered"


SERVE = """
import sys
from engine.server.app import build_loading_app
from engine.server.run import serve
from engine.server.settings import ServerSettings
serve(build_loading_app(ServerSettings()), on_ready=lambda port: print(port, flush=True))
print("put away", flush=True)
assert "torch" not in sys.modules
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise there")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_and_lets_its_caller_put_away(number):
    process = subprocess.Popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True)
    try:
        port = int(process.stdout.readline())
        assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=TIMEOUT_S).status_code == 503
        began = time.monotonic()
        process.send_signal(number)
        assert process.stdout.readline() == "put away\n"
        assert process.wait(TIMEOUT_S) == 0
        assert time.monotonic() - began < 2
    finally:
        process.kill()
        process.communicate()


def test_a_taken_port_is_said_with_what_to_do():
    with stand() as s, serving(s.app) as url, pytest.raises(InvalidRequest, match="--port"):
        HttpServer(s.app, port=int(url.rpartition(":")[2]))


def test_an_inbox_outlives_its_event_loop():
    async def make():
        inbox = Inbox()
        inbox.put(1)
        inbox.put(2)
        assert await inbox.take() == [1, 2]
        return inbox

    asyncio.run(make()).put(3)
