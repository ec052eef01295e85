"""The links between paired nodes: calls both ways, presence, and who is let in."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.errors import InvalidRequest, PeerLost, PeerRefused, ProtocolError
from engine.node.peering import peer_link, peer_links
from engine.node.peering.offers import Method
from engine.node.peering.peer_link import PeerLink, encode_frame
from engine.node.peering.peer_links import make_room, split_node_address
from engine.node.peering.peer_messages import (
    NODE_PROTOCOL,
    NODE_PROTOCOL_MAJOR,
    NODE_PROTOCOL_MINOR,
    Beat,
    Call,
    NodeHello,
    NodeMessage,
    Part,
)
from engine.node.trust.identity import MUTUAL_NAME, peers_context
from engine.wire.limits import MAX_UNAUTHENTICATED
from tests.engine.node.glue import TIMEOUT_S, End, new_end, peer_of, run, two_ends


async def echo(link: PeerLink, params: Any) -> Any:
    return [link.peer.name, params]


def test_either_end_calls_the_other(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            left.offers.calls["echo"] = right.offers.calls["echo"] = Method(echo, max_bytes=2 << 20)
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
            right.offers.calls.update(refuse=Method(refuse), fall=Method(fall_over))
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

    async def count(link: PeerLink, params: Any) -> AsyncGenerator[Any, None]:
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
            right.offers.streams["count"] = Method(count)
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
            right.offers.calls["hang"] = Method(hang)
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
            right.offers.calls["hang"] = Method(hang)
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


def test_one_that_takes_calls_and_says_nothing_is_asleep_rather_than_unpaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a stopped process does: its system still takes connections."""

    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            for name in ("_CONNECT_TIMEOUT_S", "HANDSHAKE_TIMEOUT_S"):
                monkeypatch.setattr(peer_links, name, 0.05)
            await right.links.close()
            with socket.create_server(("127.0.0.1", right.port)):
                await left.until(lambda: "awake" in note_of(left))
            assert "unpaired" not in note_of(left)

    run(work())


def test_how_long_one_is_away_does_not_begin_anew_with_each_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = iter(range(1_000_000))
    monkeypatch.setattr(peer_links.time, "time", lambda: float(next(now_s)))

    def away(end: End) -> tuple[str, float]:
        (told,) = end.links.snapshot()
        return told["note"], told["since"]

    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            await right.links.close()
            await left.until(lambda: left.link is None)
            first, since = away(left)
            await left.until(lambda: away(left)[0] != first)
            assert away(left)[1] == since

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
        left.offers.calls["echo"] = right.offers.calls["echo"] = Method(echo)
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


@pytest.mark.parametrize("caller", ["left", "right"])
def test_what_was_asked_over_a_link_is_answered_though_a_newer_one_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caller: str
) -> None:
    monkeypatch.setattr(peer_link, "_KNOWN_WITHIN_S", 0.0)
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def wait(link: PeerLink, params: Any) -> Any:
        asked.set()
        await may_answer.wait()
        return "answered"

    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            left.offers.calls["wait"] = right.offers.calls["wait"] = Method(wait)
            old = left.link if caller == "left" else right.link
            assert left.link and right.link and old
            before = left.link, right.link
            call = asyncio.create_task(old.call("wait"))
            await asked.wait()
            peer = left.book.get(right.identity.node_id)
            assert peer is not None
            await left.links._dial(peer, f"127.0.0.1:{right.port}")
            await right.until(lambda: right.link is not before[1])
            assert left.link is not before[0] and before[0].is_open and before[1].is_open
            may_answer.set()
            assert await call == "answered"
            async with asyncio.timeout(TIMEOUT_S):
                while any(known.retiring for end in (left, right) for known in end.links._known.values()):
                    await asyncio.sleep(0)
            assert not before[0].is_open and not before[1].is_open
            assert left.link.is_open and right.link is not None and right.link.is_open

    run(work())


def test_unpairing_cuts_links_that_still_bring_answers(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def wait(link: PeerLink, params: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            right.offers.calls["wait"] = Method(wait)
            old = left.link
            assert old
            call = asyncio.create_task(old.call("wait"))
            await asked.wait()
            peer = left.book.get(right.identity.node_id)
            assert peer is not None
            await left.links._dial(peer, f"127.0.0.1:{right.port}")
            right.book.remove(left.identity.node_id)
            right.links.look_again()
            with pytest.raises(PeerLost):
                await call

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


def test_who_announces_himself_everywhere_under_a_peer_s_id_does_not_hide_it(tmp_path: Path) -> None:
    flood = [f"10.0.0.1:{port}" for port in range(1000, 3000)]
    end = new_end(tmp_path, "left", addresses=lambda node_id: flood)
    where = list(end.links._where(peer_of(new_end(tmp_path, "right"), "right", "10.0.0.2:7119")))
    assert where[0] == flood[0] and where.index("10.0.0.2:7119") < 10 and len(where) < 40


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
        left.offers.calls["echo"] = right.offers.calls["echo"] = Method(echo)
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


def test_who_calls_most_gives_way_first(tmp_path: Path) -> None:
    async def work() -> None:
        calls = ["peer", "stranger", "stranger", "another"]
        callers = {asyncio.create_task(asyncio.sleep(TIMEOUT_S)): host for host in calls}
        tasks = list(callers)
        make_room(callers, 5)
        assert list(callers) == tasks
        make_room(callers, 4)
        assert list(callers.values()) == ["peer", "stranger", "another"]
        make_room(callers, 3)
        assert list(callers.values()) == ["stranger", "another"]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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


def test_a_copy_of_a_peer_does_not_take_its_place(tmp_path: Path) -> None:
    """Two computers with one identity: the one that is there stays, the other is told what it is."""

    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            copy = new_end(tmp_path, "left", instance="c" * 32)
            copy.links.set_name("copy")
            await copy.links.start()
            copy.book.add(peer_of(right, "right", f"127.0.0.1:{right.port}"))
            link = right.link
            copy.links.look_again()
            try:
                await copy.until(lambda: "baton pair renew" in note_of(copy))
                assert right.link is link and left.link is not None and left.link.is_open
                (known,) = right.links.snapshot()
                assert (known["twin"], known["name"]) == ("127.0.0.1", "left")
            finally:
                await copy.links.close()

    run(work())


@contextlib.asynccontextmanager
async def a_peer_that_reads_nothing(folder: Path) -> AsyncIterator[tuple[asyncio.StreamWriter, End]]:
    """It is paired and says hello, and then is only heard."""
    left, right = new_end(folder, "left"), new_end(folder, "right")
    right.port = await right.links.start()
    right.book.add(peer_of(left, "left"))
    right.links.look_again()
    context = peers_context(
        left.identity, [peer_of(right, "right")], server_side=False, protocols=(NODE_PROTOCOL,)
    )
    _, writer = await asyncio.open_connection(
        "127.0.0.1", right.port, ssl=context, server_hostname=MUTUAL_NAME
    )
    hello = NodeHello(
        protocol_major=NODE_PROTOCOL_MAJOR,
        protocol_minor=NODE_PROTOCOL_MINOR,
        baton="0.0.test",
        node_id=left.identity.node_id,
        instance=left.identity.node_id,
        name="left",
    )
    try:
        writer.write(encode_frame(hello))
        await right.until(lambda: right.link is not None)
        yield writer, right
    finally:
        writer.transport.abort()
        await right.links.close()


def call_of(number: int, method: str) -> NodeMessage:
    return Call(number=number, method=method, params=msgspec.Raw(b"\xc0"))


def test_who_asks_and_never_reads_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_link, "MAX_UNREAD_BYTES", 1 << 16)

    async def work() -> None:
        async with a_peer_that_reads_nothing(tmp_path) as (writer, right):
            link = right.link
            assert link is not None
            asked = encode_frame(call_of(1, "x" * 64)) * 1000
            with contextlib.suppress(OSError):
                while link.is_open:
                    writer.write(asked)
                    await writer.drain()
            assert "reads nothing" in str(link.reason)

    run(work())


def test_answers_that_nobody_reads_do_not_pile_up(tmp_path: Path) -> None:
    n_answered = 0

    async def much(link: PeerLink, params: Any) -> Any:
        nonlocal n_answered
        n_answered += 1
        return bytes(1 << 20)

    async def work() -> None:
        async with a_peer_that_reads_nothing(tmp_path) as (writer, right):
            right.offers.calls["much"] = Method(much)
            for number in range(100):
                writer.write(encode_frame(call_of(number, "much")))
            await writer.drain()
            while n_answered < 100:
                await asyncio.sleep(0)
            assert right.link is not None
            assert right.link._writer.transport.get_write_buffer_size() < 4 << 20

    run(work())


def test_who_asks_for_too_much_at_once_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_link, "MAX_OPEN_BYTES", 1000)

    async def hang(link: PeerLink, params: Any) -> Any:
        await asyncio.Event().wait()

    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            right.offers.calls.update(hang=Method(hang), echo=Method(echo))
            assert left.link
            for _ in range(4):
                assert await left.link.call("echo", bytes(600)) == ["left", bytes(600)]
            first = asyncio.create_task(left.link.call("hang", bytes(600)))
            with pytest.raises(PeerLost):
                await left.link.call("echo", bytes(600))
            with pytest.raises(PeerLost):
                await first

    run(work())


def nested(n: int) -> msgspec.Raw:
    """A list of so many empty objects, a byte each."""
    return msgspec.Raw(b"\xdd" + n.to_bytes(4, "big") + b"\x80" * n)


def test_a_large_message_is_bytes_alone(tmp_path: Path) -> None:
    """Thirty million empty objects would take two gigabytes here."""
    body = bytes(peer_link.MAX_NESTED_BYTES)

    async def back(link: PeerLink, params: bytes) -> bytes:
        return params

    async def nest(link: PeerLink, params: Any) -> Any:
        return nested(len(body))

    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            right.offers.calls.update(
                echo=Method(echo), nest=Method(nest), back=Method(back, bytes, 2 * len(body))
            )
            assert left.link
            assert await left.link.call("back", body) == body
            with pytest.raises(PeerRefused, match="not valid"):
                await left.link.call("back", nested(len(body)))
            for many in (nested(len(body)), {"body": nested(len(body))}):
                with pytest.raises(PeerRefused, match="of 65536 that it may have"):
                    await left.link.call("echo", many)
            with pytest.raises(ProtocolError, match="more than an answer may hold"):
                await left.link.call("nest")

    run(work())


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    x: int


def test_what_is_asked_answered_and_told_has_its_form(tmp_path: Path) -> None:
    heard: asyncio.Queue[Any] = asyncio.Queue()

    async def mirror(link: PeerLink, point: Point) -> Point:
        return Point(-point.x)

    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            right.offers.calls.update(mirror=Method(mirror, Point), echo=Method(echo))
            right.offers.news["point"] = Method(lambda link, point: heard.put_nowait(point), Point)
            link = left.link
            assert link
            assert await link.call("mirror", Point(5), gives=Point) == Point(-5)
            for wrong in (None, {"x": "5"}, {"x": 5, "y": 6}, [5]):
                with pytest.raises(PeerRefused, match="what was asked is not valid"):
                    await link.call("mirror", wrong)
                link.tell("point", wrong)
            with pytest.raises(ProtocolError, match="right answers to echo is not valid"):
                await link.call("echo", gives=Point)
            link.tell("point", Point(7))
            assert await heard.get() == Point(7) and heard.empty()
            assert link is left.link and link.is_open

    run(work())


def test_parts_in_place_of_an_answer_are_none(tmp_path: Path) -> None:
    stopped = asyncio.Event()

    async def parts(link: PeerLink, params: Any) -> AsyncGenerator[Any, None]:
        try:
            while True:
                yield "part"
                await asyncio.sleep(0)
        finally:
            stopped.set()

    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            right.offers.streams["parts"] = Method(parts)
            assert left.link
            with pytest.raises(ProtocolError, match="an answer that was to come in one"):
                await left.link.call("parts")
            await stopped.wait()

    run(work())


def test_what_answers_in_parts_is_closed_where_they_cannot_be_sent(tmp_path: Path) -> None:
    """It may hold an engine in use."""
    kept: list[AsyncGenerator[Any, None]] = []
    closed = False

    async def parts() -> AsyncGenerator[Any, None]:
        nonlocal closed
        try:
            yield "part"
        finally:
            closed = True

    def begin(link: PeerLink, params: Any) -> AsyncGenerator[Any, None]:
        kept.append(parts())
        return kept[0]

    async def work() -> None:
        async with two_ends(tmp_path) as (_, right):
            assert right.link is not None
            await right.link.close("it is over")
            with pytest.raises(PeerLost):
                await right.link._answer_in_parts(1, begin, None)
            assert closed

    run(work())


@pytest.mark.parametrize("n_bytes", [0, 1 << 10])
def test_parts_that_nobody_reads_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_bytes: int
) -> None:
    """Nor those that hold nothing, of one who goes on though he was told to stop."""
    monkeypatch.setattr(peer_link, "MAX_WAITING_BYTES", 1 << 16)

    async def hang(link: PeerLink, params: Any) -> Any:
        await asyncio.Event().wait()

    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            link = left.link
            assert link is not None
            right.offers.calls["hang"] = Method(hang)
            async with contextlib.aclosing(link.stream("hang")) as parts:
                reading = asyncio.create_task(anext(parts))
                while not link._waiting:
                    await asyncio.sleep(0)
                ((number, waiting),) = link._waiting.items()
                part = Part(number=number, value=msgspec.Raw(msgspec.msgpack.encode(bytes(n_bytes))))
                for _ in range(1000):
                    link._hand_over(number, part)
                assert waiting.items.qsize() < 200
                assert await reading == bytes(n_bytes)
                with pytest.raises(ProtocolError, match="faster than its answer is read"):
                    async for _ in parts:
                        pass

    run(work())


def test_who_is_being_told_goodbye_is_answered_no_more(tmp_path: Path) -> None:
    heard = []
    never = asyncio.Event()

    async def hear(link: PeerLink, params: Any) -> Any:
        heard.append(params)

    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            right.offers.calls["hear"] = Method(hear)
            assert left.link and right.link
            left.link._writer.transport.pause_reading()
            right.link._writer.drain = never.wait  # type: ignore[method-assign]
            closing = asyncio.create_task(right.link.close("the other computer has unpaired this one"))
            call = asyncio.create_task(left.link.call("hear", 1))
            await closing
            left.link._writer.transport.resume_reading()
            with pytest.raises(PeerLost, match="unpaired"):
                await call
            assert heard == []

    run(work())


def test_a_sentence_from_elsewhere_is_one_line_of_plain_text(tmp_path: Path) -> None:
    async def refuse(link: PeerLink, params: Any) -> Any:
        raise InvalidRequest("no\x1b[2J\nnode: all is well")

    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            right.offers.calls["refuse"] = Method(refuse)
            assert left.link
            with pytest.raises(PeerRefused) as refused:
                await left.link.call("refuse")
            assert str(refused.value).isprintable()

    run(work())


def test_a_mistake_in_what_listens_ends_the_link_and_another_one_comes(tmp_path: Path) -> None:
    """One that stayed as it is would pass for a link for ever."""

    def listen(link: PeerLink, params: object) -> None:
        raise ZeroDivisionError

    async def work() -> None:
        async with two_ends(tmp_path) as (left, right):
            right.offers.news["word"] = Method(listen)
            old = right.link
            assert left.link is not None
            left.link.tell("word")
            await right.until(lambda: right.link is not None and right.link is not old)

    asyncio.run(work())


def test_why_nobody_is_there_is_said_in_plain_words(tmp_path: Path) -> None:
    """The first of the addresses is where no program listens, and none can meanwhile."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    port = taken.getsockname()[1]

    async def work() -> None:
        left, right = new_end(tmp_path, "left"), new_end(tmp_path, "right")
        await left.links.start()
        left.book.add(peer_of(right, "right", f"127.0.0.1:{port}"))
        left.links.look_again()
        try:
            await left.until(lambda: "no Baton answers" in note_of(left))
            assert note_of(left) == f"no Baton answers at 127.0.0.1:{port}: start Baton there"
        finally:
            await left.links.close()

    with taken:
        run(work())


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EHOSTUNREACH, "Connect call failed ('10.0.0.2', 7119)"), "No route to host"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (OSError("Multiple exceptions"), "Multiple exceptions"),
    ],
)
def test_a_reason_is_the_system_s_own(error: OSError, words: str) -> None:
    assert peer_links._reason(error) == words
