"""A client that hangs up before its answer is there: what was its own is free again at once, on both computers."""

from __future__ import annotations

import random
import time

import pytest

from tests.faults.engines import N_CHUNKS, Engines, moments

pytestmark = pytest.mark.fault

_FREE_WITHIN_S = 2.0


def leave(engines: Engines, seed: int, stage: str) -> None:
    rng = random.Random(seed)
    with engines.asking_and_leaving(engines.prompt(seed, n_tokens=450), max_tokens=200) as asking:
        match stage:
            case "prefill":
                asking.wait_for_state("prefill_remote")
            case "transfer":
                asking.wait_for_chunks(rng.randrange(1, N_CHUNKS))
            case "decode":
                asking.wait_for_state("decode")


@pytest.mark.parametrize("seed", moments(1, 20))
@pytest.mark.parametrize("stage", ["prefill", "transfer", "decode"])
def test_a_client_that_has_gone_holds_nothing(engines: Engines, stage: str, seed: int) -> None:
    """The worker, which does one prompt at a time here, has room for the next as soon as its chunk is done."""
    leave(engines, seed, stage)
    left_at = time.monotonic()
    prompt = engines.prompt(1000 + seed, n_tokens=100)
    with engines.asking(prompt) as asking:
        accepted = asking.wait_for(
            lambda name, data: name == "chunk" and data["n_prompt_tokens"] == len(prompt)
        )
        assert time.monotonic() - left_at < _FREE_WITHIN_S
        answer = asking.answer.result()
    assert accepted["prefill"] == "remote"
    assert answer.handoff["prefill"] == "remote", answer.handoff
    engines.is_right(prompt, answer)
    engines.wait_for_idle(_FREE_WITHIN_S)
