"""The channel between engine and courier: it never waits, loses nothing, and notices who has stopped moving."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from engine.errors import ProcessFailed
from engine.handoff import channel as ch

TIMEOUT_S = 10.0


@pytest.fixture
def ends() -> Iterator[tuple[ch.Channel, ch.Channel]]:
    engine, courier = socket.socketpair()
    channels = ch.Channel(engine), ch.Channel(courier)
    yield channels
    for channel in channels:
        channel.close()


def ask(request: int, n_tokens: int) -> ch.Ask:
    return ch.Ask(
        request=request, tokens=bytes(4 * n_tokens), first=0, stop=n_tokens, chunk_tokens=16, landings=()
    )


def test_messages_arrive_as_they_were(ends: tuple[ch.Channel, ch.Channel]) -> None:
    engine, courier = ends
    sent = [ask(1, 5), ch.CancelAsk(request=1), ch.Push(link=1, request=2, chunk=3, layer=4, spans=((5, 6),))]
    for message in sent:
        engine.send(message)
    assert [courier.receive(ch.FROM_ENGINE) for _ in sent] == sent
    courier.send(ch.Listening(port=7118))
    assert engine.receive(ch.FROM_COURIER) == ch.Listening(port=7118)


def test_sending_never_waits_and_loses_nothing(ends: tuple[ch.Channel, ch.Channel]) -> None:
    """Forty megabytes to somebody who does not listen yet: were `send` to wait, this would never end."""
    engine, courier = ends
    sent = [ask(number, 1 << 18) for number in range(1, 41)]
    for message in sent:
        engine.send(message)
    assert [courier.receive(ch.FROM_ENGINE) for _ in sent] == sent


def test_many_threads_may_send(ends: tuple[ch.Channel, ch.Channel]) -> None:
    engine, courier = ends

    def send_all(first: int) -> None:
        for number in range(first, first + 200):
            engine.send(ask(number, 300))

    threads = [threading.Thread(target=send_all, args=(1000 * index,)) for index in range(1, 5)]
    for thread in threads:
        thread.start()
    received = []
    for _ in range(800):
        message = courier.receive(ch.FROM_ENGINE)
        assert isinstance(message, ch.Ask)
        received.append(message.request)
    for thread in threads:
        thread.join()
    assert sorted(received) == sorted(
        n for index in range(1, 5) for n in range(1000 * index, 1000 * index + 200)
    )
    for index in range(1, 5):
        own = [number for number in received if number // 1000 == index]
        assert own == sorted(own)


def test_the_end_of_the_other_side_is_noticed_by_both_calls(ends: tuple[ch.Channel, ch.Channel]) -> None:
    engine, courier = ends
    courier.close()
    assert engine.receive(ch.FROM_COURIER) is None
    with pytest.raises(ProcessFailed):
        engine.send(ch.CancelAsk(request=1))


def test_an_interrupt_wakes_who_waits(ends: tuple[ch.Channel, ch.Channel]) -> None:
    engine, _ = ends
    received: list[object] = []
    waiting = threading.Thread(
        target=lambda: received.append(engine.receive(ch.FROM_COURIER, silence_s=TIMEOUT_S))
    )
    waiting.start()
    engine.interrupt()
    waiting.join(TIMEOUT_S)
    assert received == [None]
    with pytest.raises(ProcessFailed):
        engine.send(ch.CancelAsk(request=1))


def test_silence_is_an_error_and_a_word_in_time_is_not(ends: tuple[ch.Channel, ch.Channel]) -> None:
    engine, courier = ends
    courier.send(ch.Alive())
    assert engine.receive(ch.FROM_COURIER, silence_s=0.5) == ch.Alive()
    with pytest.raises(ProcessFailed, match="not moved"):
        engine.receive(ch.FROM_COURIER, silence_s=0.5)
