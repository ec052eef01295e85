"""Addresses, connections and their settings."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import threading

import pytest

from engine.bench import netns
from engine.errors import HostError, InvalidRequest, PeerUnreachable
from engine.handoff import transport
from engine.handoff.transport import (
    Address,
    a_start_hangs,
    called_from,
    connect,
    link_setup,
    listen,
    start,
)
from engine.wire.limits import MIN_SOCKET_BUFFER_BYTES, SOCKET_BUFFER_BYTES

TIMEOUT_S = 10.0


@pytest.mark.parametrize(
    "text, host, port",
    [
        ("192.168.1.20:7118", "192.168.1.20", 7118),
        ("spark.local:1", "spark.local", 1),
        ("[::1]:65535", "::1", 65535),
        ("[fe80::1%en0]:7118", "fe80::1%en0", 7118),
    ],
)
def test_addresses_read_and_write_alike(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert (address.host, address.port) == (host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "host", ":7118", "host:", "host:seven", "host:65536", "host:-1", "host:٧"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="HOST:PORT"):
        Address.parse(text)


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize(
    "host", ["127.0.0.1", pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6"))]
)
def test_a_connection_is_tuned_at_both_ends(host: str) -> None:
    listener = listen(Address(host=host, port=0))
    with listener, connect(Address(host=host, port=listener.getsockname()[1])) as caller:
        called, _ = listener.accept()
        with called:
            transport.tune(called)
            for end in (caller, called):
                assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_nobody_there_is_said_in_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PeerUnreachable, match=f"listen on 127.0.0.1:{port}"):
            listen(Address(host="127.0.0.1", port=port))
    with pytest.raises(PeerUnreachable, match=f"127.0.0.1:{port} cannot be reached"):
        connect(Address(host="127.0.0.1", port=port))


class StingySystem:
    """A socket of a system that refuses buffers above `most`, or cuts them down without a word."""

    def __init__(self, most: int, *, refuses: bool) -> None:
        self.most = most
        self.refuses = refuses
        self.asked: list[int] = []
        self.granted = 0

    def __call__(self) -> StingySystem:
        return self

    def __enter__(self) -> StingySystem:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def setsockopt(self, level: int, option: int, n_bytes: int) -> None:
        self.asked.append(n_bytes)
        if self.refuses and n_bytes > self.most:
            raise OSError("no buffer space")
        self.granted = min(n_bytes, self.most)

    def getsockopt(self, level: int, option: int) -> int:
        return self.granted


@pytest.mark.parametrize(
    "most, refuses, asked_for",
    [
        (64 << 20, True, 32 << 20),
        (9 << 20, True, 8 << 20),
        (4 << 20, False, 32 << 20),
        (MIN_SOCKET_BUFFER_BYTES - 1, False, 0),
        (MIN_SOCKET_BUFFER_BYTES - 1, True, 0),
    ],
)
def test_buffers_step_down_to_what_is_granted_and_stay_off_below_use(
    monkeypatch: pytest.MonkeyPatch, most: int, refuses: bool, asked_for: int
) -> None:
    monkeypatch.setattr(transport.socket, "socket", StingySystem(most, refuses=refuses))
    assert transport._buffer_bytes.__wrapped__(socket.SO_RCVBUF) == asked_for


def test_an_address_of_one_link_wants_its_zone() -> None:
    with pytest.raises(PeerUnreachable, match=r"after a percent sign, such as \[fe80::1%eth0\]:7118"):
        connect(Address(host="fe80::1", port=7118))


@pytest.mark.parametrize(
    "place, written",
    [
        (("192.0.2.1", 5), "192.0.2.1:5"),
        (("::ffff:192.0.2.1", 5, 0, 0), "192.0.2.1:5"),
        (("fe80::1%en0", 5, 0, 3), "[fe80::1%en0]:5"),
    ],
)
def test_callers_are_named_as_they_are_called(place: tuple, written: str) -> None:
    assert str(called_from(place)) == written


def test_what_was_asked_for_and_what_the_system_grants_are_known() -> None:
    listener = listen(Address(host="127.0.0.1", port=0))
    with listener, connect(Address(host="127.0.0.1", port=listener.getsockname()[1])) as caller:
        setup = link_setup(caller, data_streams=2)
        assert setup.data_streams == 2
        for asked, granted, option in (
            (setup.receive_asked_bytes, setup.receive_granted_bytes, socket.SO_RCVBUF),
            (setup.send_asked_bytes, setup.send_granted_bytes, socket.SO_SNDBUF),
        ):
            assert granted == caller.getsockopt(socket.SOL_SOCKET, option) > 0
            assert asked == 0 or MIN_SOCKET_BUFFER_BYTES <= asked <= SOCKET_BUFFER_BYTES


# Where a link-local address stands, a process listens there; another calls it. Both name the cable as the zone.
LISTENER = """
import socket, sys
from engine.handoff.transport import Address, called_from, listen, tune
listener = listen(Address(host=sys.argv[1], port=0))
print(listener.getsockname()[1], flush=True)
called, place = listener.accept()
tune(called)
print(called_from(place), flush=True)
called.sendall(b"here")
"""
CALLER = """
import sys
from engine.handoff.transport import Address, connect
print(connect(Address.parse(sys.argv[1])).recv(4).decode())
"""


@pytest.mark.root
def test_link_local_addresses_are_listened_on_and_called_with_their_zone() -> None:
    try:
        netns.check_possible()
    except HostError as error:
        pytest.skip(str(error))
    with netns.cable("1gbit") as (near, far):
        for end, host in ((near, "fe80::a"), (far, "fe80::b")):
            address = ["ip", "address", "add", f"{host}/64", "dev", "cable", "nodad"]
            if subprocess.run([*end.enter, *address]).returncode:
                pytest.skip("no IPv6")
        python = [sys.executable, "-c"]
        with subprocess.Popen(
            [*near.enter, *python, LISTENER, "fe80::a%cable"], stdout=subprocess.PIPE, text=True
        ) as listener:
            assert listener.stdout is not None
            port = int(listener.stdout.readline())
            called = subprocess.run(
                [*far.enter, *python, CALLER, f"[fe80::a%cable]:{port}"],
                capture_output=True,
                text=True,
                timeout=10,
            )
            assert called.stdout.strip() == "here", called.stderr
            assert listener.stdout.readline().startswith("[fe80::")


class NeverRunning(threading.Thread):
    """As one that memory ran out for: it has been begun, and never says that it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.begun = threading.Event()
        self.gone = threading.Event()

    def start(self) -> None:
        self.begun.set()
        self.gone.wait(TIMEOUT_S)
        raise RuntimeError("can't start new thread")


def test_a_thread_that_never_comes_to_run_is_noticed() -> None:
    never, failures = NeverRunning(), queue.SimpleQueue()

    def begin() -> None:
        try:
            start(never)
        except HostError as error:
            failures.put(error)

    assert not a_start_hangs(longer_than_s=0)
    threading.Thread(target=begin, daemon=True).start()
    assert never.begun.wait(TIMEOUT_S)
    assert a_start_hangs(longer_than_s=0) and not a_start_hangs(longer_than_s=TIMEOUT_S)
    never.gone.set()
    assert "no room for another thread" in str(failures.get(timeout=TIMEOUT_S))
    assert not a_start_hangs(longer_than_s=0)
