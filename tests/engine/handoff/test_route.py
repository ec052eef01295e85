import pytest

from engine.handoff.route import MIN_REMOTE_TOKENS, choose

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
        ({"plain_text": False}, False, "not_plain_text"),
        ({"asked": "remote", "plain_text": False}, False, "not_plain_text"),
    ],
)
def test_the_route_and_its_reason(change, remote, reason):
    decision = choose(**(READY | change))
    assert (decision.remote, decision.reason) == (remote, reason)
    assert decision.sentence


def test_the_workers_own_reason_is_passed_on():
    decision = choose(**(READY | {"worker_ready": False, "worker_note": "it holds another model"}))
    assert decision.sentence == "it holds another model"
