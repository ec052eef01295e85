"""Discovery between two network namespaces: real interfaces, real multicast, and cables that are pulled."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from engine.bench import netns
from engine.errors import HostError

ROOT = Path(__file__).parents[4]
ALPHA, BETA = "a" * 32, "b" * 32

# The figure: a new peer is found within this. What else is waited for gets longer, so that a busy computer is no fault.
FOUND_WITHIN_S = 2.0
PATIENCE_S = 15.0

pytestmark = pytest.mark.root


class Node:
    """One discovery process inside `end`'s namespace."""

    def __init__(self, end: netns.End, node_id: str, name: str) -> None:
        self._process = subprocess.Popen(
            [*end.enter, sys.executable, "-m", "tests.engine.node.finding.discovering", node_id, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.snapshot = self._lines.get(timeout=PATIENCE_S)

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def wait_until(self, wanted: Callable[[dict[str, Any]], bool]) -> float:
        """How long it took, in seconds, until the snapshot was as wanted."""
        began = time.monotonic()
        while not wanted(self.snapshot):
            left_s = began + PATIENCE_S - time.monotonic()
            try:
                self.snapshot = self._lines.get(timeout=max(0.0, left_s))
            except queue.Empty:
                pytest.fail(f"still {self.snapshot}")
        return time.monotonic() - began

    def wait_for(self, node_id: str, *addresses: str) -> float:
        return self.wait_until(lambda snapshot: set(addresses) <= set(addresses_of(snapshot, node_id)))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join()
        self._process.stdout.close()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(json.loads(line))


def addresses_of(snapshot: dict[str, Any], node_id: str) -> list[str]:
    return [address for one in snapshot["found"] if one["node_id"] == node_id for address in one["addresses"]]


def names(snapshot: dict[str, Any]) -> list[str]:
    return [one["name"] for one in snapshot["found"]]


def ip(end: netns.End, *words: str) -> None:
    subprocess.run(["ip", "-n", end.namespace, *words], check=True)


def give_link_local(ends: tuple[netns.End, netns.End], interface: str, *hosts: str) -> list[str]:
    """Addresses that need no seconds of asking whether they are taken; as the other end writes them."""
    for end, host in zip(ends, hosts, strict=True):
        ip(end, "address", "add", f"{host}/64", "dev", interface, "nodad")
    return [f"[{host}%{interface}]:7119" for host in hosts]


@pytest.fixture
def ends() -> Iterator[tuple[netns.End, netns.End]]:
    try:
        netns.check_possible()
    except HostError as error:
        pytest.skip(str(error))
    with netns.cable("1gbit") as made:
        yield made


def test_two_nodes_find_each_other_by_both_families(ends: tuple[netns.End, netns.End]) -> None:
    _, beta_link_local = give_link_local(ends, "cable", "fe80::a", "fe80::b")
    with Node(ends[0], ALPHA, "Alpha") as alpha, Node(ends[1], BETA, "Beta") as beta:
        took_s = alpha.wait_for(BETA, f"{ends[1].host}:7119", beta_link_local)
        assert took_s < FOUND_WITHIN_S
        assert beta.wait_for(ALPHA, f"{ends[0].host}:7119", "[fe80::a%cable]:7119") < FOUND_WITHIN_S
        assert names(alpha.snapshot) == ["Beta"]
        assert addresses_of(alpha.snapshot, BETA)[0] == f"{ends[1].host}:7119"

        beta.tell("name The other\u202e one\x07")
        alpha.wait_until(lambda snapshot: names(snapshot) == ["The other one"])
        beta.tell("pair 7120")
        alpha.wait_until(
            lambda snapshot: snapshot["found"][0]["pairing_addresses"][:1] == [f"{ends[1].host}:7120"]
        )


def test_link_local_addresses_alone_are_enough(ends: tuple[netns.End, netns.End]) -> None:
    for end in ends:
        ip(end, "-4", "address", "flush", "dev", "cable")
    give_link_local(ends, "cable", "fe80::a", "fe80::b")
    with Node(ends[0], ALPHA, "Alpha") as alpha, Node(ends[1], BETA, "Beta"):
        assert alpha.wait_for(BETA, "[fe80::b%cable]:7119") < FOUND_WITHIN_S
        assert not [address for address in addresses_of(alpha.snapshot, BETA) if address[0] != "["]


def test_a_pulled_cable_is_noticed_and_found_again(ends: tuple[netns.End, netns.End]) -> None:
    with Node(ends[0], ALPHA, "Alpha") as alpha, Node(ends[1], BETA, "Beta") as beta:
        alpha.wait_for(BETA, f"{ends[1].host}:7119")
        beta.wait_for(ALPHA, f"{ends[0].host}:7119")
        ip(ends[0], "link", "set", "cable", "down")
        alpha.wait_until(lambda snapshot: not snapshot["found"])
        beta.wait_until(lambda snapshot: not snapshot["found"])
        ip(ends[0], "link", "set", "cable", "up")
        assert alpha.wait_for(BETA, f"{ends[1].host}:7119") < FOUND_WITHIN_S
        assert beta.wait_for(ALPHA, f"{ends[0].host}:7119") < FOUND_WITHIN_S


def test_an_interface_that_comes_later_brings_its_addresses(ends: tuple[netns.End, netns.End]) -> None:
    with Node(ends[0], ALPHA, "Alpha") as alpha, Node(ends[1], BETA, "Beta"):
        alpha.wait_for(BETA, f"{ends[1].host}:7119")
        veth = ("link", "add", "later", "type", "veth", "peer", "name", "later", "netns", ends[1].namespace)
        ip(ends[0], *veth)
        for end, host in zip(ends, ("198.51.100.1", "198.51.100.2"), strict=True):
            ip(end, "address", "add", f"{host}/24", "dev", "later")
            ip(end, "link", "set", "later", "up")
        give_link_local(ends, "later", "fe80::1:a", "fe80::1:b")
        assert alpha.wait_for(BETA, "198.51.100.2:7119", "[fe80::1:b%later]:7119") < FOUND_WITHIN_S + 1.0
        assert len(alpha.snapshot["found"]) == 1


def test_an_address_that_changes_takes_the_place_of_the_old_one(ends: tuple[netns.End, netns.End]) -> None:
    old, new = f"{ends[1].host}:7119", "192.0.2.14:7119"
    for end, host in zip(ends, ("192.0.2.13", "192.0.2.14"), strict=True):
        ip(end, "address", "add", f"{host}/30", "dev", "cable")
    ip(ends[1], "address", "delete", "192.0.2.14/30", "dev", "cable")
    with Node(ends[0], ALPHA, "Alpha") as alpha, Node(ends[1], BETA, "Beta"):
        alpha.wait_for(BETA, old)
        ip(ends[1], "address", "add", "192.0.2.14/30", "dev", "cable")
        ip(ends[1], "address", "delete", f"{ends[1].host}/30", "dev", "cable")
        alpha.wait_until(
            lambda snapshot: new in addresses_of(snapshot, BETA) and old not in addresses_of(snapshot, BETA)
        )


def test_a_copy_of_this_node_is_noticed(ends: tuple[netns.End, netns.End]) -> None:
    with Node(ends[0], ALPHA, "Alpha") as alpha, Node(ends[1], ALPHA, "Copy"):
        alpha.wait_until(lambda snapshot: [one["name"] for one in snapshot["twins"]] == ["Copy"])
        assert alpha.snapshot["found"] == []


def test_two_others_with_one_id_are_told_apart_and_a_killed_one_is_dropped(
    ends: tuple[netns.End, netns.End],
) -> None:
    ip(ends[1], "address", "add", "192.0.2.6/29", "dev", "cable")
    ip(ends[0], "address", "add", "192.0.2.5/29", "dev", "cable")
    with Node(ends[0], ALPHA, "Alpha") as alpha, Node(ends[1], BETA, "First") as first:
        alpha.wait_until(lambda snapshot: names(snapshot) == ["First"])
        first.kill()  # without a goodbye: its records stay behind
        with Node(ends[1], BETA, "Second"):
            alpha.wait_until(lambda snapshot: names(snapshot) == ["Second"])
            assert not alpha.snapshot["found"][0]["has_twin"]


def test_where_multicast_is_filtered_an_address_is_enough(ends: tuple[netns.End, netns.End]) -> None:
    """A switch between the two that passes on no multicast: a network wider than a cable, then a /30."""
    near, far = ends
    switch = netns.End(namespace=near.namespace.removesuffix("-a") + "-b-switch", host="")
    subprocess.run(["ip", "netns", "add", switch.namespace], check=True)
    try:
        ip(switch, "link", "add", "switch", "type", "bridge")
        ip(switch, "link", "set", "switch", "up")
        for end, host in ((near, "198.51.100.1/24"), (far, "198.51.100.2/24")):
            ip(end, "link", "set", "cable", "down")
            port = "port-" + end.namespace[-1]
            ip(end, *("link", "add", "wire", "type", "veth", "peer", "name", port, "netns", switch.namespace))
            ip(end, "address", "add", host, "dev", "wire")
            ip(switch, "link", "set", port, "master", "switch")
            ip(switch, "link", "set", port, "type", "bridge_slave", "mcast_flood", "off")
            ip(switch, "link", "set", port, "up")
            ip(end, "link", "set", "wire", "up")
        with Node(near, ALPHA, "Alpha") as alpha, Node(far, BETA, "Beta") as beta:
            alpha.tell("manual 198.51.100.2")
            alpha.wait_until(lambda snapshot: names(snapshot) == ["Beta"])
            (found,) = alpha.snapshot["found"]
            assert (found["addresses"], found["by"]) == (["198.51.100.2:7119"], ["asked"])
            assert beta.snapshot["found"] == []
        for end, host in ((near, "198.51.100.9/30"), (far, "198.51.100.10/30")):
            ip(end, "address", "flush", "dev", "wire")
            ip(end, "address", "add", host, "dev", "wire")
        with Node(far, BETA, "Beta"), Node(near, ALPHA, "Alpha") as alpha:
            alpha.wait_until(lambda snapshot: names(snapshot) == ["Beta"])
            assert alpha.snapshot["found"][0]["by"] == ["asked"]
    finally:
        subprocess.run(["ip", "netns", "delete", switch.namespace], check=True)
