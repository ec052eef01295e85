"""Ceilings: what a report says of a link, kept, found again, and forgotten when the link is another."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.link.ceilings import Ceiling, Ceilings, ceiling_of, seen_from_there
from tests.engine.link.networks import network
from tests.engine.link.reports import CABLE, PEER_CABLE, report

PEER = "b" * 32


def ceiling(**rest: object) -> Ceiling:
    found = ceiling_of(report(to_peer={"goodput_two_streams_gbps": 9.5, "path_mtu": 8000}))
    assert found is not None
    return msgspec.structs.replace(found, **rest)


def test_the_better_of_one_stream_and_two_is_the_ceiling() -> None:
    found = ceiling()
    assert (found.send_gbps, found.receive_gbps, found.path_mtu) == (9.8, 9.9, 8000)
    assert (found.link, found.local_mtu, found.round_trip_ms) == ((PEER, "eth1", "en5"), 9000, 0.1)


def test_what_was_not_measured_is_no_ceiling() -> None:
    assert ceiling_of(report(path=None)) is None
    assert ceiling_of(msgspec.structs.replace(report(), peer=None)) is None


def test_the_other_computer_sees_it_the_other_way_round() -> None:
    there = seen_from_there(ceiling(), "a" * 32, msgspec.structs.replace(PEER_CABLE, mtu=1500))
    assert (there.send_gbps, there.receive_gbps) == (9.9, 9.8)
    assert (there.link, there.local_mtu) == (("a" * 32, "en5", "eth1"), 1500)


def test_ceilings_outlive_their_process(tmp_path: Path) -> None:
    file = tmp_path / "new" / "links.json"
    Ceilings(file).keep(ceiling())
    assert Ceilings(file).of_peer(PEER) == ceiling()
    assert Ceilings(file).of_peer("c" * 32) is None


@pytest.mark.parametrize(
    "now",
    [
        network(msgspec.structs.replace(CABLE, mtu=1500)),
        network(msgspec.structs.replace(CABLE, speed_mbps=1000)),
        network(msgspec.structs.replace(CABLE, is_up=False)),
        network(),
    ],
    ids=["another MTU", "another speed", "down", "gone"],
)
def test_another_link_has_no_ceiling_yet(tmp_path: Path, now: object) -> None:
    known = Ceilings(tmp_path / "links.json")
    known.keep(ceiling())
    assert known.of_peer(PEER, network(CABLE)) == ceiling()
    assert known.of_peer(PEER, now) is None
    assert known.of_peer(PEER) is not None


def test_a_newer_one_takes_the_place_of_the_same_link(tmp_path: Path) -> None:
    known = Ceilings(tmp_path / "links.json")
    known.keep(ceiling())
    known.keep(ceiling(local_interface="wlan0", send_gbps=0.5))
    known.keep(ceiling(send_gbps=7.0))
    assert known.of_peer(PEER).send_gbps == 7.0
    assert len(msgspec.json.decode((tmp_path / "links.json").read_bytes())) == 2
    for number in range(100):
        known.keep(ceiling(peer_id=f"{number:032x}"))
    assert len(msgspec.json.decode((tmp_path / "links.json").read_bytes())) == 64


@pytest.mark.parametrize("content", [b"", b"{}", b"[3]", b"\xff"])
def test_a_broken_file_is_an_empty_one(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "links.json"
    file.write_bytes(content)
    known = Ceilings(file)
    assert known.of_peer(PEER) is None
    known.keep(ceiling())
    assert Ceilings(file).of_peer(PEER) is not None
