import threading

import pytest

from engine.batching.request import Failed, Finished, FinishReason, Progress, Started, Token
from engine.errors import HostError, InvalidRequest, OutOfMemory, PromptTooLong
from tests.engine.batching.fakes import END, Answer, Bench

LONG = "the quick brown fox jumps over the lazy dog, " * 4


def test_a_prompt_is_answered_with_its_counts_and_times():
    with Bench() as bench:
        answer = bench.ask("hello world", max_tokens=5)
        last = answer.last
        assert isinstance(answer.events[0], Started)
        assert len(answer.tokens) == 5
        assert last.reason is FinishReason.LENGTH
        assert not last.truncated
        assert answer.text == bytes(answer.tokens).decode()
        assert (last.usage.prompt_tokens, last.usage.cached_tokens, last.usage.completion_tokens) == (
            11,
            0,
            5,
        )
        timings = last.timings
        assert (timings.cache_n, timings.prompt_n, timings.predicted_n) == (0, 11, 5)
        assert timings.prompt_ms > 0 and timings.predicted_ms > 0
        assert (timings.handoff.prefill, timings.handoff.reason) == ("local", "no_worker")


def test_prefill_goes_in_equal_chunks_and_the_last_token_alone():
    with Bench(chunk_tokens=8) as bench:
        answer = bench.ask("x" * 20, max_tokens=1)
        assert answer.last.reason is FinishReason.LENGTH
        steps = [(step.prefill, step.decode) for step in bench.model.steps]
        assert steps == [((0, 0, 7), []), ((0, 7, 13), []), ((0, 13, 19), []), (None, [0])]
        progress = [event for event in answer.events if isinstance(event, Progress)]
        assert [(event.processed, event.total, event.cached) for event in progress] == [
            (7, 20, 0),
            (13, 20, 0),
            (19, 20, 0),
        ]


@pytest.mark.parametrize("n_tokens", [1, 2, 7, 8, 9, 10, 33])
def test_any_length_gives_the_same_tokens_whatever_the_chunk(n_tokens):
    with Bench(chunk_tokens=8) as bench, Bench(chunk_tokens=64) as other:
        prompt = (LONG * 2)[:n_tokens]
        first, second = bench.ask(prompt), other.ask(prompt)
        assert isinstance(first.last, Finished) and isinstance(second.last, Finished)
        assert first.tokens == second.tokens


def test_four_slots_at_once_give_what_each_gives_alone():
    prompts = [LONG[at : at + 20 + 9 * at] for at in range(4)]
    with Bench(n_slots=4) as bench:
        bench.model.hold()
        answers = [bench.ask(prompt, max_tokens=20) for prompt in prompts]
        bench.model.release()
        for answer in answers:
            assert isinstance(answer.last, Finished)
        assert any(len(step.decode) == 4 for step in bench.model.steps)
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer.tokens == bench.alone(prompt, max_tokens=20)


def test_seeded_draws_do_not_depend_on_the_companions():
    warm = {"temperature": 1.5, "seed": 11, "max_tokens": 12}
    with Bench(n_slots=4) as bench:
        alone = bench.alone(LONG, **warm)
        bench.model.hold()
        others = [bench.ask(LONG[n:], temperature=1.5, seed=n, max_tokens=30) for n in (1, 2, 3)]
        together = bench.ask(LONG, **warm)
        bench.model.release()
        assert isinstance(together.last, Finished)
        assert together.tokens == alone
        for other in others:
            assert isinstance(other.last, Finished)
            assert other.tokens[:12] != alone


def test_interleaved_chats_with_secrets_never_mix():
    chats = {name: f"[{name}] my secret is {name * 3}. " for name in ("apple", "birch", "cedar")}
    alone = {}
    for name, opening in chats.items():
        with Bench(n_slots=1, n_ctx=2048) as bench:
            alone[name] = [turn_tokens for turn_tokens in chat(bench, opening, 6)]
    with Bench(n_slots=2, n_ctx=2048) as bench:
        history = dict(chats)
        for turn in range(6):
            answers = {name: bench.ask(text, max_tokens=6) for name, text in history.items()}
            for name, answer in answers.items():
                assert isinstance(answer.last, Finished)
                assert answer.tokens == alone[name][turn]
                history[name] += answer.text + f" turn {turn}. "


def chat(bench, text, n_turns):
    for turn in range(n_turns):
        answer = bench.ask(text, max_tokens=6)
        assert isinstance(answer.last, Finished)
        text += answer.text + f" turn {turn}. "
        yield answer.tokens


def test_the_next_turn_evaluates_only_what_is_new():
    with Bench() as bench:
        first = bench.ask(LONG, max_tokens=6)
        text = LONG + (first.last and first.text)
        second = bench.ask(text + " and then?", max_tokens=6)
        # The last token of an answer is never evaluated, so it is the one thing to redo.
        assert second.last.usage.cached_tokens == len(text) - 1
        assert second.tokens == bench.alone(text + " and then?", max_tokens=6)


def test_an_edited_prompt_keeps_what_comes_before_the_edit():
    with Bench(n_slots=1) as bench:
        assert isinstance(bench.ask(LONG).last, Finished)
        edited = LONG[:100] + "!" + LONG[101:]
        answer = bench.ask(edited)
        assert answer.last.usage.cached_tokens == 100
        assert answer.tokens == bench.alone(edited)


def test_the_same_prompt_again_evaluates_one_token():
    with Bench() as bench:
        first, second = bench.ask(LONG), None
        assert isinstance(first.last, Finished)
        second = bench.ask(LONG)
        assert second.last.timings.prompt_n == 1
        assert second.tokens == first.tokens


def test_cache_prompt_false_starts_afresh():
    with Bench(n_slots=1) as bench:
        assert isinstance(bench.ask(LONG).last, Finished)
        assert bench.ask(LONG, cache_prompt=False).last.usage.cached_tokens == 0


def test_decoding_goes_on_while_a_long_prompt_is_prefilled():
    with Bench(n_slots=2, chunk_tokens=8) as bench:
        bench.model.hold()
        short = bench.ask("hi", max_tokens=60)
        bench.model.allow(3)
        short.wait_for(lambda answer: len(answer.tokens) >= 1)
        long = bench.ask(LONG, max_tokens=2)
        bench.model.release()
        assert isinstance(long.last, Finished) and isinstance(short.last, Finished)
        chunks = [step for step in bench.model.steps if step.prefill and step.prefill[0] == 1]
        assert len(chunks) == 23
        assert all(step.decode == [0] for step in chunks)


def test_the_queue_is_served_in_order():
    with Bench(n_slots=1) as bench:
        bench.model.hold()
        answers = [bench.ask(f"prompt {n}", max_tokens=2) for n in range(4)]
        bench.model.release()
        for answer in answers:
            assert isinstance(answer.last, Finished)
        waits = [answer.last.timings.queue_ms for answer in answers]
        assert waits == sorted(waits)


def test_a_prompt_that_fills_the_context_is_refused_with_both_counts():
    with Bench(n_ctx=32) as bench:
        for n_tokens in (32, 33):
            with pytest.raises(PromptTooLong) as caught:
                bench.ask("x" * n_tokens)
            assert (caught.value.n_prompt_tokens, caught.value.n_ctx) == (n_tokens, 32)
        assert bench.model.steps == []


def test_the_end_of_the_context_ends_the_answer():
    with Bench(n_ctx=32) as bench:
        answer = bench.ask("x" * 31, max_tokens=None)
        assert (answer.last.reason, answer.last.truncated) == (FinishReason.LENGTH, True)
        assert len(answer.tokens) == 2
        assert bench.pool.sequence(answer.events[0].slot).length == 32


def test_an_end_token_stops_and_adds_no_text():
    with Bench(choose=lambda tokens: END if len(tokens) == 14 else 65) as bench:
        answer = bench.ask("x" * 10, max_tokens=50)
        assert answer.last.reason is FinishReason.STOP
        assert answer.tokens == [65] * 4 + [END]
        assert answer.text == "AAAA"


def test_ignore_eos_never_ends_by_itself():
    with Bench(choose=lambda tokens: END) as bench:
        answer = bench.ask("x" * 10, max_tokens=7, ignore_eos=True)
        assert answer.last.reason is FinishReason.LENGTH
        assert END not in answer.tokens and len(answer.tokens) == 7


def test_a_stop_string_ends_the_answer_and_is_not_sent():
    text = b"one two STOP three"
    with Bench(choose=lambda tokens: text[len(tokens) - 3]) as bench:
        answer = bench.ask("xyz", max_tokens=50, stop=("STOP",))
        assert answer.last.stop == "STOP"
        assert answer.text == "one two "
        assert bytes(answer.tokens) == b"one two STOP"


def test_characters_are_never_sent_in_halves():
    text = "né 😀!".encode()
    with Bench(choose=lambda tokens: text[len(tokens) - 1]) as bench:
        answer = bench.ask("x", max_tokens=len(text))
        assert isinstance(answer.last, Finished)
        assert [event.text for event in answer.events if isinstance(event, Token) and event.text] == list(
            "né 😀!"
        )


def test_a_character_cut_by_the_end_is_marked():
    text = "é".encode()
    with Bench(choose=lambda tokens: text[len(tokens) - 1]) as bench:
        assert bench.ask("x", max_tokens=1).last.text == "\ufffd"


def test_no_tokens_asked_for_still_fills_the_cache():
    with Bench(n_slots=1) as bench:
        answer = bench.ask(LONG, max_tokens=0)
        assert answer.last.reason is FinishReason.LENGTH
        assert (answer.tokens, answer.last.usage.completion_tokens) == ([], 0)
        assert bench.ask(LONG + "!").last.usage.cached_tokens == len(LONG)


def test_an_empty_prompt_gets_an_empty_answer():
    with Bench() as bench:
        answer = bench.ask("")
        assert (answer.last.reason, answer.text) == (FinishReason.STOP, "")


def test_cancel_while_decoding_frees_the_slot_at_the_next_step():
    with Bench(n_slots=1) as bench:
        bench.model.hold()
        answer = bench.ask("hi", max_tokens=None)
        bench.model.allow(4)
        answer.wait_for(lambda answer: len(answer.tokens) >= 1)
        bench.loop.cancel(answer.request_id)
        bench.model.release()
        assert answer.last.reason is FinishReason.CANCELLED
        assert isinstance(bench.ask("next").last, Finished)


def test_cancel_while_prefilling_takes_at_most_one_chunk_more():
    with Bench(n_slots=1, chunk_tokens=8) as bench:
        bench.model.hold()
        answer = bench.ask(LONG)
        bench.model.wait_entered()
        bench.loop.cancel(answer.request_id)
        bench.model.release()
        assert answer.last.reason is FinishReason.CANCELLED
        assert len(bench.model.steps) == 1
        assert isinstance(bench.ask("x" * 9).last, Finished)


def test_cancel_in_the_queue():
    with Bench(n_slots=1) as bench:
        bench.model.hold()
        running, queued = bench.ask("one"), bench.ask("two")
        bench.loop.cancel(queued.request_id)
        bench.model.release()
        assert queued.last.reason is FinishReason.CANCELLED
        assert running.last.reason is FinishReason.LENGTH
        assert {step.decode[0] for step in bench.model.steps if step.decode} == {0}


def test_cancelling_what_is_unknown_or_over_does_nothing():
    with Bench() as bench:
        bench.loop.cancel("nobody")
        answer = bench.ask("hi")
        assert isinstance(answer.last, Finished)
        bench.loop.cancel(answer.request_id)
        assert isinstance(bench.ask("hi").last, Finished)


@pytest.mark.parametrize(
    ("raised", "reported"),
    [(RuntimeError("bad kernel"), HostError), (MemoryError(), OutOfMemory), (ValueError("x"), HostError)],
)
def test_a_failing_step_fails_its_requests_and_the_loop_goes_on(raised, reported, caplog):
    with Bench(n_slots=2) as bench:
        bench.model.fail_when = lambda step: bool(step.decode)
        bench.model.fail_next = raised
        first = bench.ask(LONG)
        assert isinstance(first.last, Failed)
        assert isinstance(first.last.error, reported)
        assert "a step failed" in caplog.text
        again = bench.ask(LONG)
        assert again.last.usage.cached_tokens == 0
        assert again.tokens == bench.alone(LONG)


def test_a_failing_step_leaves_other_requests_alone(caplog):
    with Bench(n_slots=1) as bench:
        bench.model.hold()
        first, queued = bench.ask("one"), bench.ask("two")
        bench.model.fail_when = lambda step: True
        bench.model.fail_next = RuntimeError("bad")
        bench.model.release()
        assert isinstance(first.last, Failed)
        assert isinstance(queued.last, Finished)


class Broken(Answer):
    def __call__(self, event) -> None:
        super().__call__(event)
        raise ValueError("gone")


def test_a_receiver_that_fails_is_cancelled_and_the_others_are_served(caplog):
    with Bench(n_slots=2) as bench:
        bad = bench.ask("bad", max_tokens=None, answer=Broken())
        good = bench.ask("good", max_tokens=4)
        assert isinstance(good.last, Finished)
        assert bad.last.reason is FinishReason.CANCELLED
        assert "the receiver of r1 failed" in caplog.text


def test_what_the_model_cannot_do_is_refused_at_once():
    with Bench() as bench:
        with pytest.raises(InvalidRequest, match="vocabulary"):
            bench.ask([1, 2, 999])
        with pytest.raises(InvalidRequest, match="vocabulary"):
            bench.ask("hi", logit_bias={999: 1.0})
        with pytest.raises(InvalidRequest, match="slot 9"):
            bench.ask("hi", slot=9)


def test_a_pinned_request_gets_its_slot():
    with Bench(n_slots=3) as bench:
        answer = bench.ask("hi", slot=2)
        assert isinstance(answer.last, Finished)
        assert answer.events[0].slot == 2


def test_closing_tells_everyone_who_waits():
    bench = Bench(n_slots=1)
    bench.loop.start()
    bench.model.hold()
    running, queued = bench.ask("one", max_tokens=None), bench.ask("two")
    bench.model.wait_entered()
    with pytest.raises(HostError, match="did not end its step"):
        bench.loop.close(timeout_s=0.01)
    bench.model.release()
    bench.loop.close()
    assert running.last.reason is FinishReason.CANCELLED
    assert queued.last.reason is FinishReason.CANCELLED
    assert not bench.loop.is_alive
    with pytest.raises(HostError, match="stopping"):
        bench.ask("three")


def test_the_snapshot_tells_what_the_slots_do():
    with Bench(n_slots=2) as bench:
        bench.model.hold()
        answer = bench.ask("hello", max_tokens=None)
        bench.model.allow(3)
        answer.wait_for(lambda answer: len(answer.tokens) == 2)
        bench.model.wait_entered()
        busy, idle = bench.loop.snapshot().slots
        assert (busy.state, busy.request_id, busy.n_prompt, busy.prefill) == ("decode", "r1", 5, "local")
        assert busy.n_generated >= 2
        assert (idle.state, idle.request_id) == ("idle", None)
        bench.loop.cancel(answer.request_id)


def test_a_mistake_while_a_slot_is_left_keeps_no_answer_back(monkeypatch, caplog):
    with Bench(prefix_bytes=1 << 20) as bench:

        def mistake(*_):
            raise RuntimeError("a mistake of ours")

        with monkeypatch.context() as patched:
            patched.setattr(bench.prefixes, "save", mistake)
            assert isinstance(bench.ask("hello").last, Finished)
        assert isinstance(bench.ask("hello again").last, Finished)
    assert "a mistake of ours" in caplog.text


def test_closed_right_before_it_looks_for_work_it_ends():
    """What wakes it is cleared then, and `close` sets that once."""
    bench = Bench()
    closing = threading.Thread(target=bench.loop.close, args=(5.0,))

    class Wake(threading.Event):
        def clear(self):
            closing.start()
            self.wait()
            super().clear()

    bench.loop._wake = Wake()
    bench.loop.start()
    bench.loop._thread.join(5.0)
    assert not bench.loop._thread.is_alive()
    closing.join()
    bench.prefixes.close()
