"""Memory cut from large mappings."""

from __future__ import annotations

import gc
import mmap
import weakref

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

    if not hasattr(mmap, "MADV_HUGEPAGE"):
        pytest.skip("there are no huge pages on this system")
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


def test_works_where_there_are_no_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(arena.mmap, "MADV_HUGEPAGE", raising=False)
    piece = Arena().empty(100).fill_(3)
    assert (piece == 3).all()
