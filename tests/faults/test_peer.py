"""A peer that is trusted and not to be believed: it lies, talks nonsense, or takes a place and says nothing more."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import time
from collections.abc import Iterator

import pytest

from engine.handoff.transport import CONTROL_PROTOCOL, DATA_PROTOCOL, handshake
from engine.node.trust.identity import Identity, TrustStore, listener_context
from tests.engine.handoff.lying import LATE_LIES, LIES, LyingWorker, dial, read_message
from tests.faults.engines import TIMEOUT_S, Engines

pytestmark = pytest.mark.fault

_SAMPLE = ("a layer twice", "a chunk twice")


class Impostor:
    """What answers in the worker's place, with the worker's own key."""

    def __init__(self, engines: Engines) -> None:
        own = Identity.load_or_create(engines.folder / "worker")
        self._context = listener_context(
            own,
            TrustStore(engines.folder / "worker"),
            Identity.load_or_create(engines.folder / "decoder").fingerprint,
            protocols=(CONTROL_PROTOCOL, DATA_PROTOCOL),
        )
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(TIMEOUT_S)
        self.port: int = self._listener.getsockname()[1]

    def meet(self, protocol: str) -> ssl.SSLSocket:
        """The next call of that kind; others are hung up on."""
        while True:
            connection, _ = self._listener.accept()
            tls = handshake(connection, self._context)
            if tls.selected_alpn_protocol() == protocol:
                return tls
            tls.close()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def impostor(engines: Engines) -> Iterator[Impostor]:
    """The decoder calls it instead of its worker, for the time of the test."""
    impostor, target = Impostor(engines), engines.relay.target
    engines.relay.target = impostor.port
    try:
        yield impostor
    finally:
        engines.relay.target = target
        impostor.close()
        engines.relay.cut()


@pytest.mark.parametrize(
    "lie", [pytest.param(lie, marks=() if lie in _SAMPLE else pytest.mark.soak) for lie in LIES | LATE_LIES]
)
def test_no_lie_gets_into_an_answer(engines: Engines, impostor: Impostor, lie: str) -> None:
    prompt = engines.prompt(3)  # whose answer depends on its first chunk
    right = engines.right(prompt)
    engines.relay.cut()
    liar = LyingWorker(impostor.meet, dials=False)
    try:
        engines.wait_for_link()
        with engines.asking(prompt) as asking:
            liar.accept()
            with contextlib.suppress(OSError):
                (LIES | LATE_LIES)[lie](liar)
            answer = asking.answer.result(TIMEOUT_S)
    finally:
        liar.close()
    assert answer.handoff["reason"] == "protocol", answer.handoff
    # A chunk that came whole and in its place is taken, and nobody but the worker can know that it was zeros. That it
    # shows in the answer proves that the tests of this folder would see a chunk that is not right.
    assert (answer.handoff["remote_tokens"] > 0) is (lie in LATE_LIES)
    assert (answer.tokens == right) is (lie not in LATE_LIES)


@pytest.mark.parametrize(
    "moment", [pytest.param("before the hello", marks=pytest.mark.soak), "as the hello", "after the hello"]
)
def test_garbage_at_any_moment(engines: Engines, impostor: Impostor, moment: str) -> None:
    garbage = random.Random(5).randbytes(3000)
    prompt = engines.prompt(1)
    engines.right(prompt)
    engines.relay.cut()
    if moment == "after the hello":
        liar = LyingWorker(impostor.meet, dials=False)
        engines.wait_for_link()
        control, data = liar.control, liar.data
    else:
        control, data = impostor.meet(CONTROL_PROTOCOL), None
        if moment == "as the hello":
            read_message(control)
    with control, data or contextlib.nullcontext():
        control.sendall(garbage)
        engines.is_right(prompt, engines.ask(prompt))
        engines.wait_for_link(False)
        engines.is_right(prompt, engines.ask(prompt))


def test_an_idle_client_keeps_no_other_waiting(engines: Engines) -> None:
    """One that has got as far as a link and says nothing more; the next waits for it no two seconds."""
    worker, decoder = (Identity.load_or_create(engines.folder / name) for name in ("worker", "decoder"))
    prompt, another = engines.prompt(1, n_tokens=50), engines.prompt(2, n_tokens=50)
    engines.right(prompt)
    begun = time.monotonic()
    assert engines.ask(another).handoff["prefill"] == "remote"
    took_s = time.monotonic() - begun
    with contextlib.ExitStack() as idle:
        for protocol in (CONTROL_PROTOCOL, DATA_PROTOCOL) * 2:
            idle.enter_context(dial(engines.relay.target, decoder, worker, protocol))
        begun = time.monotonic()
        answer = engines.ask(prompt)
        assert time.monotonic() - begun < took_s + 2.0
        assert answer.handoff["prefill"] == "remote", answer.handoff
        engines.is_right(prompt, answer)


def test_a_hundred_callers_who_hang_up_at_once(engines: Engines) -> None:
    prompt = engines.prompt(1)
    with engines.asking(prompt) as asking:
        for _ in range(100):
            socket.create_connection(("127.0.0.1", engines.relay.target)).close()
        answer = asking.answer.result(TIMEOUT_S)
    assert answer.handoff["prefill"] == "remote", answer.handoff
    engines.is_right(prompt, answer)
