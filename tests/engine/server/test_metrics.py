"""`/metrics`: text that Prometheus' own parser reads, and numbers that agree with the answers."""

import math
import re
from pathlib import Path

from prometheus_client import REGISTRY
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from engine.handoff.failure import FailureCode
from engine.handoff.route import RouteReason
from engine.server.app import build_loading_app
from engine.server.settings import ServerSettings
from engine.wire.messages import Code
from tests.engine.server.fakes import call, stand

PAGE = Path(__file__).parents[3] / "docs" / "endpoint.md"
LONG = "the quick brown fox jumps over the lazy dog, " * 4
REMOTE = {"n_slots": 2, "n_ctx": 512, "chunk_tokens": 32, "worker": True, "automatic": True}


def read(s):
    """Samples by name and labels."""
    response = s.call("GET", "/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in parse(response.text)
        for sample in family.samples
    }


def test_sums_agree_with_the_answers():
    with stand(bench=REMOTE) as s:
        answers = [
            s.complete(LONG).json(),
            s.complete("hello").json(),
            s.complete(LONG, prefill="local").json(),
        ]
        timings = [answer["timings"] for answer in answers]
        found = read(s)
    assert found["baton_generation_tokens_total",] == sum(t["predicted_n"] for t in timings)
    assert found["baton_prompt_tokens_total", "cached"] == sum(t["cache_n"] for t in timings)
    assert found["baton_prompt_tokens_total", "remote"] == sum(t["handoff"]["remote_tokens"] for t in timings)
    evaluated = found["baton_prompt_tokens_total", "remote"] + found["baton_prompt_tokens_total", "local"]
    assert evaluated == sum(t["prompt_n"] for t in timings)
    assert found["baton_requests_total", "length"] == 3
    assert found["baton_requests_total", "failed"] == 0
    assert found["baton_prefills_total", "long_prompt", "remote"] == 1
    assert found["baton_prefills_total", "local", "short_prompt"] == 1
    assert found["baton_handoff_bytes_total",] == timings[0]["handoff"]["bytes"]
    assert found["baton_handoff_wire_bytes_total",] == 2800
    assert found["baton_handoff_tail_seconds_sum",] == timings[0]["handoff"]["tail_ms"] / 1000
    assert found["baton_handoff_overlap_ratio_bucket", "0.75"] == 1
    assert found["baton_handoff_overlap_ratio_bucket", "0.5"] == 0
    assert found["baton_handoff_receive_seconds_total",] == 0.008
    assert found["baton_handoff_hidden_seconds_total",] == 0.0065
    assert found["baton_link_goodput_bytes_per_second",] == 350_000
    assert found["baton_link_goodput_best_bytes_per_second",] == 350_000
    assert found["baton_time_to_first_token_seconds_count",] == 3
    assert found["baton_inter_token_latency_seconds_count",] == 3 * 5
    prompt_s = sum(t["prompt_ms"] for t in timings) / 1000
    assert math.isclose(found["baton_request_prefill_time_seconds_sum",], prompt_s, abs_tol=0.05)
    assert (found["baton_slots",], found["baton_slots_busy",], found["baton_worker_connected",]) == (2, 0, 1)
    held = sum(slot.n_cached for slot in s.bench.loop.snapshot().slots)
    assert found["baton_kv_cache_tokens",] == held > 0
    assert found["baton_kv_cache_usage_ratio",] == held / 1024
    assert found["baton_prefix_cache_tokens",] == found["baton_prefix_cache_limit_bytes",] == 0
    assert found["baton_model_info", "fake"] == 1


def test_buckets_are_cumulative_and_end_with_the_count():
    with stand() as s:
        s.complete("hello")
        families = {family.name: family for family in parse(s.call("GET", "/metrics").text)}
    histograms = [family for family in families.values() if family.type == "histogram"]
    assert len(histograms) >= 6
    for family in histograms:
        buckets = [sample.value for sample in family.samples if sample.name.endswith("_bucket")]
        (count,) = [sample.value for sample in family.samples if sample.name.endswith("_count")]
        assert buckets == sorted(buckets) and buckets[-1] == count


def test_openmetrics_is_given_to_who_asks_for_it():
    with stand() as s:
        accept = {"accept": "application/openmetrics-text; version=1.0.0"}
        response = s.call("GET", "/metrics", headers=accept)
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert any(family.name == "baton_requests" for family in parse_openmetrics(response.text))


def test_names_and_labels_are_of_a_kind():
    codes = {*RouteReason, *FailureCode, *Code}
    with stand(bench=REMOTE | {"automatic": False}) as s:
        answer = s.bench.ask(LONG)
        number = s.bench.client.wait_asked()
        s.bench.client.fail(number, "peer_lost")
        s.bench.client.release(number)
        assert answer.last
        for family in parse(s.call("GET", "/metrics").text):
            assert re.fullmatch(r"(baton|process)(_[a-z0-9]+)+", family.name)
            assert family.documentation
            for sample in family.samples:
                assert sample.labels.get("reason", "busy") in codes
                assert set(sample.labels) <= {"le", "model", "outcome", "prefill", "reason", "source"}
        assert read(s)["baton_fallbacks_total", "peer_lost"] == 1


def test_the_page_explains_every_metric_with_its_type_and_no_other():
    page = PAGE.read_text(encoding="utf-8").partition("## /metrics")[2].partition("\n## ")[0]
    explained = {}
    for names, kind in re.findall(r"^\| (`baton_.*`) \| ([a-z]+) \|", page, re.MULTILINE):
        explained |= dict.fromkeys(re.findall(r"`([a-z0-9_]+)`", names), kind)
    with stand() as s:
        families = list(parse(s.call("GET", "/metrics").text))
    ours = {family.name: family.type for family in families if family.name.startswith("baton_")}
    found = {name + ("_total" if kind == "counter" else ""): kind for name, kind in ours.items()}
    assert explained == found


def test_two_engines_do_not_mix_and_the_librarys_own_registry_stays_empty():
    with stand() as one, stand() as other:
        one.complete("hello")
        assert read(one)["baton_requests_total", "length"] == 1
        assert read(other)["baton_requests_total", "length"] == 0
    assert not any(family.name.startswith("baton") for family in REGISTRY.collect())


def test_while_the_model_loads_there_is_nothing_to_tell():
    app = build_loading_app(ServerSettings())
    for path in ("/metrics", "/events"):
        assert call(app, "GET", path).status_code == 503
