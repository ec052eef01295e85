"""Handoffs between real courier processes over TLS on loopback: how they go, and every way in which they may not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.cache.spec import LayerKind
from engine.errors import HostError, OutOfMemory, PeerUnreachable
from engine.handoff.client_events import Accepted, Committed, Failed, Finished, Released
from engine.handoff.failure import FailureCode
from engine.handoff.prefill_client import NOT_YET
from engine.handoff.shared import landing_spans
from engine.handoff.telemetry import unpack_layers
from engine.node.trust.identity import Identity
from engine.wire.messages import Code, Role
from tests.engine.handoff.pairs import (
    SPEC,
    TIMEOUT_S,
    ClientSide,
    WorkerSide,
    courier_config,
    digest,
    join,
    landings,
    pair,
)


@pytest.mark.parametrize("client_dials", [True, False])
def test_a_prompt_is_handed_over_whoever_dials(tmp_path: Path, client_dials: bool) -> None:
    with pair(tmp_path, client_dials=client_dials) as (client, worker):
        client.ask(1, 100)
        done = client.wait_end(1)
        assert isinstance(done, Finished)
        assert client.commits(1) == [
            (0, 15, False),
            (15, 30, False),
            (30, 44, False),
            (44, 58, False),
            (58, 72, False),
            (72, 86, False),
            (86, 100, True),
        ]
        assert digest(client.memory, 0, 100) == digest(worker.memory, 0, 100)
        assert done.payload_bytes == 100 * 2 * (2 * 40 + 3 * 12) + 8 * 2 * 20 + 5001
        assert 0 <= done.overlap <= 1 and 0 <= done.tail_ms < 1000 * TIMEOUT_S
        assert worker.prefiller.begun == [list(range(100))]
        (record,) = client.opened.recent()
        assert (record.request_id, record.payload_bytes) == (1, done.payload_bytes)
        assert record.receive_ms >= record.hidden_ms >= 0


def test_how_each_layer_came_is_told_with_its_chunk(tmp_path: Path) -> None:
    begun_s = time.monotonic()
    with pair(tmp_path) as (client, _):
        client.ask(1, 100)
        done = client.wait_end(1)
        commits = [event for event in client.events if isinstance(event, Committed)]
    ended_s = time.monotonic()
    assert isinstance(done, Finished)
    n_bytes = 0
    for commit in commits:
        layers = unpack_layers(commit.layers)
        places = [
            index
            for index, layer in enumerate(SPEC.layers)
            if commit.final or layer.kind is LayerKind.ATTENTION
        ]
        assert [layer.layer for layer in layers] == places
        n_bytes += sum(layer.n_bytes for layer in layers)
        assert n_bytes == commit.payload_bytes
        assert all(begun_s < layer.first_byte_s <= layer.last_byte_s < ended_s for layer in layers)
        assert commit.compute_ms >= 0
        # both run on this computer: what pings make of the worker's clock is wrong by half a round trip at most
        known = [commit.computed_s, *(layer.queued_s for layer in layers)]
        assert all(moment is None or begun_s - 1 < moment < ended_s + 1 for moment in known)
    assert n_bytes == done.payload_bytes


def test_only_what_the_client_lacks_is_sent(tmp_path: Path) -> None:
    with pair(tmp_path) as (client, worker):
        worker.prefiller.held = 20
        client.ask(1, 60, start=40)
        done = client.wait_end(1)
        assert isinstance(done, Finished)
        accepted = client.wait_for(Accepted, 1)
        assert accepted == Accepted(request_id=1, reused_tokens=20)
        # what the worker lacked before `start` was computed and not sent
        assert worker.prefiller.computed == [(20, 30), (30, 40), (40, 50), (50, 60)]
        assert done.payload_bytes == 20 * 2 * (2 * 40 + 3 * 12) + 8 * 2 * 20 + 5001
        assert digest(client.memory, 40, 60) == digest(worker.memory, 40, 60)
        first_layer_k = SPEC.regions(0)[0]
        before = client.memory.buffer[
            first_layer_k.k_offset : first_layer_k.k_offset + 40 * first_layer_k.k_row_bytes
        ]
        assert bytes(before) == bytes(len(before))


def test_one_token_and_many_requests_in_a_row(tmp_path: Path) -> None:
    with pair(tmp_path) as (client, worker):
        for request in range(1, 21):
            client.ask(request, request)
        for request in range(1, 21):
            end = client.wait_end(request)
            if isinstance(end, Failed):
                assert end.code == Code.BUSY  # more than may wait
            else:
                assert isinstance(end, Finished)
        client.ask(21, 1)
        assert isinstance(client.wait_end(21), Finished)
        assert digest(client.memory, 0, 1) == digest(worker.memory, 0, 1)


# Stopping.


def test_a_cancel_frees_the_memory_for_good(tmp_path: Path) -> None:
    with pair(tmp_path) as (client, worker):
        worker.prefiller.hold()
        client.ask(1, 100)
        worker.prefiller.allow(2)
        client.wait_for(Committed, 1)
        client.opened.cancel(1)
        client.wait_for(Released, 1)
        pattern = b"\xa5" * SPEC.total_bytes()
        client.memory.buffer[:] = pattern
        # The worker goes on with the chunk that it was in, and nothing of it may land.
        worker.prefiller.allow(100)
        client.ask(2, 1)
        assert isinstance(client.wait_end(2), Finished)
        landed = bytearray(client.memory.buffer)
        for offset, n_bytes in landing_spans(landings(0, 1)):
            landed[offset : offset + n_bytes] = pattern[:n_bytes]
        assert bytes(landed) == pattern


def test_a_waiting_request_is_cancelled_without_being_begun(tmp_path: Path) -> None:
    """It waits for the end of the pass that its cancelled predecessor is in."""
    with pair(tmp_path) as (client, worker):
        worker.prefiller.hold()
        client.ask(1, 20)
        assert worker.prefiller.entered.acquire(timeout=TIMEOUT_S)
        client.opened.cancel(1)
        assert client.wait_end(1) is None
        client.ask(2, 30)
        client.opened.cancel(2)
        assert client.wait_end(2) is None
        client.ask(3, 40)
        worker.prefiller.allow(10)
        assert isinstance(client.wait_end(3), Finished)
        assert worker.prefiller.begun == [list(range(20)), list(range(40))]


# A worker that cannot.


@pytest.mark.parametrize(
    "error, code, words",
    [
        (OutOfMemory("no room for 3 GB"), Code.OUT_OF_MEMORY, "no room for 3 GB"),
        (HostError("the device is gone"), Code.WORKER_FAILED, "the device is gone"),
        (RuntimeError("a secret path"), Code.WORKER_FAILED, "RuntimeError"),
    ],
)
@pytest.mark.parametrize("before", ["begin", "compute"])
def test_a_worker_that_fails_says_why_and_serves_the_next(
    tmp_path: Path, error: Exception, code: Code, words: str, before: str
) -> None:
    with pair(tmp_path) as (client, worker):
        setattr(worker.prefiller, f"fail_{before}", error)
        client.ask(1, 50)
        failed = client.wait_end(1)
        assert isinstance(failed, Failed)
        assert failed.code == code and words in failed.message and "secret" not in failed.message
        client.ask(2, 50)
        assert isinstance(client.wait_end(2), Finished)


def test_a_worker_whose_pushes_are_not_as_planned_is_found_out_at_home(tmp_path: Path) -> None:
    with pair(tmp_path) as (client, worker):
        worker.prefiller.lie = lambda spans: [(offset, n_bytes - 1) for offset, n_bytes in spans]
        client.ask(1, 50)
        failed = client.wait_end(1)
        assert isinstance(failed, Failed) and failed.code == Code.WORKER_FAILED
        assert client.commits(1) == []


def test_a_prompt_too_long_for_the_worker_is_refused(tmp_path: Path) -> None:
    with pair(tmp_path, start=False) as (client, worker):
        short = courier_config(
            Role.PREFILL,
            worker.folder,
            client.identity.fingerprint,
            max_prompt_tokens=49,
            listen="127.0.0.1:0",
        )
        port = worker.start(short)
        client.start(
            courier_config(Role.DECODE, client.folder, worker.identity.fingerprint, dial=f"127.0.0.1:{port}")
        )
        client.wait_ready()
        client.ask(1, 50)
        failed = client.wait_end(1)
        assert isinstance(failed, Failed) and failed.code == Code.TOO_LONG and "49" in failed.message


def test_another_model_is_refused_with_both_names(tmp_path: Path) -> None:
    with pair(tmp_path, model_name="other", model_digest="22" * 32) as (client, _):
        client.wait_until(lambda: "other" in client.opened.status().note)
        status = client.opened.status()
        assert not status.ready and "fake" in status.note
        with pytest.raises(PeerUnreachable, match="other"):
            client.ask(1, 50)


# What may happen to processes.


def test_a_worker_killed_midway_fails_the_request_and_comes_back(tmp_path: Path) -> None:
    with pair(tmp_path) as (client, worker):
        worker.prefiller.hold()
        client.ask(1, 100)
        worker.prefiller.allow(2)
        client.wait_for(Committed, 1)
        pid = _courier_pid(worker)
        os.kill(pid, signal.SIGKILL)
        failed = client.wait_end(1)
        assert isinstance(failed, Failed) and failed.message
        assert failed.code == FailureCode.PEER_LOST
        commits = [event for event in client.events if isinstance(event, Committed)]
        assert [c.payload_bytes for c in commits] == [c.stop * 2 * (2 * 40 + 3 * 12) for c in commits]
        worker.prefiller.allow(100)
        client.wait_ready()  # its engine has started another courier on the same port
        assert _courier_pid(worker) != pid
        client.ask(2, 100)
        assert isinstance(client.wait_end(2), Finished)
        assert digest(client.memory, 0, 100) == digest(worker.memory, 0, 100)


def test_the_clients_own_courier_killed_midway_fails_the_request_and_comes_back(tmp_path: Path) -> None:
    with pair(tmp_path) as (client, worker):
        worker.prefiller.hold()
        client.ask(1, 100)
        worker.prefiller.allow(2)
        client.wait_for(Committed, 1)
        os.kill(client.opened.courier_pid or 0, signal.SIGKILL)
        failed = client.wait_end(1)
        assert isinstance(failed, Failed) and failed.code == FailureCode.COURIER_ENDED
        worker.prefiller.allow(100)
        client.wait_ready()
        client.ask(2, 100)
        assert isinstance(client.wait_end(2), Finished)


def test_a_worker_that_stands_still_is_given_up_after_three_heartbeats(tmp_path: Path) -> None:
    with pair(tmp_path) as (client, worker):
        worker.prefiller.hold()
        client.ask(1, 100)
        worker.prefiller.allow(1)
        client.wait_for(Committed, 1)
        pid = _courier_pid(worker)
        os.kill(pid, signal.SIGSTOP)
        try:
            failed = client.wait_end(1)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert isinstance(failed, Failed) and "3 s" in failed.message
        worker.prefiller.allow(100)
        client.wait_ready()
        client.ask(2, 30)
        assert isinstance(client.wait_end(2), Finished)


def test_a_client_that_goes_frees_the_worker(tmp_path: Path) -> None:
    with pair(tmp_path) as (client, worker):
        worker.prefiller.hold()
        client.ask(1, 500)
        assert worker.prefiller.entered.acquire(timeout=TIMEOUT_S)
        assert worker.notes.get(timeout=TIMEOUT_S) == ""
        client.stop()
        assert "stopped" in worker.notes.get(timeout=TIMEOUT_S)
        worker.prefiller.allow(500)
        client.start(
            courier_config(
                Role.DECODE, client.folder, worker.identity.fingerprint, dial=f"127.0.0.1:{worker.port}"
            )
        )
        client.wait_ready()
        client.ask(2, 30)
        assert isinstance(client.wait_end(2), Finished)
        assert len(worker.prefiller.computed) < 30


# Strangers.


@pytest.mark.parametrize("client_dials", [True, False])
@pytest.mark.parametrize("stranger", ["client", "worker"])
def test_a_computer_that_is_not_the_trusted_one_gets_nothing(
    tmp_path: Path, client_dials: bool, stranger: str
) -> None:
    with pair(tmp_path, start=False) as (client, worker):
        other = Identity.load_or_create(tmp_path / "other").fingerprint
        trusted_by_worker = other if stranger == "client" else client.identity.fingerprint
        trusted_by_client = other if stranger == "worker" else worker.identity.fingerprint
        config = courier_config(Role.PREFILL, worker.folder, trusted_by_worker)
        if client_dials:
            port = worker.start(msgspec.structs.replace(config, listen="127.0.0.1:0"))
            client.start(
                courier_config(Role.DECODE, client.folder, trusted_by_client, dial=f"127.0.0.1:{port}")
            )
            note = _first_note(client)
            assert "fingerprint" in note or "--trust" in note
        else:
            port = client.start(
                courier_config(Role.DECODE, client.folder, trusted_by_client, listen="127.0.0.1:0")
            )
            worker.start(msgspec.structs.replace(config, dial=f"127.0.0.1:{port}"))
            note = worker.notes.get(timeout=TIMEOUT_S)
            assert "fingerprint" in note or "--trust" in note
        assert not client.opened.status().ready


def _first_note(client: ClientSide) -> str:
    client.wait_until(lambda: client.opened.status().note != NOT_YET)
    return client.opened.status().note


def _courier_pid(worker: WorkerSide) -> int:
    assert worker.worker is not None and worker.worker.courier_pid is not None
    return worker.worker.courier_pid


def test_both_started_again_know_each_other_without_an_introduction(tmp_path: Path) -> None:
    with pair(tmp_path) as (client, worker):
        client.stop()
        worker.stop()
        join(client, worker)
        client.ask(1, 30)
        assert isinstance(client.wait_end(1), Finished)


# What takes longer than a test should.


@pytest.mark.soak
def test_a_worker_engine_that_stands_still_is_noticed_by_its_own_courier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair(tmp_path) as (client, worker):
        worker.prefiller.hold()
        client.ask(1, 100)
        assert worker.prefiller.entered.acquire(timeout=TIMEOUT_S)
        assert worker.worker is not None
        courier = worker.worker._courier
        # It hears later what it was told meanwhile.
        untold: list[tuple[Any, Any]] = []
        monkeypatch.setattr(courier, "_hear", lambda channel, message: untold.append((channel, message)))
        failed = client.wait_end(1)
        assert isinstance(failed, Failed) and "stopped moving" in failed.message
        monkeypatch.undo()
        for told in untold:
            courier._hear(*told)
        worker.prefiller.allow(100)
        client.wait_ready()
        client.ask(2, 30)
        assert isinstance(client.wait_end(2), Finished)


@pytest.mark.soak
def test_a_courier_that_stands_still_is_replaced(tmp_path: Path) -> None:
    with pair(tmp_path) as (client, worker):
        worker.prefiller.hold()
        client.ask(1, 100)
        assert worker.prefiller.entered.acquire(timeout=TIMEOUT_S)
        pid = client.opened.courier_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        # Asking and cancelling must not wait for it.
        for request in range(2, 200):
            client.ask(request, 500)
            client.opened.cancel(request)
        failed = client.wait_end(1)
        assert isinstance(failed, Failed)
        client.wait_ready()
        assert client.opened.courier_pid != pid
        worker.prefiller.allow(100)
        client.ask(200, 30)
        assert isinstance(client.wait_end(200), Finished)


@pytest.mark.soak
@pytest.mark.parametrize("round_", range(30))
def test_a_worker_killed_at_any_moment(tmp_path: Path, round_: int) -> None:
    """At random points of a handoff: what is finished is right, and what is not has failed and is free."""
    rng = random.Random(round_)
    with pair(tmp_path) as (client, worker):
        client.ask(1, 500)
        killer = threading.Timer(rng.random() * 0.05, os.kill, (_courier_pid(worker), signal.SIGKILL))
        killer.start()
        end = client.wait_end(1)
        killer.join()
        if isinstance(end, Finished):
            assert digest(client.memory, 0, 500) == digest(worker.memory, 0, 500)
        else:
            assert isinstance(end, Failed)
            for first, stop, final in client.commits(1):
                if final:  # it was only the worker's goodbye that did not come
                    assert digest(client.memory, 0, 500) == digest(worker.memory, 0, 500)
                layer = SPEC.regions(0)[0]
                rows = slice(
                    layer.k_offset + first * layer.k_row_bytes, layer.k_offset + stop * layer.k_row_bytes
                )
                assert client.memory.buffer[rows] == worker.memory.buffer[rows]
        client.wait_until(lambda: client.opened.status().ready)
        client.wait_ready()


@pytest.mark.parametrize("n_handoffs", [pytest.param(1000, marks=pytest.mark.soak), 200])
def test_many_handoffs_leave_nothing_behind(tmp_path: Path, n_handoffs: int) -> None:
    with pair(tmp_path) as (client, worker):
        sizes = []
        for request in range(1, n_handoffs + 1):
            client.ask(request, 100)
            assert isinstance(client.wait_end(request), Finished)
            client.events.clear()
            if request in (n_handoffs // 5, n_handoffs):
                pids = [client.opened.courier_pid, _courier_pid(worker), os.getpid()]
                sizes.append([(_resident_kib(pid), _n_descriptors(pid), _n_threads(pid)) for pid in pids])
        for early, late in zip(*sizes, strict=True):
            assert late[0] < early[0] + 4096
            assert (
                late[1] <= early[1] and late[2] <= early[2] + 1
            )  # one that gets pages ready may just be ending


def _n_descriptors(pid: int | None) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _n_threads(pid: int | None) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def _resident_kib(pid: int | None) -> int:
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        pytest.skip("this system does not tell a process's memory")
    return next(
        int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("RssAnon")
    )


def test_a_thread_that_dies_takes_its_courier_along() -> None:
    """The engine hears of that, and of nothing else that a courier without its listener would do."""
    code = (
        "import threading\n"
        "from engine.handoff.courier import end_with_thread\n"
        "threading.excepthook = end_with_thread\n"
        "threading.Thread(target=lambda: 1 / 0).start()\n"
        "threading.Event().wait()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert ended.returncode == 1
    assert "a thread of the courier died" in ended.stderr and "ZeroDivisionError" in ended.stderr
