"""Pairing over real sockets, and what strangers, thieves and broken computers get from the port that is open for it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.errors import (
    BatonError,
    DiskFull,
    HostError,
    InvalidRequest,
    PeerLost,
    PeerRefused,
    PeerUnreachable,
    PeerUntrusted,
    ProtocolError,
)
from engine.node.finding.discovery import Found
from engine.node.trust.identity import Identity
from engine.node.trust.pairing import Card, Exchange, Side, State
from engine.node.trust.pairing_port import Offer, PairingPort
from engine.node.trust.peers import MAX_PEERS, Peer, PeerBook
from engine.wire.messages import Role

# Far more than anything on loopback takes.
TIMEOUT_S = 20.0


@dataclass(kw_only=True)
class Node:
    identity: Identity
    book: PeerBook
    port: PairingPort
    folder: Path
    now_s: float = 1000.0
    n_changes: int = 0
    found: list[Found] = field(default_factory=list)

    async def join(self, other: Offer, code: str = "") -> Any:
        return await self.port.join(f"127.0.0.1:{other.port}", code or other.code)


def make_node(folder: Path, name: str, *, node_port: int = 7119, baton: str = "1.0") -> Node:
    identity = Identity.load_or_create(folder / name)
    book = PeerBook(folder / f"{name}.json")

    def changed() -> None:
        node.n_changes += 1

    port = PairingPort(
        identity,
        book,
        name=name,
        baton=baton,
        node_port=lambda: node_port,
        found=lambda: node.found,
        on_change=changed,
        host="127.0.0.1",
        port=0,
        clock=lambda: node.now_s,
    )
    node = Node(identity=identity, book=book, port=port, folder=folder)
    return node


def run(folder: Path, work: Callable[[Node, Node], Coroutine[Any, Any, None]]) -> None:
    """`work` with two nodes; afterwards nothing of theirs is left open."""

    async def bounded() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            here, there = make_node(folder, "spark"), make_node(folder, "studio", node_port=7200)
            try:
                await work(here, there)
            finally:
                await here.port.close()
                await there.port.close()

    asyncio.run(bounded())


def other_code(code: str) -> str:
    return f"{(int(code) + 1) % 10**8:08d}"


async def error_of(offer: Offer) -> BatonError:
    try:
        await offer.outcome
    except BatonError as error:
        return error
    pytest.fail("the code paired somebody")


@contextlib.asynccontextmanager
async def called(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


def stranger_card(folder: Path) -> Card:
    identity = Identity.load_or_create(folder / "stranger")
    return Card(
        node_id=identity.node_id,
        name="stranger",
        platform="Linux x86_64",
        certificate_der=identity.certificate_der,
        node_port=7119,
    )


async def carry(exchange: Exchange, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Run a stranger's exchange to its end."""
    writer.write(exchange.begin())
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(4096):
            writer.write(exchange.receive(data))
    exchange.end()


# Agreement


def test_the_code_pairs_two_computers(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        offer = await here.port.offer(Role.DECODE)
        shown = here.port.snapshot()["offer"]
        assert shown == {
            "code": f"{offer.code[:4]}-{offer.code[4:]}",
            "port": offer.port,
            "expires_in_s": 300,
        }

        paired = await there.port.join(f"127.0.0.1:{offer.port}", shown["code"], Role.PREFILL)
        outcome = await offer.outcome

        assert (paired.peer.name, outcome.peer.name) == ("spark", "studio")
        assert there.book.get(here.identity.node_id) == paired.peer
        assert here.book.get(there.identity.node_id) == outcome.peer
        assert paired.peer.certificate_der == here.identity.certificate_der
        assert outcome.peer.certificate_der == there.identity.certificate_der
        assert paired.peer.addresses == ("127.0.0.1:7119",) and outcome.peer.addresses == ("127.0.0.1:7200",)
        assert (paired.peer.role_wish, outcome.peer.role_wish) == (Role.DECODE, Role.PREFILL)
        assert paired.note == "" and paired.platform
        assert here.port.snapshot() == {"offer": None, "note": "", "wait_s": 0}
        assert here.n_changes == 2

    run(tmp_path, work)


def test_the_port_is_open_only_while_a_code_is_shown(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        offer = await here.port.offer()
        await there.join(offer)
        await offer.outcome
        await here.port.withdraw()
        with pytest.raises(PeerUnreachable, match="run `baton pair` on that computer first"):
            await there.join(offer)

        offer = await here.port.offer()
        await here.port.withdraw()
        assert "withdrawn" in str(await error_of(offer))
        with pytest.raises(PeerUnreachable):
            await there.join(offer)

    run(tmp_path, work)


def test_a_taken_port_gives_way_to_a_free_one(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            here.port._port = taken.getsockname()[1]
            offer = await here.port.offer()
            assert offer.port != taken.getsockname()[1]
            await there.join(offer)

    run(tmp_path, work)


def test_a_new_code_voids_the_one_before(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        old, new = await here.port.offer(), await here.port.offer()
        assert "withdrawn" in str(await error_of(old))
        assert new.is_good
        await there.join(new)

    run(tmp_path, work)


def test_pairing_again_keeps_one_entry_and_both_addresses(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        await there.join(await here.port.offer())
        there.book.met(here.identity.node_id, "10.0.0.1:7119")
        await there.join(await here.port.offer())
        (peer,) = there.book.all()
        assert peer.addresses == ("127.0.0.1:7119", "10.0.0.1:7119")
        assert len(here.book.all()) == 1

    run(tmp_path, work)


def test_versions_that_differ_pair_and_are_told(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        old = make_node(tmp_path, "old", baton="0.9")
        paired = await old.join(await here.port.offer())
        assert paired.note.startswith("spark has Baton 1.0 and this computer 0.9: on the newer one, type")

    run(tmp_path, work)


def test_an_ipv6_address_is_taken_in_any_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")

    async def work(here: Node, there: Node) -> None:
        here.port._host = ""
        offer = await here.port.offer()
        monkeypatch.setattr("engine.node.trust.pairing_port.PAIRING_PORT", offer.port)
        paired = await there.port.join("::1", offer.code)
        assert paired.peer.addresses == ("[::1]:7119",)
        for form in ("[::1]:{}", "[::1]", "127.0.0.1", "localhost"):
            offer = await here.port.offer()
            monkeypatch.setattr("engine.node.trust.pairing_port.PAIRING_PORT", offer.port)
            await there.port.join(form.format(offer.port), offer.code)

    run(tmp_path, work)


def found_at(name: str, *addresses: str, pairing_port: int | None) -> Found:
    return Found(node_id="f" * 32, name=name, addresses=addresses, by=("asked",), pairing_port=pairing_port)


def test_who_shows_a_code_is_found(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        offer = await here.port.offer()
        idle = found_at("idle", "127.0.0.1:9", pairing_port=None)
        # the first address is of a cable that is not there
        showing = found_at("spark", "127.0.0.2:7119", "127.0.0.1:7119", pairing_port=offer.port)
        there.found = [idle]
        joining = asyncio.create_task(there.port.join_found(offer.code))
        await asyncio.sleep(0)
        there.found = [idle, showing]
        assert (await joining).peer.name == "spark"

    run(tmp_path, work)


def test_old_news_of_a_code_do_not_hide_the_one_that_is_shown(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        offer = await here.port.offer()
        old = found_at("old", "127.0.0.1:9", pairing_port=9)
        showing = found_at("spark", "127.0.0.1:7119", pairing_port=offer.port)
        there.found = [old]
        joining = asyncio.create_task(there.port.join_found(offer.code))
        await asyncio.sleep(0.1)
        there.found = [old, showing]
        assert (await joining).peer.name == "spark"

    run(tmp_path, work)


def test_who_shows_no_code_or_is_not_alone_has_to_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.node.trust.pairing_port._FIND_TIMEOUT_S", 0.0)

    async def work(here: Node, there: Node) -> None:
        there.found = [found_at("idle", "127.0.0.1:9", pairing_port=None)]
        with pytest.raises(InvalidRequest, match="no computer that shows a code was found"):
            await there.port.join_found("1234-5678")
        there.found = [found_at(name, f"{name}:7119", pairing_port=7120) for name in ("spark", "studio")]
        with pytest.raises(InvalidRequest, match=r"spark \(--to spark:7120\), studio \(--to studio:7120\)"):
            await there.port.join_found("1234-5678")
        with pytest.raises(InvalidRequest, match="is no code"):
            await there.port.join_found("123")

    run(tmp_path, work)


def test_a_code_that_is_no_longer_wanted_makes_none_void(tmp_path: Path) -> None:
    """As where another one is being typed by the time that the other computer shows it."""

    async def work(here: Node, there: Node) -> None:
        wanted = [True]
        joining = asyncio.create_task(there.port.join_found("1234-5678", is_wanted=lambda: bool(wanted)))
        await asyncio.sleep(0)
        wanted.clear()
        offer = await here.port.offer()
        there.found = [found_at("spark", "127.0.0.1:7119", pairing_port=offer.port)]
        with pytest.raises(HostError, match="has gone"):
            await joining
        assert offer.is_good

    run(tmp_path, work)


def test_a_wrong_code_is_tried_at_one_address_only(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        here.port._host = ""
        offer = await here.port.offer()
        there.found = [found_at("spark", "127.0.0.1:1", "127.0.0.2:1", pairing_port=offer.port)]
        with pytest.raises(InvalidRequest, match="not the code"):
            await there.port.join_found(other_code(offer.code))
        assert here.port.snapshot()["wait_s"] == there.port.snapshot()["wait_s"] == 2.0

    run(tmp_path, work)


@pytest.mark.parametrize("address", ["", "http://spark", "spark:99999", "spark:x", "[::1"])
def test_what_is_no_address_is_refused(tmp_path: Path, address: str) -> None:
    async def work(here: Node, there: Node) -> None:
        with pytest.raises(BatonError):
            await there.port.join(address, "12345678")

    run(tmp_path, work)


# Codes that are not right, or not any more


def test_a_wrong_code_voids_the_shown_one_and_both_have_to_wait(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        offer = await here.port.offer()
        with pytest.raises(InvalidRequest, match="not the code that the other computer shows"):
            await there.join(offer, other_code(offer.code))
        assert isinstance(await error_of(offer), PeerUntrusted)
        assert here.book.all() == there.book.all() == ()
        assert "tried to pair with a wrong code" in here.port.snapshot()["note"]

        with pytest.raises(InvalidRequest, match="can be shown or typed in 3 s"):
            await here.port.offer()
        with pytest.raises(InvalidRequest, match="can be shown or typed in 3 s"):
            await there.join(offer)
        here.now_s += 2
        there.now_s += 2
        with pytest.raises(PeerUnreachable):
            await there.join(offer)
        await there.join(await here.port.offer())

    run(tmp_path, work)


def test_who_waits_no_longer_leaves_the_code_as_it_is(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        offer = await here.port.offer()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                await offer.outcome
        assert (await there.join(offer)).peer.name == "spark"
        assert here.port.snapshot()["offer"] is None

    run(tmp_path, work)


def test_a_code_ends_with_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.node.trust.pairing_port.CODE_LIFETIME_S", 0.0)

    async def work(here: Node, there: Node) -> None:
        offer = await here.port.offer()
        assert "nobody typed the code" in str(await error_of(offer))
        await here.port.withdraw()
        with pytest.raises(PeerUnreachable):
            await there.join(offer)

    run(tmp_path, work)


def test_a_caller_at_the_end_of_the_code_is_told(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        offer = await here.port.offer()
        late = Exchange(side=Side.TYPES, code=offer.code, card=stranger_card(tmp_path), baton="1.0")
        async with called(offer.port) as (reader, _):
            greeting = await reader.readexactly(4)  # it waits for ours now
            await here.port.withdraw()
            late.receive(greeting + await reader.read())
        assert isinstance(late.error, PeerRefused) and "no longer good" in str(late.error)

    run(tmp_path, work)


def test_one_wrong_guess_of_many_at_once_counts(tmp_path: Path) -> None:
    """Four guesses whose proofs are sent at the same time: one is answered, the others stay untested."""

    async def work(here: Node, there: Node) -> None:
        offer = await here.port.offer()
        card = stranger_card(tmp_path)
        codes = [f"{(int(offer.code) + n) % 10**8:08d}" for n in range(1, 5)]
        guesses = [Exchange(side=Side.TYPES, code=code, card=card, baton="1.0") for code in codes]
        n_ready, all_ready = 0, asyncio.Event()

        async def guess(exchange: Exchange) -> None:
            nonlocal n_ready
            async with called(offer.port) as (reader, writer):
                writer.write(exchange.begin())
                answer = b""
                while exchange.state is not State.PROOF:
                    writer.write(answer)
                    answer = exchange.receive(await reader.read(4096))
                n_ready += 1
                if n_ready == len(guesses):
                    all_ready.set()
                await all_ready.wait()
                writer.write(answer)
                with contextlib.suppress(ConnectionError):
                    exchange.receive(await reader.read())
                exchange.end()

        await asyncio.gather(*map(guess, guesses))
        assert isinstance(await error_of(offer), PeerUntrusted)
        told_wrong = [exchange for exchange in guesses if exchange.reason == "wrong_code"]
        assert len(told_wrong) == 1
        assert here.port.snapshot()["wait_s"] == 2.0
        assert here.book.all() == ()

    run(tmp_path, work)


def test_two_with_the_right_code_at_once_pair_one(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        third = make_node(tmp_path, "third")
        offer = await here.port.offer()
        results = await asyncio.gather(there.join(offer), third.join(offer), return_exceptions=True)
        failed = [result for result in results if isinstance(result, BaseException)]
        assert len(failed) == 1 and isinstance(failed[0], (PeerRefused, PeerLost, PeerUnreachable))
        (peer,) = here.book.all()
        assert [len(there.book.all()), len(third.book.all())] == (
            [1, 0] if peer.node_id == there.identity.node_id else [0, 1]
        )

    run(tmp_path, work)


def test_a_second_try_from_here_waits_for_the_first(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        offer = await here.port.offer()
        first = asyncio.create_task(there.join(offer))
        await asyncio.sleep(0)
        with pytest.raises(InvalidRequest, match="another code is being tried"):
            await there.join(offer)
        await first

    run(tmp_path, work)


# Who is refused although he has the code


def test_a_changed_key_is_refused_and_explained_at_both_ends(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        stranger = Identity.load_or_create(tmp_path / "before")
        before = Peer(node_id=there.identity.node_id, name="studio", certificate_der=stranger.certificate_der)
        here.book.add(before)
        offer = await here.port.offer()
        with pytest.raises(PeerRefused, match=r"knows this one with another key.*baton pair remove"):
            await there.join(offer)
        assert here.book.all() == (before,) and there.book.all() == ()
        assert "has another key" in str(await error_of(offer)) and here.port.snapshot()["wait_s"] == 0

        here.book.remove(before.node_id)
        there.now_s += 60
        await there.join(await here.port.offer())

    run(tmp_path, work)


def test_two_copies_of_one_computer_are_told_apart(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        copy, offer = make_node(tmp_path, "spark"), await here.port.offer()
        with pytest.raises(PeerUntrusted, match=r"same identity.*baton pair renew"):
            await copy.join(offer)
        assert "same identity" in str(await error_of(offer))
        assert here.book.all() == ()

    run(tmp_path, work)


def test_a_full_book_is_told(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        for number in range(MAX_PEERS):
            here.book.add(
                Peer(node_id=f"{number:032x}", name="x", certificate_der=there.identity.certificate_der)
            )
        with pytest.raises(PeerRefused, match=f"paired with {MAX_PEERS} others"):
            await there.join(await here.port.offer())

    run(tmp_path, work)


def test_a_full_disk_pairs_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(here: Node, there: Node) -> None:
        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        offer = await here.port.offer()
        monkeypatch.setattr("engine.node.trust.peers.write_whole", full)
        with pytest.raises(PeerRefused, match="could not write the pairing down"):
            await there.join(offer)
        assert isinstance(await error_of(offer), DiskFull)
        assert here.book.all() == there.book.all() == ()

    run(tmp_path, work)


# Attackers


class Middle:
    """Stands between two computers: passes bytes on through `change`, and keeps what it saw."""

    def __init__(self, port: int, change: Callable[[bytes, bool], bytes]) -> None:
        self._to = port
        self._change = change
        self.seen = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        await asyncio.gather(self._pass(reader, back, True), self._pass(there, writer, False))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_call: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                self.seen += data
                writer.write(self._change(data, is_call))
        writer.close()


@contextlib.asynccontextmanager
async def in_the_middle(
    offer: Offer, change: Callable[[bytes, bool], bytes]
) -> AsyncIterator[tuple[Middle, str]]:
    middle = Middle(offer.port, change)
    server = await asyncio.start_server(middle.serve, "127.0.0.1", 0)
    try:
        yield middle, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def test_a_man_in_the_middle_learns_nothing(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        offer = await here.port.offer()
        async with in_the_middle(offer, lambda data, is_call: data) as (middle, address):
            await there.port.join(address, offer.code)
        assert len(middle.seen) > 1000
        for node, name in ((here, b"spark"), (there, b"studio")):
            for secret in (name, node.identity.node_id.encode(), node.identity.certificate_der[:60]):
                assert secret not in middle.seen

    run(tmp_path, work)


@pytest.mark.parametrize("calls", [True, False])
def test_a_man_in_the_middle_changes_nothing(tmp_path: Path, calls: bool) -> None:
    """He touches the long message alone, which holds the certificate."""

    async def work(here: Node, there: Node) -> None:
        offer = await here.port.offer()

        def change(data: bytes, is_call: bool) -> bytes:
            if is_call is calls and len(data) > 400:
                return data[:300] + bytes([data[300] ^ 1]) + data[301:]
            return data

        async with in_the_middle(offer, change) as (_, address):
            with pytest.raises(BatonError):
                await there.port.join(address, offer.code)
        assert here.book.all() == there.book.all() == ()
        if calls:  # the proof that came was not the right one
            assert not offer.is_good

    run(tmp_path, work)


def test_a_man_in_the_middle_puts_no_certificate_of_his_own(tmp_path: Path) -> None:
    """He pairs with each of the two in the other's name, as far as a guess of the code gets him."""

    async def work(here: Node, there: Node) -> None:
        offer = await here.port.offer()
        card, guess = stranger_card(tmp_path), other_code(offer.code)
        to_there = Exchange(side=Side.SHOWS, code=guess, card=card, baton="1.0")
        to_here = Exchange(side=Side.TYPES, code=guess, card=card, baton="1.0")
        is_done = asyncio.Event()

        async def impersonate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async with called(offer.port) as place:
                await asyncio.gather(carry(to_there, reader, writer), carry(to_here, *place))
            writer.close()
            is_done.set()

        server = await asyncio.start_server(impersonate, "127.0.0.1", 0)
        try:
            with pytest.raises((PeerUntrusted, InvalidRequest, PeerLost)):
                await there.port.join(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", offer.code)
            await is_done.wait()
        finally:
            server.close()
        assert here.book.all() == there.book.all() == ()
        assert to_here.peer is None and to_there.peer is None
        assert not offer.is_good
        assert here.port.snapshot()["wait_s"] == there.port.snapshot()["wait_s"] == 2.0

    run(tmp_path, work)


def test_a_replay_pairs_nobody(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        offer = await here.port.offer()
        said = b""

        def record(data: bytes, is_call: bool) -> bytes:
            nonlocal said
            said += data if is_call else b""
            return data

        async with in_the_middle(offer, record) as (_, address):
            await there.port.join(address, offer.code)
        here.book.remove(there.identity.node_id)

        again = await here.port.offer()
        again.code = offer.code  # even with the very same code
        async with called(again.port) as (reader, writer):
            writer.write(said)
            await reader.read()
        assert isinstance(await error_of(again), PeerUntrusted)
        assert here.book.all() == ()

    run(tmp_path, work)


def test_a_mirror_pairs_nobody(tmp_path: Path) -> None:
    async def mirror(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(4096):
                writer.write(data)
        writer.close()

    async def work(here: Node, there: Node) -> None:
        server = await asyncio.start_server(mirror, "127.0.0.1", 0)
        try:
            with pytest.raises(InvalidRequest, match="were given a code"):
                await there.port.join(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", "12345678")
        finally:
            server.close()

        offer = await here.port.offer()
        async with called(offer.port) as (reader, writer):
            await mirror(reader, writer)
        assert offer.is_good
        await there.join(offer)

    run(tmp_path, work)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"B",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x00\xf4\x01\x00\x00\xf0\x03\x03" + b"\0" * 240,
        b"BP\xff\xff" + b"x" * 100_000,
        b"BP\x00\x10" + b"\xc1" * 16,
        bytes(range(256)) * 50,
    ],
)
def test_noise_costs_the_code_nothing(tmp_path: Path, data: bytes) -> None:
    async def work(here: Node, there: Node) -> None:
        offer = await here.port.offer()
        async with called(offer.port) as (reader, writer):
            writer.write(data)
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                assert len(await reader.read()) < 600  # a greeting, and the end of it
        assert offer.is_good
        await there.join(offer)

    run(tmp_path, work)


def test_who_holds_connections_open_keeps_nobody_out(tmp_path: Path) -> None:
    async def work(here: Node, there: Node) -> None:
        offer = await here.port.offer()
        async with contextlib.AsyncExitStack() as held:
            ends = [await held.enter_async_context(called(offer.port)) for _ in range(12)]
            for reader, _ in ends[:8]:  # the oldest go at once, not after their time
                with contextlib.suppress(ConnectionError):
                    await reader.read()
            assert offer.is_good and len(offer.callers) == 4
            await there.join(offer)

    run(tmp_path, work)


def test_a_drip_of_bytes_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.node.trust.pairing_port.EXCHANGE_TIMEOUT_S", 0.05)

    async def work(here: Node, there: Node) -> None:
        offer = await here.port.offer()
        async with called(offer.port) as (reader, writer):
            writer.write(b"BP\x01\x00")

            async def drip() -> None:
                with contextlib.suppress(ConnectionError):
                    while not writer.is_closing():
                        writer.write(b"x")
                        await writer.drain()
                        await asyncio.sleep(0.01)

            dripping = asyncio.create_task(drip())
            with contextlib.suppress(ConnectionError):
                await reader.read()  # until it hangs up
            dripping.cancel()
        assert offer.is_good

    run(tmp_path, work)


def test_a_computer_that_answers_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.node.trust.pairing_port.EXCHANGE_TIMEOUT_S", 0.05)

    async def work(here: Node, there: Node) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(PeerLost):
            await there.port.join(f"127.0.0.1:{silent.getsockname()[1]}", "12345678")

    run(tmp_path, work)


def test_another_service_on_that_port_is_named(tmp_path: Path) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await reader.read(10)
        writer.close()

    async def work(here: Node, there: Node) -> None:
        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        try:
            with pytest.raises(ProtocolError, match="no pairing"):
                await there.port.join(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", "12345678")
        finally:
            server.close()

    run(tmp_path, work)


def test_of_codes_that_are_asked_for_at_once_one_is_good(tmp_path: Path) -> None:
    """Each would have a port and one guess of its own."""

    async def work(here: Node, there: Node) -> None:
        await here.port.offer()
        offers = await asyncio.gather(*(here.port.offer() for _ in range(3)))
        shown = here.port.snapshot()["offer"]
        assert [offer.is_good for offer in offers].count(True) == 1
        (good,) = (offer for offer in offers if offer.is_good)
        assert shown["port"] == good.port
        await there.join(good)
        for other in offers:
            if other is not good:
                assert isinstance(await error_of(other), InvalidRequest)

    run(tmp_path, work)
