"""What may happen to the worker while it prefills: killed, stopped, started again. No answer is different for it."""

from __future__ import annotations

import random
import threading

import pytest

from tests.faults.engines import N_CHUNKS, TIMEOUT_S, Engines, moments

pytestmark = pytest.mark.fault

# A chunk takes about this long here; what is done so long after one is done at any point of the next.
_A_CHUNK_S = 0.05


def at_a_random_moment(rng: random.Random) -> tuple[int, float]:
    """How many chunks have been committed by then, and how long ago."""
    return rng.randrange(N_CHUNKS), rng.random() * _A_CHUNK_S


@pytest.mark.parametrize("seed", moments(2, 100))
def test_a_worker_killed_at_any_moment_of_a_prefill(engines: Engines, seed: int) -> None:
    rng = random.Random(seed)
    n_chunks, after_s = at_a_random_moment(rng)
    prompt = engines.prompt(seed)
    # All of it at once, its courier alone, or its engine alone.
    whom = ("computer", "courier", "engine")[seed % 3]
    with engines.asking(prompt) as asking:
        asking.wait_for_chunks(n_chunks)
        killer = threading.Timer(after_s, engines.kill_worker, [whom])
        killer.start()
        answer = asking.answer.result(TIMEOUT_S)
        killer.join()
    engines.is_right(prompt, answer)
    engines.goes_on()


@pytest.mark.parametrize("seed", moments(1, 12))
@pytest.mark.parametrize("whom", ["computer", pytest.param("engine", marks=pytest.mark.soak)])
def test_a_worker_that_stands_still_and_goes_on(engines: Engines, seed: int, whom: str) -> None:
    rng = random.Random(seed)
    n_chunks, after_s = at_a_random_moment(rng)
    prompt = engines.prompt(seed)
    with engines.asking(prompt) as asking:
        asking.wait_for_chunks(n_chunks)
        threading.Event().wait(after_s)
        with engines.worker_stopped(whom):
            answer = asking.answer.result(TIMEOUT_S)
    engines.is_right(prompt, answer)
    engines.goes_on()


@pytest.mark.parametrize("seed", moments(0, 12))
def test_a_worker_that_stands_still_for_a_moment_is_waited_for(engines: Engines, seed: int) -> None:
    rng = random.Random(seed)
    n_chunks, after_s = at_a_random_moment(rng)
    prompt = engines.prompt(seed)
    with engines.asking(prompt) as asking:
        asking.wait_for_chunks(n_chunks)
        with engines.worker_stopped("computer"):
            threading.Event().wait(1.0 + after_s)
        answer = asking.answer.result(TIMEOUT_S)
    assert answer.handoff["prefill"] == "remote", answer.handoff
    engines.is_right(prompt, answer)


@pytest.mark.parametrize("first", ["worker", pytest.param("decoder", marks=pytest.mark.soak)])
def test_both_started_again_in_either_order(engines: Engines, first: str) -> None:
    engines.worker.close()
    engines.decoder.close()
    if first == "worker":
        engines.start_worker()
        engines.start_decoder()
    else:
        engines.start_decoder()
        # Nobody is there: the answer comes all the same, and says so.
        prompt = engines.prompt(1)
        answer = engines.ask(prompt)
        assert answer.handoff["reason"] == "worker_not_ready"
        engines.is_right(prompt, answer)
        engines.start_worker()
    engines.goes_on()
