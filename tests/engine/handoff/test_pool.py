"""Several prompts at once on one worker, over real couriers: who joins, leaves, fails or is turned away alone."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.batching import pulse
from engine.errors import OutOfMemory
from engine.handoff.channel import Computed, Message
from engine.handoff.client_events import Accepted, Committed, Failed, Finished
from engine.wire.messages import Code
from tests.engine.handoff.pairs import CHUNK, SPEC, TIMEOUT_S, ClientSide, WorkerSide, digest, pair

N_SLOTS = 3
POOL = dataclasses.replace(SPEC, n_slots=N_SLOTS)


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[tuple[ClientSide, WorkerSide]]:
    """A worker with room for three prompts, two of them computed at once, two full chunks a pass."""
    with pair(tmp_path, spec=POOL, n_prefill=2, pass_tokens=2 * CHUNK) as both:
        yield both


def enter(worker: WorkerSide) -> None:
    """Return once a pass waits to be allowed."""
    assert worker.prefiller.entered.acquire(timeout=TIMEOUT_S)


def wait_admitted(worker: WorkerSide, request: int) -> None:
    """Return once the pool has that request's prompt, and knows of all that was said before it."""
    pool = worker.worker
    assert pool is not None
    with pool._changed:
        assert pool._changed.wait_for(lambda: any(key[1] == request for key in pool._jobs), TIMEOUT_S)


def landed(client: ClientSide, worker: WorkerSide, request: int, stop: int, sequence: int) -> bool:
    """Whether the request's bytes are those of the worker's sequence."""
    return digest(client.memory, 0, stop, slot=request % N_SLOTS, spec=POOL) == digest(
        worker.memory, 0, stop, slot=sequence, spec=POOL
    )


def test_two_at_once_each_its_own(sides: tuple[ClientSide, WorkerSide]) -> None:
    client, worker = sides
    worker.prefiller.hold()
    client.ask(1, 48, slot=1)
    enter(worker)
    client.ask(2, 20, slot=2)
    wait_admitted(worker, 2)
    worker.prefiller.allow(100)
    for request, stop in ((1, 48), (2, 20)):
        assert isinstance(client.wait_end(request), Finished)
        assert landed(client, worker, request, stop, worker.prefiller.taken[request - 1])
    assert len(set(worker.prefiller.taken)) == 2
    # the short one's chunks go along with the long one's
    passes = worker.prefiller.passes
    assert passes[0] == [(0, 16)] and sorted(len(chunks) for chunks in passes[1:3]) == [2, 2]
    assert all(sum(end - first for first, end in chunks) <= 2 * CHUNK for chunks in passes)
    assert client.commits(2) == [(0, 10, False), (10, 20, True)]
    assert client.commits(1) == [(0, 16, False), (16, 32, False), (32, 48, True)]


def test_it_is_stuck_over_a_pass_and_never_without_one(
    sides: tuple[ClientSide, WorkerSide], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, worker = sides
    assert worker.worker is not None
    monkeypatch.setattr(pulse, "STUCK_AFTER_S", 0.0)
    worker.prefiller.hold()
    client.ask(1, 20, slot=1)
    enter(worker)
    assert worker.worker.pulse.is_stuck
    worker.prefiller.allow(100)
    assert isinstance(client.wait_end(1), Finished)
    until_s = time.monotonic() + TIMEOUT_S
    while worker.worker.pulse.is_stuck:
        assert time.monotonic() < until_s


def test_a_full_pool_is_busy_at_once(sides: tuple[ClientSide, WorkerSide]) -> None:
    client, worker = sides
    worker.prefiller.hold()
    client.ask(1, 100, slot=1)
    enter(worker)
    client.ask(2, 100, slot=2)
    client.ask(3, 100, slot=0)
    busy = client.wait_end(3)
    assert isinstance(busy, Failed) and busy.code == Code.BUSY and "2 of at most 2" in busy.message
    worker.prefiller.allow(100)
    for request in (1, 2):
        assert isinstance(client.wait_end(request), Finished)
    for request in (4, 5):
        client.ask(request, 50, slot=request % N_SLOTS)
    for request in (4, 5):
        assert isinstance(client.wait_end(request), Finished)


def test_a_cancelled_prompt_leaves_after_its_pass_and_its_successor_is_not_turned_away(
    sides: tuple[ClientSide, WorkerSide],
) -> None:
    client, worker = sides
    worker.prefiller.hold()
    client.ask(1, 100, slot=1)
    enter(worker)
    client.ask(2, 100, slot=2)
    wait_admitted(worker, 2)
    worker.prefiller.allow(1)
    enter(worker)
    client.wait_for(Accepted, 2)
    client.opened.cancel(1)
    assert client.wait_end(1) is None
    # Two are held by the pass that runs now, and still a third may come.
    client.ask(3, 30, slot=0)
    wait_admitted(worker, 3)
    worker.prefiller.allow(100)
    for request, stop in ((2, 100), (3, 30)):
        assert isinstance(client.wait_end(request), Finished)
        assert landed(client, worker, request, stop, worker.prefiller.taken[request - 1])
    # of the cancelled one nothing was computed after the pass that it was in
    n_cancelled = len(worker.prefiller.computed) - 7 - 2
    assert n_cancelled <= 2


@pytest.mark.parametrize(
    "error, code",
    [(OutOfMemory("no room"), Code.OUT_OF_MEMORY), (RuntimeError("secret"), Code.WORKER_FAILED)],
)
def test_a_pass_that_fails_ends_only_those_in_it(
    sides: tuple[ClientSide, WorkerSide], error: Exception, code: Code
) -> None:
    """The second is asked for while the pass that fails is being computed."""
    client, worker = sides
    worker.prefiller.hold()
    client.ask(1, 100, slot=1)
    enter(worker)
    client.ask(2, 60, slot=2)
    wait_admitted(worker, 2)
    worker.prefiller.fail_compute = error
    worker.prefiller.allow(1)
    failed = client.wait_end(1)
    assert isinstance(failed, Failed) and failed.code == code and "secret" not in failed.message
    worker.prefiller.allow(100)
    assert isinstance(client.wait_end(2), Finished)
    assert landed(client, worker, 2, 60, worker.prefiller.taken[1])


def test_both_of_a_pass_that_fails_have_ended_and_the_worker_goes_on(
    sides: tuple[ClientSide, WorkerSide],
) -> None:
    client, worker = sides
    worker.prefiller.hold()
    client.ask(1, 100, slot=1)
    enter(worker)
    client.ask(2, 100, slot=2)
    wait_admitted(worker, 2)
    worker.prefiller.allow(1)
    enter(worker)
    client.wait_for(Accepted, 2)
    worker.prefiller.fail_compute = OutOfMemory("no room")
    worker.prefiller.allow(1)
    for request in (1, 2):
        failed = client.wait_end(request)
        assert isinstance(failed, Failed) and failed.code == Code.OUT_OF_MEMORY
    worker.prefiller.allow(100)
    for request in (3, 4):
        client.ask(request, 40, slot=request % N_SLOTS)
    for request in (3, 4):
        assert isinstance(client.wait_end(request), Finished)


def test_what_goes_wrong_in_sending_one_does_not_touch_the_other(
    sides: tuple[ClientSide, WorkerSide],
) -> None:
    client, worker = sides
    regular = worker.prefiller.spans

    def fail(sequence: int, *where: int, **bounds: int) -> list[tuple[int, int]]:
        if sequence == worker.prefiller.taken[0] and where[1] > 0:
            raise ValueError("secret")
        return regular(sequence, *where, **bounds)

    worker.prefiller.spans = fail  # type: ignore[method-assign]
    worker.prefiller.hold()
    client.ask(1, 100, slot=1)
    enter(worker)
    client.ask(2, 100, slot=2)
    wait_admitted(worker, 2)
    worker.prefiller.allow(100)
    failed = client.wait_end(1)
    assert isinstance(failed, Failed) and failed.code == Code.WORKER_FAILED
    assert isinstance(client.wait_end(2), Finished)
    assert landed(client, worker, 2, 100, worker.prefiller.taken[1])
    assert [first for first, _, _ in client.commits(1)] in ([], [0])


def test_a_prefix_that_is_not_sent_is_computed_in_shared_passes(
    sides: tuple[ClientSide, WorkerSide],
) -> None:
    client, worker = sides
    worker.prefiller.hold()
    client.ask(1, 64, slot=1)
    enter(worker)
    client.ask(2, 48, start=32, slot=2)
    wait_admitted(worker, 2)
    worker.prefiller.allow(100)
    for request in (1, 2):
        assert isinstance(client.wait_end(request), Finished)
    assert [(16, 32), (0, 16)] in [sorted(p, reverse=True) for p in worker.prefiller.passes]
    assert next(c for c in client.events if isinstance(c, Committed) and c.request_id == 2).first == 32


def test_a_client_that_vanishes_frees_all_its_sequences(
    sides: tuple[ClientSide, WorkerSide],
) -> None:
    client, worker = sides
    worker.prefiller.hold()
    client.ask(1, 500, slot=1)
    enter(worker)
    client.ask(2, 500, slot=2)
    assert worker.notes.get(timeout=TIMEOUT_S) == ""
    config = client.config
    client.stop()
    worker.notes.get(timeout=TIMEOUT_S)
    worker.prefiller.allow(1000)
    assert config is not None
    client.start(config)
    client.wait_ready()
    for request in (3, 4, 5):
        client.ask(request, 30, slot=request % N_SLOTS)
        assert isinstance(client.wait_end(request), Finished)
    assert len(worker.prefiller.computed) < 15


def test_who_is_passed_over_is_heard_of_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that hears nothing of its prompt for long would give it up."""
    with pair(tmp_path, spec=POOL, n_prefill=2, pass_tokens=CHUNK) as (client, worker):
        said: list[Message] = []
        courier = worker.worker._courier if worker.worker is not None else None
        assert courier is not None
        send = courier.send
        monkeypatch.setattr(courier, "send", lambda message: (said.append(message), send(message)))
        worker.prefiller.hold()
        client.ask(1, 48, slot=1)
        enter(worker)
        client.ask(2, 32, slot=2)
        wait_admitted(worker, 2)
        worker.prefiller.allow(100)
        for request in (1, 2):
            assert isinstance(client.wait_end(request), Finished)
        assert [len(chunks) for chunks in worker.prefiller.passes] == [1] * 5
        heard = [(m.request, m.computed_tokens) for m in said if isinstance(m, Computed)]
        assert (1, 16) in heard and (2, 16) in heard
