"""How two computers come to trust each other by a code that one shows and a person types on the other.

    shows                              types
      greeting  ─────────┬──────────▶            versions, which side, a nonce; both at once
                ◀────────┴──────────   greeting
      exchange  ─────────┬──────────▶            SPAKE2, both at once
                ◀────────┴──────────   exchange
                ◀───────────────────   proof     of the code, then its card, sealed
      proof     ───────────────────▶
                ◀───────────────────   done      it has checked everything
      done      ───────────────────▶             it has written the other down

Who dials does not matter. Each proof is a MAC over all that was said before it, with a key that follows from the code
by SPAKE2; a card holds a certificate and who its owner is. Whoever has not the code has one guess: the side that types
proves first, so that a caller learns nothing from the side that shows unless he tells it a guess, and a wrong one voids
the code. An exchange that ends before that costs the code nothing.

Nothing here knows sockets, clocks or files: bytes go in, bytes to send come out, after milliseconds of computing.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import math
import os
import re
import secrets as python_secrets
import struct
from collections.abc import Callable
from typing import Annotated

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Meta
from spake2 import SPAKE2_A, SPAKE2_B, SPAKEError
from spake2.ed25519_basic import NotOnCurve

from engine.errors import (
    BatonError,
    InvalidRequest,
    PeerIncompatible,
    PeerLost,
    PeerRefused,
    PeerUntrusted,
    ProtocolError,
)
from engine.node.peering.peer_messages import NodeId
from engine.node.trust.identity import node_id_of
from engine.node.trust.peers import MAX_PEERS, book_full, key_changed
from engine.wire.limits import MAX_CERTIFICATE_BYTES, PROTOCOL_MAJOR, PROTOCOL_MINOR
from engine.wire.messages import CertificateBytes, Name, Role, Version

# Another number is another way of pairing. What `_Versions` holds stays where it is in all of them.
PAIRING_VERSION = 1

# One guess in a hundred million; two groups of four are read aloud and typed without a mistake.
CODE_DIGITS = 8

# Whoever walks over to the other computer, and starts Baton there first, is back in time.
CODE_LIFETIME_S = 300.0

# After the first wrong code; each further one makes it four times as long, up to a minute.
_FIRST_DELAY_S = 2.0
_MAX_DELAY_S = 60.0

_NONCE_BYTES = 32
_ELEMENT_BYTES = 33  # of SPAKE2 over Ed25519, with the byte that names the side
_MAC_BYTES = 32
_KEY_BYTES = 32

# A greeting comes from anybody: room for a later version's few more fields.
_MAX_GREETING_BYTES = 512

# A card holds a certificate, and a few names of 200 characters (800 bytes) at most.
_MAX_CARD_BYTES = MAX_CERTIFICATE_BYTES + 4096
MAX_BODY_BYTES = _MAX_CARD_BYTES + 256

# Magic, and the length of what follows.
_HEADER = struct.Struct(">2sH")
_MAGIC = b"BP"

# Keys are used for one message each, so that one nonce serves.
_SEAL_NONCE = bytes(12)


class Side(enum.StrEnum):
    SHOWS = "shows"
    TYPES = "types"


class Reason(enum.StrEnum):
    """Why an end broke an exchange off; only this travels, and each end has its own words for it."""

    VERSION = "version"
    SIDE = "side"
    WRONG_CODE = "wrong_code"
    SPENT = "spent"
    SAME_IDENTITY = "same_identity"
    KEY_CHANGED = "key_changed"
    FULL = "full"
    NOT_KEPT = "not_kept"
    PROTOCOL = "protocol"
    LOST = "lost"


class Card(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who a computer is. `node_port` is where its node listens for paired ones, `role` the one it asks for, if any."""

    node_id: NodeId
    name: Name
    platform: Name
    certificate_der: CertificateBytes
    node_port: Annotated[int, Meta(ge=1, le=65535)]
    role: Role | None = None


class _Versions(msgspec.Struct, frozen=True, kw_only=True, tag="greeting", tag_field="type"):
    """The part of a greeting that every version keeps, so that both can be named."""

    pairing: Version
    baton: Annotated[str, Meta(pattern=r"^[0-9A-Za-z.+-]{1,40}\Z")]


class _Message(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="type",
    omit_defaults=True,
):
    pass


class _Greeting(_Message, frozen=True, tag="greeting"):
    pairing: Version
    baton: str
    protocol_major: Version
    protocol_minor: Version
    side: Side
    nonce: Annotated[bytes, Meta(min_length=_NONCE_BYTES, max_length=_NONCE_BYTES)]


class _Exchange(_Message, frozen=True, tag="exchange"):
    element: Annotated[bytes, Meta(min_length=_ELEMENT_BYTES, max_length=_ELEMENT_BYTES)]


class _Proof(_Message, frozen=True, tag="proof"):
    sealed: Annotated[bytes, Meta(max_length=_MAX_CARD_BYTES)]
    mac: Annotated[bytes, Meta(min_length=_MAC_BYTES, max_length=_MAC_BYTES)]


class _Done(_Message, frozen=True, tag="done"):
    mac: Annotated[bytes, Meta(min_length=_MAC_BYTES, max_length=_MAC_BYTES)]


class _Abort(_Message, frozen=True, tag="abort"):
    reason: Reason


class State(enum.Enum):
    """How far an exchange is; in the first four it waits for the message of that name."""

    GREETING = enum.auto()
    EXCHANGE = enum.auto()
    PROOF = enum.auto()
    DONE = enum.auto()
    AGREED = enum.auto()  # the other computer can be written down
    PAIRED = enum.auto()
    FAILED = enum.auto()


_ENDED = (State.PAIRED, State.FAILED)

_DECODERS: dict[State, msgspec.msgpack.Decoder[_Greeting | _Exchange | _Proof | _Done | _Abort]] = {
    State.GREETING: msgspec.msgpack.Decoder(_Greeting | _Abort),
    State.EXCHANGE: msgspec.msgpack.Decoder(_Exchange | _Abort),
    State.PROOF: msgspec.msgpack.Decoder(_Proof | _Abort),
    State.DONE: msgspec.msgpack.Decoder(_Done | _Abort),
}


class _Stop(Exception):
    """Ends an exchange from within."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


def make_code() -> str:
    return f"{python_secrets.randbelow(10**CODE_DIGITS):0{CODE_DIGITS}d}"


def code_text(code: str) -> str:
    """As it is shown: two groups."""
    half = CODE_DIGITS // 2
    return f"{code[:half]}-{code[half:]}"


def parse_code(text: str) -> str:
    """The digits of a code as a person types it; raises InvalidRequest."""
    digits = re.sub(r"[\s.-]", "", text)
    if not (len(digits) == CODE_DIGITS and digits.isascii() and digits.isdigit()):
        raise InvalidRequest(
            f"{text[:40]!r} is no code: one has {CODE_DIGITS} digits, as `baton pair` shows them on the other computer",
            param="code",
        ).worded("no_code")
    return digits


class Patience:
    """How long no code may be shown or tried after wrong ones. `clock` counts seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._n_wrong = 0
        self._until = -math.inf

    def wrong(self) -> None:
        """A wrong code was tried, here or from here."""
        delay_s = min(_MAX_DELAY_S, _FIRST_DELAY_S * 4**self._n_wrong)
        self._n_wrong += 1
        self._until = self._clock() + delay_s

    def right(self) -> None:
        """A pairing succeeded."""
        self._n_wrong = 0

    @property
    def wait_s(self) -> float:
        return max(0.0, self._until - self._clock())

    def check(self) -> None:
        """Raises InvalidRequest while it is too early."""
        if self.wait_s:
            raise InvalidRequest(
                f"a wrong code was tried just now: the next one can be shown or typed in {int(self.wait_s) + 1} s"
            ).worded("wait")


class Exchange:
    """One end of one pairing. `begin`, then `receive` what comes; send what they return.

    `check` looks at the other's card once the code is proven, and returns why it cannot be taken, if so. In the state
    AGREED the caller writes `peer` down, then calls `settle`; or `abort`. When it FAILED, `reason` and `error` say why,
    and `is_wrong_try` whether somebody without the code may have tested a guess by it. One call at a time; any thread.
    """

    def __init__(
        self,
        *,
        side: Side,
        code: str,
        card: Card,
        baton: str,
        check: Callable[[Card], Reason | None] = lambda card: None,
    ) -> None:
        self.side = side
        self.state = State.GREETING
        self.peer: Card | None = None
        self.peer_baton = ""
        self.reason: Reason | None = None
        self.error: BatonError | None = None
        self.is_wrong_try = False
        self._card = card
        self._check = check
        self._baton = baton
        self._greeting = _encode(
            _Greeting(
                pairing=PAIRING_VERSION,
                baton=baton,
                protocol_major=PROTOCOL_MAJOR,
                protocol_minor=PROTOCOL_MINOR,
                side=side,
                nonce=os.urandom(_NONCE_BYTES),
            )
        )
        self._spake = _SPAKE[side](code.encode(), idA=b"baton shows", idB=b"baton types")
        self._element = b""
        self._keys = _Keys(b"", b"")
        self._script = hashlib.sha256()
        self._received = bytearray()

    def begin(self) -> bytes:
        """The greeting; it can be sent before anything has come."""
        return _frame(self._greeting)

    def receive(self, data: bytes) -> bytes:
        """Take what has come, and return what is to be sent for it."""
        if self.state in _ENDED:
            return b""
        self._received += data
        answer = b""
        try:
            while self.state in _DECODERS and (body := self._next_body()) is not None:
                answer += self._answer(body)
        except _Stop as stop:
            answer += self.abort(stop.reason)
        return answer

    def end(self) -> None:
        """The connection was closed, or fell silent for too long."""
        if self.state not in _ENDED:
            self._fail(Reason.LOST, told=False)

    def abort(self, reason: Reason) -> bytes:
        """Break it off, unless it has ended; returns what tells the other end."""
        if self.state in _ENDED:
            return b""
        self._fail(reason, told=False)
        return _frame(_encode(_Abort(reason=reason)))

    def settle(self) -> bytes:
        """The peer of an exchange that is AGREED has been written down: this end has paired."""
        if self.state is not State.AGREED:
            raise ValueError(f"an exchange that waits for {self.state.name} cannot be settled")
        self.state = State.PAIRED
        return self._say_done() if self.side is Side.SHOWS else b""

    def _next_body(self) -> bytes | None:
        """The next whole message, off the bytes received; what cannot be one is refused at its first bytes."""
        received = self._received
        if not _MAGIC.startswith(received[: len(_MAGIC)]):
            raise _Stop(Reason.PROTOCOL)
        if len(received) < _HEADER.size:
            return None
        _, n_bytes = _HEADER.unpack_from(received)
        limit = _MAX_GREETING_BYTES if self.state is State.GREETING else MAX_BODY_BYTES
        if not 0 < n_bytes <= limit:
            raise _Stop(Reason.PROTOCOL)
        if len(received) < _HEADER.size + n_bytes:
            return None
        body = bytes(received[_HEADER.size : _HEADER.size + n_bytes])
        del received[: _HEADER.size + n_bytes]
        return body

    def _answer(self, body: bytes) -> bytes:
        if self.state is State.GREETING:
            self._compare_versions(body)
        try:
            message = _DECODERS[self.state].decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise _Stop(Reason.PROTOCOL) from None
        match message:
            case _Greeting():
                return self._take_greeting(message, body)
            case _Exchange():
                return self._take_element(message.element)
            case _Proof():
                return self._take_proof(message)
            case _Done():
                return self._take_done(message)
            case _Abort():
                self._fail(message.reason, told=True)
        return b""

    def _compare_versions(self, body: bytes) -> None:
        try:
            versions = msgspec.msgpack.decode(body, type=_Versions)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return  # an abort, or nothing at all
        self.peer_baton = versions.baton
        if versions.pairing != PAIRING_VERSION:
            raise _Stop(Reason.VERSION)

    def _take_greeting(self, greeting: _Greeting, body: bytes) -> bytes:
        if greeting.side is self.side:
            raise _Stop(Reason.SIDE)
        self._write(*self._by_side(self._greeting, body))
        self._element = self._spake.start()
        self.state = State.EXCHANGE
        return _frame(_encode(_Exchange(element=self._element)))

    def _take_element(self, element: bytes) -> bytes:
        try:
            shared = self._spake.finish(element)
        except (SPAKEError, NotOnCurve, ValueError):
            raise _Stop(Reason.PROTOCOL) from None
        self._write(*self._by_side(self._element, element))
        self._keys = _Keys(shared, self._script.digest())
        self.state = State.PROOF
        if self.side is Side.SHOWS:
            return b""
        self.is_wrong_try = True  # until the other end proves that it knows the code too
        return self._prove()

    def _prove(self) -> bytes:
        sealed = self._keys.seal(self.side, _encode(self._card))
        self._write(sealed)
        mac = self._keys.mac("proof", self.side, self._script.digest())
        self._write(mac)
        return _frame(_encode(_Proof(sealed=sealed, mac=mac)))

    def _take_proof(self, proof: _Proof) -> bytes:
        other = _OTHER[self.side]
        self._write(proof.sealed)
        if not hmac.compare_digest(self._keys.mac("proof", other, self._script.digest()), proof.mac):
            self.is_wrong_try = True
            raise _Stop(Reason.WRONG_CODE)
        self.is_wrong_try = False
        self._write(proof.mac)
        self.peer = self._open_card(proof.sealed)
        if (refusal := self._refusal(self.peer)) is not None:
            raise _Stop(refusal)
        self.state = State.DONE
        return self._prove() if self.side is Side.SHOWS else self._say_done()

    def _open_card(self, sealed: bytes) -> Card:
        try:
            card = msgspec.msgpack.decode(self._keys.unseal(_OTHER[self.side], sealed), type=Card)
            certificate = x509.load_der_x509_certificate(card.certificate_der)
            sound = node_id_of(certificate) == card.node_id
        except (InvalidTag, msgspec.DecodeError, ValueError):
            raise _Stop(Reason.PROTOCOL) from None
        # both are shown in terminals
        if not (sound and card.name.strip() and card.name.isprintable() and card.platform.isprintable()):
            raise _Stop(Reason.PROTOCOL)
        return card

    def _refusal(self, peer: Card) -> Reason | None:
        return Reason.SAME_IDENTITY if peer.node_id == self._card.node_id else self._check(peer)

    def _say_done(self) -> bytes:
        mac = self._keys.mac("done", self.side, self._script.digest())
        self._write(mac)
        return _frame(_encode(_Done(mac=mac)))

    def _take_done(self, done: _Done) -> bytes:
        if not hmac.compare_digest(
            self._keys.mac("done", _OTHER[self.side], self._script.digest()), done.mac
        ):
            raise _Stop(Reason.PROTOCOL)
        self._write(done.mac)
        self.state = State.AGREED
        return b""

    def _by_side(self, mine: bytes, other: bytes) -> tuple[bytes, bytes]:
        """Both in the order in which both ends write them down."""
        return (mine, other) if self.side is Side.SHOWS else (other, mine)

    def _write(self, *pieces: bytes) -> None:
        """Add to what every later proof covers; the lengths keep two pieces from standing for two others."""
        for piece in pieces:
            self._script.update(struct.pack(">I", len(piece)) + piece)

    def _fail(self, reason: Reason, *, told: bool) -> None:
        self.state = State.FAILED
        self.reason = reason
        self.error = _error(
            reason, self.side, told=told, versions=(self._baton, self.peer_baton), peer=self.peer
        ).worded(reason.value)


class _Keys:
    """The keys that follow from what SPAKE2 agreed on and all that was said until then; each for one message."""

    def __init__(self, shared: bytes, script_digest: bytes) -> None:
        self._shared = shared
        self._script_digest = script_digest

    def seal(self, side: Side, plain: bytes) -> bytes:
        return AESGCM(self._key("seal", side)).encrypt(_SEAL_NONCE, plain, None)

    def unseal(self, side: Side, sealed: bytes) -> bytes:
        """Raises InvalidTag."""
        return AESGCM(self._key("seal", side)).decrypt(_SEAL_NONCE, sealed, None)

    def mac(self, purpose: str, side: Side, digest: bytes) -> bytes:
        return hmac.digest(self._key(purpose, side), digest, "sha256")

    def _key(self, purpose: str, side: Side) -> bytes:
        info = f"baton pairing {PAIRING_VERSION} {purpose} {side}".encode()
        return HKDF(hashes.SHA256(), _KEY_BYTES, salt=self._script_digest, info=info).derive(self._shared)


_SPAKE = {Side.SHOWS: SPAKE2_A, Side.TYPES: SPAKE2_B}
_OTHER = {Side.SHOWS: Side.TYPES, Side.TYPES: Side.SHOWS}


def _encode(message: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(message)


def _frame(body: bytes) -> bytes:
    return _HEADER.pack(_MAGIC, len(body)) + body


def _error(
    reason: Reason, side: Side, *, told: bool, versions: tuple[str, str], peer: Card | None
) -> BatonError:
    """What the person at this end is told; `told`: the other end found it."""
    here, there = versions
    shows = side is Side.SHOWS
    match reason:
        case Reason.VERSION:
            return PeerIncompatible(
                f"the other computer has Baton {there or '(of an unknown version)'} and this one {here}, and they pair "
                "in different ways: install the newer one on both"
            )
        case Reason.SIDE if shows:
            return InvalidRequest(
                "both computers show a code: type the other one's code here, or this one's there"
            )
        case Reason.SIDE:
            return InvalidRequest(
                "both computers were given a code: have one of them show it (baton pair), and type it on the other"
            )
        case Reason.WRONG_CODE if shows:
            return PeerUntrusted(
                "a computer tried to pair with a wrong code, so this one is void: show a new one (baton pair), and see "
                "to it that it is typed on the right computer"
            )
        case Reason.WRONG_CODE if told:
            return InvalidRequest(
                "that is not the code that the other computer shows, which is void now: have it show a new one "
                "(baton pair), and type that",
                param="code",
            )
        case Reason.WRONG_CODE:
            return PeerUntrusted(
                "the computer that answered does not know the code: check that the address is the right one, have a "
                "new code shown (baton pair), and type that"
            )
        case Reason.SPENT:
            return PeerRefused(
                "the code is no longer good: it was used, withdrawn or tried wrongly, or its five minutes have passed. "
                "Show a new one (baton pair), and type that"
            )
        case Reason.SAME_IDENTITY:
            return PeerUntrusted(
                "both computers have the same identity, as after copying a disk: make a new one on one of them "
                "(baton pair renew), then pair again"
            )
        case Reason.KEY_CHANGED if told:
            return PeerRefused(
                "the other computer knows this one with another key, from an earlier pairing: remove that pairing "
                "there (baton pair list, baton pair remove), then pair again"
            )
        case Reason.KEY_CHANGED:
            return key_changed(peer.name if peer is not None else "the other computer")
        case Reason.FULL if told:
            return PeerRefused(
                f"the other computer is paired with {MAX_PEERS} others, and keeps no more: remove one there (baton "
                "pair list, baton pair remove), then pair again"
            )
        case Reason.FULL:
            return book_full()
        case Reason.NOT_KEPT:
            return PeerRefused(
                "the other computer could not write the pairing down, and says why: then pair again"
            )
        case Reason.LOST:
            return PeerLost(
                "the connection broke before both computers had finished: pair again. One of them may list the other "
                "already, which does no harm"
            )
        case Reason.PROTOCOL:
            return ProtocolError(
                "what came from the other computer is no pairing, or was changed on the way: check the address, and "
                "pair again"
            )
