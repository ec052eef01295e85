"""`baton node` as a process, with a real model: one endpoint that stays up while engines come, crash and go."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import psutil
import pytest

from engine.cli import node as node_command
from tests.engine.node.nodes import TIMEOUT_S, NodeProcess, events

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="engines share no memory there")

MODEL = "smollm2-135m"


@pytest.fixture(scope="module")
def node(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("node")
    models = folder / "models"
    models.mkdir()
    (models / smollm2_path.name).symlink_to(smollm2_path)
    flags = ["--port", "0", "--node-port", "0", "--ctx", "1024", "--slots", "2"]
    with NodeProcess(folder, "studio", *flags, models=models) as process:
        yield process


def engine(node: NodeProcess) -> dict[str, Any]:
    """The model's engine, once it is ready."""
    found: dict[str, Any] = node.until(
        lambda state: next((one for one in state["engines"] if one["state"] == "ready"), None)
    )
    return found


def test_a_request_loads_the_model_that_it_names(node: NodeProcess) -> None:
    assert [one["id"] for one in node.get(f"{node.endpoint}/v1/models")["data"]] == [MODEL]
    answer = node.ask(MODEL, "A relay race is")
    assert len(answer["tokens"]) == 8
    assert engine(node)["model"] == MODEL
    assert node.get(f"{node.endpoint}/health") == {"status": "ok"}
    assert len(node.get(f"{node.endpoint}/slots")) == 2
    assert "baton_requests_total" in httpx.get(f"{node.endpoint}/metrics").text


def test_an_answer_streams_through(node: NodeProcess) -> None:
    body = {"model": MODEL, "prompt": "One, two,", "max_tokens": 12, "stream": True, "temperature": 0}
    with httpx.stream("POST", f"{node.endpoint}/v1/completions", json=body, timeout=TIMEOUT_S) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        texts = [event["choices"][0]["text"] for event in events(response) if event["choices"]]
    whole = node.ask(MODEL, "One, two,", max_tokens=12)["choices"][0]["text"]
    assert len(texts) > 5 and "".join(texts) == whole


def test_a_model_that_is_not_there_is_said_so_with_those_that_are(node: NodeProcess) -> None:
    response = httpx.post(f"{node.endpoint}/v1/completions", json={"model": "gpt-9", "prompt": "x"})
    assert response.status_code == 404
    assert "there is no model 'gpt-9' here; there are: smollm2-135m" in response.json()["error"]["message"]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"model": 3}', b"\xff\xfe", b"[" * 5000])
def test_what_is_no_request_is_refused_by_whoever_it_concerns(node: NodeProcess, content: bytes) -> None:
    response = httpx.post(f"{node.endpoint}/v1/completions", content=content, timeout=TIMEOUT_S)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_a_killed_engine_is_back_within_two_seconds_and_no_request_fails(node: NodeProcess) -> None:
    before = engine(node)
    os.kill(before["pid"], signal.SIGKILL)
    answer = node.ask(MODEL, "A relay race is")
    assert len(answer["tokens"]) == 8, answer
    after = engine(node)
    assert after["pid"] != before["pid"]
    outcome = after["last_exits"][-1]
    assert "SIGKILL" in outcome["reason"]


def test_a_stream_of_a_killed_engine_ends_with_the_reason(node: NodeProcess) -> None:
    before = engine(node)
    body = {"model": MODEL, "prompt": "One", "max_tokens": 900, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{node.endpoint}/v1/completions", json=body, timeout=TIMEOUT_S) as response:
        told = events(response)
        next(told)
        os.kill(before["pid"], signal.SIGKILL)
        last = list(told)[-1]
    assert "ended while it answered" in last["error"]["message"]


def test_a_client_that_goes_frees_its_slot(node: NodeProcess) -> None:
    engine(node)
    body = {"model": MODEL, "prompt": "One", "max_tokens": 1000, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{node.endpoint}/v1/completions", json=body, timeout=TIMEOUT_S) as response:
        next(events(response))
    give_up_at = time.monotonic() + 5.0
    while any(slot["state"] != "idle" for slot in node.get(f"{node.endpoint}/slots")):
        assert time.monotonic() < give_up_at
    node.until(lambda state: state["engines"][0]["active"] == 0)


def test_unloading_frees_the_memory_and_the_next_request_loads_again(node: NodeProcess) -> None:
    pid = engine(node)["pid"]
    httpx.post(f"{node.endpoint}/models/unload", json={"model": MODEL}, timeout=TIMEOUT_S).raise_for_status()
    assert not psutil.pid_exists(pid)
    assert node.state()["engines"] == []
    assert httpx.get(f"{node.endpoint}/slots").status_code == 503
    again = httpx.post(f"{node.endpoint}/models/unload", json={"model": MODEL}, timeout=TIMEOUT_S)
    assert again.status_code == 400 and "is not loaded" in again.text
    httpx.post(f"{node.endpoint}/models/load", json={"model": MODEL}, timeout=TIMEOUT_S).raise_for_status()
    engine(node)


def test_a_model_that_is_deleted_by_hand_is_no_trouble_to_the_others(node: NodeProcess) -> None:
    models = node.folder.parent / "models"
    other = models / "other.gguf"
    other.symlink_to(next(models.glob("*.gguf")).resolve())
    ids = [one["id"] for one in node.get(f"{node.endpoint}/v1/models")["data"]]
    assert sorted(ids) == ["other", MODEL]
    node.until(lambda state: all(model["digest"] for model in state["models"]["models"]))
    other.unlink()
    ask = {"model": MODEL, "prompt": "Hello", "max_tokens": 1}
    answer = httpx.post(f"{node.endpoint}/v1/completions", json=ask, timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text


def test_while_it_loads_a_client_is_told_to_come_back(node: NodeProcess) -> None:
    engine(node)
    httpx.post(f"{node.endpoint}/models/unload", json={"model": MODEL}, timeout=TIMEOUT_S).raise_for_status()
    httpx.post(f"{node.endpoint}/models/load", json={"model": MODEL}, timeout=TIMEOUT_S).raise_for_status()
    response = httpx.get(f"{node.endpoint}/slots")
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert response.json()["error"]["code"] == "model_loading"
    assert 0 <= response.json()["error"]["progress"] < 1
    engine(node)


def test_the_control_api_answers_nobody_without_its_token(node: NodeProcess) -> None:
    note = json.loads((node.folder / "cache" / "baton" / "node" / "node.json").read_text())
    url = f"http://127.0.0.1:{note['port']}"
    for path in ("/state", "/events", "/health", "/"):
        assert httpx.get(url + path).status_code == 401
        assert httpx.get(url + path, headers={"Authorization": "Bearer x"}).status_code == 401
    right = {"Authorization": f"Bearer {note['token']}"}
    assert httpx.get(f"{url}/state", headers={**right, "Host": "evil.example"}).status_code == 403
    assert httpx.get(f"{url}/state", headers={**right, "Origin": "https://evil.example"}).status_code == 403
    assert httpx.get(f"{url}/state", headers=right).status_code == 200
    mode = (node.folder / "cache" / "baton" / "node" / "node.json").stat().st_mode & 0o777
    assert mode == 0o600


def test_news_come_as_they_happen(node: NodeProcess) -> None:
    note = json.loads((node.folder / "cache" / "baton" / "node" / "node.json").read_text())
    pid = engine(node)["pid"]
    url, key = f"http://127.0.0.1:{note['port']}/events", {"Authorization": f"Bearer {note['token']}"}
    with httpx.stream("GET", url, headers=key, timeout=TIMEOUT_S) as response:
        told = events(response)
        assert next(told)["engines"][0]["state"] == "ready"
        os.kill(pid, signal.SIGKILL)
        states = []
        for news in told:
            states += [one["state"] for one in news.get("engines", [])]
            if states and states[-1] == "ready":
                break
    assert "ready" in states and len(set(states)) > 1


def test_what_its_user_should_know_is_news(node: NodeProcess) -> None:
    """That a model keeps the computer awake, or that nothing can."""
    note = json.loads((node.folder / "cache" / "baton" / "node" / "node.json").read_text())
    url, key = f"http://127.0.0.1:{note['port']}/events", {"Authorization": f"Bearer {note['token']}"}
    engine(node)
    with httpx.stream("GET", url, headers=key, timeout=TIMEOUT_S) as response:
        told = events(response)
        before = next(told)["node"]["notes"]
        httpx.post(f"{node.endpoint}/models/unload", json={"model": MODEL}, timeout=TIMEOUT_S)
        after = next(news["node"]["notes"] for news in told if "node" in news)
    assert len(after) == len(before) - 1
    httpx.post(f"{node.endpoint}/models/load", json={"model": MODEL}, timeout=TIMEOUT_S).raise_for_status()
    engine(node)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is given back by its C library")
def test_large_requests_leave_nothing_in_memory(node: NodeProcess) -> None:
    engine(node)
    assert node.process is not None
    process = psutil.Process(node.process.pid)
    before = process.memory_info().rss
    body = json.dumps({"model": MODEL, "prompt": "a b " * 5_000_000})
    for _ in range(5):
        answer = httpx.post(f"{node.endpoint}/v1/completions", content=body, timeout=TIMEOUT_S)
        assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert process.memory_info().rss < before + 2 * len(body)


def test_a_model_is_unloaded_by_command(node: NodeProcess) -> None:
    engine(node)
    assert f"{MODEL} is not loaded any more" in node.baton("models", "unload", MODEL)
    assert node.state()["engines"] == []
    assert "is not loaded to answer here" in node.baton("models", "unload", MODEL, expect=2)
    node.ask(MODEL, "Hello")


@pytest.mark.soak  # it waits for a command to give up
def test_a_node_that_hangs_is_named(node: NodeProcess) -> None:
    assert node.process is not None
    os.kill(node.process.pid, signal.SIGSTOP)
    try:
        complaint = node.baton("roles", expect=1)
    finally:
        os.kill(node.process.pid, signal.SIGCONT)
    assert f"the node (process {node.process.pid}) does not answer" in complaint


def test_a_second_node_names_the_first(node: NodeProcess) -> None:
    complaint = node.baton("node", "--port", "0", expect=2)
    assert node.process is not None
    assert f"a node runs here already: process {node.process.pid}" in complaint
    assert node.endpoint in complaint


def test_a_node_that_is_told_to_end_takes_its_engines_with_it(smollm2_path: Path, tmp_path: Path) -> None:
    models = smollm2_path.parent
    with NodeProcess(tmp_path, "short", "--port", "0", "--node-port", "0", models=models) as node:
        node.ask(MODEL, "Hello")
        pid = engine(node)["pid"]
        assert "The node has ended" in node.baton("node", "--stop")
        assert not psutil.pid_exists(pid)
        assert node.process is not None and node.process.wait(TIMEOUT_S) == 0
        assert "no node runs on this computer" in node.baton("node", "--stop", expect=2)


def test_engines_do_not_outlive_a_killed_node(smollm2_path: Path, tmp_path: Path) -> None:
    models = smollm2_path.parent
    with NodeProcess(tmp_path, "short", "--port", "0", "--node-port", "0", models=models) as node:
        node.ask(MODEL, "Hello")
        engine_process = psutil.Process(engine(node)["pid"])
        node.kill()
        engine_process.wait(TIMEOUT_S)
        node.start()
        assert node.ask(MODEL, "Hello")["tokens"]


def test_a_node_ends_though_a_thread_of_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that copies a model, say: nobody waits for that."""
    monkeypatch.setattr(node_command, "_CLOSE_WITHIN_S", 0.1)
    release = threading.Event()

    class Stuck:
        async def run(self, on_ready: Any) -> None:
            asyncio.get_running_loop().run_in_executor(None, release.wait)

        def stop_soon(self) -> None:
            pass

    runner = node_command._Runner(cast(Any, Stuck()), on_ready=None)
    main = threading.Thread(target=runner.run, daemon=True)
    main.start()
    try:
        main.join(TIMEOUT_S)
        assert not main.is_alive()
        assert not runner.close()
    finally:
        release.set()
    runner._thread.join(TIMEOUT_S)
    assert runner.close()
