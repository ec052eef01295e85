"""TLS in memory over a plain socket: the same bytes come out, and what goes wrong has the same names as elsewhere."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.errors import PeerLost, PeerUntrusted
from engine.node.models.bulk_tls import BulkTLS
from engine.node.trust.identity import MUTUAL_NAME, Identity, mutual_context

TIMEOUT_S = 20.0

# More than goes at once, and no whole number of records.
DATA = os.urandom((1 << 20) + 4321)


class Ends:
    """Two computers and a socket between them."""

    def __init__(self, folder: Path) -> None:
        self.caller, self.listener, self.stranger = (
            Identity.load_or_create(folder / name) for name in ("caller", "listener", "stranger")
        )
        self.near, self.far = socket.socketpair()

    def call(self, trusted: Identity) -> BulkTLS:
        context = mutual_context(self.caller, server_side=False, peer_der=trusted.certificate_der)
        return BulkTLS(self.near, context, server_name=MUTUAL_NAME)

    def answer(self) -> BulkTLS:
        context = mutual_context(self.listener, server_side=True, peer_der=self.caller.certificate_der)
        return BulkTLS(self.far, context)

    def joined(self) -> tuple[BulkTLS, BulkTLS]:
        with ThreadPoolExecutor(1) as pool:
            answering = pool.submit(self.answer)
            return self.call(self.listener), answering.result(TIMEOUT_S)


@pytest.fixture
def ends(tmp_path: Path) -> Ends:
    return Ends(tmp_path)


def test_what_is_sent_comes_out_at_the_other_end(ends: Ends) -> None:
    sender, receiver = ends.joined()
    landing = memoryview(bytearray(len(DATA)))
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(sender.send, memoryview(DATA))
        # in pieces that have nothing to do with how it was sent
        for at in range(0, len(DATA), 99_991):
            receiver.fill(landing[at : at + 99_991])
        sending.result(TIMEOUT_S)
    assert landing == DATA
    receiver.send(memoryview(b"thanks"))
    answer = bytearray(6)
    sender.fill(memoryview(answer))
    assert answer == b"thanks"
    sender.close()
    receiver.close()


def test_another_certificate_than_the_trusted_one_is_refused(ends: Ends) -> None:
    with ThreadPoolExecutor(1) as pool:
        answering = pool.submit(ends.answer)
        with pytest.raises(PeerUntrusted):
            ends.call(ends.stranger)
        with pytest.raises(PeerLost):
            answering.result(TIMEOUT_S)
    assert ends.near.fileno() == ends.far.fileno() == -1


@pytest.mark.parametrize("close", ["near", "far"])
def test_a_connection_that_breaks_is_lost_at_the_other_end(ends: Ends, close: str) -> None:
    sender, receiver = ends.joined()
    gone, left = (sender, receiver) if close == "near" else (receiver, sender)
    gone.close()
    uses: list[Callable[[], None]] = [
        lambda: left.fill(memoryview(bytearray(1))),
        lambda: left.send(memoryview(DATA)),
    ]
    for use in uses:
        with pytest.raises(PeerLost):
            use()
    left.close()


def test_bytes_that_somebody_changed_are_not_taken(ends: Ends) -> None:
    sender, receiver = ends.joined()
    sender.tls.write(b"a record")
    record = bytearray(sender._to_go.read())
    record[-1] ^= 1
    ends.near.sendall(record)
    with pytest.raises(PeerLost):
        receiver.fill(memoryview(bytearray(8)))
    sender.close()
    receiver.close()


@pytest.mark.parametrize("words", [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 64])
def test_who_does_not_speak_tls_is_told_apart(ends: Ends, words: bytes) -> None:
    ends.near.sendall(words)
    with pytest.raises(PeerLost, match=r"Baton|another program"):
        ends.answer()
    ends.near.close()
