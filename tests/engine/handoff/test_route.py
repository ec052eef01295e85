import pytest

from engine.handoff.rates import Prediction
from engine.handoff.route import (
    FEW_TOKENS,
    MIN_REMOTE_TOKENS,
    RequestKind,
    RoutePolicy,
    choose,
    reason_to_stay,
)

READY = {
    "asked": "auto",
    "has_worker": True,
    "worker_ready": True,
    "worker_note": "",
    "uncached_tokens": MIN_REMOTE_TOKENS,
}


@pytest.mark.parametrize(
    ("change", "remote", "reason"),
    [
        ({}, True, "long_prompt"),
        ({"uncached_tokens": MIN_REMOTE_TOKENS - 1}, False, "short_prompt"),
        ({"asked": "remote", "uncached_tokens": 1}, True, "asked_remote"),
        ({"asked": "remote", "uncached_tokens": 0}, False, "nothing_to_prefill"),
        ({"asked": "local"}, False, "asked_local"),
        ({"has_worker": False, "worker_ready": False}, False, "no_worker"),
        ({"worker_ready": False}, False, "worker_not_ready"),
        ({"asked": "remote", "worker_ready": False}, False, "worker_not_ready"),
        ({"kind": RequestKind.EMBEDDING}, False, "embedding"),
        ({"kind": RequestKind.RERANK}, False, "rerank"),
        ({"asked": "remote", "kind": RequestKind.EMBEDDING}, False, "embedding"),
        ({"asked": "local", "kind": RequestKind.EMBEDDING}, False, "asked_local"),
    ],
)
def test_the_route_and_its_reason(change, remote, reason):
    decision = choose(**(READY | change))
    assert (decision.remote, decision.reason) == (remote, reason)
    assert decision.sentence


@pytest.mark.parametrize("kind", RequestKind)
def test_text_may_go_and_all_else_stays_with_its_own_reason(kind):
    kept = reason_to_stay(kind)
    if kind is RequestKind.TEXT:
        assert kept is None
    else:
        reason, sentence = kept
        assert reason == kind.value and sentence


def test_the_workers_own_reason_is_passed_on():
    decision = choose(**(READY | {"worker_ready": False, "worker_note": "it holds another model"}))
    assert decision.sentence == "it holds another model"


REMOTE_SOONER = Prediction(local_s=2.0, remote_s=0.5)
LOCAL_SOONER = Prediction(local_s=0.5, remote_s=2.0)


@pytest.mark.parametrize(
    ("change", "remote", "reason"),
    [
        ({"prediction": REMOTE_SOONER, "uncached_tokens": FEW_TOKENS}, True, "remote_sooner"),
        ({"prediction": REMOTE_SOONER, "uncached_tokens": FEW_TOKENS - 1}, False, "short_prompt"),
        ({"prediction": LOCAL_SOONER, "uncached_tokens": 20_000}, False, "local_sooner"),
        ({"prediction": LOCAL_SOONER, "uncached_tokens": 20_000, "stale": True}, True, "long_prompt"),
        ({"prediction": LOCAL_SOONER, "uncached_tokens": FEW_TOKENS, "stale": True}, False, "short_prompt"),
        ({"prediction": LOCAL_SOONER, "asked": "remote"}, True, "asked_remote"),
        ({"prediction": REMOTE_SOONER, "asked": "local"}, False, "asked_local"),
        ({"prediction": REMOTE_SOONER, "policy": RoutePolicy.NEVER}, False, "set_local"),
        ({"policy": RoutePolicy.NEVER, "asked": "remote"}, True, "asked_remote"),
        (
            {"prediction": LOCAL_SOONER, "policy": RoutePolicy.ALWAYS, "uncached_tokens": 1},
            True,
            "set_remote",
        ),
        ({"policy": RoutePolicy.ALWAYS, "asked": "local"}, False, "asked_local"),
        ({"policy": RoutePolicy.ALWAYS, "worker_ready": False}, False, "worker_not_ready"),
        ({"policy": RoutePolicy.ALWAYS, "uncached_tokens": 0}, False, "nothing_to_prefill"),
    ],
)
def test_what_is_expected_sooner_and_what_is_set(change, remote, reason):
    decision = choose(**(READY | change))
    assert (decision.remote, decision.reason) == (remote, reason)
    assert decision.prediction == change.get("prediction") or decision.reason == "nothing_to_prefill"


def test_the_sentence_says_what_is_expected():
    sentence = choose(**(READY | {"prediction": REMOTE_SOONER})).sentence
    assert sentence == "expected: 500 ms at the worker, 2.0 s here"
