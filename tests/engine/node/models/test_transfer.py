"""A model's copy between two computers: whole and verified or not at all, and what came is never sent twice."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import queue
import socket
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.errors import (
    BatonError,
    DiskFull,
    DownloadFailed,
    HostError,
    ModelFileError,
    PeerLost,
    PeerUnreachable,
    ProtocolError,
)
from engine.handoff.transport import Address, connect, handshake, read_exactly
from engine.node.models import transfer
from engine.node.models.bulk_tls import BulkTLS
from engine.node.models.library import partial_path
from engine.node.models.transfer import FileEntry, TransferJob, run_job
from engine.node.trust.identity import MUTUAL_NAME, Identity, mutual_context
from engine.paths import own_command

# Not a whole number of pieces, and more of them than are held in memory.
FIRST = os.urandom((9 << 20) + 12345)
SECOND = os.urandom(3 << 20)

PIECE = transfer._PIECE_BYTES

TIMEOUT_S = 30.0


class Computer:
    """An end of a copy: its identity, its files, and what its process says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models = folder / "models"
        self.identity = Identity.load_or_create(folder / "identity")
        self.said: list[dict[str, Any]] = []
        self.port: queue.SimpleQueue[int] = queue.SimpleQueue()

    def say(self, fields: dict[str, Any]) -> None:
        self.said.append(fields)
        if "port" in fields:
            self.port.put(fields["port"])

    @property
    def n_received(self) -> int:
        return sum(fields.get("received_bytes", 0) for fields in self.said)


class Copy:
    """Two computers, and one model on the first."""

    def __init__(self, folder: Path, contents: dict[str, bytes]) -> None:
        self.here, self.there = Computer(folder / "here"), Computer(folder / "there")
        self.here.models.mkdir()
        self.contents = contents
        for name, content in contents.items():
            (self.here.models / name).write_bytes(content)
        self.files = tuple(
            FileEntry(name=name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
            for name, content in contents.items()
        )

    def receive_job(self, **where: str) -> TransferJob:
        return TransferJob(
            identity_dir=str(self.there.folder / "identity"),
            peer_der=self.here.identity.certificate_der,
            files=self.files,
            folder=str(self.there.models),
            digests_dir=str(self.there.folder / "digests"),
            **where,
        )

    def send_job(self, **where: str) -> TransferJob:
        return TransferJob(
            identity_dir=str(self.here.folder / "identity"),
            peer_der=self.there.identity.certificate_der,
            files=self.files,
            paths=tuple(str(self.here.models / file.name) for file in self.files),
            **where,
        )

    def run(self, *, receiver_calls: bool = False) -> tuple[BaseException | None, BaseException | None]:
        """Copy; how the sender and the receiver ended."""
        listen = {"listen": "127.0.0.1:0"}
        jobs: dict[bool, Callable[..., TransferJob]] = {True: self.receive_job, False: self.send_job}
        listener, caller = (self.here, self.there) if receiver_calls else (self.there, self.here)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(run_job, jobs[not receiver_calls](**listen), listener.say)
            second = pool.submit(self._call, jobs[receiver_calls], listener, caller, first)
            ends = first.exception(TIMEOUT_S), second.exception(TIMEOUT_S)
        return ends if receiver_calls else (ends[1], ends[0])

    @staticmethod
    def _call(
        job: Callable[..., TransferJob], listener: Computer, caller: Computer, listening: Future[None]
    ) -> None:
        while True:
            try:
                port = listener.port.get(timeout=0.05)
                break
            except queue.Empty:
                if listening.done():
                    return
        run_job(job(dial=f"127.0.0.1:{port}"), caller.say)

    def check_arrived(self) -> None:
        for name, content in self.contents.items():
            assert (self.there.models / name).read_bytes() == content
        assert not list(self.there.models.glob("*.partial"))

    def check_nothing_has_its_name(self) -> None:
        assert not [name for name in self.contents if (self.there.models / name).exists()]

    def partial(self, name: str) -> Path:
        (entry,) = (file for file in self.files if file.name == name)
        return partial_path(self.there.models / name, entry.sha256)

    def hold(self, name: str, content: bytes) -> None:
        """Have an earlier copy left this."""
        self.there.models.mkdir(exist_ok=True)
        self.partial(name).write_bytes(content)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path, {"model.gguf": FIRST})


@pytest.fixture
def split(tmp_path: Path) -> Copy:
    return Copy(tmp_path, {"m-00001-of-00002.gguf": SECOND, "m-00002-of-00002.gguf": FIRST})


@pytest.mark.parametrize("receiver_calls", [False, True], ids=["the sender calls", "the receiver calls"])
def test_all_files_arrive_whoever_calls(split: Copy, receiver_calls: bool) -> None:
    assert split.run(receiver_calls=receiver_calls) == (None, None)
    split.check_arrived()
    assert split.there.n_received == len(FIRST) + len(SECOND)


def test_what_came_before_is_verified_and_not_sent_again(split: Copy) -> None:
    split.hold("m-00001-of-00002.gguf", SECOND)
    split.hold("m-00002-of-00002.gguf", FIRST[: 5 << 20])
    assert split.run() == (None, None)
    split.check_arrived()
    assert split.there.n_received == len(FIRST) - (5 << 20)


@pytest.mark.parametrize(
    "held",
    [FIRST[:100] + b"?" + FIRST[101 : 1 << 20], FIRST[:-1] + bytes([FIRST[-1] ^ 1]), FIRST + b"more"],
    ids=["a false beginning", "all of it and one false byte", "too much"],
)
def test_what_is_not_the_beginning_of_the_file_is_thrown_away(copy: Copy, held: bytes) -> None:
    copy.hold("model.gguf", held)
    assert copy.run() == (None, None)
    copy.check_arrived()
    assert copy.there.n_received == len(FIRST)


def test_a_model_that_is_there_already_costs_no_byte(copy: Copy) -> None:
    assert copy.run() == (None, None)
    copy.there.said.clear()
    run_job(copy.receive_job(listen="127.0.0.1:0"), copy.there.say)
    assert not any("port" in fields for fields in copy.there.said)


def test_content_that_is_not_what_was_offered_never_gets_its_name(copy: Copy) -> None:
    """A sender that lies, or whose disk does."""
    (copy.here.models / "model.gguf").write_bytes(FIRST[:-1] + bytes([FIRST[-1] ^ 1]))
    sender, receiver = copy.run()
    assert isinstance(receiver, DownloadFailed) and "wrong digest" in str(receiver)
    assert isinstance(sender, PeerLost)
    copy.check_nothing_has_its_name()
    assert not copy.partial("model.gguf").exists()


def test_one_false_file_of_a_split_model_keeps_the_others_from_their_names(split: Copy) -> None:
    (split.here.models / "m-00002-of-00002.gguf").write_bytes(bytes(len(FIRST)))
    _, receiver = split.run()
    assert isinstance(receiver, DownloadFailed)
    split.check_nothing_has_its_name()
    assert split.partial("m-00001-of-00002.gguf").read_bytes() == SECOND


def test_a_file_that_changed_since_it_was_offered_is_said_to_have(copy: Copy) -> None:
    (copy.here.models / "model.gguf").write_bytes(FIRST[:-1])
    sender, receiver = copy.run()
    assert isinstance(sender, ModelFileError) and "changed" in str(sender)
    assert isinstance(receiver, PeerLost)
    copy.check_nothing_has_its_name()


def test_a_broken_connection_keeps_what_came(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    real = transfer._read_piece
    n_pieces = iter(range(100))

    def cut(file: Any, path: Path, view: memoryview) -> int:
        if next(n_pieces) == 2:
            raise PeerLost("cut")
        return real(file, path, view)

    monkeypatch.setattr(transfer, "_read_piece", cut)
    _, receiver = copy.run()
    assert isinstance(receiver, PeerLost)
    copy.check_nothing_has_its_name()
    # the connection was reset: what was still on its way may be lost, and nothing of what is kept is false
    kept = copy.partial("model.gguf").read_bytes()
    assert FIRST.startswith(kept) and len(kept) <= 2 * PIECE
    monkeypatch.undo()
    assert copy.run() == (None, None)
    copy.check_arrived()
    assert copy.there.n_received == len(FIRST) - len(kept)


def test_a_killed_receiver_has_kept_what_it_wrote(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(
        [*own_command(), "transfer"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(msgspec.json.encode(copy.receive_job(listen="127.0.0.1:0")) + b"\n")
    process.stdin.flush()
    port = json.loads(process.stdout.readline())["port"]
    real, n_pieces = transfer._read_piece, iter(range(100))

    def kill(file: Any, path: Path, view: memoryview) -> int:
        if next(n_pieces) == 3:
            give_up_at = time.monotonic() + TIMEOUT_S
            partial = copy.partial("model.gguf")
            while not partial.exists() or partial.stat().st_size < 2 * PIECE:
                assert time.monotonic() < give_up_at
                time.sleep(0.01)
            process.kill()
        return real(file, path, view)

    monkeypatch.setattr(transfer, "_read_piece", kill)
    with pytest.raises(PeerLost):
        run_job(copy.send_job(dial=f"127.0.0.1:{port}"), copy.here.say)
    process.communicate(timeout=TIMEOUT_S)
    copy.check_nothing_has_its_name()
    kept = copy.partial("model.gguf").stat().st_size
    assert 2 * PIECE <= kept < len(FIRST)
    monkeypatch.undo()
    assert copy.run() == (None, None)
    copy.check_arrived()
    assert copy.there.n_received == len(FIRST) - kept


def test_what_is_kept_of_a_copy_begins_anew_at_a_whole_block(copy: Copy) -> None:
    copy.hold("model.gguf", FIRST[:1_000_001])
    assert copy.run() == (None, None)
    copy.check_arrived()
    kept = 1_000_001 // transfer._BLOCK_BYTES * transfer._BLOCK_BYTES
    assert copy.there.n_received == len(FIRST) - kept


@pytest.mark.skipif(not transfer._O_DIRECT, reason="this system writes through its cache alone")
@pytest.mark.parametrize("refused_at", ["open", "write"])
def test_a_disk_that_only_takes_writes_through_the_cache_gets_them(
    copy: Copy, monkeypatch: pytest.MonkeyPatch, refused_at: str
) -> None:
    import fcntl

    real_open, real_write = os.open, os.write

    def refuse_open(path: Any, flags: int, *mode: int) -> int:
        if flags & transfer._O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_open(path, flags, *mode)

    def refuse_write(descriptor: int, data: Any) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & transfer._O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_write(descriptor, data)

    fakes = {"open": refuse_open, "write": refuse_write}
    monkeypatch.setattr(transfer.os, refused_at, fakes[refused_at])
    assert copy.run() == (None, None)
    copy.check_arrived()


@pytest.mark.parametrize("free", [len(FIRST) - 1, len(FIRST) + transfer._KEPT_FREE_BYTES - 1])
def test_a_full_disk_is_said_before_anything_is_sent(
    copy: Copy, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    usage = type("Usage", (), {"free": free})
    monkeypatch.setattr(transfer.shutil, "disk_usage", lambda folder: usage)
    _, receiver = copy.run()
    assert isinstance(receiver, DiskFull) and "make room" in str(receiver)
    assert not any("port" in fields for fields in copy.there.said)


def test_a_disk_that_fills_up_keeps_what_came(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    real = transfer._Writer._write
    n_pieces = iter(range(100))

    def fill(self: Any, view: memoryview) -> None:
        if next(n_pieces) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, view)

    monkeypatch.setattr(transfer._Writer, "_write", fill)
    sender, receiver = copy.run()
    assert isinstance(receiver, DiskFull) and "what came is kept" in str(receiver)
    assert isinstance(sender, PeerLost)
    assert copy.partial("model.gguf").read_bytes() == FIRST[: 2 * PIECE]


def test_another_process_that_fetches_the_same_file_is_not_disturbed(copy: Copy) -> None:
    import filelock

    copy.there.models.mkdir()
    with filelock.FileLock(copy.there.models / "model.gguf.lock"):
        _, receiver = copy.run()
    assert isinstance(receiver, HostError) and "another process" in str(receiver)


def test_a_file_that_took_the_name_meanwhile_is_not_written_over(copy: Copy) -> None:
    copy.there.models.mkdir()
    (copy.there.models / "model.gguf").write_bytes(b"mine")
    _, receiver = copy.run()
    assert isinstance(receiver, HostError) and "other content" in str(receiver)
    assert (copy.there.models / "model.gguf").read_bytes() == b"mine"


def stranger_at(port: int, folder: Path, copy: Copy) -> None:
    """Somebody who is not the peer calls, and is turned away before a byte of the copy is said."""
    me = Identity.load_or_create(folder / "stranger")
    context = mutual_context(
        me, server_side=False, peer_der=copy.there.identity.certificate_der, protocols=("baton-copy/1",)
    )
    with (
        pytest.raises(BatonError),
        handshake(connect(Address(host="127.0.0.1", port=port)), context, server_name=MUTUAL_NAME) as tls,
    ):
        read_exactly(tls, 1)


def test_strangers_are_turned_away_and_do_not_hold_the_port(copy: Copy, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        receiving = pool.submit(run_job, copy.receive_job(listen="127.0.0.1:0"), copy.there.say)
        port = copy.there.port.get(timeout=TIMEOUT_S)
        # some say nothing, for as long as they are let
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        stranger_at(port, tmp_path, copy)
        run_job(copy.send_job(dial=f"127.0.0.1:{port}"), copy.here.say)
        receiving.result(TIMEOUT_S)
        for connection in silent:
            connection.close()
    copy.check_arrived()


def test_who_is_never_called_gives_up(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_CALL_TIMEOUT_S", 0.01)
    with pytest.raises(PeerUnreachable, match="firewall"):
        run_job(copy.receive_job(listen="127.0.0.1:0"), copy.there.say)


@pytest.mark.parametrize(
    "first", [len(FIRST) + 1, 1, 1 << 63], ids=["behind its end", "a hole", "far behind"]
)
def test_a_sender_may_begin_only_where_the_receiver_is(copy: Copy, first: int) -> None:
    def lie(connection: BulkTLS, *_: Any) -> None:
        transfer._receive(connection, transfer._HELD.size)
        connection.send(memoryview(transfer._FROM.pack(first)))
        transfer._receive(connection, 1)

    _, receiver = run_with_sender(copy, lie)
    assert isinstance(receiver, ProtocolError)
    copy.check_nothing_has_its_name()


def run_with_sender(
    copy: Copy, lie: Callable[..., None]
) -> tuple[BaseException | None, BaseException | None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "send_files", lie)
        return copy.run()


def test_a_receiver_that_claims_too_much_gets_nothing(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        transfer._Incoming, "held", lambda self: transfer._HELD.pack(len(FIRST) + 1, bytes(32))
    )
    sender, _ = copy.run()
    assert isinstance(sender, ProtocolError)


def test_it_tells_how_far_it_is(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_PROGRESS_EVERY_S", 0.0)
    copy.hold("model.gguf", FIRST[: 2 << 20])
    assert copy.run() == (None, None)
    for computer in (copy.here, copy.there):
        steps = [fields["done_bytes"] for fields in computer.said if "done_bytes" in fields]
        assert steps == sorted(steps) and steps[-1] == len(FIRST)


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_names_have_a_limit(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"name": name, "size_bytes": 1, "sha256": "0" * 64}, FileEntry)
