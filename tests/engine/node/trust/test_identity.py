"""Identities stay what they are, and no connection but with the trusted computer gets anywhere."""

from __future__ import annotations

import dataclasses
import datetime
import errno
import hashlib
import os
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from engine.errors import DiskFull, HostError, InvalidRequest, PeerLost, PeerUntrusted, ProtocolError
from engine.files import write_whole
from engine.node.trust import identity as identity_module
from engine.node.trust.identity import (
    INTRODUCTION_NAME,
    MUTUAL_NAME,
    MUTUAL_PROTOCOL,
    Identity,
    TrustStore,
    answer_introduction,
    check_peer,
    fingerprint_of,
    introduce,
    introduction_context,
    listener_context,
    mutual_context,
    parse_fingerprint,
    peers_context,
    which_peer,
)
from engine.node.trust.peers import Peer
from engine.wire.codec import FRAME_HEADER, MAGIC, FrameKind, encode_message
from engine.wire.limits import MAX_HELLO_BYTES
from engine.wire.messages import Introduce, Introduced

TIMEOUT_S = 10.0

posix_only = pytest.mark.skipif(os.name != "posix", reason="modes of files as POSIX has them")

# Two ends of a connection: what each does once it is there, and returns.
End = Callable[[ssl.SSLSocket], Any]


@dataclass(frozen=True, kw_only=True)
class Node:
    identity: Identity
    trust: TrustStore


def make_node(folder: Path) -> Node:
    return Node(identity=Identity.load_or_create(folder), trust=TrustStore(folder))


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Identity, Identity, Identity]:
    """A dialler, a listener and a stranger."""
    folder = tmp_path_factory.mktemp("identities")
    here, there, stranger = (Identity.load_or_create(folder / name) for name in ("here", "there", "stranger"))
    return here, there, stranger


@pytest.fixture
def here(tmp_path: Path) -> Node:
    return make_node(tmp_path / "here")


@pytest.fixture
def there(tmp_path: Path) -> Node:
    return make_node(tmp_path / "there")


def listen(node: Node, peer: Identity) -> ssl.SSLContext:
    """The listener's context that serves `peer`."""
    node.trust.trust(peer.fingerprint)
    return listener_context(node.identity, node.trust, peer.fingerprint)


def meet(
    client: ssl.SSLContext, server: ssl.SSLContext, name: str | None, dialler: End, listener: End
) -> tuple[Future[Any], Future[Any]]:
    """Connect two contexts, run both ends to their end, and return what became of each."""
    client_end, server_end = socket.socketpair()

    def dial() -> Any:
        with client_end:
            client_end.settimeout(TIMEOUT_S)
            with client.wrap_socket(client_end, server_hostname=name) as connection:
                return dialler(connection)

    def accept() -> Any:
        with server_end:
            server_end.settimeout(TIMEOUT_S)
            with server.wrap_socket(server_end, server_side=True) as connection:
                return listener(connection)

    with ThreadPoolExecutor(2) as threads:
        return threads.submit(dial), threads.submit(accept)


def talk(connection: ssl.SSLSocket) -> bytes:
    """Say hello and return what the other end says."""
    connection.sendall(b"hello")
    return connection.recv(100)


def never(connection: ssl.SSLSocket) -> None:
    pytest.fail("a handshake succeeded that must not")


def read(connection: ssl.SSLSocket) -> bytes:
    return connection.recv(100)


def assert_refused(client: ssl.SSLContext, server: ssl.SSLContext, name: str | None) -> None:
    """The listener's handshake fails, and the dialler learns of it by its first read."""
    dialled, accepted = meet(client, server, name, dialler=read, listener=never)
    assert isinstance(accepted.exception(), OSError)
    assert isinstance(dialled.exception(), OSError) or dialled.result() == b""


# Fingerprints


def test_a_fingerprint_is_read_however_it_was_copied() -> None:
    digest = hashlib.sha256(b"x").hexdigest()
    pairs = [digest[i : i + 2] for i in range(0, 64, 2)]

    assert fingerprint_of(b"x") == digest
    for text in (digest, digest.upper(), ":".join(pairs), " ".join(pairs), f" {digest}\n", "-".join(pairs)):
        assert parse_fingerprint(text) == digest


@pytest.mark.parametrize("text", ["", "12:34", "g" * 64, "a" * 63, "a" * 65, "../" * 22, "٣" * 64])
def test_what_is_no_fingerprint_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="64 hexadecimal digits"):
        parse_fingerprint(text)


# The identity's files


def test_an_identity_is_made_once_and_kept(tmp_path: Path) -> None:
    made = Identity.load_or_create(tmp_path / "node")
    kept = Identity.load_or_create(tmp_path / "node")

    assert made == kept
    assert len(made.node_id) == 32
    assert made.fingerprint == fingerprint_of(made.certificate_der)
    assert Identity.load_or_create(tmp_path / "other").node_id != made.node_id


def test_the_certificate_is_a_leaf_that_lasts(identities: tuple[Identity, ...]) -> None:
    certificate = x509.load_der_x509_certificate(identities[0].certificate_der)
    now = datetime.datetime.now(datetime.UTC)

    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert certificate.not_valid_before_utc < now - datetime.timedelta(hours=23)
    assert certificate.not_valid_after_utc > now + datetime.timedelta(days=49 * 365)
    assert certificate.subject == certificate.issuer
    assert certificate.subject.rfc4514_string() == f"CN={identities[0].node_id}"


@posix_only
def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    identity = Identity.load_or_create(tmp_path / "node")
    store = TrustStore(tmp_path / "node")
    store.add_certificate(identity.certificate_der)

    modes = {
        path.relative_to(tmp_path).as_posix(): oct(stat.S_IMODE(path.stat().st_mode))
        for path in sorted(tmp_path.rglob("*"))
    }
    assert {name: mode for name, mode in modes.items() if not name.endswith(".lock")} == {
        "node": "0o700",
        "node/certificate.pem": "0o600",
        "node/key.pem": "0o600",
        "node/trusted": "0o700",
        f"node/trusted/{identity.fingerprint}.der": "0o600",
    }


@posix_only
def test_a_key_that_others_can_read_is_taken_from_them(tmp_path: Path) -> None:
    identity = Identity.load_or_create(tmp_path)
    identity.key_path.chmod(0o644)

    assert Identity.load_or_create(tmp_path) == identity
    assert stat.S_IMODE(identity.key_path.stat().st_mode) == 0o600


def test_threads_that_start_at_once_get_one_identity(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)

    def start(_: int) -> Identity:
        barrier.wait(TIMEOUT_S)
        return Identity.load_or_create(tmp_path / "node")

    with ThreadPoolExecutor(8) as threads:
        assert len({identity.certificate_der for identity in threads.map(start, range(8))}) == 1


def test_processes_that_start_at_once_get_one_identity(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys; from engine.node.trust.identity import Identity; sys.stdin.readline();"
        "print(Identity.load_or_create(pathlib.Path(sys.argv[1])).fingerprint)"
    )
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", code, str(tmp_path / "node")]
    children = [subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) for _ in range(3)]
    fingerprints = {child.communicate("go\n", timeout=60)[0] for child in children}

    assert [child.returncode for child in children] == [0, 0, 0]
    assert fingerprints == {Identity.load_or_create(tmp_path / "node").fingerprint + "\n"}


@pytest.mark.parametrize("name", ["certificate.pem", "key.pem"])
@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff" * 2000, None])
def test_a_damaged_or_missing_file_is_named(tmp_path: Path, name: str, content: bytes | None) -> None:
    Identity.load_or_create(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)

    with pytest.raises(HostError, match="delete") as caught:
        Identity.load_or_create(tmp_path)
    assert str(tmp_path / name) in str(caught.value)


def test_an_identity_is_made_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key alone would be refused at every later start, as one whose certificate was lost."""

    def write_until_full(path: Path, data: bytes, *, synced: bool) -> None:
        if path.name == "certificate.pem":
            raise OSError(errno.ENOSPC, "No space left on device")
        write_whole(path, data, synced=synced)

    with monkeypatch.context() as patch:
        patch.setattr(identity_module, "write_whole", write_until_full)
        with pytest.raises(DiskFull):
            Identity.load_or_create(tmp_path)
    assert Identity.load_or_create(tmp_path).certificate_path.exists()


def test_a_file_cut_short_is_damaged(tmp_path: Path) -> None:
    identity = Identity.load_or_create(tmp_path)
    identity.key_path.write_bytes(identity.key_path.read_bytes()[:100])

    with pytest.raises(HostError, match="delete both"):
        Identity.load_or_create(tmp_path)


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    identity = Identity.load_or_create(tmp_path / "one")
    other = Identity.load_or_create(tmp_path / "two")
    identity.key_path.write_bytes(other.key_path.read_bytes())

    with pytest.raises(HostError, match="do not belong together"):
        Identity.load_or_create(tmp_path / "one")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(HostError, match="identity in"):
        Identity.load_or_create(tmp_path / "file" / "node")


def test_a_lock_that_stays_held_ends_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.node.trust.identity._LOCK_TIMEOUT_S", 0.0)

    with filelock.FileLock(tmp_path / "identity.lock"), pytest.raises(HostError, match="another process"):
        Identity.load_or_create(tmp_path)


# Trust


def test_only_a_trusted_certificate_is_pinned(tmp_path: Path, identities: tuple[Identity, ...]) -> None:
    identity, stranger, _ = identities
    store = TrustStore(tmp_path)
    store.trust(identity.fingerprint.upper())

    assert store.certificate(identity.fingerprint) is None
    store.pin(identity.certificate_der)
    with pytest.raises(PeerUntrusted, match=stranger.fingerprint):
        store.pin(stranger.certificate_der)
    with pytest.raises(PeerUntrusted):
        store.pin(identity.certificate_der + b"x")

    assert TrustStore(tmp_path).certificate(identity.fingerprint) == identity.certificate_der
    assert store.certificate(stranger.fingerprint) is None


def test_a_pin_on_disk_trusts_nobody_by_itself(tmp_path: Path, identities: tuple[Identity, ...]) -> None:
    TrustStore(tmp_path).add_certificate(identities[0].certificate_der)

    with pytest.raises(PeerUntrusted):
        TrustStore(tmp_path).pin(identities[0].certificate_der)


def test_what_is_no_certificate_is_not_kept(tmp_path: Path, identities: tuple[Identity, ...]) -> None:
    store = TrustStore(tmp_path)
    for der in (b"garbage", identities[0].certificate_der + identities[1].certificate_der):
        store.trust(fingerprint_of(der))
        with pytest.raises(PeerUntrusted, match="no certificate"):
            store.pin(der)
    assert not list(tmp_path.iterdir())


def test_a_damaged_pin_counts_as_none(tmp_path: Path, identities: tuple[Identity, ...]) -> None:
    identity = identities[0]
    store = TrustStore(tmp_path)
    store.add_certificate(identity.certificate_der)
    (tmp_path / "trusted" / f"{identity.fingerprint}.der").write_bytes(identities[1].certificate_der)

    assert store.certificate(identity.fingerprint) is None
    store.pin(identity.certificate_der)
    assert store.certificate(identity.fingerprint) == identity.certificate_der


# Mutual TLS


def mutual(identity: Identity, peer: Identity, *, server_side: bool) -> ssl.SSLContext:
    return mutual_context(identity, server_side=server_side, peer_der=peer.certificate_der)


def test_two_that_trust_each_other_talk(identities: tuple[Identity, ...]) -> None:
    here, there, _ = identities

    def dialler(connection: ssl.SSLSocket) -> tuple[bytes, object]:
        check_peer(connection, there.certificate_der)
        return talk(connection), connection.selected_alpn_protocol()

    def listener(connection: ssl.SSLSocket) -> tuple[bytes, object]:
        check_peer(connection, here.certificate_der)
        return talk(connection), connection.version()

    client, server = mutual(here, there, server_side=False), mutual(there, here, server_side=True)
    dialled, accepted = meet(client, server, MUTUAL_NAME, dialler, listener)
    assert dialled.result() == (b"hello", MUTUAL_PROTOCOL)
    assert accepted.result() == (b"hello", "TLSv1.3")


def test_another_certificate_is_no_peer(identities: tuple[Identity, ...]) -> None:
    here, there, stranger = identities

    def dialler(connection: ssl.SSLSocket) -> None:
        with pytest.raises(PeerUntrusted):
            check_peer(connection, stranger.certificate_der)

    client, server = mutual(here, there, server_side=False), mutual(there, here, server_side=True)
    dialled, accepted = meet(client, server, MUTUAL_NAME, dialler, read)
    dialled.result()
    assert accepted.result() == b""


def test_a_dialler_takes_no_other_listener(identities: tuple[Identity, ...]) -> None:
    here, there, stranger = identities
    client, server = mutual(here, there, server_side=False), mutual(stranger, here, server_side=True)

    dialled, accepted = meet(client, server, MUTUAL_NAME, never, never)
    assert isinstance(dialled.exception(), ssl.SSLCertVerificationError)
    assert isinstance(accepted.exception(), OSError)


def test_a_listener_takes_no_other_dialler(identities: tuple[Identity, ...]) -> None:
    here, there, stranger = identities

    assert_refused(
        mutual(stranger, there, server_side=False), mutual(there, here, server_side=True), MUTUAL_NAME
    )


def test_no_session_is_kept_to_resume(identities: tuple[Identity, ...]) -> None:
    here, there, _ = identities

    def dialler(connection: ssl.SSLSocket) -> bool:
        talk(connection)
        return connection.session.has_ticket

    client, server = mutual(here, there, server_side=False), mutual(there, here, server_side=True)
    dialled, _ = meet(client, server, MUTUAL_NAME, dialler, talk)
    assert dialled.result() is False


def test_a_pin_that_is_no_certificate_makes_no_context(identities: tuple[Identity, ...]) -> None:
    for der in (b"", b"garbage"):
        with pytest.raises(PeerUntrusted):
            mutual_context(identities[0], server_side=False, peer_der=der)


# Several peers at one port


def as_peer(identity: Identity) -> Peer:
    return Peer(node_id=identity.node_id, name="other", certificate_der=identity.certificate_der)


def test_any_of_several_peers_is_known(identities: tuple[Identity, ...]) -> None:
    here, there, third = identities
    peers = [as_peer(here), as_peer(third)]
    for caller in (here, third):
        client = peers_context(caller, [as_peer(there)], server_side=False)
        server = peers_context(there, peers, server_side=True)
        dialled, accepted = meet(
            client,
            server,
            MUTUAL_NAME,
            lambda connection: (which_peer(connection, [as_peer(there)]).node_id, talk(connection)),
            lambda connection: (which_peer(connection, peers).node_id, talk(connection)),
        )
        assert dialled.result() == (there.node_id, b"hello")
        assert accepted.result() == (caller.node_id, b"hello")


@pytest.mark.parametrize("n_peers", [0, 1])
def test_who_is_no_peer_passes_no_handshake(identities: tuple[Identity, ...], n_peers: int) -> None:
    here, there, stranger = identities
    server = peers_context(there, [as_peer(here)][:n_peers], server_side=True)

    assert_refused(without_certificate(), server, MUTUAL_NAME)
    assert_refused(introduction_context(stranger, server_side=False), server, MUTUAL_NAME)
    assert_refused(peers_context(stranger, [as_peer(there)], server_side=False), server, MUTUAL_NAME)


def test_who_was_removed_since_is_no_peer(identities: tuple[Identity, ...]) -> None:
    here, there, stranger = identities

    def listener(connection: ssl.SSLSocket) -> None:
        with pytest.raises(PeerUntrusted, match="not paired"):
            which_peer(connection, [as_peer(stranger)])

    client = peers_context(here, [as_peer(there)], server_side=False)
    server = peers_context(there, [as_peer(here), as_peer(stranger)], server_side=True)
    dialled, accepted = meet(client, server, MUTUAL_NAME, read, listener)
    accepted.result()
    assert dialled.result() == b""


def test_a_certificate_that_a_peer_signed_is_no_peer(
    identities: tuple[Identity, ...], tmp_path: Path
) -> None:
    here, there, stranger = identities
    issuer = x509.load_der_x509_certificate(here.certificate_der)
    issuer_key = serialization.load_pem_private_key(here.key_path.read_bytes(), None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    old = x509.load_der_x509_certificate(stranger.certificate_der)
    signed = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(issuer.subject)
        .public_key(old.public_key())
        .serial_number(7)
        .not_valid_before(old.not_valid_before_utc)
        .not_valid_after(old.not_valid_after_utc)
        .sign(issuer_key, hashes.SHA256())
    )
    forged = tmp_path / "forged.pem"
    forged.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    forger = dataclasses.replace(
        stranger, certificate_path=forged, certificate_der=signed.public_bytes(serialization.Encoding.DER)
    )

    client = peers_context(forger, [as_peer(there)], server_side=False)
    assert_refused(client, peers_context(there, [as_peer(here)], server_side=True), MUTUAL_NAME)


# One port for all


def without_certificate(*, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    return context


@pytest.mark.parametrize("pinned", [False, True])
def test_introduction_then_the_link(here: Node, there: Node, pinned: bool) -> None:
    """`pinned`: the listener knows the dialler from before, who has lost its own pin."""
    if pinned:
        there.trust.add_certificate(here.identity.certificate_der)
    server = listen(there, here.identity)
    fingerprint = there.identity.fingerprint
    here.trust.trust(fingerprint)

    dialled, accepted = meet(
        introduction_context(here.identity, server_side=False),
        server,
        INTRODUCTION_NAME,
        lambda connection: introduce(connection, here.identity, fingerprint),
        lambda connection: answer_introduction(connection, there.trust),
    )
    here.trust.pin(dialled.result())
    assert accepted.result() == here.identity.certificate_der
    assert here.trust.certificate(fingerprint) == there.identity.certificate_der

    def listener(connection: ssl.SSLSocket) -> bytes:
        check_peer(connection, here.identity.certificate_der)
        return talk(connection)

    client = mutual(here.identity, there.identity, server_side=False)
    dialled, accepted = meet(client, server, MUTUAL_NAME, talk, listener)
    assert (dialled.result(), accepted.result()) == (b"hello", b"hello")


@pytest.mark.parametrize("name", [MUTUAL_NAME, INTRODUCTION_NAME])
def test_once_pinned_nobody_else_passes_the_handshake(
    here: Node, there: Node, identities: tuple[Identity, ...], name: str
) -> None:
    there.trust.add_certificate(here.identity.certificate_der)
    server = listen(there, here.identity)

    assert_refused(without_certificate(), server, name)
    assert_refused(introduction_context(identities[2], server_side=False), server, name)
    assert_refused(mutual(identities[2], there.identity, server_side=False), server, name)


def test_before_the_introduction_there_is_no_link(here: Node, there: Node) -> None:
    client = mutual(here.identity, there.identity, server_side=False)

    assert_refused(client, listen(there, here.identity), MUTUAL_NAME)


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("name", [None, "baton.example", "localhost"])
def test_no_name_or_an_unknown_one_is_refused(
    here: Node, there: Node, name: str | None, pinned: bool
) -> None:
    if pinned:
        there.trust.add_certificate(here.identity.certificate_der)

    client = mutual(here.identity, there.identity, server_side=False)
    assert_refused(client, listen(there, here.identity), name)


@pytest.mark.parametrize("name", [MUTUAL_NAME, INTRODUCTION_NAME])
def test_older_tls_is_refused(here: Node, there: Node, name: str) -> None:
    older = without_certificate(version=ssl.TLSVersion.TLSv1_2)
    older.load_cert_chain(here.identity.certificate_path, here.identity.key_path)
    server = listen(there, here.identity)

    assert_refused(older, server, name)
    there.trust.add_certificate(here.identity.certificate_der)
    assert_refused(older, server, name)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 3000, bytes(range(256)) * 300])
def test_what_is_not_tls_is_refused(here: Node, there: Node, data: bytes) -> None:
    client_end, server_end = socket.socketpair()
    with client_end, server_end, ThreadPoolExecutor(1) as threads:
        for end in (client_end, server_end):
            end.settimeout(TIMEOUT_S)
        sending = threads.submit(client_end.sendall, data)
        with pytest.raises(OSError):
            listen(there, here.identity).wrap_socket(server_end, server_side=True)
        server_end.close()
        assert isinstance(sending.exception(), OSError | None)


def test_a_listener_context_used_otherwise_lets_nobody_in(here: Node, there: Node) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller_in, caller_out = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = without_certificate().wrap_bio(caller_in, caller_out, server_hostname=INTRODUCTION_NAME)
    with pytest.raises(ssl.SSLWantReadError):
        caller.do_handshake()
    incoming.write(caller_out.read())

    with pytest.raises(ssl.SSLError) as caught:
        listen(there, here.identity).wrap_bio(incoming, outgoing, server_side=True).do_handshake()
    assert not isinstance(caught.value, ssl.SSLWantReadError)


# Introductions that fail


def test_a_dialler_tells_a_wrong_listener_nothing(
    here: Node, there: Node, identities: tuple[Identity, ...]
) -> None:
    dialled, accepted = meet(
        introduction_context(here.identity, server_side=False),
        listen(there, here.identity),
        INTRODUCTION_NAME,
        lambda connection: introduce(connection, here.identity, identities[2].fingerprint),
        read,
    )
    assert isinstance(dialled.exception(), PeerUntrusted)
    assert there.identity.fingerprint in str(dialled.exception())
    assert accepted.result() == b""


def test_a_listener_pins_no_stranger(here: Node, there: Node, identities: tuple[Identity, ...]) -> None:
    stranger = identities[2]
    dialled, accepted = meet(
        introduction_context(stranger, server_side=False),
        listen(there, here.identity),
        INTRODUCTION_NAME,
        lambda connection: introduce(connection, stranger, there.identity.fingerprint),
        lambda connection: answer_introduction(connection, there.trust),
    )
    assert isinstance(accepted.exception(), PeerUntrusted)
    assert isinstance(dialled.exception(), PeerLost)
    assert f"--trust {stranger.fingerprint}" in str(dialled.exception())
    assert there.trust.certificate(stranger.fingerprint) is None
    assert there.trust.certificate(here.identity.fingerprint) is None


BAD_INTRODUCTIONS = {
    "garbage": b"garbage, and more of it",
    "too long": FRAME_HEADER.pack(MAGIC, FrameKind.CONTROL, 0, MAX_HELLO_BYTES + 1),
    "cache data": FRAME_HEADER.pack(MAGIC, FrameKind.DATA, 0, 32),
    "no message": FRAME_HEADER.pack(MAGIC, FrameKind.CONTROL, 0, 1) + b"\xc1",
    "the answer": encode_message(Introduced()),
    "two messages": encode_message(Introduced()) * 2,
    "a large certificate": encode_message(Introduce(certificate=bytes(9000))),
}


@pytest.mark.parametrize("data", BAD_INTRODUCTIONS.values(), ids=BAD_INTRODUCTIONS)
def test_a_bad_introduction_is_refused(here: Node, there: Node, data: bytes) -> None:
    dialled, accepted = meet(
        introduction_context(here.identity, server_side=False),
        listen(there, here.identity),
        INTRODUCTION_NAME,
        lambda connection: (connection.sendall(data), read(connection)),
        lambda connection: answer_introduction(connection, there.trust),
    )
    assert isinstance(accepted.exception(), ProtocolError)
    assert isinstance(dialled.exception(), OSError) or dialled.result() == (None, b"")


def test_a_listener_that_answers_something_else_is_refused(here: Node, there: Node) -> None:
    dialled, _ = meet(
        introduction_context(here.identity, server_side=False),
        listen(there, here.identity),
        INTRODUCTION_NAME,
        lambda connection: introduce(connection, here.identity, there.identity.fingerprint),
        lambda connection: (
            read(connection),
            connection.sendall(encode_message(Introduce(certificate=b"x"))),
        ),
    )
    assert isinstance(dialled.exception(), ProtocolError)


def test_a_dialler_that_hangs_up_or_falls_silent_is_lost(here: Node, there: Node) -> None:
    def patient(connection: ssl.SSLSocket) -> None:
        connection.settimeout(0.05)
        answer_introduction(connection, there.trust)

    client = introduction_context(here.identity, server_side=False)
    for dialler in (lambda connection: None, read):
        _, accepted = meet(client, listen(there, here.identity), INTRODUCTION_NAME, dialler, patient)
        assert isinstance(accepted.exception(), PeerLost)


def test_on_a_link_nobody_is_introduced(here: Node, there: Node) -> None:
    there.trust.add_certificate(here.identity.certificate_der)
    dialled, accepted = meet(
        mutual(here.identity, there.identity, server_side=False),
        listen(there, here.identity),
        MUTUAL_NAME,
        lambda connection: introduce(connection, here.identity, there.identity.fingerprint),
        lambda connection: answer_introduction(connection, there.trust),
    )
    assert isinstance(dialled.exception(), ProtocolError)
    assert isinstance(accepted.exception(), ProtocolError)
