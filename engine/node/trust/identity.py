"""Who this computer is, whom it trusts, and the TLS contexts that hold both to it.

An identity is a random node id, a key and a self-signed certificate that outlive every run. Trust starts as a
fingerprint that the user copied from the other computer. An *introduction* fetches the certificate behind it, once;
from then on that certificate is *pinned*, and both ends speak mutual TLS that accepts it and nothing else.

Nothing here opens, connects or accepts a socket, or knows what is said after the handshake.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import re
import secrets as python_secrets
import ssl
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from socket import socket as Socket
from typing import TYPE_CHECKING

import filelock
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import NameOID

from engine.errors import (
    HostError,
    InvalidRequest,
    PeerLost,
    PeerUntrusted,
    ProtocolError,
)
from engine.files import file_error, file_fault, write_whole
from engine.node.trust.secrets import NoKeyring, Secrets
from engine.wire.codec import INTRODUCTION_MESSAGES, FrameReader, decode_message, encode_message
from engine.wire.limits import MAX_CERTIFICATE_BYTES, MAX_HELLO_BYTES
from engine.wire.messages import Introduce, Introduced, IntroductionMessage

if TYPE_CHECKING:
    from engine.node.trust.peers import Peer

# What a dialler asks for by server name: the link itself, or an introduction first.
MUTUAL_NAME = "baton"
INTRODUCTION_NAME = "introduce"

# What both ends agree to speak, by ALPN.
MUTUAL_PROTOCOL = "baton/1"
INTRODUCTION_PROTOCOL = "baton-introduce/1"

# A day back for clocks that differ. Then long enough never to matter: a pin ends by unpairing, not by a date.
_VALID_SINCE_DAYS = 1
_VALID_FOR_DAYS = 50 * 365

# Another start of Baton holds the lock only while it writes two small files.
_LOCK_TIMEOUT_S = 10.0

# How a process of ours is given what opens the key; never by its command line, which everybody can read.
PASSPHRASE_VARIABLE = "BATON_KEY_PASSPHRASE"
_ENCRYPTED_PEM = b"-----BEGIN ENCRYPTED PRIVATE KEY-----"

_READ_BYTES = 4096
_HEX_DIGITS = re.compile(r"[0-9a-f]{64}")
_NODE_ID = re.compile(r"[0-9a-f]{32}")


def fingerprint_of(certificate_der: bytes) -> str:
    """SHA-256 as 64 lower-case hexadecimal digits, in one piece: a double click selects all of it."""
    return hashlib.sha256(certificate_der).hexdigest()


def parse_fingerprint(text: str) -> str:
    """The canonical form of a fingerprint in either case, with or without separators; raises InvalidRequest."""
    digits = re.sub(r"[\s:.-]", "", text).lower()
    if not _HEX_DIGITS.fullmatch(digits):
        raise InvalidRequest(
            f"{text[:100]!r} is not a fingerprint: it has 64 hexadecimal digits; copy the whole one that the other "
            "computer prints when it starts",
            param="trust",
        )
    return digits


@dataclass(frozen=True, kw_only=True)
class Identity:
    """This computer's node id, certificate, and the files that keep certificate and key (PEM).

    `passphrase` opens the key's file, where that is encrypted.
    """

    node_id: str
    certificate_der: bytes
    certificate_path: Path
    key_path: Path
    passphrase: str | None = field(default=None, repr=False)

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.certificate_der)

    @classmethod
    def load_or_create(cls, directory: Path, secrets: Secrets | None = None) -> Identity:
        """The identity kept in `directory`, made at the first call; any number of processes get the same one.

        An encrypted key is opened by `$BATON_KEY_PASSPHRASE`, else by what the keyring of `secrets` holds (the system's
        by default). Raises HostError, or DiskFull, with a sentence that names the files at fault.
        """
        certificate_path, key_path = directory / "certificate.pem", directory / "key.pem"
        with _file_errors(directory):
            if not (certificate_path.exists() and key_path.exists()):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                with _locked(directory):
                    if not (certificate_path.exists() or key_path.exists()):
                        _create(certificate_path, key_path)
            return _load(certificate_path, key_path, secrets or Secrets(directory))

    def settled(self, secrets: Secrets) -> Identity:
        """The same identity with its key where `secrets` wants it; raises as `load_or_create` does.

        The key is encrypted with a passphrase that the keyring keeps; it stays a plain file where there is no keyring,
        and becomes one again where `secrets` is not to use it. Whatever interrupts this, the key can be opened after.
        """
        directory = self.key_path.parent
        with _file_errors(directory), _locked(directory):
            # another start may have done it in the meantime
            now = _load(self.certificate_path, self.key_path, secrets)
            if (now.passphrase is not None) == secrets.use_keyring:
                return now
            passphrase = None
            if secrets.use_keyring:
                passphrase = python_secrets.token_urlsafe(32)
                try:
                    secrets.keep_in_keyring(_passphrase_name(now.node_id), passphrase)
                except NoKeyring:
                    return now
            write_whole(
                self.key_path, _key_pem(_load_key(self.key_path, now.passphrase), passphrase), synced=True
            )
            return replace(now, passphrase=passphrase)

    def renew(self, secrets: Secrets) -> Identity:
        """Another identity in place of this one, for a computer that was copied: all pairs have to be made anew.

        Whatever runs with the old one has to be started again. Raises as `load_or_create` does.
        """
        directory = self.key_path.parent
        with _file_errors(directory), _locked(directory):
            self.key_path.unlink(missing_ok=True)
            self.certificate_path.unlink(missing_ok=True)
            _create(self.certificate_path, self.key_path)
        secrets.forget(_passphrase_name(self.node_id))
        return self.load_or_create(directory, secrets).settled(secrets)

    def environment(self) -> dict[str, str]:
        """What a child of this process needs in its environment to use the key without asking the keyring."""
        return {} if self.passphrase is None else {PASSPHRASE_VARIABLE: self.passphrase}


@contextlib.contextmanager
def _file_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except filelock.Timeout as error:
        raise HostError(
            f"another process keeps {directory} locked: end other starts of Baton, then try again"
        ) from error
    except OSError as error:
        raise file_error(f"this computer's identity in {directory}", error) from error


def _locked(directory: Path) -> filelock.BaseFileLock:
    return filelock.FileLock(directory / "identity.lock", timeout=_LOCK_TIMEOUT_S, mode=0o600)


def _passphrase_name(node_id: str) -> str:
    """How the keyring calls the passphrase of an identity's key."""
    return f"key of {node_id}"


def _create(certificate_path: Path, key_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, uuid.uuid4().hex)])
    since = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=_VALID_SINCE_DAYS)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(since + datetime.timedelta(days=_VALID_FOR_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(MUTUAL_NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_whole(key_path, _key_pem(key, None), synced=True)
    try:
        write_whole(certificate_path, certificate.public_bytes(serialization.Encoding.PEM), synced=True)
    except BaseException:
        key_path.unlink(missing_ok=True)  # half an identity would be taken for one that lost its other half
        raise


def _key_pem(key: PrivateKeyTypes, passphrase: str | None) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption()
        if passphrase is None
        else serialization.BestAvailableEncryption(passphrase.encode()),
    )


def _load_key(key_path: Path, passphrase: str | None) -> PrivateKeyTypes:
    return serialization.load_pem_private_key(
        key_path.read_bytes(), None if passphrase is None else passphrase.encode()
    )


def _load(certificate_path: Path, key_path: Path, secrets: Secrets) -> Identity:
    for path, other in ((certificate_path, key_path), (key_path, certificate_path)):
        if not path.exists():
            raise HostError(f"{path} is missing: put it back, or delete {other} too {_THEN_NEW}")
    for path in (certificate_path, key_path):
        if fault := file_fault(path, wanted="a part of this computer's identity"):
            raise HostError(f"{path}: {fault}")
    _tighten(key_path)
    damaged = HostError(
        f"{certificate_path} or {key_path} is damaged, or they do not belong together: delete both {_THEN_NEW}"
    )
    try:
        certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
        node_id = node_id_of(certificate)
        passphrase = None
        if _ENCRYPTED_PEM in key_path.read_bytes():
            passphrase = _recalled_passphrase(node_id, key_path, certificate_path, secrets)
            _check_opens(key_path, passphrase)
        belong = certificate.public_key() == _load_key(key_path, passphrase).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise damaged from error
    if not belong:
        raise damaged
    return Identity(
        node_id=node_id,
        certificate_der=certificate.public_bytes(serialization.Encoding.DER),
        certificate_path=certificate_path,
        key_path=key_path,
        passphrase=passphrase,
    )


def node_id_of(certificate: x509.Certificate) -> str:
    """The node id that a certificate of Baton's names; ValueError where there is none."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1 or not _NODE_ID.fullmatch(str(names[0].value)):
        raise ValueError("the certificate names no node id")
    return str(names[0].value)


def _recalled_passphrase(node_id: str, key_path: Path, certificate_path: Path, secrets: Secrets) -> str:
    """What opens the key; raises HostError where the keyring, which has it, cannot be asked."""
    if PASSPHRASE_VARIABLE in os.environ:
        return os.environ[PASSPHRASE_VARIABLE]
    try:
        found = secrets.recall_from_keyring(_passphrase_name(node_id))
        why_not = "it is not there any more"
    except NoKeyring as error:
        found, why_not = None, str(error)
    if found is None:
        raise HostError(
            f"{key_path} is encrypted, and its passphrase cannot be had from the system keyring ({why_not}): log in to "
            "the desktop and unlock the keyring, then start Baton again. Where it is to start before anybody logs in, "
            "start it there once with `baton node --keyring never`. If that keyring is lost, delete "
            f"{key_path} and {certificate_path} {_THEN_NEW}"
        )
    return found


def _check_opens(key_path: Path, passphrase: str) -> None:
    try:
        _load_key(key_path, passphrase)
    except ValueError as error:
        place = f"${PASSPHRASE_VARIABLE}" if PASSPHRASE_VARIABLE in os.environ else "the system keyring"
        raise HostError(
            f"{key_path} is damaged, or encrypted with another passphrase than that in {place}: put the right one back"
        ) from error


_THEN_NEW = "(a new identity is made then, and this computer has to be paired with the other ones anew)"


def _tighten(path: Path) -> None:
    """Take the file from everybody but its owner, where the system knows such modes."""
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        path.chmod(0o600)


class TrustStore:
    """Fingerprints trusted by this process, and the certificates pinned on disk, which every process shares.

    A pin alone trusts nobody: whoever reads one names the fingerprint that it trusts. Safe from any thread.
    """

    def __init__(self, directory: Path) -> None:
        self._folder = directory / "trusted"
        self._trusted: set[str] = set()

    def trust(self, fingerprint: str) -> None:
        """Let `pin` take the certificate with this fingerprint; raises InvalidRequest if it is none."""
        self._trusted.add(parse_fingerprint(fingerprint))

    def pin(self, certificate_der: bytes) -> None:
        """Keep a certificate whose fingerprint is trusted; raises PeerUntrusted for any other, or HostError."""
        fingerprint = fingerprint_of(certificate_der)
        if fingerprint not in self._trusted:
            raise PeerUntrusted(
                f"a computer with the fingerprint {fingerprint} introduced itself, and another one is trusted: "
                "compare it with what the other computer prints when it starts"
            )
        self._keep(fingerprint, certificate_der)

    def add_certificate(self, certificate_der: bytes) -> None:
        """Trust and pin at once, for a certificate that came by a safe way; raises PeerUntrusted, or HostError."""
        fingerprint = fingerprint_of(certificate_der)
        self._keep(fingerprint, certificate_der)
        self._trusted.add(fingerprint)

    def certificate(self, fingerprint: str) -> bytes | None:
        """The pinned certificate (DER), or None until there is one; a file that is not it counts as none."""
        digits = parse_fingerprint(fingerprint)
        try:
            with self._path(digits).open("rb") as file:
                certificate_der = file.read(MAX_CERTIFICATE_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise file_error(f"the certificate {self._path(digits)}", error) from error
        return certificate_der if fingerprint_of(certificate_der) == digits else None

    def _keep(self, fingerprint: str, certificate_der: bytes) -> None:
        try:
            x509.load_der_x509_certificate(certificate_der)
        except ValueError as error:
            raise PeerUntrusted("what the other computer shows is no certificate") from error
        if len(certificate_der) > MAX_CERTIFICATE_BYTES:
            raise PeerUntrusted(f"a certificate of {len(certificate_der)} bytes: Baton's are far smaller")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self._path(fingerprint), certificate_der, synced=True)
        except OSError as error:
            raise file_error(f"the certificate {self._path(fingerprint)}", error) from error

    def _path(self, fingerprint: str) -> Path:
        return self._folder / f"{fingerprint}.der"


def mutual_context(
    identity: Identity,
    *,
    server_side: bool,
    peer_der: bytes,
    protocols: Sequence[str] = (MUTUAL_PROTOCOL,),
) -> ssl.SSLContext:
    """TLS 1.3 where each side shows a certificate and `peer_der` is the only one taken. Dial with MUTUAL_NAME.

    `protocols` are offered by ALPN. Follow the handshake with `check_peer`. Raises PeerUntrusted when `peer_der` is no
    certificate.
    """
    context = _context(identity, server_side=server_side, protocols=protocols)
    _require(context, peer_der)
    return context


def peers_context(
    identity: Identity,
    peers: Sequence[Peer],
    *,
    server_side: bool,
    protocols: Sequence[str] = (MUTUAL_PROTOCOL,),
) -> ssl.SSLContext:
    """As `mutual_context`, for whoever of `peers` it is; nobody where there are none. Follow with `which_peer`."""
    context = _context(identity, server_side=server_side, protocols=protocols)
    _require(context, *(peer.certificate_der for peer in peers))
    return context


def which_peer(connection: ssl.SSLSocket | ssl.SSLObject, peers: Sequence[Peer]) -> Peer:
    """After the handshake, before a byte is sent: whose certificate is it, byte for byte? Raises PeerUntrusted."""
    shown = connection.getpeercert(binary_form=True)
    for peer in peers:
        if shown == peer.certificate_der:
            return peer
    raise PeerUntrusted("the computer there is not paired with this one: pair the two (baton pair)")


def introduction_context(identity: Identity, *, server_side: bool) -> ssl.SSLContext:
    """TLS 1.3 that verifies nobody, for `introduce` and `answer_introduction` alone. Dial with INTRODUCTION_NAME."""
    context = _context(identity, server_side=server_side, protocols=(INTRODUCTION_PROTOCOL,))
    context.verify_mode = ssl.CERT_NONE
    return context


def _context(identity: Identity, *, server_side: bool, protocols: Sequence[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # certificates are compared whole; the name only says what the call is for
    context.set_alpn_protocols(list(protocols))
    if server_side:
        context.num_tickets = 0  # a resumed session would skip the certificates
    try:
        # never None: OpenSSL would ask at the terminal
        context.load_cert_chain(identity.certificate_path, identity.key_path, identity.passphrase or "")
    except ssl.SSLError as error:
        raise HostError(
            f"{identity.key_path} is another one than at the start of this process: start it again"
        ) from error
    except OSError as error:
        raise file_error(f"this computer's identity in {identity.key_path.parent}", error) from error
    return context


def _require(context: ssl.SSLContext, *peers_der: bytes) -> None:
    """Take no connection but from a peer that proves to own one of these very certificates."""
    context.verify_mode = ssl.CERT_REQUIRED
    # Make a leaf a trust anchor; OpenSSL 3.0 takes a self-signed one without the flag too.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    for peer_der in peers_der:
        try:
            context.load_verify_locations(cadata=peer_der)
        except (ssl.SSLError, ValueError) as error:
            raise PeerUntrusted("the pinned certificate of the other computer cannot be read") from error


def check_peer(connection: ssl.SSLSocket | ssl.SSLObject, peer_der: bytes) -> None:
    """After the handshake, before a byte is sent: is it exactly this certificate? Raises PeerUntrusted."""
    if connection.getpeercert(binary_form=True) != peer_der:
        raise PeerUntrusted(
            "the computer there shows another certificate than the trusted one: compare the fingerprints"
        )


def listener_context(
    identity: Identity,
    trust: TrustStore,
    fingerprint: str,
    *,
    protocols: Sequence[str] = (MUTUAL_PROTOCOL,),
) -> ssl.SSLContext:
    """One context for a listening port, which serves the peer with this fingerprint; look at ALPN for what was asked.

    Until the peer is pinned, only introductions get through the handshake. From then on every connection, another
    introduction too, must prove to own the pinned certificate. The store is asked anew for each connection.
    """
    digits = parse_fingerprint(fingerprint)

    def choose() -> ssl.SSLContext:
        peer_der = trust.certificate(digits)
        introduction = introduction_context(identity, server_side=True)
        if peer_der is None:
            _serve_names(introduction, {INTRODUCTION_NAME: None})
            return introduction
        _require(introduction, peer_der)
        mutual = mutual_context(identity, server_side=True, peer_der=peer_der, protocols=protocols)
        _serve_names(mutual, {MUTUAL_NAME: None, INTRODUCTION_NAME: introduction})
        return mutual

    return _ListenerContext(choose)


class _ListenerContext(ssl.SSLContext):
    """Wraps each connection with the context that `choose` gives at that time.

    The choice has to come before the handshake: a context that the server name brings in later lends its certificates
    and protocols to the connection, but OpenSSL goes on with the verify mode of the first one.
    Used in any other way it has no certificate, and no handshake succeeds.
    """

    _choose: Callable[[], ssl.SSLContext]

    def __new__(cls, choose: Callable[[], ssl.SSLContext]) -> _ListenerContext:
        self = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        self._choose = choose
        return self

    def wrap_socket(
        self,
        sock: Socket,
        server_side: bool = False,
        do_handshake_on_connect: bool = True,
        suppress_ragged_eofs: bool = True,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLSocket:
        return self._choose().wrap_socket(
            sock, server_side, do_handshake_on_connect, suppress_ragged_eofs, server_hostname, session
        )


def _serve_names(context: ssl.SSLContext, others: dict[str, ssl.SSLContext | None]) -> None:
    """Let the server name choose `context` (None) or another that verifies alike; end the handshake for all else."""

    def choose(connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        if name not in others:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        if (other := others[name]) is not None:
            connection.context = other
        return None

    context.sni_callback = choose


def introduce(connection: ssl.SSLSocket, identity: Identity, fingerprint: str) -> bytes:
    """The dialler's half, on an introduction connection: swap certificates, and return the listener's (DER).

    Nothing is sent to a computer with another fingerprint: PeerUntrusted. Raises PeerLost when it does not answer, and
    ProtocolError when it answers something else. The caller pins what comes back, and sets the timeout.
    """
    _check_introduction(connection)
    peer_der = connection.getpeercert(binary_form=True) or b""
    shown = fingerprint_of(peer_der)
    if shown != parse_fingerprint(fingerprint):
        raise PeerUntrusted(
            f"the computer there has the fingerprint {shown}, which is not the trusted one: "
            "compare it with what the other computer prints when it starts"
        )
    try:
        connection.sendall(encode_message(Introduce(certificate=identity.certificate_der)))
        message = _read_message(connection)
    except (OSError, PeerLost) as error:
        raise PeerLost(
            f"the other computer broke the introduction off ({error}): it has to be started with "
            f"--trust {identity.fingerprint}"
        ) from error
    if not isinstance(message, Introduced):
        raise ProtocolError("the other computer answered an introduction with another one")
    return peer_der


def answer_introduction(connection: ssl.SSLSocket, trust: TrustStore) -> bytes:
    """The listener's half: pin the certificate that comes, and return it (DER).

    Raises PeerUntrusted when its fingerprint is not trusted, ProtocolError, PeerLost or HostError; the dialler hears
    nothing then. The caller sets the timeout.
    """
    _check_introduction(connection)
    try:
        message = _read_message(connection)
        if not isinstance(message, Introduce):
            raise ProtocolError("the other computer ended an introduction that it had not begun")
        trust.pin(message.certificate)
        connection.sendall(encode_message(Introduced()))
    except OSError as error:
        raise PeerLost(f"the other computer broke its introduction off: {error}") from error
    return message.certificate


def _check_introduction(connection: ssl.SSLSocket) -> None:
    if connection.selected_alpn_protocol() != INTRODUCTION_PROTOCOL:
        raise ProtocolError("the other computer does not speak Baton's introduction")


def _read_message(connection: ssl.SSLSocket) -> IntroductionMessage:
    """The one message that a peer may send, within about twice the socket's timeout however slowly it comes."""
    timeout_s = connection.gettimeout()
    give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
    reader = FrameReader(max_body_bytes=MAX_HELLO_BYTES)
    while (body := reader.next_body()) is None:
        if give_up_at is not None and time.monotonic() > give_up_at:
            raise PeerLost("the introduction took too long")
        data = connection.recv(_READ_BYTES)
        if not data:
            raise PeerLost("the other computer closed the connection")
        reader.feed(data)
    if reader.buffered_bytes:
        raise ProtocolError("more than one message in an introduction")
    return decode_message(body, INTRODUCTION_MESSAGES)
