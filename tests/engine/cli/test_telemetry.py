"""What the endpoint tells of itself, with real processes and a real model: one prompt that a worker prefills.

Events come in order, and /slots, /metrics and the answer say the same.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.cli.children import Child, ended_together
from engine.handoff.target import Target
from engine.node.trust.identity import Identity

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="engines share no memory there")

TIMEOUT_S = 60.0

# Half a round trip of the quickest of a few pings between two busy processes is far less.
CLOCKS_MS = 50.0
PROMPT = "The runner who hands over the baton is already tired, and the one who takes it is fresh. " * 10


@pytest.fixture(scope="module")
def joined(
    smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Child, Child]]:
    with running(smollm2_path, tmp_path_factory.mktemp("telemetry")) as engines:
        yield engines


@contextlib.contextmanager
def running(model: Path, folder: Path, *decoder_flags: str) -> Iterator[tuple[str, Child, Child]]:
    """A decoder's URL, itself and its worker."""
    worker_id = Identity.load_or_create(folder / "worker")
    decoder_id = Identity.load_or_create(folder / "decoder")
    common = ["--model", str(model), "--ctx", "1024", "--slots", "1"]
    worker_words = ["worker", "--listen", "127.0.0.1:0", "--identity", str(folder / "worker")]
    worker_words += ["--trust", decoder_id.fingerprint, *common]
    decoder_words = ["serve", "--port", "0", "--chunk", "64", "--identity", str(folder / "decoder")]
    decoder_words += ["--peer", "-", "--trust", worker_id.fingerprint, *common, *decoder_flags]
    with (
        Child("worker", worker_words, folder / "worker.log") as worker,
        Child("decoder", decoder_words, folder / "decoder.log") as decoder,
        ended_together(worker, decoder),
    ):
        decoder.tell(Target(dial=f"127.0.0.1:{worker.wait_for('ready', timeout_s=TIMEOUT_S)['port']}").line())
        port = decoder.wait_for("ready", timeout_s=TIMEOUT_S)["port"]
        decoder.wait_for("worker", timeout_s=TIMEOUT_S)
        yield f"http://127.0.0.1:{port}", decoder, worker


def events(response: httpx.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def until(told: Iterator[tuple[str, dict[str, Any]]], *, event: str, **fields: Any) -> list[Any]:
    seen = []
    for name, data in told:
        seen.append((name, data))
        if name == event and fields.items() <= data.items():
            return seen
    pytest.fail(f"the stream ended without {event} {fields}: {seen}")


def ask(url: str, **body: Any) -> dict[str, Any]:
    body = {
        "prompt": PROMPT,
        "max_tokens": 12,
        "temperature": 0,
        "cache_prompt": False,
        "prefill": "remote",
    } | body
    answer: dict[str, Any] = httpx.post(url + "/v1/completions", json=body, timeout=TIMEOUT_S).json()
    return answer


def metrics(url: str) -> dict[Any, float]:
    text = httpx.get(url + "/metrics", timeout=TIMEOUT_S).text
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def without_layers(timeline: dict[str, Any]) -> dict[str, Any]:
    bare = [{key: chunk[key] for key in chunk if key != "layers"} for chunk in timeline["chunks"]]
    return timeline | {"chunks": bare}


def check_line_of_time(timeline: dict[str, Any]) -> None:
    """Both processes' moments in their order. One computer has one clock, and pings say so but for their round trip."""
    for chunk in timeline["chunks"]:
        layers = chunk["layers"]
        # K and V in bf16: 30 layers, 3 heads of 64
        assert [layer["layer"] for layer in layers] == list(range(30))
        assert {layer["bytes"] for layer in layers} == {(chunk["stop"] - chunk["first"]) * 3 * 64 * 2 * 2}
        assert all(layer["first_byte_ms"] < layer["last_byte_ms"] < chunk["at_ms"] for layer in layers)
        came = [layer["last_byte_ms"] for layer in layers]
        queued = [layer["queued_ms"] for layer in layers]
        assert came == sorted(came) and queued == sorted(queued)
        begun_ms = chunk["computed_ms"] - chunk["compute_ms"]
        moments = [timeline["started_ms"], begun_ms, queued[0], came[0]]
        assert all(late >= early - CLOCKS_MS for early, late in itertools.pairwise(moments))
        assert begun_ms < chunk["computed_ms"] <= chunk["at_ms"] + CLOCKS_MS
    last = timeline["chunks"][-1]
    assert (
        last["computed_ms"] + timeline["handoff"]["tail_ms"] >= last["layers"][-1]["last_byte_ms"] - CLOCKS_MS
    )


def test_a_handoff_is_told_as_it_happens_and_everywhere_alike(joined: tuple[str, Child, Child]) -> None:
    url, _, _ = joined
    with httpx.stream("GET", url + "/events", timeout=TIMEOUT_S) as response:
        told = events(response)
        name, snapshot = next(told)
        assert name == "snapshot" and snapshot["worker"]["connected"] and snapshot["requests"] == []
        answer = ask(url)
        timings, usage = answer["timings"], answer["usage"]
        seen = until(told, event="request", state="ended")
        while (end := seen[-1][1])["handoff"]["tail_ms"] is None:
            seen += until(told, event="request", state="ended")

    moves = [data["state"] for name, data in seen if name == "request"]
    assert list(dict.fromkeys(moves)) == ["queued", "prefill_remote", "decode", "ended"]
    chunks = [data for name, data in seen if name == "chunk"]
    assert [chunk["first"] for chunk in chunks[1:]] == [chunk["stop"] for chunk in chunks[:-1]]
    assert chunks[0]["first"] == 0 and chunks[-1]["stop"] == usage["prompt_tokens"] - 1
    assert len(chunks) > 2
    names = ["queued", "started", "accepted", "prefilled", "first_token", "last_token", "ended"]
    moments = [end[f"{name}_ms"] for name in names]
    assert moments == sorted(moments)
    assert end["route"]["reason"] == timings["handoff"]["reason"] == "asked_remote"
    assert end["n_remote_tokens"] == timings["handoff"]["remote_tokens"] == usage["prompt_tokens"] - 1
    assert end["first_token_ms"] - end["started_ms"] == pytest.approx(timings["prompt_ms"], abs=50)
    handoff = end["handoff"]
    assert handoff["bytes"] == timings["handoff"]["bytes"] == sum(chunk["bytes"] for chunk in chunks)
    assert 0 < handoff["hidden_ms"] <= handoff["receive_ms"] and handoff["goodput_bytes_per_second"] > 0
    assert (handoff["codec"], handoff["wire_bytes"]) == ("raw", handoff["bytes"])
    assert handoff["codec_reason"] == "the link has not been measured yet"
    computed = [chunk["compute_ms"] for chunk in end["chunks"]]
    assert all(computed) and sum(computed) <= handoff["compute_ms"] * 1.01

    (slot,) = httpx.get(url + "/slots", timeout=TIMEOUT_S).json()
    whole = slot["timeline"]
    assert slot["state"] == "idle" and without_layers(whole) == end
    assert httpx.get(f"{url}/requests/{end['id']}", timeout=TIMEOUT_S).json() == whole
    assert [chunk["layers"] for chunk in whole["chunks"]] == [chunk["layers"] for chunk in chunks]
    check_line_of_time(whole)

    found = metrics(url)
    assert found["baton_prompt_tokens_total", "remote"] == end["n_remote_tokens"]
    assert found["baton_prompt_tokens_total", "local"] == timings["prompt_n"] - end["n_remote_tokens"] == 1
    assert found["baton_generation_tokens_total",] == timings["predicted_n"] == end["n_decoded"]
    assert found["baton_requests_total", end["outcome"]] == 1
    assert found["baton_prefills_total", "asked_remote", "remote"] == 1
    assert found["baton_handoff_bytes_total",] == handoff["bytes"]
    assert found["baton_handoff_tail_seconds_sum",] == pytest.approx(handoff["tail_ms"] / 1000)
    assert found["baton_handoff_overlap_ratio_sum",] == pytest.approx(handoff["overlap"])
    assert found["baton_link_goodput_bytes_per_second",] == pytest.approx(handoff["goodput_bytes_per_second"])
    first_token_s = found["baton_time_to_first_token_seconds_sum",]
    assert first_token_s == pytest.approx(end["first_token_ms"] / 1000, abs=1e-6)
    assert found["baton_inter_token_latency_seconds_count",] == timings["predicted_n"] - 1
    assert found["baton_worker_connected",] == 1
    assert found["process_resident_memory_bytes",] > 0


def test_a_worker_that_goes_is_told_with_the_reason(joined: tuple[str, Child, Child]) -> None:
    """Last in this file: it takes the worker away."""
    url, _, worker = joined
    with httpx.stream("GET", url + "/events", timeout=TIMEOUT_S) as response:
        told = events(response)
        assert next(told)[1]["worker"]["connected"]
        worker.close()
        (*_, (_, down)) = until(told, event="link", connected=False)
        assert down["reason"] and down["note"] and down["peer"] is None
        assert ask(url)["timings"]["handoff"]["reason"] == "worker_not_ready"
        (*_, (_, end)) = until(told, event="request", state="ended")
    assert end["route"]["prefill"] == "local" and end["handoff"] is None and end["fallback"] is None
    found = metrics(url)
    assert found["baton_link_downs_total", down["reason"]] == 1
    assert found["baton_prefills_total", "local", "worker_not_ready"] == 1
    assert found["baton_worker_connected",] == 0
