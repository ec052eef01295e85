"""Threads that unpack tensors side by side, each on one core.

Torch can split an operation over cores by itself, but unpacking is thousands of short operations, and after each of
them its threads wait for one another: on a computer that does anything else at the time, that is tens of times
slower. One tensor (or stretch of rows) a thread has no such waits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch


@contextlib.contextmanager
def unpacking_threads(n_threads: int | None = None) -> Iterator[ThreadPoolExecutor]:
    """A pool to run `dequantise` and `codes` in; inside the block torch's own threads are off, in the caller too.

    `n_threads`: as many as torch would use by default. To be entered while nothing else computes with torch: threads
    that use torch for the first time inside the block stay at one thread each. On leaving, the pool's work is done
    and torch's setting as it was.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(n_threads or before, thread_name_prefix="unpack") as pool:
            yield pool
    finally:
        torch.set_num_threads(before)
