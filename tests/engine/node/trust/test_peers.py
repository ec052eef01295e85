"""The list of paired computers outlives the process, its file's damage and its disk's end; one id has one key."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import msgspec
import pytest

from engine.errors import DiskFull, HostError, InvalidRequest, PeerUntrusted
from engine.node.trust.identity import Identity
from engine.node.trust.peers import MAX_ADDRESSES, MAX_PEERS, Peer, PeerBook
from engine.wire.messages import Role


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Identity, Identity]:
    folder = tmp_path_factory.mktemp("identities")
    return Identity.load_or_create(folder / "one"), Identity.load_or_create(folder / "two")


def make_peer(identity: Identity, *, name: str = "spark", node_id: str = "") -> Peer:
    return Peer(
        node_id=node_id or identity.node_id,
        name=name,
        certificate_der=identity.certificate_der,
        addresses=("192.168.1.2:7119",),
        paired_at=1700000000.5,
        role_wish=Role.PREFILL,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "settings" / "peers.json"


def test_peers_are_kept(path: Path, identities: tuple[Identity, Identity]) -> None:
    one, two = (make_peer(identity) for identity in identities)
    book = PeerBook(path)
    assert book.all() == ()
    book.add(one)
    book.add(two)

    assert book.all() == PeerBook(path).all() == (one, two)
    assert PeerBook(path).get(two.node_id) == two
    assert one.fingerprint == identities[0].fingerprint

    assert book.remove(one.node_id)
    assert not book.remove(one.node_id)
    assert book.all() == PeerBook(path).all() == (two,)


@pytest.mark.skipif(os.name != "posix", reason="modes of files as POSIX has them")
def test_the_list_is_for_its_owner_alone(path: Path, identities: tuple[Identity, Identity]) -> None:
    PeerBook(path).add(make_peer(identities[0]))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    PeerBook(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_change_is_told_when_it_is_there(path: Path, identities: tuple[Identity, Identity]) -> None:
    book = PeerBook(path)
    told: list[int] = []
    book.on_change(lambda: told.append(len(book.all())))
    peer = make_peer(identities[0])

    book.add(peer)
    book.met(peer.node_id, "10.0.0.2:7119")
    book.met(peer.node_id, "10.0.0.2:7119")
    book.remove(peer.node_id)
    book.remove(peer.node_id)
    assert told == [1, 1, 0]


def test_the_last_good_address_comes_first(path: Path, identities: tuple[Identity, Identity]) -> None:
    book = PeerBook(path)
    peer = make_peer(identities[0])
    book.add(peer)
    for number in range(MAX_ADDRESSES + 3):
        book.met(peer.node_id, f"10.0.0.{number}:7119")
    book.met(peer.node_id, "10.0.0.9:7119")
    book.met("f" * 32, "10.0.0.9:7119")

    addresses = PeerBook(path).all()[0].addresses
    assert addresses[:3] == ("10.0.0.9:7119", "10.0.0.10:7119", "10.0.0.8:7119")
    assert len(addresses) == len(set(addresses)) == MAX_ADDRESSES


def test_another_key_is_refused_and_explained(path: Path, identities: tuple[Identity, Identity]) -> None:
    book = PeerBook(path)
    peer = make_peer(identities[0])
    book.add(peer)
    book.add(msgspec.structs.replace(peer, name="studio"))

    with pytest.raises(PeerUntrusted, match=r"calls itself studio.*another key.*baton pair remove studio"):
        book.add(make_peer(identities[1], node_id=peer.node_id))
    assert book.has_other_key(peer.node_id, identities[1].certificate_der)
    assert not book.has_other_key(peer.node_id, identities[0].certificate_der)
    assert not book.has_other_key(identities[1].node_id, identities[1].certificate_der)
    assert [kept.name for kept in book.all()] == ["studio"]


def test_what_is_no_certificate_is_not_kept(path: Path, identities: tuple[Identity, Identity]) -> None:
    book = PeerBook(path)
    with pytest.raises(PeerUntrusted, match="no certificate"):
        book.add(msgspec.structs.replace(make_peer(identities[0]), certificate_der=b"garbage"))
    assert book.all() == () and not path.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        b'{"peers": 3}',
        b'{"peers": [{"node_id": "x"}]}',
        b"\xff\xfe",
        b'{"peers":[{"node_id":"%s","name":"spark","certificate_der":"AAAA"}]}' % (b"a" * 32),
        b"[" * 100_000,
    ],
)
def test_a_damaged_list_is_set_aside(
    path: Path, identities: tuple[Identity, Identity], content: bytes
) -> None:
    path.parent.mkdir()
    path.write_bytes(content)

    book = PeerBook(path)
    assert book.all() == ()
    aside = path.with_name("peers.json.damaged")
    assert str(aside) in book.fault and "baton pair" in book.fault
    assert aside.read_bytes() == content
    book.add(make_peer(identities[0]))
    assert len(PeerBook(path).all()) == 1
    assert PeerBook(path).fault == ""


def test_a_list_that_cannot_be_read_is_named(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(HostError, match=r"peers\.json: this is a folder"):
        PeerBook(path)


def test_a_full_disk_adds_nobody_and_still_removes(
    path: Path, identities: tuple[Identity, Identity], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    book = PeerBook(path)
    one, two = (make_peer(identity) for identity in identities)
    book.add(one)
    told: list[int] = []
    book.on_change(lambda: told.append(len(book.all())))
    monkeypatch.setattr("engine.node.trust.peers.write_whole", full)

    with pytest.raises(DiskFull, match="disk is full"):
        book.add(two)
    book.met(one.node_id, "10.0.0.9:7119")
    assert book.all() == (one,)
    with pytest.raises(HostError, match="until the node starts again"):
        book.remove(one.node_id)
    assert book.all() == ()
    assert told == [0]


def test_there_is_an_end_to_the_list(path: Path, identities: tuple[Identity, Identity]) -> None:
    book = PeerBook(path)
    for number in range(MAX_PEERS):
        book.add(make_peer(identities[0], node_id=f"{number:032x}"))
    with pytest.raises(HostError, match="remove one"):
        book.add(make_peer(identities[0], node_id="f" * 32))
    book.add(make_peer(identities[0], node_id=f"{3:032x}", name="new"))
    assert len(PeerBook(path).all()) == MAX_PEERS


def test_a_peer_is_found_by_what_a_person_knows(path: Path, identities: tuple[Identity, Identity]) -> None:
    book = PeerBook(path)
    one, two = make_peer(identities[0], name="Spark"), make_peer(identities[1], name="studio")
    book.add(one)
    book.add(two)

    for text in ("spark", " SPARK ", one.node_id, one.node_id[:12], one.fingerprint):
        assert book.named(text) == one
    for text in ("", "nobody", two.node_id + "0"):
        with pytest.raises(InvalidRequest, match="paired are: Spark, studio"):
            book.named(text)
    book.add(msgspec.structs.replace(two, name="spark"))
    with pytest.raises(InvalidRequest, match=two.node_id):
        book.named("spark")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="knows no pipes")
def test_a_pipe_in_its_place_is_named_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "peers.json")
    with pytest.raises(HostError, match=r"peers\.json: this is a pipe"):
        PeerBook(tmp_path / "peers.json")


def test_a_new_name_is_kept_and_nothing_else_of_the_peer_changes(
    path: Path, identities: tuple[Identity, Identity]
) -> None:
    one, two = (make_peer(identity) for identity in identities)
    book, changes = PeerBook(path), []
    book.add(one)
    book.on_change(lambda: changes.append(book.all()))
    assert book.called(one, "stu\u202edio\n").name == "stu dio"
    assert book.all() == PeerBook(path).all() == (msgspec.structs.replace(one, name="stu dio"),)
    book.called(one, "stu dio")
    assert len(changes) == 1
    assert book.called(two, "nobody").name == "nobody"  # not paired any more
    assert len(book.all()) == 1
