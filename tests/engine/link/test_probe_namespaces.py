"""Probes between two network namespaces: what is wrong with the cable there is what the findings say."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import IO

import msgspec
import pytest

from engine.bench import netns
from engine.errors import HostError
from engine.link.report import Report, Severity

ENDS = (sys.executable, "-m", "tests.engine.link.ends")

pytestmark = pytest.mark.root


@pytest.fixture
def ends() -> Iterator[tuple[netns.End, netns.End]]:
    """The near end and the far one; each way of the cable is cut down to a gigabit, which the kernel does not say."""
    try:
        netns.check_possible()
    except HostError as error:
        pytest.skip(str(error))
    with netns.cable("1gbit") as made:
        yield made


def inside(end: netns.End, *words: str) -> None:
    subprocess.run([*end.enter, *words], check=True, capture_output=True)


@contextlib.contextmanager
def far_end(near: netns.End, far: netns.End) -> Iterator[str]:
    """What it says when its ports are open."""
    command = [*far.enter, *ENDS, "far", far.host, near.host]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said: IO[str] = process.stdout
        try:
            yield said.readline()
        finally:
            process.communicate()


def ask(near: netns.End, what: str, said: str) -> bytes:
    command = [*near.enter, *ENDS, "near", what]
    return subprocess.run(command, input=said.encode(), capture_output=True, check=True, timeout=40).stdout


def set_mtu(end: netns.End, mtu: int) -> None:
    inside(end, "ip", "link", "set", "cable", "mtu", str(mtu))


@pytest.mark.parametrize(("here", "there"), [(9000, 9000), (1500, 1500), (1400, 9000)])
def test_path_mtus_are_found_to_the_byte(ends: tuple[netns.End, netns.End], here: int, there: int) -> None:
    near, far = ends
    set_mtu(near, here)
    set_mtu(far, there)
    with far_end(near, far) as said:
        to_peer, from_peer = msgspec.json.decode(ask(near, "mtu", said))
    assert to_peer == here
    # A virtual cable takes 4 bytes more than its receiving end's MTU: room for a VLAN's tag.
    assert from_peer == (there if there <= here else here + 4)


def test_a_path_by_ipv6_and_its_zone(ends: tuple[netns.End, netns.End]) -> None:
    hosts = ("fe80::a%cable", "fe80::b%cable")
    try:
        for end, host in zip(ends, hosts, strict=True):
            address = host.removesuffix("%cable") + "/64"
            inside(end, "ip", "address", "add", address, "dev", "cable", "nodad")
    except subprocess.CalledProcessError:
        pytest.skip("no IPv6")
    near, far = (netns.End(namespace=end.namespace, host=host) for end, host in zip(ends, hosts, strict=True))
    with far_end(near, far) as said:
        assert msgspec.json.decode(ask(near, "mtu", said)) == [8000, 8000]


def test_everything_that_is_wrong_with_a_cable_is_found(ends: tuple[netns.End, netns.End]) -> None:
    """9,000 at one end and 8,000 at the other, a tenth of the negotiated speed, slow start after idle at one end."""
    near, far = ends
    for end, mtu, slow_start in ((near, 9000, 1), (far, 8000, 0)):
        set_mtu(end, mtu)
        inside(end, "sysctl", "-q", "-w", f"net.ipv4.tcp_slow_start_after_idle={slow_start}")
    with far_end(near, far) as said:
        report = msgspec.json.decode(ask(near, "report", said), type=Report)
    assert report.took_s < 15
    broken = [finding for finding in report.findings if finding.severity is Severity.BROKEN]
    assert [finding.code for finding in broken] == ["mtu_black_hole"]
    assert broken[0].what.startswith("to studio") and "set the MTU to 8000" in broken[0].fix
    codes = [finding.code for finding in report.findings]
    assert codes.count("unequal_mtu") == 1
    assert codes.count("slow_link") == 2
    assert codes.count("slow_start_after_idle") == 1
    slow = next(finding for finding in report.findings if finding.code == "slow_link")
    assert "10 Gbit/s" in slow.what and "instead of 0.8 s" in slow.why
    assert report.peer is not None and report.peer.path is not None
    for way in (report.peer.path.to_peer, report.peer.path.from_peer):
        assert 0.5 < way.goodput_gbps < 1.0
    assert report.peer.path.round_trips is not None and report.peer.path.round_trips.lost == 0
