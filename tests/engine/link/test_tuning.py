"""What would be tuned here, from what this system's tools say and what the other computer has told."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.errors import HostError, UserError
from engine.link.ceilings import Ceiling
from engine.link.interfaces import read_network
from engine.link.tune import Before, Profile, Roots
from engine.link.tune_journal import Entry, Journal
from engine.link.tuning import PeerEnd, Preview, preview, what_undo_does
from tests.engine.link.networks import interface, network

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="plays the tools of Linux")

THERE = PeerEnd(
    node_id="b" * 32, network=network(interface("en5", "10.20.30.40/24", mtu=9000)), interface="en5"
)
UP = ["UP", "LOWER_UP"]


class System:
    """A card called `cable` and the home's network, as `ip` tells of them."""

    def __init__(self, folder: Path) -> None:
        self.roots = Roots(etc=folder / "etc", proc_sys=folder / "proc", state=folder / "state")
        self.links: list[dict[str, Any]] = [
            {"ifname": "cable", "flags": UP, "mtu": 1500, "address": "00:11:22:33:44:55"},
            {"ifname": "home", "flags": UP, "mtu": 1500},
        ]
        self.routes = [{"dst": "default", "dev": "home"}]

    def run(self, words: Sequence[str]) -> str:
        if words[0] != "ip":
            raise HostError("not here")
        return json.dumps(self.links if "address" in words else self.routes if "-4" in words else [])

    def preview(self, **rest: Any) -> Preview:
        return preview("a" * 32, run=self.run, roots=self.roots, **{"interface": "cable", **rest})


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


def profile(of: Preview) -> Profile:
    change = of.plan.changes[0]
    assert isinstance(change, Profile)
    return change


def ceiling(**rest: Any) -> Ceiling:
    known = Ceiling(
        peer_id="b" * 32,
        local_interface="cable",
        peer_interface="en5",
        send_gbps=9.0,
        receive_gbps=9.0,
        path_mtu=8000,
        round_trip_ms=0.1,
        local_mtu=1500,
        local_speed_mbps=None,
        measured_at=0.0,
    )
    return msgspec.structs.replace(known, **rest)


def test_steps_are_told_in_words_and_settings_that_are_not_there_left_out(system: System) -> None:
    found = system.preview()
    assert found.steps[0] == "ip link set dev cable mtu 9000"
    assert found.steps[1].startswith("ip address replace 10.71.17.")
    assert len(found.steps) == 2 and not found.blocked


def test_settings_are_read_from_this_system(system: System) -> None:
    file = system.roots.proc_sys / "net/core/rmem_max"
    file.parent.mkdir(parents=True)
    file.write_text("212992\n")
    assert system.preview().steps[-1] == f"write 33554432 to {file}"


def test_the_other_ends_network_is_taken(system: System) -> None:
    assert profile(system.preview(peer=THERE)).host.startswith("10.20.30.")


def test_the_cable_is_found_by_the_connection_or_by_itself(system: System) -> None:
    with pytest.raises(UserError, match="--interface"):
        system.preview(interface="")
    system.links[0]["addr_info"] = [
        {"family": "inet", "local": "192.0.2.1", "prefixlen": 30, "scope": "global"}
    ]
    assert system.preview(interface="", local_host="192.0.2.1").plan.interface == "cable"


def test_packets_that_were_lost_are_not_sent_again(system: System) -> None:
    """8,000 pass, and the other end sends 9,000."""
    assert profile(system.preview(peer=THERE, ceiling=ceiling())).mtu == 8000
    assert profile(system.preview(peer=THERE, ceiling=ceiling(path_mtu=9000))).mtu == 9000
    assert profile(system.preview(peer=THERE, ceiling=ceiling(local_interface="home"))).mtu == 9000
    assert profile(system.preview(peer=THERE, ceiling=ceiling(), mtu=4000)).mtu == 4000


def test_what_is_in_force_stands_in_the_way_of_another_plan(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.link.tune_journal._check_owner", lambda file, found: None)
    mine = profile(system.preview())
    journal = Journal(system.roots.state)
    journal.record(Entry(change=mine, before=Before(mtu=1500), n_begun=1, n_steps=2))
    assert what_undo_does(system.roots) == ("ip link set dev cable mtu 1500",)
    assert system.preview().blocked
    journal.record(Entry(change=mine, before=Before(mtu=1500), n_begun=2, n_steps=2))
    assert not system.preview().blocked
    assert system.preview(mtu=4000).blocked


def test_this_computer_can_be_asked() -> None:
    """With its real tools; what comes of it depends on its ports."""
    for each in read_network().interfaces:
        try:
            assert preview("a" * 32, interface=each.name).plan.interface == each.name
        except UserError as error:
            assert str(error)
