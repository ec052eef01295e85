"""What may happen to the way between the two: broken, silent, or full of callers who want nothing good."""

from __future__ import annotations

import contextlib
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.bench import netns
from engine.errors import HostError
from engine.wire.limits import HEARTBEAT_INTERVAL_S, HEARTBEAT_MISSES
from tests.faults.engines import N_CHUNKS, TIMEOUT_S, Engines, moments
from tests.inside import inside

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


def test_a_decoder_that_vanishes_without_a_word_is_given_up(engines: Engines) -> None:
    """No FIN comes from it. The worker hears that it is silent, and has room for its next start meanwhile."""
    with engines.asking(engines.prompt(1)) as asking:
        asking.wait_for_chunks(1)
        with engines.relay.all_held():
            engines.kill_decoder("computer")
            engines.worker_says("nothing was heard", _NOTICED_WITHIN_S)
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


@contextlib.contextmanager
def unplugged(end: netns.End) -> Iterator[None]:
    def set_cable(state: str) -> None:
        subprocess.run(["ip", "-n", end.namespace, "link", "set", "cable", state], check=True)

    set_cable("down")
    try:
        yield
    finally:
        set_cable("up")


@pytest.fixture(scope="module")
def cabled(
    smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Engines, netns.End]]:
    """Engines on two networks with a cable between them, and the end that this test is on."""
    try:
        netns.check_possible()
    except HostError as error:
        pytest.skip(str(error))
    with netns.cable("1gbit") as (near, far):
        engines = Engines(smollm2_path, tmp_path_factory.mktemp("cabled"), address=f"{far.host}:7118")
        try:
            with inside(far.namespace):
                engines.start_worker()
            with inside(near.namespace):
                engines.make_whole()
                yield engines, far
        finally:
            engines.close()


@pytest.mark.root
@pytest.mark.parametrize("seed", moments(1, 6))
@pytest.mark.parametrize("is_long", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_cable_that_is_pulled_and_plugged_in(
    cabled: tuple[Engines, netns.End], seed: int, is_long: bool
) -> None:
    """For as long as the answer takes without the worker, or for less than it takes to miss it."""
    engines, far = cabled
    prompt = engines.prompt(seed)
    with engines.asking(prompt) as asking:
        asking.wait_for_chunks(random.Random(seed).randrange(N_CHUNKS - 1))
        with unplugged(far):
            if is_long:
                asking.answer.result(TIMEOUT_S)
            else:
                threading.Event().wait(HEARTBEAT_INTERVAL_S / 2)
        answer = asking.answer.result(TIMEOUT_S)
    engines.is_right(prompt, answer)
    engines.goes_on()
