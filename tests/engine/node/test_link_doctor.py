"""The link doctor of two paired nodes over loopback: who measures, who answers, and what both know afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.errors import PeerLost, PeerRefused, UserError
from engine.link.interfaces import Network, read_network
from engine.link.probe_path import PathMeasures, Say, Target, path_mtus
from engine.node import link_doctor
from engine.node.link_doctor import NO_PEER, LinkDoctor
from tests.engine.link.reports import ROUND_TRIPS, WAY
from tests.engine.node.glue import TIMEOUT_S, End, run, two_ends

MEASURED = PathMeasures(
    round_trips=ROUND_TRIPS,
    to_peer=msgspec.structs.replace(WAY, goodput_gbps=7.0, goodput_two_streams_gbps=7.5, path_mtu=8000),
    from_peer=WAY,
)


class Targets:
    """What was measured, in place of ten seconds of traffic: each is asked for its path MTUs alone."""

    def __init__(self) -> None:
        self.all: list[Target] = []
        self.n_shut = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def measure(self, target: Target, *, local_mtu: int, peer_mtu: int, say: Say) -> PathMeasures:
        say("path MTU")
        self.all.append(target)
        if len(self.all) <= self.n_shut:
            raise PeerLost("a firewall there may keep them shut")
        assert path_mtus(target, local_mtu=1500, peer_mtu=1500) == (1500, 1500)
        self.meanwhile()
        return MEASURED


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> Targets:
    found = Targets()
    monkeypatch.setattr(link_doctor, "measure", found.measure)
    return found


def doctor_of(end: End, folder: Path) -> LinkDoctor:
    doctor = LinkDoctor(
        folder=folder / end.identity.node_id,
        node_id=end.identity.node_id,
        links=end.links.all,
        on_change=end.changed.set,
    )
    end.offers.calls.update(doctor.methods())
    return doctor


@asynccontextmanager
async def two_doctors(folder: Path) -> AsyncIterator[tuple[End, End, LinkDoctor, LinkDoctor]]:
    async with two_ends(folder) as (left, right):
        doctors = [doctor_of(end, folder) for end in (left, right)]
        for doctor in doctors:
            await doctor.start()
        try:
            yield left, right, doctors[0], doctors[1]
        finally:
            for doctor in doctors:
                await doctor.close()


def is_open(target: Target) -> bool:
    try:
        socket.create_connection((target.peer_host, target.tcp_port), timeout=1).close()
    except OSError:
        return False
    return True


def test_both_know_what_one_has_measured(tmp_path: Path, targets: Targets) -> None:
    async def work() -> None:
        async with two_doctors(tmp_path) as (left, right, asking, answering):
            parts: list[str] = []
            opened: list[bool] = []
            targets.meanwhile = lambda: opened.append(is_open(targets.all[0]))
            report = await asking.probe(parts.append)
            assert parts == ["interfaces of both computers", "path MTU"]
            assert opened == [True] and not is_open(targets.all[0])
            assert report.peer is not None and report.missing == ""
            assert (report.peer.name, report.peer.path) == ("right", MEASURED)
            assert report.peer.facts.network.named(report.peer.peer_interface) is not None
            here = asking.ceiling_for(right.identity.node_id)
            there = answering.ceiling_for(left.identity.node_id)
            assert here is not None and there is not None
            assert (here.send_gbps, here.receive_gbps) == (7.5, 9.9) == (there.receive_gbps, there.send_gbps)
            assert here.path_mtu == there.path_mtu == 8000
            shown = asking.snapshot()
            assert shown["probing"] is None
            assert shown["report"]["peer"]["name"] == "right"
            assert shown["ceilings"][right.identity.node_id]["send_gbps"] == 7.5
            # and after a start
            again = doctor_of(left, tmp_path)
            await again.start()
            await again.close()
            assert again.ceiling_for(right.identity.node_id) == here

    run(work())


def test_without_a_peer_this_computer_is_looked_at(tmp_path: Path) -> None:
    async def work() -> None:
        doctor = LinkDoctor(folder=tmp_path, node_id="a" * 32, links=list, on_change=lambda: None)
        report = await doctor.probe()
        assert report.peer is None and report.missing == NO_PEER
        assert report.here.network.holding("127.0.0.1") is not None
        with pytest.raises(UserError, match="baton status"):
            await doctor.probe(peer_id="b" * 32)

    run(work())


def test_a_peer_whose_ports_stay_shut_is_told_as_missing(tmp_path: Path, targets: Targets) -> None:
    async def work() -> None:
        async with two_doctors(tmp_path) as (_, right, asking, _):
            targets.n_shut = 2
            report = await asking.probe()
            assert report.peer is not None and report.peer.path is None
            assert "firewall" in report.missing
            assert [is_open(target) for target in targets.all] == [False, False]
            assert asking.ceiling_for(right.identity.node_id) is None

    run(work())


def test_who_may_not_call_is_called(tmp_path: Path, targets: Targets) -> None:
    """The other computer measures, and tells what it found from where it stands."""

    async def work() -> None:
        async with two_doctors(tmp_path) as (_, right, asking, _):
            targets.n_shut = 1
            parts: list[str] = []
            report = await asking.probe(parts.append)
            assert parts[-1] == "once more, from the other computer"
            assert report.missing == "" and report.peer is not None
            assert report.peer.path == MEASURED.seen_from_there()
            ceiling = asking.ceiling_for(right.identity.node_id)
            assert ceiling is not None and ceiling.receive_gbps == 7.5
            assert [is_open(target) for target in targets.all] == [False, False]

    run(work())


@pytest.mark.parametrize("n_shut", [0, 1])
def test_a_link_that_is_replaced_meanwhile_loses_nothing(
    tmp_path: Path, targets: Targets, monkeypatch: pytest.MonkeyPatch, n_shut: int
) -> None:
    """As right after pairing, when both computers call each other."""

    async def work() -> None:
        async with two_doctors(tmp_path) as (left, right, asking, _):
            loop, measure = asyncio.get_running_loop(), targets.measure

            async def replace() -> None:
                old = left.link
                assert old is not None
                await old.close("there is a newer link")
                left.links.look_again()
                await left.until(lambda: left.link not in (None, old))
                await right.until(lambda: right.link is not None)

            def measure_over_two(target: Target, **how: Any) -> PathMeasures:
                if not targets.all:
                    asyncio.run_coroutine_threadsafe(replace(), loop).result()
                return measure(target, **how)

            monkeypatch.setattr(link_doctor, "measure", measure_over_two)
            targets.n_shut = n_shut
            report = await asking.probe()
            assert report.missing == "" and report.peer is not None and report.peer.path is not None
            assert asking.ceiling_for(right.identity.node_id) is not None

    run(work())


@pytest.mark.parametrize(
    "said", [None, {"udp_port": 0}, {"udp_port": 1, "tcp_port": 1, "token": b"x", "mtu": 9}]
)
def test_only_ports_with_a_token_are_measured(tmp_path: Path, targets: Targets, said: Any) -> None:
    async def work() -> None:
        async with two_doctors(tmp_path) as (left, _, _, _):
            assert left.link is not None
            with pytest.raises(PeerRefused, match="what was asked is not valid"):
                await left.link.call("link.measure", said)
            assert targets.all == []

    run(work())


def test_two_probes_at_once_are_one_too_many(tmp_path: Path, targets: Targets) -> None:
    async def work() -> None:
        async with two_doctors(tmp_path) as (_, _, asking, answering):
            loop = asyncio.get_running_loop()
            refused: list[BaseException | None] = []

            def others() -> None:
                """A second one here, and one from there."""
                for doctor in (asking, answering):
                    try:
                        report = asyncio.run_coroutine_threadsafe(doctor.probe(), loop).result(TIMEOUT_S)
                        assert "probes the link itself" in report.missing
                    except UserError as error:
                        refused.append(error)

            targets.meanwhile = others
            assert (await asking.probe()).missing == ""
            assert len(refused) == 1 and len(targets.all) == 1

    run(work())


def test_a_new_probe_closes_the_ports_of_an_earlier_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_doctors(tmp_path) as (left, _, _, _):
            assert left.link is not None
            opened = [await left.link.call("link.open", timeout_s=TIMEOUT_S) for _ in range(2)]
            earlier, later = (
                Target(
                    local_host="127.0.0.1",
                    peer_host="127.0.0.1",
                    udp_port=each["udp_port"],
                    tcp_port=each["tcp_port"],
                    token=each["token"],
                )
                for each in opened
            )
            assert (is_open(earlier), is_open(later)) == (False, True)
            assert earlier.token != later.token
        assert not is_open(later)

    run(work())


def test_who_asks_for_ports_twice_at_once_gets_no_more_than_one_pair(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_doctors(tmp_path) as (left, _, _, _):
            link = left.link
            assert link is not None
            calls = (link.call("link.open", timeout_s=TIMEOUT_S) for _ in range(4))
            found = await asyncio.gather(*calls, return_exceptions=True)
            opened = [each["tcp_port"] for each in found if isinstance(each, dict)]
            n_open = 0
            for port in opened:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    n_open += 1
            assert n_open == 1

    run(work())


@pytest.mark.parametrize(
    "said", [None, 7, {}, {"peer_id": "x" * 300}], ids=["nothing", "a number", "an empty one", "a long one"]
)
def test_what_is_no_ceiling_is_refused(tmp_path: Path, said: Any) -> None:
    async def work() -> None:
        async with two_doctors(tmp_path) as (left, _, _, _):
            assert left.link is not None
            with pytest.raises(PeerRefused, match="what was asked is not valid"):
                await left.link.call("link.probed", said)

    run(work())


def test_a_peer_tells_only_of_its_own_link(tmp_path: Path, targets: Targets) -> None:
    async def work() -> None:
        async with two_doctors(tmp_path) as (left, right, asking, answering):
            await asking.probe()
            other = msgspec.structs.replace(asking.ceiling_for(right.identity.node_id), peer_id="c" * 32)
            assert left.link is not None
            await left.link.call("link.probed", msgspec.to_builtins(other))
            assert answering.ceiling_for("c" * 32) is None

    run(work())


def test_a_link_that_has_changed_is_probed_again_by_one_of_the_two(
    tmp_path: Path, targets: Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_doctor, "_SETTLE_S", 0)
    mtu = 1500

    def with_another_mtu() -> Network:
        found = read_network()
        interfaces = [msgspec.structs.replace(each, mtu=mtu) for each in found.interfaces]
        return msgspec.structs.replace(found, interfaces=tuple(interfaces))

    async def work() -> None:
        nonlocal mtu
        async with two_doctors(tmp_path) as (left, right, first, second):
            ends = {left.identity.node_id: first, right.identity.node_id: second}
            lower, higher = (ends[node_id] for node_id in sorted(ends))
            await lower.probe()
            monkeypatch.setattr(link_doctor, "read_network", with_another_mtu)
            monkeypatch.setattr(link_doctor, "_outline", lambda: mtu)
            for doctor in (higher, lower):
                doctor.on_interfaces_changed()
                recheck = doctor._rechecking
                assert recheck is not None
                await recheck
            assert len(targets.all) == 2
            # what was measured a moment ago is left alone
            mtu = 1400
            lower.on_interfaces_changed()
            assert lower._rechecking is not None
            await lower._rechecking
            assert len(targets.all) == 2
            assert lower.ceiling_for(higher._node_id) is None

    run(work())


def test_what_changes_while_the_link_is_looked_at_is_looked_at_after_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_doctor, "_SETTLE_S", 0)
    looks: list[int] = []

    async def work() -> None:
        async with two_doctors(tmp_path) as (_, _, doctor, _):
            loop = asyncio.get_running_loop()

            def outline() -> int:
                looks.append(1)
                if len(looks) == 1:  # the cable goes while interfaces are read
                    loop.call_soon_threadsafe(doctor.on_interfaces_changed)
                return len(looks)

            monkeypatch.setattr(link_doctor, "_outline", outline)
            doctor.on_interfaces_changed()
            assert doctor._rechecking is not None
            await doctor._rechecking
            assert len(looks) == 2

    run(work())
