"""The computers that this one is paired with, kept on disk for its owner alone.

A peer is known by the one certificate that came with its pairing; its name, its addresses and the role it asked for are
only told. Nothing here connects. Used from the node's event loop only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cryptography import x509
from msgspec import Meta

from engine.errors import HostError, InvalidRequest, PeerUntrusted
from engine.files import NO_SUCH_FILE, file_error, file_fault, write_whole
from engine.node.finding.announcement import clean_name
from engine.node.peering.offers import Method, TellHandler
from engine.node.peering.peer_messages import NodeId
from engine.node.trust.identity import fingerprint_of
from engine.wire.messages import CertificateBytes, Name, Role

if TYPE_CHECKING:
    from engine.node.peering.peer_link import PeerLink

_UNPAIR = "trust.unpair"
_RENAMED = "trust.renamed"

# A home has a few computers; the list is told whole and each of them is called again and again.
MAX_PEERS = 16

# Where a peer was met last comes first. A computer has a cable, a wireless network and a few IPv6 addresses.
MAX_ADDRESSES = 8

# A host's name has at most 253 characters; a zone and a port follow.
_MAX_ADDRESS_CHARS = 320

# What the file may hold, several times over: 16 peers with certificates of 8 KiB in base64.
_MAX_FILE_BYTES = 1 << 20

Address = Annotated[str, Meta(max_length=_MAX_ADDRESS_CHARS)]


class Peer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A paired computer. `addresses` are HOST:PORT of its node, the last good one first; `paired_at` is Unix time.

    `role_wish` is the role that it asked for when it was paired, if any.
    """

    node_id: NodeId
    name: Name
    certificate_der: CertificateBytes
    addresses: Annotated[tuple[Address, ...], Meta(max_length=MAX_ADDRESSES)] = ()
    paired_at: float = 0.0
    role_wish: Role | None = None

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.certificate_der)


def key_changed(name: str) -> PeerUntrusted:
    """A paired node id came with another certificate."""
    return PeerUntrusted(
        f"a computer calls itself {name}, which this one is paired with, and has another key: either its identity was "
        "made anew, or another computer takes its place. If you know why, remove the old pairing here "
        f"(baton pair remove {name}), then pair again"
    )


def book_full() -> HostError:
    return HostError(
        f"this computer is paired with {MAX_PEERS} others, and keeps no more: remove one (baton pair list, baton pair "
        "remove), then pair again"
    )


class _Renamed(msgspec.Struct, frozen=True, kw_only=True):
    name: Name


class _File(msgspec.Struct, frozen=True, kw_only=True):
    peers: Annotated[tuple[Peer, ...], Meta(max_length=MAX_PEERS)] = ()


class PeerBook:
    """All paired computers, one a node id. A change is on the disk before it is told to whoever asked `on_change`.

    `fault` is a sentence for the user where the file was damaged and the book had to begin empty.
    Raises HostError when the file cannot be read at all.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listeners: list[Callable[[], None]] = []
        self.fault = ""
        self._peers = {peer.node_id: peer for peer in self._read()}

    def on_change(self, listener: Callable[[], None]) -> None:
        """Have `listener` called after every change."""
        self._listeners.append(listener)

    def all(self) -> tuple[Peer, ...]:
        """In the order of their pairing."""
        return tuple(self._peers.values())

    def get(self, node_id: str) -> Peer | None:
        return self._peers.get(node_id)

    def named(self, text: str) -> Peer:
        """The one with this name, node id or fingerprint, or with the only id that begins so; raises InvalidRequest."""
        wanted = text.strip().lower()
        exact = [p for p in self.all() if wanted in (p.name.lower(), p.node_id, p.fingerprint)]
        found = exact or [p for p in self.all() if wanted and p.node_id.startswith(wanted)]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(peer.node_id for peer in found)
            raise InvalidRequest(
                f"{len(found)} paired computers are called {text[:100]!r}: name one by its id ({ids})"
            )
        known = ", ".join(peer.name for peer in self.all()) or "none"
        raise InvalidRequest(f"no paired computer is called {text[:100]!r}; paired are: {known}")

    def has_other_key(self, node_id: str, certificate_der: bytes) -> bool:
        """Whether this node id is paired with another certificate."""
        known = self.get(node_id)
        return known is not None and known.certificate_der != certificate_der

    def has_room_for(self, node_id: str) -> bool:
        return node_id in self._peers or len(self._peers) < MAX_PEERS

    def add(self, peer: Peer) -> None:
        """Keep a newly paired computer; one that is there already is replaced when its certificate is the same.

        Raises PeerUntrusted for another certificate, and HostError when the book is full or cannot be written.
        """
        if self.has_other_key(peer.node_id, peer.certificate_der):
            raise key_changed(self._peers[peer.node_id].name)
        _check_is_certificate(peer.certificate_der)
        if not self.has_room_for(peer.node_id):
            raise book_full()
        self._set({**self._peers, peer.node_id: peer}, synced=True)

    def remove(self, node_id: str) -> bool:
        """Trust a computer no longer, from now on; whether it was there.

        Raises HostError when that cannot be written down: it is not trusted by this process all the same.
        """
        peers = {key: peer for key, peer in self._peers.items() if key != node_id}
        if len(peers) == len(self._peers):
            return False
        self._peers = peers
        try:
            self._write(peers, synced=True)
        except HostError as error:
            raise HostError(
                f"{error}. The pairing is cut until the node starts again, and would be back then"
            ) from error
        finally:
            self._tell()
        return True

    def unpair(self, node_id: str, link: PeerLink | None) -> bool:
        """As `remove`, after telling the other computer by `link`, if there is one now."""
        if link is not None:
            link.tell(_UNPAIR)
        return self.remove(node_id)

    def news(self) -> dict[str, Method[TellHandler]]:
        """What a peer may tell: that it has removed this computer, and how it is called from now on."""

        def unpaired(link: PeerLink, _: None) -> None:
            self.remove(link.peer.node_id)

        def renamed(link: PeerLink, told: _Renamed) -> None:
            link.peer = self.called(link.peer, told.name)

        return {_UNPAIR: Method(unpaired, None), _RENAMED: Method(renamed, _Renamed)}

    def tell_name(self, name: str, links: Iterable[PeerLink]) -> None:
        """Let those who are there know how this computer is called from now on; others hear it in the next hello."""
        for link in links:
            link.tell(_RENAMED, {"name": name})

    def called(self, peer: Peer, name: str) -> Peer:
        """The peer with the name that it gives itself now, in the book, too."""
        name = clean_name(name)
        known = self.get(peer.node_id)
        if known is not None and known.name != name:
            # one that is not kept is heard again
            with contextlib.suppress(HostError):
                self._set(
                    {**self._peers, peer.node_id: msgspec.structs.replace(known, name=name)}, synced=False
                )
        return msgspec.structs.replace(peer, name=name)

    def met(self, node_id: str, address: str) -> None:
        """A link with the peer came to life at `address`: try it first from now on."""
        peer = self.get(node_id)
        if peer is None or peer.addresses[:1] == (address,):
            return
        others = tuple(other for other in peer.addresses if other != address)
        peer = msgspec.structs.replace(peer, addresses=(address, *others)[:MAX_ADDRESSES])
        # an address that is not kept is found again
        with contextlib.suppress(HostError):
            self._set({**self._peers, node_id: peer}, synced=False)

    def _set(self, peers: dict[str, Peer], *, synced: bool) -> None:
        self._write(peers, synced=synced)
        self._peers = peers
        self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    def _read(self) -> Sequence[Peer]:
        fault = file_fault(self._path, wanted="the list of paired computers")
        if fault and fault != NO_SUCH_FILE:
            raise HostError(f"{self._path}: {fault}; move it away, and pair anew (baton pair)")
        try:
            with self._path.open("rb") as file:
                data = file.read(_MAX_FILE_BYTES)
            if os.name == "posix":
                self._path.chmod(0o600)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise self._file_error(error) from error
        try:
            peers = msgspec.json.decode(data, type=_File).peers
            for peer in peers:
                _check_is_certificate(peer.certificate_der)
        except (msgspec.DecodeError, UnicodeDecodeError, PeerUntrusted):
            return self._set_aside()
        return peers

    def _set_aside(self) -> Sequence[Peer]:
        aside = self._path.with_name(f"{self._path.name}.damaged")
        try:
            os.replace(self._path, aside)
        except OSError as error:
            raise self._file_error(error) from error
        self.fault = (
            f"the list of paired computers was damaged and lies in {aside} now: pair them again (baton pair)"
        )
        return ()

    def _write(self, peers: dict[str, Peer], *, synced: bool) -> None:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self._path, msgspec.json.encode(_File(peers=tuple(peers.values()))), synced=synced)
        except OSError as error:
            raise self._file_error(error) from error

    def _file_error(self, error: OSError) -> HostError:
        return file_error(f"the list of paired computers {self._path}", error)


def _check_is_certificate(certificate_der: bytes) -> None:
    try:
        x509.load_der_x509_certificate(certificate_der)
    except ValueError as error:
        raise PeerUntrusted("what the other computer shows is no certificate") from error
