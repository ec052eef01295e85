"""What may happen to the way between the two: broken, silent, or full of callers who want nothing good."""

from __future__ import annotations

import random
import threading
import time

import pytest

from engine.wire.limits import HEARTBEAT_INTERVAL_S, HEARTBEAT_MISSES
from tests.faults.engines import N_CHUNKS, TIMEOUT_S, Engines, moments

pytestmark = pytest.mark.fault

# The heartbeats that may be missed, and one more in which that is seen.
_NOTICED_WITHIN_S = HEARTBEAT_INTERVAL_S * (HEARTBEAT_MISSES + 1)


@pytest.mark.parametrize("seed", moments(1, 60))
def test_a_link_that_breaks_at_any_moment(engines: Engines, seed: int) -> None:
    rng = random.Random(seed)
    prompt = engines.prompt(seed)
    with engines.asking(prompt) as asking:
        asking.wait_for_chunks(rng.randrange(N_CHUNKS))
        cutter = threading.Timer(rng.random() * 0.05, engines.relay.cut)
        cutter.start()
        answer = asking.answer.result(TIMEOUT_S)
        cutter.join()
    engines.is_right(prompt, answer)
    engines.goes_on()


@pytest.mark.parametrize("seed", moments(1, 12))
def test_a_link_that_falls_silent_is_given_up_and_found_again(engines: Engines, seed: int) -> None:
    """Neither end hears that the other has gone: there is no FIN, and none of either end's words arrives."""
    rng = random.Random(seed)
    prompt = engines.prompt(seed)
    with engines.asking(prompt) as asking:
        asking.wait_for_chunks(rng.randrange(N_CHUNKS - 1))
        with engines.relay.held():
            begun = time.monotonic()
            asking.wait_for(lambda name, data: name == "link" and not data["connected"])
            assert time.monotonic() - begun < _NOTICED_WITHIN_S
            answer = asking.answer.result(TIMEOUT_S)
            assert answer.handoff["reason"] == "peer_lost"
            engines.is_right(prompt, answer)
    engines.goes_on()


@pytest.mark.soak
def test_a_pause_shorter_than_the_heartbeats_is_no_fault(engines: Engines) -> None:
    prompt = engines.prompt(1)
    with engines.asking(prompt) as asking:
        asking.wait_for_chunks(2)
        with engines.relay.held():
            threading.Event().wait(HEARTBEAT_INTERVAL_S)
        answer = asking.answer.result(TIMEOUT_S)
    assert answer.handoff["prefill"] == "remote", answer.handoff
    engines.is_right(prompt, answer)
