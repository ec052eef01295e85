"""`/events` on a real socket: what a listener sees, how it goes on, and that it is in nobody's way."""

import json
import re
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import httpx
import pytest

from engine.batching import journal
from engine.server import events
from engine.server.run import HttpServer
from tests.engine.batching.fakes import N_LAYERS, TIMEOUT_S
from tests.engine.server.fakes import serving, stand

PAGE = Path(__file__).parents[3] / "docs" / "endpoint.md"
LONG = "the quick brown fox jumps over the lazy dog, " * 4
REMOTE = {"n_slots": 2, "n_ctx": 512, "chunk_tokens": 32, "worker": True, "automatic": True}


@contextmanager
def live(**settings):
    with stand(bench=REMOTE, **({"keepalive_s": 5.0} | settings)) as s, serving(s.app) as url:
        s.url = url
        yield s


class Listener:
    """One connection to /events."""

    def __init__(self, response):
        self.response = response
        self._lines = response.iter_lines()
        self.last_id = None

    def line(self):
        return next(self._lines)

    def next(self):
        """The next event's name and data; comments and the retry time are left out."""
        found = {}
        for line in self._lines:
            if not line:
                if "data" in found:
                    self.last_id = found.get("id", self.last_id)
                    return found["event"], json.loads(found["data"])
                found = {}
            name, _, value = line.partition(": ")
            found[name] = value
        return None

    def until(self, wanted):
        """All events up to the first that `wanted(name, data)`."""
        seen = []
        while True:
            seen.append(self.next())
            assert seen[-1] is not None, seen
            if wanted(*seen[-1]):
                return seen


@contextmanager
def listen(s, last_id=None, **headers):
    if last_id is not None:
        headers["last-event-id"] = last_id
    with httpx.stream("GET", s.url + "/events", headers=headers, timeout=TIMEOUT_S) as response:
        assert response.status_code == 200, response.read()
        yield Listener(response)


def ask(s, prompt=LONG, **body):
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0} | body
    return httpx.post(s.url + "/v1/completions", json=body, timeout=TIMEOUT_S).json()


def is_end(name, data):
    return name == "request" and data["state"] == "ended"


def wait_for(condition):
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def test_a_request_from_its_coming_to_its_end():
    with live() as s, listen(s) as listener:
        assert listener.response.headers["content-type"].startswith("text/event-stream")
        name, snapshot = listener.next()
        assert name == "snapshot"
        assert [slot["state"] for slot in snapshot["slots"]] == ["idle", "idle"]
        assert snapshot["worker"]["connected"] and snapshot["requests"] == []
        timings = ask(s)["timings"]
        seen = [event for event in listener.until(is_end) if event[0] != "slots"]
        moves = [data["state"] for name, data in seen if name == "request"]
        assert list(dict.fromkeys(moves)) == ["queued", "prefill_remote", "decode", "ended"]
        chunks = [data for name, data in seen if name == "chunk"]
        assert chunks[-1]["stop"] == chunks[-1]["n_prompt_tokens"] - 1
        assert {chunk["prefill"] for chunk in chunks} == {"remote"}
        _, end = seen[-1]
        assert end["route"] == {
            "prefill": "remote",
            "reason": "long_prompt",
            "detail": timings["handoff"]["detail"],
            "predicted": None,
        }
        assert end["n_decoded"] == timings["predicted_n"] == 4
        assert end["n_remote_tokens"] == timings["handoff"]["remote_tokens"]
        assert end["handoff"]["bytes"] == timings["handoff"]["bytes"]
        assert end["handoff"]["wire_bytes"] == 2800
        assert (end["handoff"]["codec"], end["handoff"]["codec_reason"]) == ("lossless", "it was sooner")
        assert (end["handoff"]["hidden_ms"], end["handoff"]["hidden_share"]) == (6.5, 0.8125)
        assert end["handoff"]["best_goodput_bytes_per_second"] == 350_000
        assert [chunk["stop"] for chunk in end["chunks"]] == [chunk["stop"] for chunk in chunks]
        moments = [end[f"{name}_ms"] for name in ("queued", "started", "prefilled", "first_token", "ended")]
        assert moments == sorted(moments)
        assert abs(time.time() - end["asked"]) < 60


def test_slots_tell_the_timeline_of_their_last_request():
    with live() as s:
        assert [slot["timeline"] for slot in httpx.get(s.url + "/slots").json()] == [None, None]
        ask(s)
        first, second = httpx.get(s.url + "/slots").json()
        assert second["timeline"] is None
        assert (first["timeline"]["state"], first["timeline"]["outcome"]) == ("ended", "length")
        assert first["timeline"]["chunks"] and "quick" not in json.dumps(first)
        # what was there before
        assert {"id", "id_task", "n_ctx", "is_processing", "state", "n_decoded", "prefill"} <= set(first)


def test_a_chunk_tells_how_its_layers_came_and_a_request_can_be_looked_up_later():
    with live() as s:
        with listen(s) as listener:
            listener.next()
            ask(s)
            seen = listener.until(is_end)
        live_chunks = [data for name, data in seen if name == "chunk"]
        (_, end) = seen[-1]
        assert all("layers" not in chunk for chunk in end["chunks"])
        ask(s, "another", id_slot=end["slot"])
        whole = httpx.get(f"{s.url}/requests/{end['id']}").json()
        for chunk, told in zip(whole["chunks"], live_chunks, strict=True):
            assert {
                "id": end["id"],
                "slot": end["slot"],
                "n_prompt_tokens": end["n_prompt_tokens"],
            } | chunk == told
            assert [layer["layer"] for layer in chunk["layers"]] == list(range(N_LAYERS))
            assert sum(layer["bytes"] for layer in chunk["layers"]) == chunk["bytes"]
            for layer in chunk["layers"]:
                moments = [layer[f"{name}_ms"] for name in ("queued", "first_byte", "last_byte")]
                assert moments == pytest.approx([moments[2] - 2, moments[2] - 1, chunk["at_ms"]], abs=50)
                assert moments == sorted(moments)
            assert whole["queued_ms"] <= chunk["computed_ms"] <= chunk["at_ms"]
        assert {k: v for k, v in whole.items() if k != "chunks"} == {
            k: v for k, v in end.items() if k != "chunks"
        }


def test_a_request_that_nobody_knows_is_not_found():
    with live() as s:
        response = httpx.get(f"{s.url}/requests/cmpl-nothing-0")
    assert response.status_code == 404
    assert "is among the last 64 that ended" in response.json()["error"]["message"]


def explained(heading):
    """The names in the first column of a table of docs/endpoint.md."""
    part = PAGE.read_text(encoding="utf-8").partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    return {
        name
        for row in re.findall(r"^\| (`.*?) \|", part, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }


def test_the_page_explains_every_event_and_every_field_of_a_timeline():
    kinds = [journal.RequestNews, journal.ChunkNews, journal.LinkNews, journal.SlotsNews]
    assert set(get_args(journal.News)) == set(kinds)
    assert explained("## /events") == {"snapshot", "request", "chunk", "link", "slots", "lost"}
    with live() as s:
        ask(s)
        (first, _) = httpx.get(s.url + "/slots").json()
    timeline = first["timeline"]
    assert explained("## /slots") == timeline.keys() - {"asked"}
    chunk = timeline["chunks"][0]
    assert explained("## Chunks and layers") == chunk.keys() | chunk["layers"][0].keys()
    section = PAGE.read_text(encoding="utf-8").partition("| `handoff` |")[2].partition("\n")[0]
    assert timeline["handoff"].keys() <= set(re.findall(r"`(?:handoff\.)?(\w+)`", section)) | {
        "reused_tokens"
    }


def test_who_comes_back_goes_on_where_he_was():
    with live() as s:
        with listen(s) as listener:
            listener.next()
            ask(s, "one", prefill="local")
            listener.until(lambda name, data: name == "request")
        seen = listener.last_id
        ask(s, "two", prefill="local")
        with listen(s, seen) as listener:
            again = [data for name, data in listener.until(is_end) if name == "request"]
            assert again[0]["state"] != "queued" and again[-1]["outcome"] == "length"
            more = [data["state"] for name, data in listener.until(is_end) if name == "request"]
            assert more[0] == "queued" and more[-1] == "ended"


@pytest.mark.parametrize("last_id", ["", "nonsense", "0badcafe-3", "0badcafe-99999999999999999999"])
def test_who_has_seen_another_engines_news_begins_anew(last_id):
    with live() as s, listen(s, last_id) as listener:
        assert listener.next()[0] == "snapshot"


def test_who_has_missed_too_much_is_told_and_begins_anew():
    with live() as s:
        for _ in range(3000):
            s.bench.loop.journal.feed.say(events.SlotsNews(slots=()))
        with listen(s, f"{s.app.state.hub.run}-0") as listener:
            name, data = listener.next()
            assert (name, data) == ("lost", {"events": 3000})
            assert listener.next()[0] == "snapshot"
            ask(s, "x")
            assert listener.until(is_end)


def test_a_place_that_never_was_is_a_beginning():
    with live() as s, listen(s, f"{s.app.state.hub.run}-{10**9}") as listener:
        assert listener.next()[0] == "snapshot"


def test_the_head_alone_is_no_stream():
    with live() as s:
        response = httpx.head(s.url + "/events", timeout=TIMEOUT_S)
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")


def test_who_does_not_read_slows_nobody_and_is_told_what_he_lost():
    with live() as s, listen(s) as slow, listen(s) as quick:
        assert slow.next()[0] == quick.next()[0] == "snapshot"
        # More than the sockets' buffers and the feed hold together, said at once.
        slots = s.bench.loop.snapshot().slots * 200
        began = time.monotonic()
        for _ in range(3000):
            s.bench.loop.journal.feed.say(events.SlotsNews(slots=slots))
        assert time.monotonic() - began < TIMEOUT_S
        assert ask(s, "x")["usage"]["completion_tokens"] == 4
        names = [name for name, _ in slow.until(is_end)]
        assert "lost" in names and names[names.index("lost") + 1] == "snapshot"


def test_a_silent_engine_is_heard_to_live():
    with live(keepalive_s=0.02) as s, listen(s) as listener:
        listener.next()
        assert [listener.line() for _ in range(4)] == [":", "", ":", ""]


def test_the_link_is_told():
    with live() as s, listen(s) as listener:
        listener.next()
        s.bench.client.change_link(ready=False, code="peer_lost")
        _, data = listener.until(lambda name, data: name == "link")[-1]
        assert (data["connected"], data["reason"], data["note"]) == (False, "peer_lost", "the worker is away")
        s.bench.client.change_link(ready=True)
        _, data = listener.until(lambda name, data: name == "link")[-1]
        assert (data["connected"], data["reason"], data["peer"]) == (True, None, "192.168.1.20:7118")


def test_slots_are_told_while_they_decode(monkeypatch):
    monkeypatch.setattr(events, "SLOTS_EVERY_S", 0.01)
    with live() as s, listen(s) as listener:
        listener.next()
        s.model.hold()
        asking = threading.Thread(target=ask, args=(s, "hello"), kwargs={"prefill": "local"})
        asking.start()
        s.model.allow(2)
        _, data = listener.until(lambda name, data: name == "slots" and data["slots"][0]["n_decoded"])[-1]
        assert data["slots"][0]["state"] == "decode"
        s.model.release()
        asking.join(TIMEOUT_S)


def test_many_listen_and_all_hear_the_same():
    with live() as s:
        heard = [None] * 12
        listening = threading.Barrier(len(heard) + 1)

        def follow(index):
            with listen(s) as listener:
                listener.next()
                listening.wait(TIMEOUT_S)
                seen = listener.until(is_end)
                heard[index] = [data for name, data in seen if name in ("request", "chunk")]

        threads = [threading.Thread(target=follow, args=(index,)) for index in range(len(heard))]
        for thread in threads:
            thread.start()
        listening.wait(TIMEOUT_S)
        ask(s)
        for thread in threads:
            thread.join(TIMEOUT_S)
        assert heard[0] and all(each == heard[0] for each in heard)
        wait_for(lambda: not s.app.state.hub._listeners)


def test_more_listeners_than_are_allowed_are_turned_away(monkeypatch):
    monkeypatch.setattr(events, "MAX_LISTENERS", 1)
    with live() as s, listen(s) as listener:
        listener.next()
        refused = httpx.get(s.url + "/events", timeout=TIMEOUT_S)
        assert refused.status_code == 503
        assert "1 listeners" in refused.json()["error"]["message"]


def test_who_has_gone_is_forgotten_and_nothing_goes_on_for_him():
    with live() as s:
        with listen(s) as listener:
            listener.next()
            hub = s.app.state.hub
            assert len(hub._listeners) == 1
        wait_for(lambda: not hub._listeners)
        wait_for(lambda: hub._ticker.done())
        assert s.bench.loop.journal.feed._wakeup is None
        with listen(s) as listener:
            assert listener.next()[0] == "snapshot"


def test_the_key_and_the_origin_are_asked_for():
    with live(api_key="secret") as s:
        for path in ("/events", "/metrics"):
            assert httpx.get(s.url + path, timeout=TIMEOUT_S).status_code == 401
            origin = {"origin": "https://evil.example", "authorization": "Bearer secret"}
            assert httpx.get(s.url + path, headers=origin, timeout=TIMEOUT_S).status_code == 403
        with listen(s, authorization="Bearer secret", origin="http://localhost:3000") as listener:
            assert listener.response.headers["access-control-allow-origin"] == "http://localhost:3000"
            assert listener.next()[0] == "snapshot"


def test_stopping_ends_the_stream_at_once():
    with stand(bench=REMOTE) as s:
        server = HttpServer(s.app)
        ready = threading.Event()
        thread = threading.Thread(target=server.run, args=(lambda port: ready.set(),))
        thread.start()
        assert ready.wait(TIMEOUT_S)
        s.url = server.url
        with listen(s) as listener:
            listener.next()
            began = time.monotonic()
            server.stop()
            assert listener.next() is None
        thread.join(TIMEOUT_S)
        assert time.monotonic() - began < 2
