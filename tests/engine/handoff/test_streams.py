"""How many data connections a link has: the rule by itself, and a real link that comes back with more of them."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import msgspec
import pytest

from engine.handoff import channel as ch
from engine.handoff.courier import Courier
from engine.handoff.failure import FailureCode
from engine.handoff.streams import Load, StreamCount
from engine.wire.limits import MAX_DATA_STREAMS
from engine.wire.messages import Role
from tests.engine.handoff.pairs import (
    CHUNK,
    TIMEOUT_S,
    ClientSide,
    WorkerSide,
    courier_config,
    digest,
    landings,
    pair,
)

BUSY = Load(wall_s=0.25, cpu_s=0.24, idle_s=0.3)


def test_a_thread_that_cannot_keep_up_gets_help_where_a_core_is_free() -> None:
    count = StreamCount(None)
    assert count.wanted == 1
    count.observe(BUSY, used=1)
    assert count.wanted == 2


@pytest.mark.parametrize(
    "load",
    [
        Load(wall_s=0.25, cpu_s=0.2, idle_s=0.3),  # it waited for bytes
        Load(wall_s=0.25, cpu_s=0.25, idle_s=0.2),  # no core was free all the time
    ],
)
def test_no_help_where_it_would_be_none(load: Load) -> None:
    count = StreamCount(None)
    count.observe(load, used=1)
    assert count.wanted == 1


def test_one_is_added_for_each_link_and_no_more_than_there_may_be() -> None:
    count = StreamCount(None)
    for used in range(1, MAX_DATA_STREAMS + 3):
        count.observe(BUSY, used=used)
        count.observe(BUSY, used=used)
        assert count.wanted == min(used + 1, MAX_DATA_STREAMS)


def test_a_worker_that_takes_fewer_is_not_asked_for_ever_more() -> None:
    count = StreamCount(None)
    count.observe(BUSY, used=1)
    count.observe(BUSY, used=1)
    assert count.wanted == 2


def test_what_was_asked_for_stays() -> None:
    count = StreamCount(3)
    count.observe(BUSY, used=3)
    assert count.wanted == 3


def test_loads_are_differences() -> None:
    earlier = Load(wall_s=10.0, cpu_s=2.0, idle_s=30.0)
    assert Load(wall_s=11.0, cpu_s=2.5, idle_s=31.5).since(earlier) == Load(wall_s=1.0, cpu_s=0.5, idle_s=1.5)


class Engine:
    """The decode engine's end of a courier that runs in this process."""

    def __init__(self, client: ClientSide, config: ch.CourierConfig) -> None:
        ours, theirs = socket.socketpair()
        self.channel, self._theirs = ch.Channel(ours), ch.Channel(theirs)
        self.courier = Courier(config, self._theirs, client.memory)
        self._thread = threading.Thread(target=self.courier.run, name="courier")
        self._thread.start()

    def wait_for(self, kind: type) -> ch.Message:
        while not isinstance(message := self.channel.receive(ch.FROM_COURIER, silence_s=TIMEOUT_S), kind):
            assert message is not None
            if isinstance(message, ch.Alive):
                self.channel.send(message)
        return message

    def close(self) -> None:
        self.channel.close()
        self._thread.join(TIMEOUT_S)
        self._theirs.close()


@pytest.mark.parametrize("client_dials", [True, False])
def test_an_idle_link_comes_back_with_another_connection(tmp_path: Path, client_dials: bool) -> None:
    with pair(tmp_path, start=False) as (client, worker):
        engine = joined_in_process(client, worker, client_dials=client_dials)
        try:
            assert engine.wait_for(ch.LinkUp).setup.data_streams == 1
            worker.prefiller.hold()
            ask(engine, 1)
            engine.wait_for(ch.AskAccepted)
            engine.courier._streams.observe(BUSY, used=1)
            # Not while something is under way.
            worker.prefiller.allow(7)
            engine.wait_for(ch.AskFinished)
            assert engine.wait_for(ch.LinkDown).code == FailureCode.LINK_CLOSED
            assert engine.wait_for(ch.LinkUp).setup.data_streams == 2
            client.memory.buffer[:] = bytes(len(client.memory.buffer))
            worker.prefiller.allow(7)
            ask(engine, 2)
            engine.wait_for(ch.AskFinished)
            assert digest(client.memory, 0, 100) == digest(worker.memory, 0, 100)
        finally:
            engine.close()


def joined_in_process(client: ClientSide, worker: WorkerSide, *, client_dials: bool) -> Engine:
    of_worker = courier_config(Role.PREFILL, worker.folder, client.identity.fingerprint)
    of_client = courier_config(Role.DECODE, client.folder, worker.identity.fingerprint)
    if client_dials:
        port = worker.start(msgspec.structs.replace(of_worker, listen="127.0.0.1:0"))
        return Engine(client, msgspec.structs.replace(of_client, dial=f"127.0.0.1:{port}"))
    engine = Engine(client, msgspec.structs.replace(of_client, listen="127.0.0.1:0"))
    port = engine.wait_for(ch.Listening).port
    worker.start(msgspec.structs.replace(of_worker, dial=f"127.0.0.1:{port}"))
    return engine


def ask(engine: Engine, request: int) -> None:
    tokens = b"".join(token.to_bytes(4, "little") for token in range(100))
    engine.channel.send(
        ch.Ask(
            request=request,
            tokens=tokens,
            first=0,
            stop=100,
            chunk_tokens=CHUNK,
            landings=landings(0, 100),
        )
    )
