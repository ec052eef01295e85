"""Two ends glued together pair by the code and by nothing else, whatever stands between them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import (
    BatonError,
    HostError,
    InvalidRequest,
    PeerIncompatible,
    PeerLost,
    PeerRefused,
    PeerUntrusted,
    ProtocolError,
)
from engine.node.trust import pairing
from engine.node.trust.identity import Identity
from engine.node.trust.pairing import (
    MAX_BODY_BYTES,
    Card,
    Exchange,
    Patience,
    Reason,
    Side,
    State,
    code_text,
    make_code,
    parse_code,
)
from engine.wire.messages import Role

CODE = "12345678"

# What stands between two ends: it sees each piece on its way, and returns what arrives.
Way = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> tuple[Card, Card, Card]:
    """Of the two, and of a stranger."""
    folder = tmp_path_factory.mktemp("identities")
    here, there, stranger = (make_card(folder / name) for name in ("spark", "studio", "stranger"))
    return here, there, stranger


def make_card(folder: Path) -> Card:
    identity = Identity.load_or_create(folder)
    return Card(
        node_id=identity.node_id,
        name=folder.name,
        platform="Linux x86_64",
        certificate_der=identity.certificate_der,
        node_port=7119,
        role=Role.PREFILL,
    )


def end(side: Side, card: Card, *, code: str = CODE, baton: str = "1.0", **more: object) -> Exchange:
    return Exchange(side=side, code=code, card=card, baton=baton, **more)  # type: ignore[arg-type]


@dataclass
class Pair:
    shows: Exchange
    types: Exchange

    def run(self, *, to_types: Way = bytes, to_shows: Way = bytes) -> Pair:
        """Exchange bytes until neither has anything to say; the one that shows writes down first, as it does."""
        for_types, for_shows = to_types(self.shows.begin()), to_shows(self.types.begin())
        while for_types or for_shows:
            said = self.types.receive(for_types) if for_types else b""
            heard = self.shows.receive(for_shows) if for_shows else b""
            if self.shows.state is State.AGREED:
                heard += self.shows.settle()
            if self.types.state is State.AGREED:
                assert self.types.settle() == b""
            for_shows, for_types = to_shows(said) if said else b"", to_types(heard) if heard else b""
        self.shows.end()
        self.types.end()
        return self

    @property
    def errors(self) -> tuple[BatonError | None, BatonError | None]:
        return self.shows.error, self.types.error

    @property
    def reasons(self) -> tuple[Reason | None, Reason | None]:
        return self.shows.reason, self.types.reason


def pair_of(cards: tuple[Card, ...]) -> Pair:
    return Pair(end(Side.SHOWS, cards[0]), end(Side.TYPES, cards[1]))


def assert_nobody_paired(pair: Pair) -> None:
    assert pair.shows.state is pair.types.state is State.FAILED
    assert all(isinstance(error, BatonError) for error in pair.errors)


def recording(seen: list[bytes]) -> Way:
    def way(piece: bytes) -> bytes:
        seen.append(piece)
        return piece

    return way


def bodies(pieces: list[bytes]) -> list[dict[str, object]]:
    """The messages in what was sent."""
    found, data = [], b"".join(pieces)
    while data:
        _, n_bytes = struct.unpack_from(">2sH", data)
        found.append(msgspec.msgpack.decode(data[4 : 4 + n_bytes]))
        data = data[4 + n_bytes :]
    return found


def frame(message: object) -> bytes:
    body = msgspec.msgpack.encode(message)
    return struct.pack(">2sH", b"BP", len(body)) + body


# Codes


def test_a_code_is_read_however_it_is_typed() -> None:
    assert code_text("01234567") == "0123-4567"
    for text in ("0123-4567", " 0123 4567\n", "01.23.45.67", "01234567"):
        assert parse_code(text) == "01234567"
    codes = {make_code() for _ in range(50)}
    assert len(codes) == 50 and all(parse_code(code_text(code)) == code for code in codes)


@pytest.mark.parametrize("text", ["", "1234-567", "1234-56789", "abcd-efgh", "١٢٣٤٥٦٧٨", "-1234567 "])
def test_what_is_no_code_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="8 digits") as caught:
        parse_code(text)
    assert caught.value.param == "code"


# Agreement


def test_the_code_pairs(cards: tuple[Card, ...]) -> None:
    pair = pair_of(cards).run()

    assert pair.shows.state is pair.types.state is State.PAIRED
    assert (pair.shows.peer, pair.types.peer) == (cards[1], cards[0])
    assert pair.errors == (None, None)
    assert not pair.shows.is_wrong_try and not pair.types.is_wrong_try


@pytest.mark.parametrize("size", [1, 3, 7])
def test_bytes_may_come_in_any_pieces(cards: tuple[Card, ...], size: int) -> None:
    pair = pair_of(cards)

    def torn(exchange: Exchange, data: bytes) -> bytes:
        answer = b""
        for start in range(0, len(data), size):
            answer += exchange.receive(data[start : start + size])
        if exchange.state is State.AGREED:
            answer += exchange.settle()
        return answer

    for_types, for_shows = pair.shows.begin(), pair.types.begin()
    while for_types or for_shows:
        for_shows, for_types = torn(pair.types, for_types), torn(pair.shows, for_shows)
    assert pair.shows.state is pair.types.state is State.PAIRED


def test_nobody_on_the_way_reads_who_they_are(cards: tuple[Card, ...]) -> None:
    seen: list[bytes] = []
    pair_of(cards).run(to_types=recording(seen), to_shows=recording(seen))

    everything = b"".join(seen)
    for card in cards[:2]:
        for secret in (card.name.encode(), card.node_id.encode(), card.certificate_der[:40]):
            assert secret not in everything
    assert CODE.encode() not in everything


def test_versions_that_differ_are_told(cards: tuple[Card, ...]) -> None:
    pair = Pair(end(Side.SHOWS, cards[0], baton="1.0"), end(Side.TYPES, cards[1], baton="2.0")).run()
    assert pair.shows.state is State.PAIRED
    assert (pair.shows.peer_baton, pair.types.peer_baton) == ("2.0", "1.0")


def test_another_way_of_pairing_names_both_versions(
    cards: tuple[Card, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    new = end(Side.SHOWS, cards[0], baton="9.5")
    greeting = bodies([new.begin()])[0]
    old = end(Side.TYPES, cards[1], baton="1.0")
    said = old.receive(frame({**greeting, "pairing": 7, "what_comes_later": [1, 2]}))

    assert isinstance(old.error, PeerIncompatible)
    assert "Baton 9.5 and this one 1.0" in str(old.error)
    assert bodies([said]) == [{"type": "abort", "reason": "version"}]
    monkeypatch.setattr(pairing, "PAIRING_VERSION", 7)
    new.receive(old.begin() + said)
    assert "Baton 1.0 and this one 9.5" in str(new.error)


@pytest.mark.parametrize(
    ("side", "sentence"), [(Side.SHOWS, "both computers show"), (Side.TYPES, "were given a code")]
)
def test_two_of_a_side_are_told(cards: tuple[Card, ...], side: Side, sentence: str) -> None:
    pair = Pair(end(side, cards[0]), end(side, cards[1])).run()
    assert_nobody_paired(pair)
    for error in pair.errors:
        assert isinstance(error, InvalidRequest) and sentence in str(error)


# Refusals


def test_a_wrong_code_voids_the_right_one(cards: tuple[Card, ...]) -> None:
    seen: list[bytes] = []
    pair = Pair(end(Side.SHOWS, cards[0]), end(Side.TYPES, cards[1], code="12345679"))
    pair.run(to_types=recording(seen))

    assert_nobody_paired(pair)
    assert pair.reasons == (Reason.WRONG_CODE, Reason.WRONG_CODE)
    assert pair.shows.is_wrong_try and pair.types.is_wrong_try
    assert isinstance(pair.shows.error, PeerUntrusted) and "void" in str(pair.shows.error)
    assert isinstance(pair.types.error, InvalidRequest) and "new one" in str(pair.types.error)
    # who guessed wrong got no proof to test further guesses on
    assert [body["type"] for body in bodies(seen)] == ["greeting", "exchange", "abort"]


def test_who_only_plays_the_one_that_shows_is_found_out(cards: tuple[Card, ...]) -> None:
    """It cannot check the proof that it gets, and sends one of its own with its own guess."""
    types, fake = end(Side.TYPES, cards[1]), end(Side.SHOWS, cards[2], code="99999999")
    types.receive(fake.begin() + fake.receive(types.begin()))
    assert types.state is State.PROOF
    answer = types.receive(frame({"type": "proof", "sealed": b"x" * 600, "mac": b"y" * 32}))

    assert isinstance(types.error, PeerUntrusted) and "does not know the code" in str(types.error)
    assert types.is_wrong_try and types.peer is None
    assert bodies([answer]) == [{"type": "abort", "reason": "wrong_code"}]


@pytest.mark.parametrize("refusal", [Reason.KEY_CHANGED, Reason.FULL])
@pytest.mark.parametrize("side", list(Side))
def test_a_card_may_be_refused_at_either_end(cards: tuple[Card, ...], refusal: Reason, side: Side) -> None:
    def check_at(end_side: Side) -> Callable[[Card], Reason | None]:
        return lambda card: refusal if end_side is side else None

    shows = end(Side.SHOWS, cards[0], check=check_at(Side.SHOWS))
    types = end(Side.TYPES, cards[1], check=check_at(Side.TYPES))
    pair = Pair(shows, types).run()

    assert_nobody_paired(pair)
    assert pair.reasons == (refusal, refusal)
    refusing, refused = pair.errors if side is Side.SHOWS else pair.errors[::-1]
    assert isinstance(refusing, PeerUntrusted if refusal is Reason.KEY_CHANGED else HostError)
    assert isinstance(refused, PeerRefused) and "the other computer" in str(refused)
    assert not pair.shows.is_wrong_try


def test_a_copied_identity_is_explained(cards: tuple[Card, ...]) -> None:
    pair = Pair(end(Side.SHOWS, cards[0]), end(Side.TYPES, cards[0])).run()
    assert_nobody_paired(pair)
    for error in pair.errors:
        assert "same identity" in str(error) and "baton pair renew" in str(error)


def test_an_end_that_cannot_write_it_down_pairs_nobody(cards: tuple[Card, ...]) -> None:
    pair = pair_of(cards)
    pair.shows.settle = lambda: pair.shows.abort(Reason.NOT_KEPT)  # type: ignore[method-assign]
    pair.run()
    assert_nobody_paired(pair)
    assert isinstance(pair.types.error, PeerRefused) and "could not write" in str(pair.types.error)


@pytest.mark.parametrize(
    "change",
    [
        {"node_id": "f" * 32},
        {"certificate_der": b"garbage"},
        {"name": "evil\x1b[2Jname"},
        {"name": "  "},
        {"platform": "a\nb"},
    ],
)
def test_a_card_that_lies_or_could_harm_a_terminal_is_refused(
    cards: tuple[Card, ...], change: dict[str, object]
) -> None:
    pair = Pair(end(Side.SHOWS, cards[0]), end(Side.TYPES, msgspec.structs.replace(cards[1], **change))).run()
    assert_nobody_paired(pair)
    assert pair.shows.reason is Reason.PROTOCOL


# Attacks on the way


def test_a_recorded_exchange_is_worth_nothing(cards: tuple[Card, ...]) -> None:
    seen: list[bytes] = []
    pair_of(cards).run(to_shows=recording(seen))

    again = end(Side.SHOWS, cards[0])
    again.begin()
    again.receive(b"".join(seen))
    assert again.state is State.FAILED and again.reason is Reason.WRONG_CODE
    assert again.is_wrong_try

    heard: list[bytes] = []
    pair_of(cards).run(to_types=recording(heard))
    typing = end(Side.TYPES, cards[1])
    typing.receive(b"".join(heard))
    assert typing.state is State.FAILED and typing.peer is None


def test_an_end_that_hears_itself_stops(cards: tuple[Card, ...]) -> None:
    for side in Side:
        mirror = end(side, cards[0])
        mirror.receive(mirror.begin())
        assert mirror.reason is Reason.SIDE


def test_its_own_element_is_no_answer(cards: tuple[Card, ...]) -> None:
    """A mirror that mends the greeting's side and the element's first byte gets no further."""
    types = end(Side.TYPES, cards[1])
    greeting = bodies([types.begin()])[0]
    element = bodies([types.receive(frame({**greeting, "side": "shows"}))])[0]["element"]
    assert isinstance(element, bytes)
    types.receive(frame({"type": "exchange", "element": b"A" + element[1:]}))
    assert types.reason is Reason.PROTOCOL


@pytest.mark.parametrize(
    "element", [b"\0" * 32, b"\1" + b"\0" * 31, b"\xff" * 32, b"\2" * 32, b"\xed" + b"\xff" * 30 + b"\x7f"]
)
def test_a_point_that_gives_the_key_away_is_refused(cards: tuple[Card, ...], element: bytes) -> None:
    shows, types = end(Side.SHOWS, cards[0]), end(Side.TYPES, cards[1])
    shows.receive(types.begin())
    shows.receive(frame({"type": "exchange", "element": b"B" + element}))
    assert shows.reason is Reason.PROTOCOL and not shows.is_wrong_try


@pytest.mark.parametrize("direction", ["to_types", "to_shows"])
@settings(max_examples=60, deadline=None)
@given(position=st.integers(0, 800), bit=st.integers(0, 7))
def test_no_bit_can_be_changed_on_the_way(
    cards: tuple[Card, ...], direction: str, position: int, bit: int
) -> None:
    """One flipped bit anywhere in the exchange, and nobody is paired: but in an abort, which there is none of."""
    passed = 0
    is_flipped = False

    def way(piece: bytes) -> bytes:
        nonlocal passed, is_flipped
        at = position - passed
        passed += len(piece)
        if not 0 <= at < len(piece):
            return piece
        is_flipped = True
        return piece[:at] + bytes([piece[at] ^ 1 << bit]) + piece[at + 1 :]

    pair = pair_of(cards).run(**{direction: way})  # type: ignore[arg-type]
    if not is_flipped:
        assert pair.shows.state is pair.types.state is State.PAIRED
    elif direction == "to_types" and pair.shows.state is State.PAIRED:
        # the last word alone: who shows has done its part, who types has not, and knows it
        assert pair.types.state is State.FAILED
    else:
        assert_nobody_paired(pair)


def test_the_last_word_cannot_be_forged(cards: tuple[Card, ...]) -> None:
    forged = frame({"type": "done", "mac": b"x" * 32})

    def forge(piece: bytes) -> bytes:
        return forged if b"done" in piece else piece

    pair = pair_of(cards).run(to_shows=forge)
    assert_nobody_paired(pair)
    assert pair.shows.reason is Reason.PROTOCOL
    pair = pair_of(cards).run(to_types=forge)
    assert pair.types.state is State.FAILED and pair.types.reason is Reason.PROTOCOL


def test_a_man_in_the_middle_with_two_codes_gets_nowhere(cards: tuple[Card, ...]) -> None:
    """He runs an exchange with each of the two by a guess, to put his own certificate between them."""
    shows, types = end(Side.SHOWS, cards[0]), end(Side.TYPES, cards[1])
    to_shows, to_types = (
        end(Side.TYPES, cards[2], code="00000000"),
        end(Side.SHOWS, cards[2], code="00000000"),
    )
    left, right = Pair(shows, to_shows).run(), Pair(to_types, types).run()

    assert_nobody_paired(left)
    assert_nobody_paired(right)
    assert shows.is_wrong_try and types.is_wrong_try
    assert to_shows.peer is None and to_types.peer is None


# Bytes from anybody


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"B",
        b"BX",
        b"BP\0\0",
        b"BP\xff\xff",
        b"BP" + struct.pack(">H", MAX_BODY_BYTES + 1),
        b"BP\x02\x01" + b"x" * 513,  # more than a greeting may have
        frame([1, 2, 3]),
        frame({"type": "proof", "sealed": b"", "mac": b"x" * 32}),
        frame({"type": "greeting", "pairing": -1, "baton": "1"}),
        frame({"type": "greeting", "pairing": 1, "baton": "\x1b[2J"}),
        frame({"type": "abort", "reason": "because I say so"}),
        frame({"type": "abort", "reason": "lost", "more": "text"}),
    ],
)
def test_what_is_no_greeting_costs_nothing(cards: tuple[Card, ...], data: bytes) -> None:
    shows = end(Side.SHOWS, cards[0])
    shows.receive(data)
    shows.end()
    assert isinstance(shows.error, ProtocolError if len(data) > 1 else PeerLost)
    assert not shows.is_wrong_try


@settings(max_examples=300, deadline=None)
@given(
    data=st.lists(st.binary(max_size=80), max_size=8), side=st.sampled_from(Side), n_before=st.integers(0, 3)
)
def test_no_bytes_make_it_stumble(
    cards: tuple[Card, ...], data: list[bytes], side: Side, n_before: int
) -> None:
    """Anything, after any number of right messages: it ends in words, or waits for more."""
    pair = pair_of(cards)
    ours, other = (pair.shows, pair.types) if side is Side.SHOWS else (pair.types, pair.shows)
    for_ours, for_other = other.begin(), ours.begin()
    for _ in range(n_before):
        for_ours, for_other = other.receive(for_other), ours.receive(for_ours)
    for piece in data:
        ours.receive(piece)
        ours.receive(struct.pack(">2sH", b"BP", len(piece)) + piece)
        assert len(ours._received) <= MAX_BODY_BYTES + 200
    ours.end()
    assert ours.state is State.FAILED and isinstance(ours.error, BatonError)


def test_a_connection_that_breaks_is_told(cards: tuple[Card, ...]) -> None:
    shows = end(Side.SHOWS, cards[0])
    shows.begin()
    shows.end()
    assert isinstance(shows.error, PeerLost) and not shows.is_wrong_try
    assert shows.receive(b"BP") == b"" and shows.abort(Reason.SPENT) == b""
    with pytest.raises(ValueError):
        shows.settle()


def test_silence_after_the_proof_counts_as_a_try(cards: tuple[Card, ...]) -> None:
    """Who answers as the one that shows and then hangs up has what he needs to test one guess."""
    types, fake = end(Side.TYPES, cards[1]), end(Side.SHOWS, cards[2], code="99999999")
    answer = fake.receive(types.begin())
    types.receive(fake.begin() + answer)
    types.end()
    assert types.is_wrong_try and isinstance(types.error, PeerLost)


def test_a_code_that_is_gone_is_told(cards: tuple[Card, ...]) -> None:
    pair = pair_of(cards)
    pair.types.receive(pair.shows.begin() + pair.shows.abort(Reason.SPENT))
    assert isinstance(pair.types.error, PeerRefused) and "no longer good" in str(pair.types.error)
    assert not pair.types.is_wrong_try


# Delays


def test_delays_grow_and_end_with_success() -> None:
    now = 100.0
    patience = Patience(lambda: now)
    patience.check()
    waits = []
    for _ in range(5):
        patience.wrong()
        waits.append(patience.wait_s)
    assert waits == [2, 8, 32, 60, 60]
    with pytest.raises(InvalidRequest, match="in 61 s"):
        patience.check()
    now += 60
    patience.check()
    patience.right()
    patience.wrong()
    assert patience.wait_s == 2
