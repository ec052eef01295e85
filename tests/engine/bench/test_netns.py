"""Cables of network namespaces: what they need, that they join, and that none outlives its run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from engine.bench import netns
from engine.errors import HostError

linux = pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's alone")


@pytest.fixture
def possible() -> None:
    try:
        netns.check_possible()
    except HostError as error:
        pytest.skip(str(error))


def own_namespaces() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    names = [line.split(" ")[0] for line in listed.splitlines()]
    return [name for name in names if name.startswith(f"baton-bench-{os.getpid()}-")]


@linux
def test_all_that_is_missing_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(netns.shutil, "which", lambda name: None)
    with pytest.raises(
        HostError, match=r"root.*ip, tc, iperf3 must be installed.*apt-get install iperf3 iproute2"
    ):
        netns.check_possible()


def test_other_systems_are_told_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netns.sys, "platform", "darwin")
    with pytest.raises(HostError, match="use --link loopback"):
        netns.check_possible()


@pytest.mark.root
@pytest.mark.usefixtures("possible")
@pytest.mark.parametrize("rate", netns.RATES)
def test_a_cable_joins_two_ends_and_is_taken_away(rate: str) -> None:
    with netns.cable(rate) as (near, far):
        assert len(own_namespaces()) == 2
        for here, there in ((near, far), (far, near)):
            listening = f"import socket; print(socket.create_server(('{there.host}', 0)).getsockname()[1])"
            said = subprocess.run(
                [*there.enter, sys.executable, "-c", listening], capture_output=True, text=True, check=True
            )
            assert int(said.stdout) > 0
            route = subprocess.run(
                [*here.enter, "ip", "route", "get", there.host], capture_output=True, text=True, check=True
            )
            assert "dev cable" in route.stdout
            shaped = subprocess.run(
                [*here.enter, "tc", "qdisc", "show", "dev", "cable"],
                capture_output=True,
                text=True,
                check=True,
            )
            assert "tbf" in shaped.stdout and rate in shaped.stdout.lower()
    assert own_namespaces() == []
    with pytest.raises(OSError), socket.create_server((near.host, 0)):
        pass


@pytest.mark.root
@pytest.mark.usefixtures("possible")
@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, HostError])
def test_a_cable_is_taken_away_whatever_happens(end: Callable[[], BaseException]) -> None:
    with pytest.raises(BaseException) as raised, netns.cable("1gbit"):
        raise end()
    assert raised.type is end
    assert own_namespaces() == []


@pytest.mark.root
@pytest.mark.usefixtures("possible")
def test_what_killed_runs_left_is_deleted_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that is in use again belongs to another process if that was started at another time."""
    stale = f"baton-bench-{os.getpid()}-1-a"
    theirs = f"not-baton-bench-{os.getpid()}"
    try:
        for name in (stale, theirs):
            subprocess.run(["ip", "netns", "add", name], check=True)
        with netns.cable("1gbit"):
            assert stale not in own_namespaces()
            netns.delete_stale()
            assert len(own_namespaces()) == 2
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        assert theirs in listed
    finally:
        for name in (stale, theirs):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
