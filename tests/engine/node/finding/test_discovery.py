"""Two discoveries on the loopback interface, told that it is a network: what they see, and what strangers send them."""

from __future__ import annotations

import asyncio
import ipaddress
import random
import socket
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zeroconf import DNSCache, DNSText
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from engine.errors import InvalidRequest, UserError
from engine.node.finding.announcement import SERVICE_TYPE, Announcement, new_instance
from engine.node.finding.direct_query import ask, read_response
from engine.node.finding.discovery import MAX_MANUAL, MAX_SIGHTINGS, Discovery, Found, _Sighting
from engine.node.finding.segments import Segment

ALPHA, BETA = "a" * 32, "b" * 32
TIMEOUT_S = 10.0

# Every program of this computer hears what is sent on loopback: a small network of it that hardly another one takes.
_chance = random.SystemRandom()
NETWORK = ipaddress.IPv4Network(f"127.{_chance.randrange(1, 255)}.{_chance.randrange(256)}.0/28")
ONE, TWO, THREE, FOUR = (str(NETWORK[number]) for number in range(1, 5))


def loopback(host: str) -> Segment:
    return Segment(
        name="lo", index=socket.if_nametoindex("lo"), addresses=(ipaddress.IPv4Interface(f"{host}/28"),)
    )


@dataclass
class Node:
    """A discovery at a loopback address of its own, and a wait for its next change."""

    node_id: str
    name: str
    host: str
    options: dict[str, Any] = field(default_factory=dict)
    segments: list[Segment] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.segments = self.segments or [loopback(self.host)]
        self._changed = asyncio.Event()
        self.discovery = Discovery(
            node_id=self.node_id,
            name=self.name,
            version="0.1.0",
            on_change=self._changed.set,
            look=lambda: self.segments,
            **self.options,
        )

    async def until(self, wanted: Callable[[], Any]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not wanted():
                self._changed.clear()
                await self._changed.wait()

    def names(self) -> list[str]:
        return [one.name for one in self.discovery.found()]

    async def __aenter__(self) -> Node:
        await self.discovery.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.discovery.close()


async def wait_for(wanted: Callable[[], Awaitable[Any]]) -> Any:
    """The first true answer."""
    async with asyncio.timeout(TIMEOUT_S):
        while not (answer := await wanted()):
            continue
        return answer


async def found_and_lost() -> None:
    async with Node(ALPHA, "Alpha", ONE) as alpha:
        async with Node(BETA, "Beta", TWO) as beta:
            await alpha.until(lambda: alpha.names() == ["Beta"])
            await beta.until(lambda: beta.names() == ["Alpha"])
            (found,) = alpha.discovery.found()
            assert found == Found(
                node_id=BETA,
                name="Beta",
                addresses=(f"{TWO}:7119",),
                by=("multicast",),
                instance=beta.discovery.instance,
                version="0.1.0",
            )
            await beta.discovery.set_pairing_port(7120)
            await alpha.until(lambda: alpha.discovery.found()[0].pairing_addresses == (f"{TWO}:7120",))
            await beta.discovery.set_pairing_port(None)
            await alpha.until(lambda: alpha.discovery.found()[0].pairing_addresses == ())
            await beta.discovery.set_name("Gamma")
            await alpha.until(lambda: alpha.names() == ["Gamma"])
        await alpha.until(lambda: alpha.names() == [])


async def one_interface_fails() -> None:
    broken = Segment(name="broken", index=4242, addresses=(ipaddress.IPv4Interface("203.0.113.7/24"),))
    without_ipv6 = Segment(name="other", index=4243, link_local=("fe80::dead",))
    segments = [broken, without_ipv6, loopback(ONE)]
    async with Node(ALPHA, "Alpha", "", segments=segments) as alpha, Node(BETA, "Beta", TWO) as beta:
        await alpha.until(lambda: alpha.names() == ["Beta"])
        await beta.until(lambda: beta.names() == ["Alpha"])
        faults = {one["name"]: one["fault"] for one in alpha.discovery.snapshot()["interfaces"]}
        assert faults["broken"] and faults["other"] and not faults["lo"]


async def strangers_send_what_they_like() -> None:
    """The names below are no Baton's, or cannot be shown as they are; and there is noise."""
    hostile: list[dict[bytes, bytes]] = [
        {},
        {b"id": b"\xff" * 32, b"start": b"\x00", b"name": b"x"},
        {b"name": b"n" * 240, **{f"k{number}".encode(): b"v" * 240 for number in range(25)}},
        {**announced("\N{RIGHT-TO-LEFT OVERRIDE}evil", "c" * 32), b"name": b"\x1b[2J\xff\xfeevil\n\x00"},
    ]
    zeroconf = AsyncZeroconf(interfaces=[THREE])
    noise = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    noise.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(FOUR))
    chance = random.Random(7)
    async with Node(ALPHA, "Alpha", ONE) as alpha:
        for number, properties in enumerate(hostile):
            info = AsyncServiceInfo(
                SERVICE_TYPE,
                f"hostile-{number}.{SERVICE_TYPE}",
                port=7119,
                server=f"hostile-{number}.local.",
                properties=properties,
                parsed_addresses=[THREE],
            )
            await zeroconf.async_register_service(info, cooperating_responders=True)
        for _ in range(200):
            noise.sendto(chance.randbytes(chance.randrange(1, 1400)), ("224.0.0.251", 5353))
        async with Node(BETA, "Beta", TWO):
            await alpha.until(lambda: "Beta" in alpha.names() and len(alpha.names()) > 1)
            assert alpha.names() == ["Beta", "[2J evil"]
    noise.close()
    await zeroconf.async_close()


def announced(name: str, node_id: str) -> dict[bytes, bytes]:
    said = Announcement(
        node_id=node_id, instance=new_instance(), name=name, version="1", port=7119, hosts=(THREE,)
    )
    return said.properties()


async def strangers_keep_no_peer_out() -> None:
    """Somebody announces more computers than are kept, before a paired one comes."""
    peers = [Remembered(BETA, "Beta then", ())]
    async with Node(ALPHA, "Alpha", ONE, {"remembered": lambda: peers}) as alpha:
        for number in range(MAX_SIGHTINGS + 1):
            said = Announcement.parse(announced(f"Stranger {number}", f"{number:032x}"), 7119)
            place = ("lo", 4)
            alpha.discovery._see(
                (place, str(number)),
                _Sighting(place=place, announcement=said, hosts=(THREE,), by="multicast"),
            )
        assert len(alpha.names()) == MAX_SIGHTINGS and f"Stranger {MAX_SIGHTINGS}" not in alpha.names()
        async with Node(BETA, "Beta", TWO):
            await alpha.until(lambda: "Beta" in alpha.names())
        assert len(alpha.names()) <= MAX_SIGHTINGS


async def a_look_that_goes_wrong_is_not_the_last() -> None:
    async with Node(ALPHA, "Alpha", "", segments=[Segment(name="none", index=1)]) as alpha:
        looked = asyncio.Event()

        def go_wrong() -> list[Segment]:
            loop.call_soon_threadsafe(looked.set)
            raise RuntimeError("nobody has thought of that")

        loop = asyncio.get_running_loop()
        alpha.discovery._look = go_wrong
        alpha.discovery._wake()
        async with asyncio.timeout(TIMEOUT_S):
            await looked.wait()
        alpha.discovery._look = lambda: [loopback(ONE)]
        alpha.discovery._wake()
        async with Node(BETA, "Beta", TWO):
            await alpha.until(lambda: alpha.names() == ["Beta"])


async def an_address_typed_in() -> None:
    silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    silent.bind((FOUR, 5353))
    with silent:
        await typed_in()


async def typed_in() -> None:
    nobody_at = f"{FOUR}:7119"
    async with (
        Node(ALPHA, "Alpha", ONE, segments=[Segment(name="none", index=1)]) as alpha,
        Node(BETA, "Beta", TWO) as beta,
    ):
        assert alpha.discovery.add_manual(FOUR) == nobody_at
        assert alpha.discovery.add_manual(f"{TWO}:7119") == f"{TWO}:7119"
        await alpha.until(lambda: alpha.names() == [nobody_at, "Beta"])
        nobody, found = alpha.discovery.found()
        assert (nobody.node_id, nobody.by, nobody.addresses) == (None, ("manual",), (nobody_at,))
        assert (found.node_id, found.by, found.addresses) == (BETA, ("asked",), (f"{TWO}:7119",))
        assert found.instance == beta.discovery.instance
        alpha.discovery.remove_manual(TWO)
        await alpha.until(lambda: alpha.names() == [nobody_at])
        with pytest.raises(InvalidRequest, match="was not added"):
            alpha.discovery.remove_manual(TWO)
        for number in range(MAX_MANUAL - 1):
            alpha.discovery.add_manual(f"{FOUR}:{number + 1}")
        with pytest.raises(InvalidRequest, match="remove one first"):
            alpha.discovery.add_manual(f"{FOUR}:7200")


@dataclass(frozen=True)
class Remembered:
    node_id: str
    name: str
    addresses: tuple[str, ...]


async def a_remembered_peer() -> None:
    peers = [Remembered(BETA, "Beta then", ("10.9.9.9:7119", f"{TWO}:7119"))]
    async with Node(ALPHA, "Alpha", ONE, {"remembered": lambda: peers}) as alpha:
        (away,) = alpha.discovery.found()
        assert (away.name, away.addresses, away.by) == ("Beta then", peers[0].addresses, ("remembered",))
        async with Node(BETA, "Beta", TWO):
            await alpha.until(lambda: alpha.names() == ["Beta"])
            (here,) = alpha.discovery.found()
            assert here.addresses == (f"{TWO}:7119", "10.9.9.9:7119")
            assert here.by == ("multicast", "remembered")


async def a_copy_of_this_node() -> None:
    away = Segment(name="lo", index=1, addresses=(ipaddress.IPv4Interface(f"{ONE}/28"),))
    async with Node(ALPHA, "Alpha", "", segments=[away]) as alpha, Node(ALPHA, "Copy", TWO) as copy:
        await alpha.until(alpha.discovery.twins)
        (twin,) = alpha.discovery.twins()
        assert (twin.name, twin.instance) == ("Copy", copy.discovery.instance)
        assert alpha.discovery.found() == ()


async def two_others_with_one_id() -> None:
    async with (
        Node(ALPHA, "Alpha", ONE) as alpha,
        Node(BETA, "First", TWO),
        Node(BETA, "Second", THREE),
    ):
        await alpha.until(lambda: alpha.names() == ["First", "Second"])
        assert all(one.has_twin for one in alpha.discovery.found())


async def asked_by_unicast() -> None:
    async with Node(BETA, "Beta", TWO) as beta:
        (said,) = await wait_for(lambda: ask(TWO))
        assert (said.node_id, said.instance) == (BETA, beta.discovery.instance)
    assert said not in await ask(TWO)
    assert await ask("no such name") == ()


def test_what_zeroconf_keeps_of_strangers_has_a_limit() -> None:
    cache = DNSCache()
    for number in range(10_050):
        cache.async_add_records([DNSText(f"{number}.{SERVICE_TYPE}", 16, 1, 4500, b"")])
    assert len(cache.names()) == 10_000


@pytest.mark.skipif(not hasattr(socket, "AF_NETLINK"), reason="loopback has one address only on this system")
@pytest.mark.parametrize(
    "job",
    [
        found_and_lost,
        one_interface_fails,
        strangers_send_what_they_like,
        strangers_keep_no_peer_out,
        a_look_that_goes_wrong_is_not_the_last,
        an_address_typed_in,
        a_remembered_peer,
        a_copy_of_this_node,
        two_others_with_one_id,
        asked_by_unicast,
    ],
)
def test_on_loopback(job: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(job())


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("spark.local", "spark.local:7119"),
        (" 10.0.0.2 ", "10.0.0.2:7119"),
        ("10.0.0.2:80", "10.0.0.2:80"),
        ("fe80::1%eth0", "[fe80::1%eth0]:7119"),
        ("[fe80::1%eth0]", "[fe80::1%eth0]:7119"),
        ("[fe80::1%eth0]:9", "[fe80::1%eth0]:9"),
    ],
)
def test_an_address_may_lack_its_port(text: str, address: str) -> None:
    async def job() -> None:
        assert Node(ALPHA, "Alpha", ONE).discovery.add_manual(text) == address

    asyncio.run(job())


@pytest.mark.parametrize(
    "text", ["", "http://spark", "spark:0", "spark:99999", "a b", "[fe80::1", "x" * 10_000]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    async def job() -> None:
        with pytest.raises(UserError):
            Node(ALPHA, "Alpha", ONE).discovery.add_manual(text)

    asyncio.run(job())


@given(st.binary(max_size=1500))
def test_any_datagram_is_read_or_ignored(data: bytes) -> None:
    assert read_response(data) == ()
