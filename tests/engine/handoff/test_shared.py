"""Memory that two processes share by its descriptor."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys

import pytest

from engine.errors import OutOfMemory
from engine.handoff import shared
from engine.handoff.shared import SharedMemory

N_BYTES = 300_000


def test_another_process_sees_and_changes_it() -> None:
    memory = SharedMemory.create(N_BYTES)
    assert bytes(memory.buffer) == bytes(N_BYTES)
    memory.buffer[1000:1004] = b"here"
    program = (
        "import sys\n"
        "from engine.handoff.shared import SharedMemory\n"
        f"memory = SharedMemory(int(sys.argv[1]), {N_BYTES})\n"
        "memory.prefault(0, len(memory.buffer))\n"
        "assert bytes(memory.buffer[1000:1004]) == b'here'\n"
        "memory.buffer[-5:] = b'there'\n"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(memory.descriptor)], pass_fds=[memory.descriptor], check=True
    )
    assert bytes(memory.buffer[-5:]) == b"there"
    memory.close_descriptor()
    assert bytes(memory.buffer[-5:]) == b"there"


@pytest.mark.parametrize("offset, n_bytes", [(0, N_BYTES), (5000, 1), (4095, 4098), (N_BYTES - 1, 1)])
def test_prefaulting_changes_nothing(offset: int, n_bytes: int) -> None:
    memory = SharedMemory.create(N_BYTES)
    memory.buffer[:] = os.urandom(N_BYTES)
    before = bytes(memory.buffer)
    memory.prefault(offset, n_bytes)
    assert bytes(memory.buffer) == before
    memory.close_descriptor()


@pytest.mark.skipif(shared._madvise is None, reason="this system cannot get pages ready ahead")
def test_prefaulting_gets_the_pages_ready() -> None:
    resource = pytest.importorskip("resource")
    memory = SharedMemory.create(64 << 20)
    memory.prefault(0, 64 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for at in range(0, 64 << 20, 4096):
        memory.buffer[at] = 1
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    memory.close_descriptor()
    assert faults < 1000  # of 16,384


def test_pages_that_are_there_are_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(shared, "_madvise", lambda start, n_bytes, advice: asked.append(n_bytes))
    page = mmap.PAGESIZE
    memory = SharedMemory.create(8 * page)
    memory.prefault(page + 1, 2 * page)
    memory.prefault(page, 3 * page)
    memory.prefault(2 * page, page)
    assert asked == [2 * page + 1]
    memory.prefault(0, 8 * page)
    assert asked == [2 * page + 1, 8 * page]
    memory.close_descriptor()


def test_it_leaves_no_name_behind() -> None:
    memory = SharedMemory.create(4096)
    status = os.fstat(memory.descriptor)
    memory.close_descriptor()
    assert status.st_nlink == 0


def test_too_much_is_out_of_memory_in_a_sentence() -> None:
    with pytest.raises(OutOfMemory, match=r"--ctx|no room"):
        SharedMemory.create(1 << 62)


@pytest.mark.parametrize("without", ["memfd_create"])
def test_systems_without_memfd_have_memory_too(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, without, raising=False)
    memory = SharedMemory.create(N_BYTES)
    memory.buffer[-1] = 7
    other = SharedMemory(os.dup(memory.descriptor), N_BYTES)
    assert other.buffer[-1] == 7
    other.close_descriptor()
    memory.close_descriptor()
