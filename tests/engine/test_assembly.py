"""How engines are put together: what is computed on the way does not keep anyone who is told to end."""

from __future__ import annotations

import signal
import threading

import pytest

from engine import assembly
from engine.batching.pulse import Pulse
from engine.cli.lifetime import unwinding_on_signals
from engine.errors import HostError


def test_a_step_runs_on_a_thread_that_ends_with_it() -> None:
    threads = []

    def step(number: int, *, more: int) -> int:
        threads.append(threading.current_thread())
        return number + more

    assert assembly._on_a_thread_of_its_own(step, 1, more=2) == 3
    assert threads[0] is not threading.current_thread()
    assert not threads[0].is_alive()


def test_what_a_step_raises_is_raised_where_it_is_waited_for() -> None:
    def step() -> None:
        raise HostError("no room")

    with pytest.raises(HostError, match="no room"):
        assembly._on_a_thread_of_its_own(step)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="sends signals")
def test_ctrl_c_does_not_wait_for_a_step() -> None:
    has_begun, may_end = threading.Event(), threading.Event()
    main_thread = threading.get_ident()

    def step() -> None:
        has_begun.set()
        may_end.wait(60)

    def interrupt() -> None:
        has_begun.wait(60)
        signal.pthread_kill(main_thread, signal.SIGINT)

    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), unwinding_on_signals():
            threading.Thread(target=interrupt).start()
            assembly._on_a_thread_of_its_own(step)
        assert not may_end.is_set()
    finally:
        signal.signal(signal.SIGINT, inherited)
        may_end.set()


def test_what_is_made_ahead_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "_STOP_TIMEOUT_S", 0.05)
    has_begun, may_end = threading.Event(), threading.Event()

    def make(ahead: assembly._Ahead, loaded: object, prefill: bool) -> None:
        has_begun.set()
        may_end.wait(60)

    monkeypatch.setattr(assembly._Ahead, "_make", make)
    ahead = assembly._Ahead(lambda done, total: None, Pulse())
    ahead.start(None, prefill=True)  # type: ignore[arg-type]
    has_begun.wait(60)
    ahead.stop()
    may_end.set()
