"""Memory cut from large mappings."""

from __future__ import annotations

import gc
import mmap
import platform
import sys
import weakref
from pathlib import Path

import pytest
import torch

from engine.kernels import arena
from engine.kernels.arena import Arena


def test_pieces_are_aligned_and_apart() -> None:
    memory = Arena(mapping_bytes=1 << 16)
    pieces = [memory.empty(n_bytes) for n_bytes in (1, 0, 63, 64, 65, 40_000, 1 << 17, 20_000, 30_000, 7)]
    for number, piece in enumerate(pieces):
        assert piece.dtype is torch.uint8
        assert piece.data_ptr() % 64 == 0 or len(piece) == 0
        piece.fill_(number)
    for number, piece in enumerate(pieces):
        assert (piece == number).all()
    assert [len(piece) for piece in pieces] == [1, 0, 63, 64, 65, 40_000, 1 << 17, 20_000, 30_000, 7]


def test_a_mapping_goes_with_its_last_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    mappings: list[weakref.ref[mmap.mmap]] = []

    class Watched(mmap.mmap):
        def __init__(self, *_: object, **__: object) -> None:
            mappings.append(weakref.ref(self))

    if not hasattr(mmap, "MAP_ANONYMOUS"):
        pytest.skip("nothing is mapped on this system")
    monkeypatch.setattr(arena.mmap, "mmap", Watched)
    memory = Arena(mapping_bytes=1 << 16)
    first, second = memory.empty(1000), memory.empty(1000)
    large = memory.empty(1 << 16)
    assert len(mappings) == 2
    del memory, first, large
    gc.collect()
    assert [mapping() is not None for mapping in mappings] == [True, False]
    del second
    gc.collect()
    assert mappings[0]() is None


def test_torch_gives_memory_where_mapping_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no more mappings")

    monkeypatch.setattr(arena.mmap, "mmap", refuse)
    assert len(Arena(mapping_bytes=1 << 16).empty(100).fill_(3)) == 100


def test_works_where_nothing_can_be_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(arena.mmap, "MAP_ANONYMOUS", raising=False)
    memory = Arena()
    piece = memory.empty(100).fill_(3)
    memory.join_pages()
    assert (piece == 3).all()


def huge_bytes() -> int:
    """How much of this process lies in huge pages."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("AnonHugePages:"))


@pytest.mark.skipif(sys.platform != "linux", reason="huge pages are asked for on Linux only")
def test_pages_are_joined_and_keep_what_they_hold() -> None:
    memory = Arena(mapping_bytes=16 << 20)
    pieces = [memory.empty(n_bytes) for n_bytes in (7 << 20, 3000, 7 << 20, 40 << 20)]
    for number, piece in enumerate(pieces):
        piece.view(torch.int64).copy_(torch.arange(number, number + len(piece) // 8))
    gone = Arena().empty(100)
    before = huge_bytes()
    memory.join_pages(lambda: True)
    assert huge_bytes() == before
    memory.join_pages()
    del gone
    for number, piece in enumerate(pieces):
        assert torch.equal(piece.view(torch.int64), torch.arange(number, number + len(piece) // 8))
    release = tuple(int(part) for part in platform.release().split(".")[:2])
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if release >= (6, 1) and enabled.exists() and "[never]" not in enabled.read_text(encoding="ascii"):
        assert huge_bytes() - before > 40 << 20
