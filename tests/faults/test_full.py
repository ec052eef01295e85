"""No room: memory, descriptors and disks that are full on either side. What can go on does, and all does afterwards."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.paths import own_command
from tests.faults.engines import TIMEOUT_S, Engines

pytestmark = pytest.mark.fault


@contextlib.contextmanager
def limited(pid: int, what: int, most: int) -> Iterator[None]:
    """Inside, a process that runs gets no more than `most` of something."""
    _, hard = resource.prlimit(pid, what)
    before = resource.prlimit(pid, what, (most, hard))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, what, before)


def address_space(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


def answers_are_right(engines: Engines) -> None:
    for seed in range(2):
        prompt = engines.prompt(seed)
        engines.is_right(prompt, engines.ask(prompt))


@pytest.mark.parametrize("command", ["worker", pytest.param("serve", marks=pytest.mark.soak)])
def test_a_cache_that_no_memory_is_left_for_is_said_in_a_sentence(
    smollm2_path: Path, tmp_path: Path, command: str
) -> None:
    where = {"worker": ["--listen", "127.0.0.1:0"], "serve": ["--port", "0", "--peer", "127.0.0.1:1"]}[
        command
    ]
    common = ["--model", str(smollm2_path), "--trust", "ab" * 32, "--identity", str(tmp_path)]
    ended = subprocess.run(
        [*own_command(), command, *where, *common],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("baton: no room for a cache of"), ended.stderr


@pytest.mark.soak
def test_a_worker_whose_memory_is_full(engines: Engines) -> None:
    """The libraries that compute may not survive it. What they do, they do on the worker alone."""
    pid = engines.worker.pid
    for seed in range(2):
        engines.right(engines.prompt(seed))
    with limited(pid, resource.RLIMIT_AS, address_space(pid)):
        answers_are_right(engines)
    engines.kill_worker("engine")
    engines.goes_on()


@pytest.mark.parametrize("side", [pytest.param("worker", marks=pytest.mark.soak), "decoder"])
def test_a_courier_without_descriptors(engines: Engines, side: str) -> None:
    for seed in range(2):
        engines.right(engines.prompt(seed))
    (pid,) = engines.pids(engines.worker if side == "worker" else engines.decoder, "courier")
    with limited(pid, resource.RLIMIT_NOFILE, 3):
        answers_are_right(engines)
        engines.relay.cut()
        engines.wait_for_link(False)
        answers_are_right(engines)
    engines.goes_on()


@pytest.fixture
def full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A disk of its own for caches and logs, on which there is no room; a file `rest` takes all of it."""
    if os.geteuid() != 0:
        pytest.skip("a disk of its own has to be mounted by root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(disk / "cache"))
    try:
        fill(disk)
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "rest").open("wb", buffering=0) as rest:
        while True:
            rest.write(bytes(4096))


@pytest.mark.soak
@pytest.mark.root
def test_a_full_disk_for_caches_and_logs_changes_no_answer(
    smollm2_path: Path, tmp_path: Path, full_disk: Path
) -> None:
    engines = Engines(smollm2_path, tmp_path, logs=full_disk)
    try:
        engines.make_whole()
        answers_are_right(engines)
        engines.relay.cut()
        engines.goes_on()
        engines.kill_worker("courier")
        engines.goes_on()
        for name in ("worker", "decoder"):
            assert (full_disk / f"{name}.log").stat().st_size == 0
    finally:
        engines.close()


@pytest.mark.root
def test_an_identity_that_cannot_be_kept_is_said_in_a_sentence(full_disk: Path, smollm2_path: Path) -> None:
    common = ["--model", str(smollm2_path), "--trust", "ab" * 32, "--identity", str(full_disk)]
    ended = subprocess.run(
        [*own_command(), "worker", "--listen", "127.0.0.1:0", *common],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert ended.returncode == 1
    assert "baton: this computer's identity in" in ended.stderr and "the disk is full" in ended.stderr


@pytest.mark.soak
@pytest.mark.root
@pytest.mark.parametrize("side", ["worker", "decoder"])
def test_a_certificate_that_cannot_be_kept_is_tried_again(
    smollm2_path: Path, tmp_path: Path, full_disk: Path, side: str
) -> None:
    """The two join as soon as there is room, and until then the decoder says what it waits for."""
    (full_disk / "rest").unlink()
    (tmp_path / side).symlink_to(full_disk)
    engines = Engines(smollm2_path, tmp_path)
    try:
        fill(full_disk)
        engines.start_worker()
        engines.start_decoder()
        engines.wait_for_note("the disk is full" if side == "decoder" else "introduction")
        answers_are_right(engines)
        (full_disk / "rest").unlink()
        engines.goes_on()
    finally:
        engines.close()
