"""Memory for a model's weights: taken in ordinary pages, which are quick to get, and joined to huge ones later.

Huge pages ease the search for addresses: a decode step is a tenth faster. But to be given them at once can take a
second for half a gigabyte, on virtual machines above all, where ordinary ones take a fifth of that; so they are made of
the filled pages once the engine can answer. Pieces are cut from large mappings; a mapping goes when all its pieces are
gone.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import weakref
from collections.abc import Callable

import torch
from torch import Tensor

# Of address space; memory is taken only as it is touched.
MAPPING_BYTES = 64 << 20

# A cache line, and the widest vector.
_ALIGNMENT = 64

# Linux's request to join pages now (since 6.1), which Python has no name for, and how much is asked for at a time:
# other threads that need memory wait meanwhile.
_MADV_COLLAPSE = 25
_JOINED_BYTES = 4 << 20


class Arena:
    """Hands out uninitialised memory that is meant to stay about as long as its neighbours. Not for several threads,
    but that `join_pages` may run beside the rest."""

    def __init__(self, *, mapping_bytes: int = MAPPING_BYTES) -> None:
        self._mapping_bytes = mapping_bytes
        self._rest = torch.empty(0, dtype=torch.uint8)
        self._mappings: list[weakref.ref[mmap.mmap]] = []

    def empty(self, n_bytes: int) -> Tensor:
        """uint8 [n_bytes], aligned to 64 bytes."""
        if n_bytes > self._mapping_bytes // 2:
            return self._mapped(n_bytes)[:n_bytes]
        if n_bytes > len(self._rest):
            self._rest = self._mapped(self._mapping_bytes)
        piece, self._rest = self._rest[:n_bytes], self._rest[n_bytes + -n_bytes % _ALIGNMENT :]
        return piece

    def join_pages(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Join what has been filled to huge pages, where the system can: takes longer than filling did.

        Contents and addresses stay; meant for a thread of its own, and ends soon when `stopping()` turns true.
        """
        if sys.platform != "linux":
            return
        # Python's own call would keep other threads from running.
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for known in list(self._mappings):
            mapping = known()
            if mapping is None:
                continue
            address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
            for offset in range(0, len(mapping), _JOINED_BYTES):
                if stopping():
                    return
                # Where it is refused, and where nothing has been touched, the memory is as good as before.
                madvise(address + offset, min(_JOINED_BYTES, len(mapping) - offset), _MADV_COLLAPSE)

    def _mapped(self, n_bytes: int) -> Tensor:
        if not hasattr(mmap, "MAP_ANONYMOUS"):
            return torch.empty(n_bytes, dtype=torch.uint8)
        try:
            # An empty buffer cannot be mapped.
            memory = mmap.mmap(-1, max(1, n_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:
            # Torch knows how to say that memory is short.
            return torch.empty(n_bytes, dtype=torch.uint8)
        self._mappings.append(weakref.ref(memory))
        return torch.frombuffer(memory, dtype=torch.uint8)
