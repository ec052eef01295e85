"""How the node's memory goes back to the system: it passes large requests on, and is small between them."""

from __future__ import annotations

import contextlib
import ctypes
import sys

# glibc's M_MMAP_THRESHOLD. Left to itself it rises to the largest block that was ever freed, and blocks below it come
# from a heap that shrinks from its end alone.
_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 1 << 20


def give_large_blocks_back() -> None:
    """Have blocks of a megabyte and more go back to the system as soon as they are free, where that can be said."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
