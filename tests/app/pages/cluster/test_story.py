"""What the page Cluster tells follows from the node's state."""

from __future__ import annotations

from typing import Any

import pytest

from app.pages.cluster.story import Story
from tests.app.two_computers import GB, MODEL, SPARK, STUDIO, engine, host, parts_of

NOW_S = 1_800_000_000.0
END = {"at": NOW_S - 20, "ran_s": 6.0, "status": 1, "reason": "out of memory", "log": ["one", "two"]}


class State:
    def __init__(self, parts: dict[str, Any]) -> None:
        self._parts = parts

    def part(self, name: str, default: Any = None) -> Any:
        return self._parts.get(name, default)


def story(**changed: Any) -> Story:
    parts = {**parts_of(), **changed}
    return Story(State(parts), parts["peers"][0] if parts["peers"] else None, NOW_S)


def away() -> dict[str, Any]:
    return {**parts_of()["peers"][0], "connected": False, "note": "nothing answers", "since": NOW_S - 312}


def test_both_computers_are_what_they_do() -> None:
    told = story()
    here, peer = told.here(), told.peer()
    assert (here.name, here.role, here.hue, here.state) == ("studio", "decodes", "local", "ready")
    assert (peer.name, peer.role, peer.hue, peer.state) == ("spark", "prefills", "peer", "ready")
    assert (here.device, here.memory) == ("Apple M2 Ultra · macOS", "141 GB of 192 GB free")
    assert here.used == pytest.approx(51 / 192)
    assert (here.model, peer.model, here.is_same_model, peer.is_same_model) == (MODEL, MODEL, False, True)


@pytest.mark.parametrize(("is_starting", "does"), [(True, "is starting"), (False, "is not running")])
def test_without_a_node_nothing_is_known_and_why_is_said(is_starting: bool, does: str) -> None:
    parts = {**parts_of(), "peers": [away()]}
    told = Story(State(parts), parts["peers"][0], NOW_S, is_running=False, is_starting=is_starting)
    assert (told.here().state, told.here().tone) == (f"Baton {does}", "warning" if is_starting else "danger")
    assert told.why_nothing() == f"Baton {does} on this computer."
    assert (told.here().role, told.peer().state, told.away()) == ("", "not known now", "")


def test_the_other_way_round_the_worker_is_here() -> None:
    worker = {"model": MODEL, "for": "spark", "state": "ready", "link": {"connected": True}, "last_exits": []}
    roles = parts_of()["roles"]
    roles["agreed"][0] |= {"prefill": STUDIO, "decode": SPARK}
    told = story(engines=[], joins=[], workers=[worker], roles=roles)
    assert (told.here().role, told.peer().role) == ("prefills", "decodes")
    assert told.is_joined and told.here().model == told.peer().model == MODEL


def test_the_cable_has_its_figures_once_it_was_measured() -> None:
    assert (story().cable().about, story().cable().carries) == ("10 Gb/s · MTU 8000 · 0.2 ms", "9.8 Gb/s")
    unknown = story(link={"ceilings": {SPARK: None}}).cable()
    assert (unknown.is_up, unknown.about, unknown.carries) == (True, "", "")


def test_a_peer_that_is_away_is_told_with_its_reason() -> None:
    told = story(peers=[away()], joins=[], engines=[engine(worker={"connected": False})])
    assert told.away() == "spark has been away for 5 min 12 s. Nothing answers."
    assert told.peer().state == "away for 5 min 12 s" and told.peer().is_away and told.peer().model == ""
    assert (told.here().role, told.peer().role) == ("answers alone", "")
    assert not told.cable().is_up
    assert story().away() == ""


def test_a_worker_that_is_not_ready_says_why() -> None:
    join = {"model": MODEL, "prefill": "spark", "note": "spark is loading it"}
    told = story(joins=[join], engines=[engine(worker={"connected": False})])
    assert (told.peer().state, told.peer().tone, told.is_joined) == ("spark is loading it", "warning", False)


def test_without_a_model_nothing_is_joined() -> None:
    hosts = {
        STUDIO: host("Apple M2 Ultra", "macOS", 192, 141, []),
        SPARK: host("NVIDIA GB10", "Linux", 128, 93, []),
    }
    told = story(engines=[], joins=[], hosts=hosts)
    assert (told.here().state, told.here().model) == ("no model loaded", "")
    assert told.peer().state == "connected, no model loaded"
    assert told.agreed is not None and told.here().role == "decodes"


@pytest.mark.parametrize(
    ("state", "at", "is_told", "is_final", "is_back"),
    [
        ("waiting", NOW_S - 20, True, False, False),
        ("failed", NOW_S - 20_000, True, True, False),
        ("ready", NOW_S - 20, True, False, True),
        ("ready", NOW_S - 20_000, False, False, True),
    ],
)
def test_an_engine_that_ended_is_told_of(
    state: str, at: float, is_told: bool, is_final: bool, is_back: bool
) -> None:
    crashes = story(engines=[engine(state=state, last_exits=[{**END, "at": at}])]).crashes()
    assert bool(crashes) is is_told
    if crashes:
        (crash,) = crashes
        assert (crash.is_final, crash.is_back, crash.reason) == (is_final, is_back, "out of memory")
        assert (crash.model, crash.what, crash.log) == (MODEL, "engine", ("one", "two"))


def test_memory_that_is_not_known_is_not_made_up() -> None:
    here = story(hosts={}).here()
    assert (here.device, here.memory, here.used) == ("", "", None)
    assert story(hosts={STUDIO: host("CPU", "Linux", 8, 2, [])}).here().used == pytest.approx(
        6 * GB / (8 * GB)
    )
