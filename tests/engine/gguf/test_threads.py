"""Threads unpack what one would, and torch's own setting comes back."""

from __future__ import annotations

import threading

import pytest
import torch

from engine.gguf.threads import unpacking_threads
from engine.gguf.types import GGMLType
from engine.gguf.unpack import dequantise
from tests.engine.gguf.build import random_blocks


def test_rows_unpacked_in_threads_are_the_same() -> None:
    kind, rows, width = GGMLType.Q5_K, 24, 512
    data = memoryview(bytearray(random_blocks(kind, 2 * rows).tobytes()))
    whole = dequantise(data, kind, (rows, width), dtype=torch.bfloat16)
    row_bytes, step = kind.row_bytes(width), 5
    out = torch.empty_like(whole)

    def unpack(first: int) -> None:
        part = out[first : first + step]
        rows_data = data[first * row_bytes : (first + len(part)) * row_bytes]
        dequantise(rows_data, kind, tuple(part.shape), out=part)

    with unpacking_threads(3) as pool:
        list(pool.map(unpack, range(0, rows, step)))
    assert torch.equal(out, whole)


def test_torchs_threads_are_off_inside_and_back_outside() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with unpacking_threads(2) as pool:
            assert torch.get_num_threads() == 1
            assert pool.submit(torch.get_num_threads).result(timeout=30) == 1
        assert torch.get_num_threads() == 2
        with pytest.raises(ZeroDivisionError), unpacking_threads():
            raise ZeroDivisionError
        assert torch.get_num_threads() == 2
        found: list[int] = []
        later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        later.start()
        later.join(timeout=30)
        assert found == [2]
    finally:
        torch.set_num_threads(before)
