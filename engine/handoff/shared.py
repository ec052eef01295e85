"""A block of memory that an engine and its courier share, handed over by an inherited descriptor.

Not `multiprocessing.shared_memory`: its resource tracker starts `sys.executable`, which in a bundle is the app itself.
The block has no name that outlives its users, so nothing is left behind however they end.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterable

from engine.cache.spec import Landing
from engine.errors import OutOfMemory


class SharedMemory:
    """`buffer` is the block; `descriptor` is what the other process needs, to be inherited by it.

    Pages take memory only once they are written to.
    """

    def __init__(self, descriptor: int, n_bytes: int) -> None:
        self.descriptor = descriptor
        self.n_bytes = n_bytes
        try:
            self._map = mmap.mmap(descriptor, n_bytes)
        except (OSError, ValueError, OverflowError) as error:
            raise OutOfMemory(
                f"the cache needs {n_bytes / 1e9:.1f} GB in one block and could not get it ({error}): "
                "use a smaller --ctx or fewer --slots"
            ) from error
        self.buffer = memoryview(self._map)
        self._is_there = bytearray(-(-n_bytes // mmap.PAGESIZE))

    @classmethod
    def create(cls, n_bytes: int) -> SharedMemory:
        """A new block of zeros; raises OutOfMemory when there is no room for it."""
        descriptor = _anonymous_file()
        try:
            os.ftruncate(descriptor, n_bytes)
        except OSError as error:
            os.close(descriptor)
            raise OutOfMemory(f"no room for a cache of {n_bytes / 1e9:.1f} GB: {error}") from error
        return cls(descriptor, n_bytes)

    def prefault(self, offset: int, n_bytes: int) -> None:
        """Have pages there to be written to, before they are: one call costs a fraction of their faults one by one.

        Nothing changes in them. Does nothing where the system has no such call, or has done it here before.
        """
        first, end = offset // mmap.PAGESIZE, -(-(offset + n_bytes) // mmap.PAGESIZE)
        if _madvise is None or self._is_there.find(0, first, end) < 0:
            return
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        start = first * mmap.PAGESIZE
        _madvise(base + start, offset + n_bytes - start, _MADV_POPULATE_WRITE)
        self._is_there[first:end] = b"\1" * (end - first)

    def close_descriptor(self) -> None:
        """Give the descriptor back; the mapping stays for as long as views of it are held."""
        os.close(self.descriptor)


def landing_spans(landings: Iterable[Landing]) -> list[tuple[int, int]]:
    """All (offset, bytes) of memory that these landings may fill."""
    spans = []
    for landing in landings:
        rows = landing.stop - landing.first
        spans += [
            (landing.k_offset, rows * landing.k_row_bytes),
            (landing.v_offset, rows * landing.v_row_bytes),
            (landing.state_offset, landing.state_bytes),
        ]
    return [(offset, n_bytes) for offset, n_bytes in spans if n_bytes]


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("baton-cache", os.MFD_CLOEXEC)
    try:
        return _posix_memory()
    except (ImportError, OSError):
        # Its pages may be written to the disk, which is slow, but is memory all the same.
        descriptor, path = tempfile.mkstemp(prefix="baton-cache-")
        os.unlink(path)
        return descriptor


def _posix_memory() -> int:
    """POSIX shared memory that has lost its name at once; raises ImportError where Python does not offer it."""
    import _posixshmem  # type: ignore[import-not-found]

    name = f"/baton-{secrets.token_hex(8)}"
    descriptor: int = _posixshmem.shm_open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode=0o600)
    _posixshmem.shm_unlink(name)
    return descriptor


def _find_madvise() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    # Called through ctypes because that lets go of the interpreter lock, which mmap.madvise keeps.
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    function.restype = ctypes.c_int
    return function


_madvise = _find_madvise()

# Linux 5.14 and later; older ones answer with an error, which changes nothing.
_MADV_POPULATE_WRITE = 23
