"""Waking the other computer: the packet, who gets it, how its address is learnt, and that it is waited for."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from engine.bench import netns
from engine.errors import HostError, InvalidRequest, UserError
from engine.node.control import wake as control
from engine.node.peering.offers import Method
from engine.node.system.wake_on_lan import (
    MAX_MACS,
    TRIES,
    Port,
    WakeOnLan,
    magic_packet,
    own_macs,
    read_ports,
    send_packets,
)
from engine.server.handlers import EXCEPTION_HANDLERS
from tests.engine.node.glue import End, two_ends

CARD = "a0:36:9f:00:00:01"


def port(name: str, mac: str, *hosts: str) -> Port:
    return Port(
        name=name,
        mac=mac,
        hosts=tuple(host.partition("/")[0] for host in hosts),
        networks=tuple(ipaddress.IPv4Interface(host) for host in hosts if "." in host),
        index=0,
    )


LOOPBACK = port("lo", CARD, "127.0.0.1/8")


def test_the_packet() -> None:
    packet = magic_packet("01:23:45:67:89:ab")
    assert packet == b"\xff\xff\xff\xff\xff\xff" + b"\x01\x23\x45\x67\x89\xab" * 16
    assert len(packet) == 102


def test_the_port_of_the_link_comes_first_and_what_is_made_up_not_at_all() -> None:
    ports = [
        port("eth0", "a0:36:9f:00:00:01", "192.168.1.20/24"),
        port("docker0", "02:42:00:00:00:01", "172.17.0.1/16"),
        port("cable", "02:00:00:00:00:09", "10.0.0.1/24", "fe80::1%cable"),
        port("wg0", "", "10.9.0.1/24"),
        port("ib0", "80:00:02:08:fe:80", "10.8.0.1/24"),
        port("odd", "00:00:00:00:00:00", "10.7.0.1/24"),
    ]
    link_first = ("02:00:00:00:00:09", "a0:36:9f:00:00:01", "80:00:02:08:fe:80")
    assert own_macs(ports, "10.0.0.1").macs == link_first
    assert own_macs(ports, "fe80::1%5").macs == link_first
    assert own_macs(ports, "::ffff:10.0.0.1").macs == link_first
    assert own_macs(ports, "8.8.8.8").macs == ("a0:36:9f:00:00:01", "80:00:02:08:fe:80")
    many = [port(f"eth{n}", f"a0:36:9f:00:00:{n:02x}", f"10.1.{n}.1/24") for n in range(20)]
    assert len(own_macs(many, "10.1.19.1").macs) == MAX_MACS
    assert own_macs(many, "10.1.19.1").macs[0] == "a0:36:9f:00:00:13"


def test_this_computers_ports_are_read() -> None:
    ports = read_ports()
    assert all(not host.startswith("127.") for port in ports for host in port.hosts)
    indices = {name: index for index, name in socket.if_nameindex()}
    assert {port.index for port in ports} <= {0, *indices.values()}


@pytest.mark.skipif(sys.platform != "linux", reason="loopback has no broadcast elsewhere")
def test_a_packet_for_each_address_is_really_sent() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(20)
        receiver.bind(("", 0))
        wake_port = receiver.getsockname()[1]
        assert send_packets([LOOPBACK], [CARD, "a0:36:9f:00:00:02"], wake_port=wake_port) == 2
        assert [receiver.recv(200) for _ in range(2)] == [
            magic_packet(CARD),
            magic_packet("a0:36:9f:00:00:02"),
        ]


def test_nothing_sent_is_a_failure() -> None:
    with pytest.raises(OSError):
        send_packets([], [CARD])
    with pytest.raises(OSError):  # an address that this computer does not have
        send_packets([port("eth0", CARD, "192.0.2.77/24")], [CARD])
    with pytest.raises(OSError):  # a network with no address for all
        send_packets([port("ptp", CARD, "127.0.0.1/32")], [CARD])


@pytest.mark.root
@pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's alone")
def test_it_crosses_a_cable_by_both_protocols_and_no_other_port() -> None:
    """Sent in one namespace, received in another, where nothing is known of the sender's addresses."""
    try:
        netns.check_possible()
    except HostError as error:
        pytest.skip(str(error))
    with netns.cable("1gbit") as (near, far):
        receive = (
            "import socket\n"
            "def listen(family):\n"
            "    receiver = socket.socket(family, socket.SOCK_DGRAM)\n"
            "    if family == socket.AF_INET6:\n"
            "        receiver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)\n"
            "    receiver.settimeout(20); receiver.bind(('', 9)); return receiver\n"
            "receivers = [listen(socket.AF_INET), listen(socket.AF_INET6)]\n"
            "print('ready', flush=True)\n"
            "for receiver in receivers:\n"
            "    print(receiver.recv(200).hex(), flush=True)\n"
        )
        send = (
            "from engine.node.system.wake_on_lan import read_ports, send_packets\n"
            f"print(send_packets([port for port in read_ports() if port.name == 'cable'], ['{CARD}']))\n"
        )
        with subprocess.Popen(
            [*far.enter, sys.executable, "-c", receive], stdout=subprocess.PIPE, text=True
        ) as receiver:
            assert receiver.stdout is not None
            try:
                assert receiver.stdout.readline() == "ready\n"
                for _ in range(
                    40
                ):  # a link-local address is tried out for a second or two before it may be used
                    done = subprocess.run(
                        [*near.enter, sys.executable, "-c", send], capture_output=True, text=True, timeout=20
                    )
                    if done.stdout == "2\n":
                        break
                assert done.stdout == "2\n", done.stderr
                assert [receiver.stdout.readline().strip() for _ in range(2)] == [
                    magic_packet(CARD).hex()
                ] * 2
            finally:
                receiver.kill()


class Sleepy:
    """One node's WakeOnLan over a real link: what it sends is kept, and wakes nobody."""

    def __init__(self, folder: Path, end: End, ports: list[Port]) -> None:
        self.sent: list[tuple[list[str], list[str]]] = []
        self.calls = 0
        self.n_changes = 0
        self.fault: OSError | None = None
        self.on_send: Callable[[], None] = lambda: None
        self.ports = ports
        self.wake_on_lan = WakeOnLan(
            folder / "wake.json",
            named=end.book.named,
            is_paired=lambda node_id: end.book.get(node_id) is not None,
            is_awake=lambda node_id: end.links.get(node_id) is not None,
            call_it=self._call,
            on_change=self._learn,
            ports=lambda: self.ports,
            send=self._send,
            try_every_s=0.01,
        )
        end.offers.calls.update(self.wake_on_lan.methods())

    def _learn(self) -> None:
        self.n_changes += 1

    def _call(self) -> None:
        self.calls += 1

    def _send(self, ports: Sequence[Port], macs: Sequence[str]) -> int:
        if self.fault is not None:
            raise self.fault
        self.sent.append(([port.name for port in ports], list(macs)))
        return len(macs)


def with_two(folder: Path, story: Callable[[End, End, Sleepy, Sleepy], Awaitable[None]]) -> None:
    async def run() -> None:
        async with two_ends(folder) as (left, right):
            ours = [port("wifi", "a0:36:9f:00:00:07", "192.168.1.2/24"), LOOPBACK]
            await story(left, right, Sleepy(folder, left, ours), Sleepy(folder / "right", right, [LOOPBACK]))

    asyncio.run(run())


def test_what_wakes_a_peer_is_learnt_and_used(tmp_path: Path) -> None:
    async def story(left: End, right: End, near: Sleepy, far: Sleepy) -> None:
        with pytest.raises(InvalidRequest, match="no paired computer is called 'nobody'"):
            await near.wake_on_lan.wake("nobody")
        assert left.link is not None
        await near.wake_on_lan.learn(left.link)
        await near.wake_on_lan.learn(left.link)
        right_id = right.identity.node_id
        assert (near.wake_on_lan.snapshot(), near.n_changes) == ({"can_wake": [right_id]}, 1)
        assert (await near.wake_on_lan.wake("right"))["note"] == "right is awake already"
        await right.links.close()
        await left.until(lambda: left.link is None)

        # another node, later: what was learnt is kept
        near = Sleepy(tmp_path, left, near.ports)
        outcome = await near.wake_on_lan.wake("right")
        assert (outcome["awake"], outcome["packets"]) == (False, TRIES)
        assert "has not come back" in outcome["note"]
        assert near.sent == [(["lo"], [CARD])] * TRIES  # the port of the link alone
        assert near.calls == TRIES

        # without that port, over any other
        near.ports = near.ports[:1]
        near.sent.clear()
        await near.wake_on_lan.wake(right_id)
        assert near.sent[0] == (["wifi"], [CARD])

        near.fault = OSError(101, "Network is unreachable")
        with pytest.raises(HostError, match=r"over wifi \(Network is unreachable\)"):
            await near.wake_on_lan.wake("right")

        left.book.remove(right_id)
        assert near.wake_on_lan.snapshot() == {"can_wake": []}

    with_two(tmp_path, story)


def test_a_peer_that_comes_back_is_told_at_once(tmp_path: Path) -> None:
    async def story(left: End, right: End, near: Sleepy, far: Sleepy) -> None:
        link = left.link
        assert link is not None
        await near.wake_on_lan.learn(link)
        near.wake_on_lan._is_awake = lambda node_id: False
        near.wake_on_lan._try_every_s = 20
        waking = asyncio.create_task(near.wake_on_lan.wake("right"))
        while not near.sent:
            await asyncio.sleep(0)
        await near.wake_on_lan.learn(link)
        outcome = await waking
        assert (outcome["awake"], len(near.sent)) == (True, 1)
        assert "is back after 0 s" in outcome["note"]

    with_two(tmp_path, story)


@pytest.mark.parametrize(
    "lie",
    [
        {"macs": ["nonsense"]},
        {"macs": [CARD] * (MAX_MACS + 1)},
        {"macs": "x" * 1000},
        ["x"],
        None,
        {"macs": [CARD + "\n"]},
        {"macs": []},
    ],
)
def test_a_peer_that_lies_is_not_believed(tmp_path: Path, lie: Any) -> None:
    async def story(left: End, right: End, near: Sleepy, far: Sleepy) -> None:
        async def tell(link: Any, params: Any) -> Any:
            return lie

        right.offers.calls["wake.macs"] = Method(tell)
        assert left.link is not None
        await near.wake_on_lan.learn(left.link)
        assert near.wake_on_lan.snapshot() == {"can_wake": []} and not (tmp_path / "wake.json").exists()
        near.wake_on_lan._is_awake = lambda node_id: False
        with pytest.raises(UserError, match="learnt while both are connected"):
            await near.wake_on_lan.wake("right")

    with_two(tmp_path, story)


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"x": {"macs": ["no"], "port": ""}}', b"[" * 10**5, b"\xff"]
)
def test_a_damaged_file_is_learnt_again(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "wake.json").write_bytes(content)

    async def story(left: End, right: End, near: Sleepy, far: Sleepy) -> None:
        assert near.wake_on_lan.snapshot() == {"can_wake": []}
        assert left.link is not None
        await near.wake_on_lan.learn(left.link)
        assert near.wake_on_lan.snapshot() == {"can_wake": [right.identity.node_id]}

    with_two(tmp_path, story)


def test_the_control_api_wakes_by_name() -> None:
    class Node:
        class wake_on_lan:
            @staticmethod
            async def wake(name: str) -> dict[str, Any]:
                if name != "the studio/1":
                    raise InvalidRequest(f"no paired computer is called {name!r}")
                return {"awake": True}

    async def story() -> None:
        app = Starlette(routes=control.routes(), exception_handlers=EXCEPTION_HANDLERS)
        app.state.node = Node
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://node") as client:
            assert (await client.post("/peers/the%20studio%2F1/wake")).json() == {"awake": True}
            assert (await client.post("/peers/nobody/wake")).status_code == 400
            assert (await client.get("/peers/nobody/wake")).status_code == 405

    asyncio.run(story())
