"""What the endpoints answer, without sockets."""

import json
from dataclasses import asdict

import pytest

from engine.batching import pulse
from engine.server.app import attach, build_loading_app
from engine.server.backend import Backend
from engine.server.settings import MAX_TOKENIZE_CHARS, ServerSettings
from tests.engine.batching.fakes import END, LINK_SETUP
from tests.engine.server.fakes import CHAT, HELLO, ByteTokenizer, call, events, stand

PROMPT = "user: hello\nassistant: "


def test_a_chat_is_answered_whole():
    with stand() as s:
        response = s.chat()
        assert response.status_code == 200
        answer = response.json()
        assert (answer["object"], answer["model"]) == ("chat.completion", "fake")
        assert answer["id"].startswith("chatcmpl-")
        (choice,) = answer["choices"]
        text = bytes(s.bench.alone(PROMPT, max_tokens=6)).decode()
        assert choice["message"] == {"role": "assistant", "content": text}
        assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)
        assert answer["usage"] == {
            "prompt_tokens": len(PROMPT),
            "completion_tokens": 6,
            "total_tokens": len(PROMPT) + 6,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        timings = answer["timings"]
        assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (0, len(PROMPT), 6)
        assert timings["handoff"]["prefill"] == "local"
        assert timings["handoff"]["reason"] == "no_worker"
        assert "tokens" not in answer


def test_a_chat_streams_the_same_text():
    with stand() as s:
        whole = s.chat().json()
        response = s.chat(stream=True)
        assert response.headers["content-type"].startswith("text/event-stream")
        *chunks, done = events(response)
        assert done == "[DONE]"
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert len({chunk["id"] for chunk in chunks}) == 1
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert deltas[-1] == {}
        assert (
            "".join(delta.get("content", "") for delta in deltas) == whole["choices"][0]["message"]["content"]
        )
        reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
        assert reasons == [None] * (len(chunks) - 1) + ["length"]
        assert chunks[-1]["timings"]["predicted_n"] == 6
        assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("include_usage", [True, False])
def test_the_usage_chunk_comes_when_asked_for(include_usage):
    with stand() as s:
        *chunks, done = events(s.chat(stream=True, stream_options={"include_usage": include_usage}))
        with_usage = [chunk for chunk in chunks if "usage" in chunk]
        assert done == "[DONE]"
        assert len(with_usage) == include_usage
        if include_usage:
            assert chunks[-1] == with_usage[0]
            assert chunks[-1]["choices"] == []
            assert chunks[-1]["usage"]["completion_tokens"] == 6
            assert chunks[-1]["timings"]["predicted_n"] == 6


def test_a_completion_is_answered_whole_and_streamed():
    with stand() as s:
        whole = s.complete().json()
        assert whole["object"] == "text_completion"
        text = whole["choices"][0]["text"]
        # The tokenizer's own begin token counts.
        assert whole["usage"]["prompt_tokens"] == 6
        *chunks, done = events(s.complete(stream=True))
        assert done == "[DONE]"
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_token_ids_are_a_prompt_as_they_are():
    with stand() as s:
        by_ids = s.complete([257, *b"hello"]).json()
        assert by_ids["choices"][0]["text"] == s.complete("hello").json()["choices"][0]["text"]


def test_tokens_are_returned_on_request():
    with stand() as s:
        tokens = s.complete(list(b"hello"), return_tokens=True).json()["tokens"]
        assert tokens == s.bench.alone("hello", max_tokens=6)
        chunks = events(s.complete(list(b"hello"), return_tokens=True, stream=True))[:-1]
        assert [token for chunk in chunks for token in chunk.get("tokens", [])] == tokens
        refused = s.complete(return_tokens=True, n=2)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "return_tokens")


def test_the_end_token_is_among_the_returned_tokens():
    with stand(bench={"choose": lambda tokens: END if len(tokens) == 7 else 65}) as s:
        answer = s.complete(list(b"hello"), return_tokens=True).json()
        assert answer["tokens"] == [65, 65, END]
        assert answer["choices"][0] == {"index": 0, "text": "AA", "logprobs": None, "finish_reason": "stop"}
        chunks = events(s.complete(list(b"hello"), return_tokens=True, stream=True))[:-1]
        assert [token for chunk in chunks for token in chunk.get("tokens", [])] == [65, 65, END]


def test_a_reused_prefix_is_counted():
    with stand() as s:
        s.chat()
        usage = s.chat().json()["usage"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": len(PROMPT) - 1}


def test_several_answers_are_several_requests():
    with stand() as s:
        one = s.complete(seed=3, temperature=1.5).json()
        answer = s.complete(["hello", "world"], n=2, seed=3, temperature=1.5).json()
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        texts = [choice["text"] for choice in answer["choices"]]
        assert texts[0] == one["choices"][0]["text"]
        assert len(set(texts)) == 4
        # Each prompt counts once, whatever its number of answers.
        assert answer["usage"]["prompt_tokens"] == 12
        assert answer["usage"]["completion_tokens"] == 24


def test_several_answers_share_a_stream():
    with stand() as s:
        *chunks, done = events(s.chat(n=3, stream=True))
        assert done == "[DONE]"
        for index in range(3):
            of_one = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
            assert of_one[0]["delta"] == {"role": "assistant", "content": ""}
            assert of_one[-1]["finish_reason"] == "length"
            assert len("".join(c["delta"].get("content", "") for c in of_one)) == 6


def test_chat_logprobs():
    with stand() as s:
        answer = s.chat(logprobs=True, top_logprobs=2).json()
        entries = answer["choices"][0]["logprobs"]["content"]
        assert "".join(entry["token"] for entry in entries) == answer["choices"][0]["message"]["content"]
        for entry in entries:
            assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] < 0
            assert entry["bytes"] == list(entry["token"].encode())
            assert len(entry["top_logprobs"]) == 2
        chunks = events(s.chat(logprobs=True, top_logprobs=2, stream=True))[:-1]
        streamed = [e for c in chunks for e in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
        assert streamed == entries


def test_completion_logprobs():
    with stand() as s:
        answer = s.complete(logprobs=1).json()["choices"][0]
        logprobs = answer["logprobs"]
        assert "".join(logprobs["tokens"]) == answer["text"]
        assert logprobs["text_offset"] == list(range(6))
        assert [list(top.values()) for top in logprobs["top_logprobs"]] == [
            [p] for p in logprobs["token_logprobs"]
        ]


def test_stop_strings_are_left_out():
    text = b"one STOP two"
    with stand(bench={"choose": lambda tokens: text[(len(tokens) - 2) % len(text)]}) as s:
        answer = s.complete([1, 2], stop=["STOP"], max_tokens=40).json()["choices"][0]
        assert (answer["text"], answer["finish_reason"]) == ("one ", "stop")


def test_progress_is_told_when_asked_for():
    with stand(bench={"chunk_tokens": 8}) as s:
        chunks = events(s.chat(stream=True, return_progress=True))[:-1]
        progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
        assert [(p["processed"], p["total"], p["cache"]) for p in progress] == [
            (8, len(PROMPT), 0),
            (15, len(PROMPT), 0),
            (22, len(PROMPT), 0),
        ]
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"


def test_a_worker_that_is_asked_for_and_absent_is_no_error():
    with stand() as s:
        answer = s.chat(prefill="remote").json()
        assert answer["timings"]["handoff"]["prefill"] == "local"
        assert answer["timings"]["handoff"]["detail"].startswith("no other computer")


def test_remote_prefill_is_told_in_the_timings():
    with stand(bench={"worker": True, "automatic": True}) as s:
        handoff = s.chat(prefill="remote").json()["timings"]["handoff"]
        assert (handoff["prefill"], handoff["bytes"], handoff["overlap"], handoff["tail_ms"]) == (
            "remote",
            4096,
            0.75,
            1.5,
        )


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_is_refused_with_both_counts(stream):
    with stand(bench={"worker": True}) as s:
        response = s.complete(list(range(97, 122)) * 30, stream=stream, prefill="remote")
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("exceed_context_size_error", "context_length_exceeded")
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (750, 512)
        assert "750" in error["message"] and "512" in error["message"]
        assert not s.bench.client.asked


def test_a_prompt_far_too_long_is_refused_before_it_becomes_tokens(monkeypatch):
    monkeypatch.setattr(ByteTokenizer, "encode", lambda *_, **__: pytest.fail("made tokens of it"))
    with stand() as s:
        text = "x" * 200_000
        for response in (s.complete(text), s.chat(messages=[{"role": "user", "content": text}])):
            assert response.status_code == 400
            error = response.json()["error"]
            assert error["type"] == "exceed_context_size_error"
            assert (error["n_prompt_tokens"] >= 100_000, error["n_ctx"]) == (True, 512)
            assert f"at least {error['n_prompt_tokens']} tokens" in error["message"]


def test_text_to_tokenize_is_taken_up_to_a_limit():
    with stand() as s:
        response = s.post("/tokenize", {"content": "x" * (MAX_TOKENIZE_CHARS + 1)})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "content")


@pytest.mark.parametrize("stream", [False, True])
def test_a_failed_step_is_an_ordinary_error_before_the_first_chunk(stream, caplog):
    with stand() as s:
        s.model.fail_when = lambda step: True
        s.model.fail_next = RuntimeError("bad kernel")
        response = s.chat(stream=stream)
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "server_error"
        assert s.chat().status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "not valid JSON"),
        (b"\xff\xfe", 400, "not valid JSON"),
        (b"[" * 100_000, 400, "JSON"),
        (b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400, ""),
        (b"[1]", 400, "must be a JSON object"),
        (b"", 400, "not valid JSON"),
        (b'{"messages": [{"role": "wizard", "content": "x"}]}', 400, "'wizard'"),
        (b'{"messages": [{"role": "user"}]}', 400, "content is missing"),
        (b'{"messages": [{"role": "user", "content": "abracadabra"}]}', 400, "the template knows no magic"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400, ""),
    ],
)
def test_broken_bodies_are_the_clients_fault(body, status, words):
    with stand() as s:
        response = s.call("POST", CHAT, content=body)
        assert response.status_code == status
        error = response.json()["error"]
        assert words in error["message"]
        assert error["type"] == "invalid_request_error"
        assert set(error) == {"message", "type", "param", "code"}


def test_a_wrong_field_is_named():
    with stand() as s:
        response = s.chat(temperature="hot")
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "temperature"
        bad = s.complete([1, 99999])
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, "prompt")


def test_a_body_over_the_limit_is_refused():
    with stand(max_body_bytes=100) as s:
        assert s.call("POST", CHAT, content=b"x" * 101).status_code == 413

        async def parts():
            for _ in range(3):
                yield b"x" * 50

        assert s.call("POST", CHAT, content=parts()).status_code == 413


def test_a_client_that_still_sends_reads_why_it_is_refused():
    with stand(max_body_bytes=100) as s:
        response = s.call("POST", CHAT, content=b"x" * (8 << 20))
        assert response.status_code == 413
        assert "larger than the 100 bytes allowed" in response.text


def test_unknown_paths_and_methods_are_errors_in_the_same_shape():
    with stand() as s:
        assert s.call("GET", "/nowhere").status_code == 404
        response = s.call("GET", CHAT)
        assert response.status_code == 405
        assert response.json()["error"]["message"] == "GET is not allowed here"


def test_any_model_name_is_taken_and_the_loaded_one_is_named():
    with stand() as s:
        assert s.chat(model="gpt-4o").json()["model"] == "fake"
        assert s.complete(model="gpt-4o").json()["model"] == "fake"
        chunks = events(s.chat(model="gpt-4o", stream=True))[:-1]
        assert {chunk["model"] for chunk in chunks} == {"fake"}


def test_a_mistake_of_ours_is_said_without_details(caplog):
    with stand() as s:
        s.template.encode = lambda *_, **__: 1 / 0
        response = s.chat()
        assert response.status_code == 500
        assert "division" not in response.text
        assert response.json()["error"]["type"] == "server_error"


def test_models_are_listed_with_their_measures():
    with stand() as s:
        for path in ("/models", "/v1/models"):
            (model,) = s.call("GET", path).json()["data"]
            assert (model["id"], model["object"]) == ("fake", "model")
            assert model["meta"] == {
                "n_ctx": 512,
                "n_ctx_train": 4096,
                "n_vocab": 260,
                "n_params": 7,
                "size": 9,
            }
        assert s.call("GET", "/v1/models/fake").json()["id"] == "fake"
        assert s.call("GET", "/v1/models/other").status_code == 404


def test_slots_are_shown_without_anyones_prompt():
    with stand() as s:
        s.chat(messages=[{"role": "user", "content": "my secret is plum"}])
        response = s.call("GET", "/slots")
        first, second = response.json()
        assert (first["id"], first["state"], first["is_processing"], first["n_ctx"]) == (
            0,
            "idle",
            False,
            512,
        )
        assert first["n_cached_tokens"] > second["n_cached_tokens"] == 0
        assert "plum" not in response.text


def test_the_worker_is_told_of():
    with stand() as s:
        assert s.call("GET", "/worker").json() == {
            "configured": False,
            "connected": False,
            "peer": None,
            "note": None,
            "link": None,
            "route": "auto",
            "crossover_tokens": None,
            "local_tps": {},
            "remote_tps": {},
            "goodput_bytes_per_second": None,
            "best_goodput_bytes_per_second": None,
            "reasons": {},
        }
    with stand(bench={"worker": True, "automatic": True}) as s:
        s.chat(prefill="remote")
        told = s.call("GET", "/worker").json()
        assert (told["configured"], told["connected"], told["note"]) == (True, True, None)
        assert told["peer"] == "192.168.1.20:7118"
        assert told["link"] == asdict(LINK_SETUP)
        assert told["reasons"] == {"asked_remote": 1}
        assert told["goodput_bytes_per_second"] == told["best_goodput_bytes_per_second"] == 350_000
        for _ in range(2):
            s.chat(prefill="remote", cache_prompt=False)
            s.chat(prefill="local", cache_prompt=False)
        told = s.call("GET", "/worker").json()
        assert len(told["local_tps"]) == len(told["remote_tps"]) == 1
        answer = s.chat(prefill="local", cache_prompt=False).json()
        assert all(ms > 0 for ms in answer["timings"]["handoff"]["predicted"].values())
        s.bench.client.ready = False
        told = s.call("GET", "/worker").json()
        assert (told["connected"], told["peer"], told["note"]) == (False, None, "the worker is away")
        assert told["link"] is None


def test_no_free_slot_can_be_a_503():
    with stand(bench={"n_slots": 1}) as s:
        assert s.call("GET", "/slots?fail_on_no_slot=1").status_code == 200
        s.model.hold()
        s.bench.ask("hello", max_tokens=None)
        s.model.wait_entered()
        assert s.call("GET", "/slots").status_code == 200
        assert s.call("GET", "/slots?fail_on_no_slot=1").status_code == 503


def test_health_follows_the_engine():
    app = build_loading_app(ServerSettings())
    assert call(app, "GET", "/health").status_code == 503
    for method, path in (
        ("GET", "/v1/models"),
        ("GET", "/slots"),
        ("GET", "/worker"),
        ("GET", "/requests/cmpl-1-0"),
        ("POST", "/v1/completions"),
    ):
        response = call(app, method, path, content=b"{}")
        assert (response.status_code, response.json()["error"]["type"]) == (503, "unavailable_error")
    with stand() as s:
        attach(
            app,
            Backend(
                engine=s.engine, tokenizer=ByteTokenizer(), template=None, model=s.app.state.backend.model
            ),
        )
        assert call(app, "GET", "/health").json() == {"status": "ok"}
        assert call(app, "POST", CHAT, json={"messages": HELLO}).status_code == 400
    assert call(app, "GET", "/v1/health").status_code == 500


def test_an_engine_that_does_not_get_on_with_its_work_is_not_well(monkeypatch):
    with stand() as s:
        s.chat()
        monkeypatch.setattr(pulse, "STUCK_AFTER_S", 0.0)
        s.model.hold()
        s.bench.ask("hello", max_tokens=None)
        s.model.wait_entered()
        assert s.call("GET", "/health").status_code == 500
        monkeypatch.undo()
        assert s.call("GET", "/health").status_code == 200
        s.model.release()


def test_tokenize_and_detokenize():
    with stand() as s:
        assert s.post("/tokenize", {"content": "hé"}).json() == {"tokens": [104, 195, 169]}
        assert s.post("/tokenize", {"content": "h", "add_special": True}).json() == {"tokens": [257, 104]}
        pieces = s.post("/tokenize", {"content": "hé", "with_pieces": True}).json()["tokens"]
        assert pieces == [{"id": 104, "piece": "h"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]
        assert s.post("/detokenize", {"tokens": [104, 195, 169]}).json() == {"content": "hé"}
        assert s.post("/detokenize", {"tokens": [9999]}).status_code == 400


def test_tools_and_variables_reach_the_template():
    with stand() as s:
        tools = [{"type": "function", "function": {"name": "f"}}]
        assert s.chat(tools=tools, chat_template_kwargs={"thinking": False}).status_code == 200
        assert s.template.given == {"tools": tuple(tools), "variables": {"thinking": False}}


def test_everything_sent_is_json_a_client_can_read():
    with stand() as s:
        for response in (s.chat(), s.complete(logprobs=3)):
            json.loads(response.text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
