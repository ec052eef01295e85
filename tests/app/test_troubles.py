"""Which trouble is said, of all there may be."""

from __future__ import annotations

from typing import Any

from app.troubles import Remedy, worst

READY = {"model": "small", "state": "ready", "starts": 1, "last_exits": []}
FAILED = {"model": "large", "state": "failed", "starts": 1, "last_exits": [{"reason": "its file is broken"}]}
AGAIN = {"model": "small", "state": "waiting", "starts": 2, "last_exits": [{"reason": "it was killed"}]}
AWAY = {"node_id": "b" * 32, "name": "spark", "connected": False, "note": "no way to 10.0.0.2"}


def test_a_computer_that_works_has_none() -> None:
    there = {"name": "spark", "connected": True}
    assert worst({}) is None
    assert worst({"engines": [READY], "peers": [there], "permission": {"state": "granted"}}) is None


def test_what_will_not_mend_itself_comes_first() -> None:
    state: dict[str, Any] = {"engines": [AGAIN, FAILED], "peers": [AWAY], "permission": {"state": "denied"}}
    said = []
    for part, left in (("engines", [AGAIN]), ("engines", [READY]), ("permission", {}), ("peers", [])):
        trouble = worst(state)
        assert trouble is not None
        said.append((trouble.kind, trouble.subject, trouble.detail, trouble.remedy))
        state[part] = left
    assert worst(state) is None
    assert said == [
        ("engine failed", "large", "its file is broken", Remedy.LOAD_AGAIN),
        ("engine restarting", "small", "it was killed", Remedy.SEE_CLUSTER),
        ("permission denied", "", "", Remedy.OPEN_SETUP),
        ("peer away", "spark", "no way to 10.0.0.2", Remedy.RECONNECT),
    ]


def test_a_worker_that_ended_is_said_to_whom_it_prefills_for() -> None:
    trouble = worst({"workers": [{**AGAIN, "for": "studio"}]})
    assert trouble is not None
    assert (trouble.kind, trouble.subject, trouble.served, trouble.detail) == (
        *("worker restarting", "small", "studio"),
        "it was killed",
    )


def test_a_first_start_is_no_trouble_and_neither_is_a_peer_that_nobody_needs() -> None:
    assert worst({"engines": [{**READY, "state": "starting"}]}) is None
    assert worst({"engines": [], "peers": [AWAY]}) is None


def test_one_of_two_others_that_is_away_is_no_trouble_while_the_other_is_there() -> None:
    there = {"node_id": "c" * 32, "name": "garage", "connected": True}
    assert worst({"engines": [READY], "peers": [AWAY, there]}) is None
    trouble = worst({"engines": [READY], "peers": [AWAY, {**there, "connected": False}]})
    assert trouble is not None and (trouble.subject, trouble.node_id) == ("spark", "b" * 32)
