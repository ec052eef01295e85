"""What is written down of requests: moments in order, sums that agree with the answers, and no more than is kept."""

import pytest

from engine.batching import timeline as timelines
from engine.batching.journal import ChunkNews, Journal, LinkNews, RequestNews
from engine.batching.request import Finished, FinishReason
from engine.batching.totals import Histogram
from engine.handoff import client_events as handoff
from engine.handoff.telemetry import PACKED_LAYER_BYTES, unpack_layers
from tests.engine.batching.fakes import BYTES_A_TOKEN, COMPUTE_MS, N_LAYERS, Bench

LONG = "the quick brown fox jumps over the lazy dog, " * 4
N = len(LONG)

MOMENTS = (
    *("asked_at", "queued_at", "began_at", "prefilled_at"),
    *("first_token_at", "last_token_at", "ended_at"),
)


def news(bench):
    return [numbered.item for numbered in bench.loop.journal.feed.after(0, at_most=10_000)]


def states(bench, request_id):
    told = [item.timeline for item in news(bench) if isinstance(item, RequestNews)]
    return [timeline.state for timeline in told if timeline.request_id == request_id]


def test_a_local_request_from_its_asking_to_its_end():
    with Bench() as bench:
        answer = bench.ask(LONG, max_tokens=5)
        timings = answer.last.timings
        timeline = bench.loop.journal.timelines.of_slot(0)
    moments = [getattr(timeline, name) for name in MOMENTS]
    assert None not in moments and moments == sorted(moments)
    assert timeline.accepted_at is None and timeline.fallback is None and timeline.figures is None
    assert (timeline.state, timeline.outcome, timeline.error) == ("ended", "length", None)
    assert (timeline.route.prefill, timeline.route.reason) == ("local", "no_worker")
    assert (timeline.n_prompt, timeline.n_processed, timeline.n_decoded) == (N, N - 1, 5)
    assert [chunk.stop for chunk in timeline.chunks][-1] == N - 1
    assert all(not chunk.remote and not chunk.n_bytes and not chunk.layers for chunk in timeline.chunks)
    assert all(chunk.compute_ms >= 0 and chunk.computed_at == chunk.at for chunk in timeline.chunks)
    first_token_ms = (timeline.first_token_at - timeline.began_at) * 1000
    assert first_token_ms == pytest.approx(timings.prompt_ms, abs=1.0)
    assert states(bench, answer.request_id) == ["queued", "prefill_local", "decode", "decode", "ended"]


def test_a_remote_request_and_what_its_handoff_took():
    with Bench(worker=True, automatic=True) as bench:
        answer = bench.ask(LONG, max_tokens=3)
        assert isinstance(answer.last, Finished)
        timeline = bench.loop.journal.timelines.of_slot(0)
        totals = bench.loop.journal.totals
    assert (timeline.route.prefill, timeline.route.reason) == ("remote", "long_prompt")
    assert (timeline.n_remote, timeline.bytes) == (N - 1, 4096)
    assert {chunk.compute_ms for chunk in timeline.chunks} == {COMPUTE_MS}
    assert sum(chunk.n_bytes for chunk in timeline.chunks) == BYTES_A_TOKEN * (N - 1)
    # what was seen elsewhere is told by the same clock as what happened here
    assert all(timeline.queued_at <= chunk.computed_at <= chunk.at for chunk in timeline.chunks)
    layers = [layer for chunk in timeline.chunks for layer in unpack_layers(chunk.layers)]
    assert [layer.layer for layer in layers] == list(range(N_LAYERS)) * len(timeline.chunks)
    assert all(
        layer.queued_s < layer.first_byte_s < layer.last_byte_s < timeline.ended_at for layer in layers
    )
    assert (timeline.figures.hidden_ms, timeline.figures.hidden_share) == (6.5, 6.5 / 8)
    assert timeline.figures.goodput == totals.goodput == 350_000
    assert timeline.figures.best_goodput == totals.best_goodput == 350_000
    assert (totals.receive_s, totals.hidden_s) == (0.008, 0.0065)
    assert totals.handoff_bytes == 4096
    assert totals.routes == {("remote", "long_prompt"): 1}
    assert (totals.cached_tokens, totals.remote_tokens, totals.local_tokens) == (0, N - 1, 1)
    assert sum(totals.tail_s.counts()) == sum(totals.overlap.counts()) == 1


def test_figures_that_come_after_the_answer_are_still_written_down():
    with Bench(worker=True) as bench:
        answer = bench.ask(LONG, max_tokens=3)
        number = bench.client.wait_asked()
        while bench.client.asked[number].chunks:
            bench.client.commit(number)
        assert answer.last.timings.handoff.tail_ms is None
        assert bench.loop.journal.timelines.of_slot(0).figures is None
        assert not bench.client.asked[number].cancelled
        bench.client.finish(number)
        assert isinstance(bench.ask("x", slot=0).last, Finished)
        told = [item.timeline for item in news(bench) if isinstance(item, RequestNews)]
        (*_, last) = [timeline for timeline in told if timeline.request_id == answer.request_id]
    assert (last.outcome, last.figures.tail_ms) == ("length", 1.5)


def test_a_fallback_and_what_was_done_where(caplog):
    with Bench(worker=True) as bench:
        answer = bench.ask(LONG)
        number = bench.client.wait_asked()
        bench.client.commit(number)
        bench.client.fail(number, "stalled")
        bench.client.release(number)
        usage, timings = answer.last.usage, answer.last.timings
        timeline = bench.loop.journal.timelines.of_slot(0)
        totals = bench.loop.journal.totals
    assert (timeline.route.reason, timeline.fallback.reason) == ("long_prompt", "stalled")
    assert [chunk.remote for chunk in timeline.chunks][:3] == [True, False, False]
    assert timeline.n_remote == timings.handoff.remote_tokens == totals.remote_tokens == 8
    assert totals.fallbacks == {"stalled": 1}
    assert totals.local_tokens == usage.prompt_tokens - 8
    walked = states(bench, answer.request_id)
    assert walked == ["queued", "prefill_remote", "releasing", "prefill_local", "decode", "decode", "ended"]


def test_a_worker_that_comes_back_is_a_second_handoff(caplog):
    with Bench(worker=True) as bench:
        bench.model.hold()
        answer = bench.ask(LONG, prefill="remote")
        number = bench.client.wait_asked()
        bench.client.commit(number)
        bench.client.fail(number)
        bench.client.release(number)
        bench.model.wait_entered()
        bench.client.ready = True
        bench.model.release()
        again = bench.client.wait_asked()
        asked = bench.client.asked[again]
        n_chunks = len(asked.chunks)
        for _ in range(n_chunks):
            bench.client.commit(again)
        bench.client.finish(again)
        timings = answer.last.timings
        assert isinstance(bench.ask("x", slot=0).last, Finished)
        totals = bench.loop.journal.totals
        timeline = next(iter(bench.loop.journal.timelines.recent()))
    assert (timeline.n_handoffs, timeline.fallback.reason) == (2, "peer_lost")
    assert timeline.n_remote == timings.handoff.remote_tokens
    assert timeline.bytes == totals.handoff_bytes == BYTES_A_TOKEN * timeline.chunks[0].stop + 4096
    assert timeline.figures.bytes == 4096
    places = [chunk.remote for chunk in timeline.chunks]
    assert places[0] and not places[1] and all(places[-n_chunks:])
    assert {chunk.compute_ms for chunk in timeline.chunks[-n_chunks:]} == {COMPUTE_MS}
    walked = list(dict.fromkeys(states(bench, answer.request_id)))
    assert walked == ["queued", "prefill_remote", "releasing", "prefill_local", "decode", "ended"]


def test_who_is_cancelled_while_waiting_never_had_a_slot():
    with Bench(n_slots=1) as bench:
        bench.model.hold()
        first = bench.ask("hello")
        bench.model.wait_entered()
        waiting = bench.ask("world")
        bench.loop.cancel(waiting.request_id)
        bench.model.release()
        assert waiting.last.reason is FinishReason.CANCELLED
        assert isinstance(first.last, Finished)
        ended = {timeline.request_id: timeline for timeline in bench.loop.journal.timelines.recent()}
        assert bench.loop.journal.totals.outcomes == {"cancelled": 1, "length": 1}
    timeline = ended[waiting.request_id]
    assert (timeline.slot, timeline.began_at, timeline.outcome) == (None, None, "cancelled")


def test_an_empty_prompt_and_a_failed_step_end_in_the_journal_too(caplog):
    with Bench() as bench:
        assert bench.ask("").last.reason is FinishReason.STOP
        bench.model.fail_when = lambda step: True
        bench.model.fail_next = RuntimeError("bad kernel")
        failed = bench.ask("hello")
        assert "bad kernel" in str(failed.last.error)
        (empty, broken) = bench.loop.journal.timelines.recent()
        assert (empty.outcome, broken.outcome) == ("stop", "failed")
        assert "bad kernel" in broken.error
        assert bench.loop.journal.totals.outcomes == {"stop": 1, "failed": 1}


def test_sums_agree_with_the_answers():
    with Bench(worker=True, automatic=True, n_slots=1) as bench:
        answers = [bench.ask(prompt, max_tokens=4) for prompt in (LONG, LONG[:100], "hello", LONG)]
        timings = [answer.last.timings for answer in answers]
        totals = bench.loop.journal.totals
    assert totals.generated_tokens == sum(timing.predicted_n for timing in timings) == 16
    assert totals.cached_tokens == sum(timing.cache_n for timing in timings) > 0
    assert totals.remote_tokens == sum(timing.handoff.remote_tokens for timing in timings)
    assert totals.local_tokens + totals.remote_tokens == sum(timing.prompt_n for timing in timings)
    assert sum(totals.first_token_s.counts()) == sum(totals.queue_s.counts()) == 4
    assert sum(totals.between_tokens_s.counts()) == 12
    assert totals.queue_s.sum == pytest.approx(sum(timing.queue_ms for timing in timings) / 1000, abs=0.05)


def test_a_token_is_no_news():
    with Bench() as bench:
        few = bench.ask("hello", max_tokens=2)
        assert isinstance(few.last, Finished)
        n_few = bench.loop.journal.feed.last
        many = bench.ask("hello", max_tokens=100)
        assert isinstance(many.last, Finished)
        assert bench.loop.journal.feed.last - n_few <= n_few


def test_the_link_is_news_and_its_loss_is_counted():
    with Bench(worker=True) as bench:
        for ready, code in [(True, ""), (False, "peer_lost"), (False, "peer_unreachable"), (True, "")]:
            bench.client.change_link(ready=ready, code=code)
        assert isinstance(bench.ask("hello").last, Finished)
        told = [(item.status.ready, item.code) for item in news(bench) if isinstance(item, LinkNews)]
        assert told == [(True, ""), (False, "peer_lost"), (False, "peer_unreachable"), (True, "")]
        assert bench.loop.journal.totals.link_downs == {"peer_lost": 1}


def test_chunks_are_news_as_they_come():
    with Bench(worker=True, automatic=True) as bench:
        assert isinstance(bench.ask(LONG).last, Finished)
        stops = [item.chunk.stop for item in news(bench) if isinstance(item, ChunkNews)]
        assert stops == sorted(stops) and stops[-1] == N - 1


def test_only_the_last_requests_and_chunks_are_kept(monkeypatch):
    monkeypatch.setattr(timelines, "MAX_KEPT_CHUNKS", 3)
    with Bench() as bench:
        for index in range(timelines.KEPT_REQUESTS + 5):
            answer = bench.ask("hello", max_tokens=1, name=f"r{index}")
            assert isinstance(answer.last, Finished)
        kept = [timeline.request_id for timeline in bench.loop.journal.timelines.recent()]
        assert kept == [f"r{index}" for index in range(5, timelines.KEPT_REQUESTS + 5)]
        assert isinstance(bench.ask(LONG, slot=1).last, Finished)
        timeline = bench.loop.journal.timelines.of_slot(1)
        assert (len(timeline.chunks), timeline.n_processed) == (3, N - 1)
        assert timeline.n_chunks > 3


def remote_chunk(stop, n_layers):
    return timelines.Chunk(
        first=stop - 10,
        stop=stop,
        remote=True,
        at=2.0,
        compute_ms=5.0,
        computed_at=None,
        n_bytes=7,
        layers=bytes(n_layers * PACKED_LAYER_BYTES),
    )


def test_of_a_long_prompt_the_first_chunks_and_the_last_are_kept_with_their_layers(monkeypatch):
    monkeypatch.setattr(timelines, "MAX_KEPT_CHUNKS", 6)
    monkeypatch.setattr(timelines, "MAX_LAYER_BYTES", 10 * PACKED_LAYER_BYTES)
    timeline = Journal(n_slots=1).queued("r", 101, asked_at=1.0, now=1.5)
    for index in range(10):
        timeline.add_chunk(remote_chunk(10 * (index + 1), n_layers=3))
    assert (timeline.n_chunks, timeline.n_processed) == (10, 100)
    kept = [(chunk.stop, len(chunk.layers) // PACKED_LAYER_BYTES) for chunk in timeline.chunks]
    assert kept == [(10, 3), (20, 3), (30, 0), (40, 0), (50, 0), (100, 3)]


def test_a_handoff_that_came_at_once_has_no_goodput():
    journal = Journal(n_slots=1, wall=lambda: 1000.0)
    timeline = journal.queued("r", 10, asked_at=1.0, now=1.5)
    assert timeline.asked_unix_s == 999.5
    journal.handed_over(
        timeline, handoff.Finished(request_id=1, payload_bytes=7, overlap=1.0, tail_ms=3.0, compute_ms=5.0)
    )
    figures = timeline.figures
    assert (figures.hidden_ms, figures.hidden_share, figures.goodput, figures.best_goodput) == (
        0,
        None,
        None,
        None,
    )


def test_a_histogram_counts_up_to_its_bounds():
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 9.0):
        histogram.add(value)
    assert histogram.counts() == [2, 2, 1]
    assert histogram.sum == 13.5
