"""Being in another network namespace of this computer, without a process of its own (Linux, root)."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """This thread is on that network, and so are the sockets that it opens and the processes that it starts."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(network: int) -> None:
        if libc.setns(network, 0):
            raise OSError(ctypes.get_errno(), "setns")

    here, there = (
        os.open(path, os.O_RDONLY) for path in ("/proc/thread-self/ns/net", f"/run/netns/{namespace}")
    )
    enter(there)
    try:
        yield
    finally:
        enter(here)
        os.close(here)
        os.close(there)
