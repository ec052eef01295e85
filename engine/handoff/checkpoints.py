"""When a prompt's windows and states are sent before its end: checkpoints, which a client can go on from without us.

They are a gift while the link has nothing better to do: their bytes are budgeted, and they must be through long before
the last chunk. Pure policy: bytes and times come in, in microseconds of one clock.
"""

from __future__ import annotations

# Checkpoints may take so much beside what the chunks take: of a prompt that fails, half of the work is saved soon.
_BUDGET_SHARE = 0.5

# Of what the link seems to carry, chunks and checkpoints may take so much: a short burst goes faster than a long one.
_LINK_SHARE = 0.5


class Checkpoints:
    """One prompt's, of `n_bytes` each, in chunks from `first_chunk` on and never in the last of `n_chunks`."""

    def __init__(self, *, n_bytes: int, first_chunk: int, n_chunks: int) -> None:
        self._n_bytes = n_bytes
        self._first_chunk = first_chunk
        self._n_chunks = n_chunks
        self._unspent_bytes = 0.0
        self._chunk_bytes = 0
        self._chunk_us = 0
        self._frame_bytes: dict[int, tuple[int, int]] = {}
        self._n_acknowledged = 0
        self._last: int | None = None
        self._bytes_per_us = 0.0

    def is_due(self, chunk: int) -> bool:
        """Whether `chunk`, the next to be computed, should be one. Then `begun` is to be called."""
        if not self._first_chunk <= chunk < self._n_chunks - 1 or self._unspent_bytes < self._n_bytes:
            return False
        # The previous chunk may still be on its way; one before it would say that the link is behind.
        is_idle = self._n_acknowledged >= chunk - 1
        spare_bytes = _LINK_SHARE * self._bytes_per_us * self._chunk_us - self._chunk_bytes
        n_chunks_left = self._n_chunks - 1 - chunk
        return is_idle and self._n_bytes <= spare_bytes * n_chunks_left

    def begun(self, chunk: int) -> None:
        """That chunk is one."""
        self._last = chunk
        self._unspent_bytes -= self._n_bytes

    def pushed(self, chunk: int, n_bytes: int, *, at_us: int) -> None:
        """A layer's own rows of that chunk are on their way."""
        self._unspent_bytes += _BUDGET_SHARE * n_bytes
        if chunk not in self._frame_bytes:
            self._chunk_bytes = 0
        self._chunk_bytes += n_bytes
        self._frame_bytes[chunk] = n_bytes, at_us

    def computed(self, *, took_us: int) -> None:
        """A chunk is computed."""
        self._chunk_us = took_us

    def acknowledged(self, chunk: int, *, at_us: int) -> None:
        """The client has all of that chunk. At least as fast as its last rows came, the link can be.

        A checkpoint's say nothing: they may have waited for its own bytes.
        """
        self._n_acknowledged = chunk + 1
        n_bytes, pushed_us = self._frame_bytes.pop(chunk, (0, 0))
        if chunk != self._last:
            self._bytes_per_us = n_bytes / max(1, at_us - pushed_us)
