"""A block of memory that an engine and its courier share, handed over by an inherited descriptor.

Not `multiprocessing.shared_memory`: its resource tracker starts `sys.executable`, which in a bundle is the app itself.
The block has no name that outlives its users, so nothing is left behind however they end.
"""

from __future__ import annotations

import mmap
import os
import tempfile

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

    def close_descriptor(self) -> None:
        """Give the descriptor back; the mapping stays for as long as views of it are held."""
        os.close(self.descriptor)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("baton-cache", os.MFD_CLOEXEC)
    descriptor, path = tempfile.mkstemp(prefix="baton-cache-")
    os.unlink(path)
    return descriptor
