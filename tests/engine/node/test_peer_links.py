"""The links between paired nodes: calls both ways, presence, and who is let in."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from engine.errors import InvalidRequest, PeerLost, PeerRefused
from engine.node.identity import MUTUAL_NAME, peers_context
from engine.node.peer_link import PeerLink, encode_frame
from engine.node.peer_links import split_node_address
from engine.node.peer_messages import NODE_PROTOCOL, Beat
from engine.wire.limits import MAX_UNAUTHENTICATED
from tests.engine.node.glue import TIMEOUT_S, End, new_end, peer_of, two_ends


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(2 * TIMEOUT_S):
            await work

    asyncio.run(bounded())


async def echo(link: PeerLink, params: Any) -> Any:
    return [link.peer.name, params]


def test_either_end_calls_the_other(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            left.offers.calls["echo"] = right.offers.calls["echo"] = echo
            assert left.link and right.link
            assert await left.link.call("echo", {"a": b"\x00" * (1 << 20)}) == [
                "left",
                {"a": b"\x00" * (1 << 20)},
            ]
            assert await right.link.call("echo", None) == ["right", None]
            assert (left.link.is_dialled, right.link.is_dialled) == (True, False)
            assert right.link.remote_host == "127.0.0.1"

    run(work())


def test_a_refusal_is_told_in_its_own_words_and_a_mistake_is_not(tmp_path: Path) -> None:
    async def refuse(link: PeerLink, params: Any) -> Any:
        raise InvalidRequest("the model is not here: copy it")

    async def fall_over(link: PeerLink, params: Any) -> Any:
        raise RuntimeError("secret detail")

    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            right.offers.calls.update(refuse=refuse, fall=fall_over)
            assert left.link
            with pytest.raises(PeerRefused, match="the model is not here: copy it"):
                await left.link.call("refuse")
            with pytest.raises(PeerRefused, match="its log has the details"):
                await left.link.call("fall")
            with pytest.raises(PeerRefused, match=r"does not know nothing\.like\.it: update"):
                await left.link.call("nothing.like.it")
            assert left.link.is_open

    run(work())


def test_a_stream_comes_in_parts_and_stops_when_nobody_reads_on(tmp_path: Path) -> None:
    stopped = asyncio.Event()

    async def count(link: PeerLink, params: Any) -> AsyncIterator[Any]:
        try:
            for number in range(params):
                yield number
            while params == 7:
                yield "more"
                await asyncio.sleep(0)
        finally:
            stopped.set()

    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            right.offers.streams["count"] = count
            assert left.link
            assert [part async for part in left.link.stream("count", 5)] == [0, 1, 2, 3, 4]
            stopped.clear()
            async with contextlib.aclosing(left.link.stream("count", 7)) as parts:
                async for part in parts:
                    if part == "more":
                        break
            await stopped.wait()

    run(work())


def test_who_calls_hears_at_once_that_the_link_broke(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def hang(link: PeerLink, params: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            right.offers.calls["hang"] = hang
            assert left.link and right.link
            call = asyncio.create_task(left.link.call("hang"))
            await asked.wait()
            await right.links.close()
            with pytest.raises(PeerLost, match="has ended"):
                await call

    run(work())


def test_a_call_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    cancelled = asyncio.Event()

    async def hang(link: PeerLink, params: Any) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            right.offers.calls["hang"] = hang
            assert left.link
            with pytest.raises(PeerLost, match="did not answer within"):
                await left.link.call("hang", timeout_s=0.05)
            await cancelled.wait()

    run(work())


def test_unpairing_cuts_the_link_and_keeps_it_cut(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            right.book.remove(left.identity.node_id)
            right.links.look_again()
            assert right.link is None
            await left.until(lambda: left.link is None)
            assert "unpaired" in note_of(left)
            left.links.look_again()
            await left.until(lambda: "hung up: it may" in note_of(left))
            assert left.link is None and right.link is None

    run(work())


def test_a_link_comes_back_by_itself_when_the_peer_does(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            await right.links.close()
            await left.until(lambda: left.link is None)
            again = new_end(tmp_path, "right", node_port=right.port, instance="f" * 32)
            assert await again.links.start() == right.port
            await left.until(lambda: left.link is not None)
            await again.links.close()

    run(work())


def test_two_that_call_each_other_at_once_keep_the_same_link(tmp_path: Path) -> None:
    async def work() -> None:
        changed = asyncio.Event()
        left, right = (new_end(tmp_path, name, changed=changed) for name in ("left", "right"))
        left.port, right.port = await left.links.start(), await right.links.start()
        left.book.add(peer_of(right, "right", f"127.0.0.1:{right.port}"))
        right.book.add(peer_of(left, "left", f"127.0.0.1:{left.port}"))
        left.links.look_again()
        right.links.look_again()
        left.offers.calls["echo"] = right.offers.calls["echo"] = echo
        try:
            await left.until(lambda: same_link(left, right))
            assert left.link and right.link
            assert await left.link.call("echo", 1) == ["left", 1]
            assert await right.link.call("echo", 2) == ["right", 2]
        finally:
            await left.links.close()
            await right.links.close()

    def same_link(left: End, right: End) -> bool:
        return (
            left.link is not None and right.link is not None and left.link.is_dialled != right.link.is_dialled
        )

    run(work())


def test_a_stranger_gets_nothing_and_costs_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_ends(tmp_path) as (_, right):
            stranger = new_end(tmp_path, "stranger")
            await stranger.links.start()
            stranger.book.add(peer_of(right, "right", f"127.0.0.1:{right.port}"))
            stranger.links.look_again()
            try:
                await stranger.until(lambda: "hung up: it may" in note_of(stranger))
                reader, writer = await asyncio.open_connection("127.0.0.1", right.port)
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert await reader.read() == b""
                writer.close()
                assert stranger.link is None and right.link is not None
            finally:
                await stranger.links.close()

    run(work())


def test_another_key_at_a_known_address_is_refused_and_explained(tmp_path: Path) -> None:
    async def work() -> None:
        left, right = new_end(tmp_path, "left"), new_end(tmp_path, "right")
        thief = new_end(tmp_path, "thief")
        right.port = await right.links.start()
        await left.links.start()
        right.book.add(peer_of(left, "left"))
        right.links.look_again()
        known_as_thief = peer_of(thief, "right", f"127.0.0.1:{right.port}")
        left.book.add(known_as_thief)
        left.links.look_again()
        try:
            await left.until(lambda: "another key" in note_of(left))
            assert left.link is None
        finally:
            await left.links.close()
            await right.links.close()

    run(work())


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("spark", "spark", 7119),
        ("spark:9", "spark", 9),
        ("10.0.0.2", "10.0.0.2", 7119),
        ("[fe80::1%eth0]:7200", "fe80::1%eth0", 7200),
        ("[fe80::1%eth0]", "fe80::1%eth0", 7119),
        ("fe80::1%eth0", "fe80::1%eth0", 7119),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    assert split_node_address(text) == (host, port)


def note_of(end: End) -> str:
    notes = [peer["note"] for peer in end.links.snapshot()]
    return notes[0] if notes else ""


@pytest.mark.skipif(sys.platform != "linux", reason="only there the whole of 127.0.0.0/8 is this computer's")
def test_a_link_moves_to_a_better_address_when_there_is_one(tmp_path: Path) -> None:
    found: list[str] = []

    async def work() -> None:
        left = new_end(tmp_path, "left", addresses=lambda node_id: found)
        right = new_end(tmp_path, "right", host="0.0.0.0")
        right.port = await right.links.start()
        await left.links.start()
        found.append(f"127.0.0.1:{right.port}")
        right.book.add(peer_of(left, "left"))
        right.links.look_again()
        left.book.add(peer_of(right, "right"))
        left.links.look_again()
        left.offers.calls["echo"] = right.offers.calls["echo"] = echo
        try:
            await left.until(lambda: left.link is not None)
            found.insert(0, f"127.0.0.3:{right.port}")
            found.insert(0, f"127.0.0.2:{right.port + 1 if right.port < 65535 else 1}")
            left.links.look_again()
            await left.until(lambda: left.link is not None and left.link.remote_host == "127.0.0.3")
            assert left.link and right.link
            assert await left.link.call("echo", 1) == ["left", 1]
            assert await right.link.call("echo", 1) == ["right", 1]
        finally:
            await left.links.close()
            await right.links.close()

    run(work())


def test_calls_held_open_by_strangers_do_not_keep_a_peer_out(tmp_path: Path) -> None:
    async def work() -> None:
        left, right = new_end(tmp_path, "left"), new_end(tmp_path, "right")
        right.port = await right.links.start()
        await left.links.start()
        right.book.add(peer_of(left, "left"))
        right.links.look_again()
        held = [
            await asyncio.open_connection("127.0.0.1", right.port) for _ in range(MAX_UNAUTHENTICATED + 4)
        ]
        try:
            left.book.add(peer_of(right, "right", f"127.0.0.1:{right.port}"))
            left.links.look_again()
            await left.until(lambda: left.link is not None)
            assert await held[0][0].read() == b""
        finally:
            for _, writer in held:
                writer.close()
            await left.links.close()
            await right.links.close()

    run(work())


@pytest.mark.parametrize(
    "garbage",
    [b"\x00" * 100, b"BN\x01\x00\xff\xff\xff\xff", encode_frame(Beat()), b"BN\x01\x00\x05\x00\x00\x00hello"],
)
def test_a_peer_that_talks_nonsense_is_cut_and_nothing_else(tmp_path: Path, garbage: bytes) -> None:
    """It is paired, and lies: its link goes, the node stays."""

    async def work() -> None:
        left, right = new_end(tmp_path, "left"), new_end(tmp_path, "right")
        right.port = await right.links.start()
        right.book.add(peer_of(left, "left"))
        right.links.look_again()
        context = peers_context(
            left.identity, [peer_of(right, "right")], server_side=False, protocols=(NODE_PROTOCOL,)
        )
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", right.port, ssl=context, server_hostname=MUTUAL_NAME
        )
        try:
            writer.write(garbage)
            # its hello comes, then the end
            assert (await reader.read()).startswith(b"BN")
            assert right.link is None
        finally:
            writer.close()
            await right.links.close()

    run(work())


def test_a_mistake_in_what_listens_ends_the_link_and_another_one_comes(tmp_path: Path) -> None:
    """One that stayed as it is would pass for a link for ever."""

    def listen(link: PeerLink, params: object) -> None:
        raise ZeroDivisionError

    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            right.offers.news["word"] = listen
            old = right.link
            assert left.link is not None
            left.link.tell("word")
            await right.until(lambda: right.link is not None and right.link is not old)

    asyncio.run(work())
