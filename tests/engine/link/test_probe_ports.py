"""The half of a probe that answers: to one address with the token, for a while, and to nobody else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from engine.link.probe_ports import ProbePorts
from engine.link.probe_wire import (
    HEAD_BYTES,
    MAX_PACKET_BYTES,
    RESULT,
    Budget,
    Head,
    Kind,
    read_exactly,
    receive_all,
    receive_burst,
)

HOST = "127.0.0.1"


@pytest.fixture
def ports() -> Iterator[ProbePorts]:
    opened = ProbePorts(HOST, HOST)
    yield opened
    opened.close()


def datagram(ports: ProbePorts, data: bytes, *, timeout_s: float = 5.0, source: str = HOST) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.bind((source, 0))
        asking.settimeout(timeout_s)
        asking.sendto(data, (HOST, ports.udp_port))
        return asking.recv(MAX_PACKET_BYTES)


def connected(ports: ProbePorts, head: Head, *, source: str = HOST) -> socket.socket:
    connection = socket.create_connection((HOST, ports.tcp_port), timeout=5, source_address=(source, 0))
    connection.sendall(head.pack())
    return connection


def test_an_echo_says_how_much_came(ports: ProbePorts) -> None:
    asked = Head(ports.token, Kind.ECHO, 7)
    answer = datagram(ports, asked.pack().ljust(1000, b"x"))
    assert answer == Head(ports.token, Kind.ECHO, 7, 1000).pack()


def test_filling_is_as_long_as_asked_for_and_no_longer_than_allowed(ports: ProbePorts) -> None:
    assert len(datagram(ports, Head(ports.token, Kind.FILL, 1, 5000).pack())) == 5000
    assert len(datagram(ports, Head(ports.token, Kind.FILL, 1, 4_000_000_000).pack())) == MAX_PACKET_BYTES


@pytest.mark.parametrize(
    "data",
    [Head(b"x" * 16, Kind.ECHO).pack(), b"", b"short", Head(b"x" * 16, Kind.FILL, 0, 9000).pack()],
    ids=["another token", "nothing", "no head", "a wish for much"],
)
def test_strangers_datagrams_are_not_answered(ports: ProbePorts, data: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.bind((HOST, 0))
        asking.settimeout(5)
        asking.sendto(data, (HOST, ports.udp_port))
        # What is answered comes in order: the answer to the stranger's would be first.
        asking.sendto(Head(ports.token, Kind.ECHO, 5).pack(), (HOST, ports.udp_port))
        assert asking.recv(MAX_PACKET_BYTES) == Head(ports.token, Kind.ECHO, 5, HEAD_BYTES).pack()


def test_another_computer_that_knows_the_token_is_not_answered(ports: ProbePorts) -> None:
    with pytest.raises(TimeoutError):
        datagram(ports, Head(ports.token, Kind.ECHO).pack(), timeout_s=0.2, source="127.0.0.2")
    # Closed before or after its head comes: either way nothing is told.
    with (
        pytest.raises(OSError),
        connected(ports, Head(ports.token, Kind.SINK), source="127.0.0.2") as connection,
    ):
        connection.shutdown(socket.SHUT_WR)
        read_exactly(connection, 1)


def test_a_connection_without_the_token_is_closed(ports: ProbePorts) -> None:
    with pytest.raises(OSError), connected(ports, Head(b"x" * 16, Kind.SOURCE, time_ms=1000)) as connection:
        read_exactly(connection, 1)


def test_a_sink_counts_and_a_source_ends(ports: ProbePorts) -> None:
    with connected(ports, Head(ports.token, Kind.SINK)) as connection:
        connection.sendall(bytes(100_000))
        connection.shutdown(socket.SHUT_WR)
        n_bytes, seconds = RESULT.unpack(read_exactly(connection, RESULT.size))
    assert n_bytes <= 100_000 and seconds >= 0
    with connected(ports, Head(ports.token, Kind.SOURCE, time_ms=400)) as connection:
        n_bytes, seconds = receive_all(connection, Budget())
    assert n_bytes > 0 and 0 < seconds < 0.4


def test_bursts_go_back_and_forth(ports: ProbePorts) -> None:
    with connected(ports, Head(ports.token, Kind.BURSTS_IN, size=1000)) as connection:
        for _ in range(3):
            connection.sendall(bytes(1000))
            assert read_exactly(connection, 1) == b"\0"
    with connected(ports, Head(ports.token, Kind.BURSTS_OUT, size=1000)) as connection:
        for _ in range(3):
            connection.sendall(b"\0")
            assert len(read_exactly(connection, 1000)) == 1000


def test_a_burst_of_gigabytes_is_not_made(ports: ProbePorts) -> None:
    with connected(ports, Head(ports.token, Kind.BURSTS_OUT, size=4_000_000_000)) as connection:
        connection.sendall(b"\0")
        connection.shutdown(socket.SHUT_WR)
        n_bytes = 0
        while part := connection.recv(1 << 20):
            n_bytes += len(part)
    assert n_bytes == 4 << 20


def test_closing_ends_connections_and_threads() -> None:
    ports = ProbePorts(HOST, HOST)
    connection = connected(ports, Head(ports.token, Kind.SOURCE, time_ms=3000))
    assert connection.recv(1)
    ports.close()
    with connection, pytest.raises(OSError):
        while connection.recv(1 << 20):
            pass
        raise ConnectionError("it ended")
    with pytest.raises(OSError):
        socket.create_connection((HOST, ports.tcp_port), timeout=1)
    assert not [thread for thread in threading.enumerate() if thread.name in ("probe-udp", "probe-tcp")]


def test_ports_that_nobody_closes_close_themselves() -> None:
    ports = ProbePorts(HOST, HOST, open_s=0.2)
    for thread in threading.enumerate():
        if thread.name in ("probe-udp", "probe-tcp"):
            thread.join(5)
    with pytest.raises(OSError):
        socket.create_connection((HOST, ports.tcp_port), timeout=1)


def test_what_may_be_moved_is_bounded() -> None:
    budget = Budget(100)
    assert budget.take(60) and not budget.take(60) and not budget.take(1)


def test_an_end_that_sends_now_and_then_for_ever_is_given_up() -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(bytes(100))
        assert not receive_burst(here, 200, Budget(), longest_s=-1)
        n_bytes, _ = receive_all(here, Budget(), longest_s=-1)
        assert n_bytes == 0
