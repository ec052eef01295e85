"""What a courier's port puts up with: callers that say nothing, nonsense or lies. The peer is served all the while."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.handoff.channel import Channel
from engine.handoff.client_events import Failed, Finished
from engine.handoff.courier import Courier
from engine.handoff.shared import SharedMemory
from engine.handoff.transport import (
    CONTROL_PROTOCOL,
    DATA_PROTOCOL,
    Address,
    connect,
    handshake,
)
from engine.node.trust.identity import (
    INTRODUCTION_NAME,
    Identity,
    introduce,
    introduction_context,
)
from engine.repeats import Repeats
from engine.wire.codec import (
    FRAME_HEADER,
    encode_message,
)
from engine.wire.limits import MAX_HELLO_BYTES, MAX_UNAUTHENTICATED
from engine.wire.messages import Accepted, Attach, Role
from tests.engine.handoff.lying import LATE_LIES, LIES, LyingWorker, dial
from tests.engine.handoff.pairs import (
    TIMEOUT_S,
    ClientSide,
    WorkerSide,
    courier_config,
    pair,
)
from tests.engine.test_repeats import Clock

NOISE = random.Random(3).randbytes(4096)

_requests = itertools.count(1)


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ClientSide, WorkerSide]]:
    """One pair for all that must not disturb it."""
    with pair(tmp_path_factory.mktemp("joined")) as sides:
        yield sides


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ClientSide, WorkerSide]]:
    """A client that waits to be called, and a worker that is known to it and has not been started."""
    with pair(tmp_path_factory.mktemp("waiting"), start=False) as (client, worker):
        client.start(
            courier_config(Role.DECODE, client.folder, worker.identity.fingerprint, listen="127.0.0.1:0")
        )
        introduce_worker(client, worker)
        yield client, worker


@contextlib.contextmanager
def many(count: int, port: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as open_ones:
        yield [
            open_ones.enter_context(socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S))
            for _ in range(count)
        ]


def still_serves(client: ClientSide) -> None:
    request = next(_requests)
    client.ask(request, 40)
    assert isinstance(client.wait_end(request), Finished)


def connect_anew(client: ClientSide, worker: WorkerSide) -> None:
    """Drop the link, and make another past whoever occupies the port."""
    client.stop()
    client.start(
        courier_config(
            Role.DECODE, client.folder, worker.identity.fingerprint, dial=f"127.0.0.1:{worker.port}"
        )
    )
    client.wait_ready()


def test_idle_callers_keep_nobody_out_and_are_cut_off_when_too_many(
    joined: tuple[ClientSide, WorkerSide],
) -> None:
    client, worker = joined
    with many(3 * MAX_UNAUTHENTICATED, worker.port or 0) as idle:
        # the oldest are closed at once, long before their time is over
        assert idle[0].recv(1) == b""
        connect_anew(client, worker)
        still_serves(client)


def test_a_hundred_callers_that_hang_up_disturb_nobody(joined: tuple[ClientSide, WorkerSide]) -> None:
    client, worker = joined
    for _ in range(100):
        with many(1, worker.port or 0):
            pass
    still_serves(client)
    connect_anew(client, worker)
    still_serves(client)


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 70_000, NOISE],
    ids=["http", "a long record", "noise"],
)
def test_garbage_instead_of_a_handshake_is_turned_away(
    joined: tuple[ClientSide, WorkerSide], garbage: bytes
) -> None:
    client, worker = joined
    with many(1, worker.port or 0) as (caller,), contextlib.suppress(OSError):
        caller.sendall(garbage)
        caller.settimeout(TIMEOUT_S)
        while caller.recv(4096):
            pass
    still_serves(client)


def is_closed(connection: ssl.SSLSocket) -> bool:
    connection.settimeout(TIMEOUT_S)
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@pytest.mark.parametrize("protocol", [CONTROL_PROTOCOL, DATA_PROTOCOL])
def test_a_stranger_with_a_certificate_of_his_own_gets_nothing(
    joined: tuple[ClientSide, WorkerSide], tmp_path: Path, protocol: str
) -> None:
    client, worker = joined
    stranger = Identity.load_or_create(tmp_path / "stranger")
    # In TLS 1.3 the caller's side of the handshake looks fine until it reads.
    with dial(worker.port or 0, stranger, worker.identity, protocol) as connection:
        assert is_closed(connection)
    still_serves(client)


def test_a_stranger_cannot_introduce_himself(joined: tuple[ClientSide, WorkerSide], tmp_path: Path) -> None:
    client, worker = joined
    stranger = Identity.load_or_create(tmp_path / "stranger")
    context = introduction_context(stranger, server_side=False)
    with contextlib.suppress(Exception):
        address = Address(host="127.0.0.1", port=worker.port or 0)
        with handshake(connect(address), context, server_name=INTRODUCTION_NAME) as connection:
            assert is_closed(connection)
    assert not (worker.folder / "trusted" / f"{stranger.fingerprint}.der").exists()
    still_serves(client)


@pytest.mark.parametrize(
    "words",
    [
        NOISE[:500],
        FRAME_HEADER.pack(0x4E42, 1, 0, MAX_HELLO_BYTES + 1),
        encode_message(Accepted(request=1, reused_tokens=0)),
        encode_message(Attach(session=bytes(16), stream=0)),
    ],
    ids=["noise", "a hello too long", "another message", "another session"],
)
@pytest.mark.parametrize("protocol", [CONTROL_PROTOCOL, DATA_PROTOCOL])
def test_the_peer_itself_is_cut_off_when_it_talks_nonsense(
    joined: tuple[ClientSide, WorkerSide], words: bytes, protocol: str
) -> None:
    client, worker = joined
    with dial(worker.port or 0, client.identity, worker.identity, protocol) as connection:
        connection.sendall(words)
        assert is_closed(connection)
    still_serves(client)


@pytest.mark.parametrize("lie", [*LIES, *LATE_LIES])
def test_a_lying_worker_is_refused_and_its_request_goes_on_at_home(
    waiting: tuple[ClientSide, WorkerSide], lie: str
) -> None:
    client, worker = waiting
    request = next(_requests)
    liar = LyingWorker(
        lambda protocol: dial(client.port or 0, worker.identity, client.identity, protocol), dials=True
    )
    try:
        client.wait_ready()
        client.ask(request, 40)
        liar.accept()
        with contextlib.suppress(OSError):
            (LIES | LATE_LIES)[lie](liar)
        failed = client.wait_end(request)
        assert isinstance(failed, Failed) and failed.code == "protocol"
        assert len(client.commits(request)) == (lie in LATE_LIES)
        assert is_closed(liar.control)
    finally:
        liar.close()


# What the log says of them.


@pytest.fixture
def courier(tmp_path: Path) -> Iterator[Courier]:
    """One inside this process, which listens to nobody."""
    end, other = socket.socketpair()
    memory = SharedMemory.create(4096)
    config = courier_config(Role.PREFILL, tmp_path, "ab" * 32, listen="127.0.0.1:0")
    with other:
        yield Courier(config, Channel(end), memory)
        end.close()
        memory.close_descriptor()


def greet(courier: Courier, *sent: bytes) -> None:
    """A caller for each of `sent`, who says that and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for words in sent:
            with socket.create_connection(listener.getsockname()) as caller:
                caller.sendall(words)
            connection, (host, port) = listener.accept()
            courier._greet(connection, f"{host}:{port}")


def test_callers_that_are_turned_away_do_not_fill_the_log(
    courier: Courier, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(courier, "_turned_away", Repeats(60.0, clock))
    with caplog.at_level("INFO", logger="engine.handoff.courier"):
        greet(courier, *[b""] * 58, *[b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"] * 3, NOISE, b"SSH-2.0-x\r\n" * 9)
        said = [record.getMessage().partition("was turned away: ")[2] for record in caplog.records]
        assert said == [
            "the other end hung up before the connection was secure",
            "the other end speaks plain HTTP; only another Baton can talk to this port",
            "the other end does not speak TLS 1.3 as Baton does: it may be another program",
        ]
        caplog.clear()
        courier._count_strangers()
        assert not caplog.records
        clock.now += 60
        courier._count_strangers()
    assert [record.getMessage() for record in caplog.records] == [
        f"{n} more like it in the last minute: {sentence}"
        for n, sentence in zip((57, 2, 1), said, strict=True)
    ]


def test_a_mistake_that_a_caller_finds_ends_his_call_and_is_told(
    courier: Courier, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(connection: object) -> None:
        raise KeyError("a mistake")

    monkeypatch.setattr("engine.handoff.courier.shake_hands", find)
    with caplog.at_level("INFO", logger="engine.handoff.courier"):
        greet(courier, b"hello", b"hello")
    (record,) = caplog.records
    assert record.exc_info is not None and record.exc_info[0] is KeyError


def introduce_worker(client: ClientSide, worker: WorkerSide) -> None:

    context = introduction_context(worker.identity, server_side=False)
    address = Address(host="127.0.0.1", port=client.port or 0)
    with handshake(connect(address), context, server_name=INTRODUCTION_NAME) as connection:
        introduce(connection, worker.identity, client.identity.fingerprint)
