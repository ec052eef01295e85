"""The engine loop with a worker: what it takes from it, and what it does when the worker lets it down."""

import pytest

from engine.batching.chunks import equal_chunks
from engine.batching.remote import RouteConfig
from engine.batching.request import Finished, FinishReason
from engine.errors import PeerUnreachable, PromptTooLong
from engine.handoff.rates import PrefillRates, SpeedByLength
from engine.handoff.route import RoutePolicy
from tests.engine.batching.fakes import BYTES_A_TOKEN, Bench

LONG = "the quick brown fox jumps over the lazy dog, " * 4
N = len(LONG)


def alone(prompt=LONG, **asked):
    return Bench().alone(prompt, **asked)


def settled(bench):
    """No request is in a slot and no memory is lent."""
    return all(slot.state == "idle" for slot in bench.loop.snapshot().slots)


@pytest.mark.parametrize("n_tokens", [2, 7, 8, 9, 10, 33, N])
def test_remote_and_local_prefill_answer_the_same(n_tokens):
    with Bench(worker=True, automatic=True) as bench:
        answer = bench.ask(LONG[:n_tokens], prefill="remote")
        assert isinstance(answer.last, Finished)
        assert answer.tokens == alone(LONG[:n_tokens])
        assert [step for step in bench.model.steps if step.prefill] == []


def test_what_the_handoff_moved_is_told():
    with Bench(worker=True, automatic=True) as bench:
        handoff = bench.ask(LONG).last.timings.handoff
        assert (handoff.prefill, handoff.reason) == ("remote", "long_prompt")
        assert (handoff.bytes, handoff.overlap, handoff.tail_ms) == (4096, 0.75, 1.5)
        assert handoff.remote_tokens == N - 1


def test_the_answer_begins_at_the_final_commit():
    with Bench(worker=True) as bench:
        answer = bench.ask(LONG, max_tokens=3)
        number = bench.client.wait_asked()
        while bench.client.asked[number].chunks:
            bench.client.commit(number)
        assert isinstance(answer.last, Finished)
        assert answer.tokens == alone(max_tokens=3)
        # The last figures were not known yet, and the memory is not free yet.
        handoff = answer.last.timings.handoff
        assert (handoff.prefill, handoff.tail_ms, handoff.overlap) == ("remote", None, None)
        assert handoff.bytes == BYTES_A_TOKEN * handoff.remote_tokens == BYTES_A_TOKEN * (N - 1)
        assert bench.loop.snapshot().slots[0].state == "releasing"
        bench.client.finish(number)
        assert isinstance(bench.ask("x", slot=0).last, Finished)


def test_commits_are_progress():
    with Bench(worker=True) as bench:
        answer = bench.ask(LONG)
        number = bench.client.wait_asked()
        bench.client.commit(number)
        answer.wait_for(lambda answer: len(answer.events) == 2)
        assert answer.events[1].processed == 8
        bench.client.fail(number)
        bench.client.release(number)
        assert isinstance(answer.last, Finished)


def test_others_decode_while_the_worker_computes():
    with Bench(worker=True) as bench:
        remote = bench.ask(LONG)
        number = bench.client.wait_asked()
        local = bench.ask("hello", prefill="local", max_tokens=30)
        assert isinstance(local.last, Finished)
        for _ in list(bench.client.asked[number].chunks):
            bench.client.commit(number)
        bench.client.finish(number)
        assert isinstance(remote.last, Finished)
        assert remote.tokens == alone()


def test_only_the_missing_suffix_is_asked_for():
    with Bench(worker=True, automatic=True, n_slots=1) as bench:
        assert isinstance(bench.ask(LONG[:100], max_tokens=1).last, Finished)
        answer = bench.ask(LONG)
        assert answer.last.timings.handoff.prefill == "remote"
        asked = bench.client.asked[2]
        assert (asked.first, asked.stop) == (100, N - 1)
        assert answer.last.usage.cached_tokens == 100
        assert answer.tokens == alone()


@pytest.mark.parametrize(
    ("prompt", "prefill", "reason"),
    [
        (LONG, "local", "asked_local"),
        ("short", "auto", "short_prompt"),
        ("x", "remote", "nothing_to_prefill"),
    ],
)
def test_what_stays_local_and_why(prompt, prefill, reason):
    with Bench(worker=True) as bench:
        handoff = bench.ask(prompt, prefill=prefill).last.timings.handoff
        assert (handoff.prefill, handoff.reason) == ("local", reason)
        assert not bench.client.asked
        assert bench.loop.snapshot().reasons == {reason: 1}


@pytest.mark.parametrize("prefill", ["auto", "remote"])
def test_without_a_ready_worker_the_prompt_is_prefilled_here(prefill):
    with Bench(worker=True) as bench:
        bench.client.ready = False
        answer = bench.ask(LONG, prefill=prefill)
        handoff = answer.last.timings.handoff
        assert (handoff.prefill, handoff.reason, handoff.detail) == (
            "local",
            "worker_not_ready",
            "the worker is away",
        )
        assert answer.tokens == alone()


@pytest.mark.parametrize("window", [False, True])
def test_a_worker_that_cannot_be_asked_costs_nothing(window):
    with Bench(worker=True, window=window, n_slots=1) as bench:
        assert isinstance(bench.ask(LONG[:100], prefill="local").last, Finished)
        bench.client.refuse = PeerUnreachable("nobody is there")
        answer = bench.ask(LONG, prefill="remote")
        assert answer.last.timings.handoff.detail == "nobody is there"
        assert answer.last.usage.cached_tokens == (0 if window else 100)
        assert answer.tokens == alone()


def end_of_chunk(n_commits, n_chunks):
    """Where the n-th of all chunks of LONG ends."""
    chunks = equal_chunks(0, N - 1, 8)
    assert len(chunks) == n_chunks
    return chunks[n_commits - 1][1] if n_commits else 0


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("n_commits", [0, 1, 5, 22])
def test_a_lost_worker_is_made_up_for_from_the_last_commit(n_commits, window, caplog):
    with Bench(worker=True, window=window) as bench:
        answer = bench.ask(LONG)
        number = bench.client.wait_asked()
        n_chunks = len(bench.client.asked[number].chunks)
        assert n_chunks > 22
        for _ in range(n_commits):
            bench.client.commit(number)
        bench.client.commit(number, written_only=True)
        bench.client.fail(number)
        bench.client.release(number)
        assert isinstance(answer.last, Finished)
        assert answer.tokens == alone()
        chunks = [step for step in bench.model.steps if step.prefill]
        assert len(chunks) == (n_chunks if window else n_chunks - n_commits)
        handoff = answer.last.timings.handoff
        assert (handoff.prefill, handoff.reason, handoff.detail) == (
            "local",
            "peer_lost",
            "the cable was pulled",
        )
        arrived = end_of_chunk(n_commits, n_chunks)
        assert handoff.bytes == BYTES_A_TOKEN * arrived
        assert handoff.remote_tokens == (0 if window else arrived)
        assert (handoff.overlap, handoff.tail_ms) == (None, None)
        assert bench.loop.snapshot().reasons == {"long_prompt": 1, "peer_lost": 1}


def test_nothing_is_written_before_the_memory_is_released(caplog):
    with Bench(worker=True, n_slots=1) as bench:
        answer = bench.ask(LONG)
        number = bench.client.wait_asked()
        bench.client.fail(number)
        bench.loop.cancel("nobody")
        assert bench.model.steps == []
        bench.client.release(number)
        assert isinstance(answer.last, Finished)
        assert answer.tokens == alone()


def test_a_cancelled_handoff_frees_the_slot_when_it_is_released():
    with Bench(worker=True, n_slots=1) as bench:
        answer = bench.ask(LONG)
        number = bench.client.wait_asked()
        bench.client.commit(number)
        bench.loop.cancel(answer.request_id)
        assert answer.last.reason is FinishReason.CANCELLED
        assert bench.client.cancelled.acquire(timeout=5)
        waiting = bench.ask("hello", prefill="local")
        assert not waiting.events
        bench.client.release(number)
        assert isinstance(waiting.last, Finished)
        assert waiting.tokens == alone("hello")
        assert settled(bench)


def test_a_failure_after_the_final_commit_changes_nothing():
    with Bench(worker=True) as bench:
        bench.model.hold()
        answer = bench.ask(LONG)
        number = bench.client.wait_asked()
        while bench.client.asked[number].chunks:
            bench.client.commit(number)
        bench.model.wait_entered()
        bench.client.fail(number)
        bench.client.release(number)
        bench.model.release()
        assert isinstance(answer.last, Finished)
        assert answer.tokens == alone()
        assert answer.last.timings.handoff.prefill == "remote"


def test_a_prompt_that_is_too_long_never_reaches_the_worker():
    with Bench(worker=True, n_ctx=64) as bench:
        with pytest.raises(PromptTooLong):
            bench.ask("x" * 64, prefill="remote")
        assert not bench.client.asked


def test_handoffs_of_all_slots_run_side_by_side():
    with Bench(worker=True, n_slots=3) as bench:
        prompts = [LONG[n:] for n in (0, 3, 6)]
        answers = [bench.ask(prompt) for prompt in prompts]
        for _ in prompts:
            bench.client.wait_asked()
        numbers = sorted(bench.client.asked)
        while any(bench.client.asked[number].chunks for number in numbers):
            for number in numbers:
                if bench.client.asked[number].chunks:
                    bench.client.commit(number)
        for number in reversed(numbers):
            bench.client.finish(number)
        for prompt, answer in zip(prompts, answers, strict=True):
            assert isinstance(answer.last, Finished)
            assert answer.tokens == alone(prompt)


def settle_failure(client, number, *, commits=0, code="peer_lost"):
    for _ in range(commits):
        client.commit(number)
    client.fail(number, code)
    client.release(number)


@pytest.mark.parametrize("window", [False, True])
def test_a_worker_that_comes_back_does_the_rest(window):
    """Local prefill goes on meanwhile, from the last commit; what was done here is not asked for again."""
    with Bench(worker=True, window=window) as bench:
        answer = bench.ask(LONG, prefill="remote")
        number = bench.client.wait_asked()
        bench.model.hold()
        settle_failure(bench.client, number, commits=3)
        bench.model.wait_entered()
        bench.client.ready = True
        bench.model.release()
        again = bench.client.wait_asked()
        asked = bench.client.asked[again]
        begun_here = 0 if window else end_of_chunk(3, 23)
        assert (asked.first > begun_here, asked.stop) == (True, N - 1)
        first = asked.first
        for _ in list(asked.chunks):
            bench.client.commit(again)
        bench.client.finish(again)
        handoff = answer.last.timings.handoff
        assert (handoff.prefill, handoff.reason) == ("local", "peer_lost")
        assert handoff.remote_tokens == begun_here + N - 1 - first
        assert handoff.bytes == BYTES_A_TOKEN * end_of_chunk(3, 23) + 4096
        assert answer.tokens == alone()
        assert settled(bench)


def test_a_worker_that_was_away_at_the_start_joins_in():
    with Bench(worker=True, automatic=True) as bench:
        bench.client.ready = False
        bench.model.hold()
        answer = bench.ask(LONG)
        bench.model.wait_entered()
        bench.client.ready = True
        bench.model.release()
        handoff = answer.last.timings.handoff
        assert (handoff.prefill, handoff.reason) == ("local", "worker_not_ready")
        assert 0 < handoff.remote_tokens < N - 1
        assert answer.tokens == alone()


def test_a_worker_is_asked_again_only_so_often():
    """And not at all after a failure that would only come again."""
    with Bench(worker=True) as bench:
        answer = bench.ask(LONG, prefill="remote")
        for _ in range(4):
            settle_failure(bench.client, bench.client.wait_asked(), commits=1, code="link_closed")
        assert isinstance(answer.last, Finished)
        assert answer.tokens == alone()
        assert len(bench.client.asked) == 4
        answer = bench.ask(LONG, prefill="remote", cache_prompt=False)
        settle_failure(bench.client, bench.client.wait_asked(), commits=1, code="out_of_memory")
        assert isinstance(answer.last, Finished)
        assert len(bench.client.asked) == 5


OTHER = "another prompt, long enough for the worker"


def test_a_full_worker_is_asked_again_when_it_has_room():
    """Meanwhile the prompt is prefilled here; how often the worker was full does not count."""
    with Bench(worker=True) as bench:
        for _ in range(5):
            asked_before = len(bench.client.asked)
            other = bench.ask(OTHER, prefill="remote", max_tokens=0, cache_prompt=False)
            there = bench.client.wait_asked()
            answer = bench.ask(LONG, prefill="remote", cache_prompt=False)
            refused = bench.client.wait_asked()
            bench.model.hold()
            settle_failure(bench.client, refused, code="busy")
            for _ in range(2):
                bench.model.wait_entered()
                bench.model.allow()
            bench.model.wait_entered()
            assert len(bench.client.asked) == asked_before + 2
            while bench.client.asked[there].chunks:
                bench.client.commit(there)
            bench.client.finish(there)
            bench.model.release()
            again = bench.client.wait_asked()
            assert bench.client.asked[again].first >= 3 * 8
            settle_failure(bench.client, again, code="out_of_memory")
            assert isinstance(answer.last, Finished) and isinstance(other.last, Finished)
            assert answer.tokens == alone()


def test_the_route_learns_from_every_prompt_but_the_first():
    rates = PrefillRates()
    with Bench(worker=True, automatic=True, route=RouteConfig(rates=rates, min_tokens=16)) as bench:
        for _ in range(2):
            assert not rates.local.is_known
            assert bench.ask(LONG, prefill="local", cache_prompt=False).last
        assert rates.local.is_known
        for _ in range(2):
            assert not rates.remote.is_known
            assert bench.ask(LONG, prefill="remote", cache_prompt=False).last
        assert rates.remote.is_known and rates.remote_at > 1e9 and rates.remote_prompts == 1
        rates.remote_prompts = 3
        rates.local, rates.remote = speed(N, 9.0), speed(N, 1.0)
        handoff = bench.ask(LONG, cache_prompt=False).last.timings.handoff
        assert (handoff.prefill, handoff.reason) == ("remote", "remote_sooner")
        assert handoff.predicted.local_s > handoff.predicted.remote_s
        rates.local, rates.remote = speed(N, 1.0), speed(N, 9.0)
        handoff = bench.ask(LONG, cache_prompt=False).last.timings.handoff
        assert (handoff.prefill, handoff.reason) == ("local", "local_sooner")
        rates.remote_at = 0.0
        handoff = bench.ask(LONG, cache_prompt=False).last.timings.handoff
        assert (handoff.prefill, handoff.reason) == ("remote", "long_prompt")


def speed(n_tokens, seconds):
    learned = SpeedByLength()
    learned.observe(n_tokens, seconds)
    return learned


def test_a_failed_handoff_says_nothing_of_speed():
    rates = PrefillRates()
    with Bench(worker=True, route=RouteConfig(rates=rates, min_tokens=16)) as bench:
        for _ in range(3):
            answer = bench.ask(LONG, prefill="remote", cache_prompt=False)
            number = bench.client.wait_asked()
            bench.client.commit(number)
            bench.client.fail(number)
            bench.client.release(number)
            assert isinstance(answer.last, Finished)
            bench.client.ready = True
        assert not rates.remote.is_known


@pytest.mark.parametrize(("policy", "place"), [("always", "remote"), ("never", "local")])
def test_the_policy_holds_for_prompts_that_leave_it_open(policy, place):
    route = RouteConfig(rates=PrefillRates(), policy=RoutePolicy(policy))
    with Bench(worker=True, automatic=True, route=route) as bench:
        assert bench.ask("hello").last.timings.handoff.prefill == place
        other = "local" if place == "remote" else "remote"
        assert bench.ask("good bye", prefill=other).last.timings.handoff.prefill == other
