"""The cache of an attention layer: every position's K and V, row after row."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.cache.spec import CacheRow


@dataclass(frozen=True, kw_only=True)
class Visible:
    """What the new rows of a layer may look at: K and V [S, Hk, D], positions [first, first + S)."""

    k: Tensor
    v: Tensor
    first: int


class AttentionCache:
    """K [rows, Hk, Dk] and V [rows, Hk, Dv] for positions 0, 1, ...; the position is the row."""

    window = 0

    def __init__(self, k: Tensor, v: Tensor) -> None:
        self.k = k
        self.v = v
        self._k_row_bytes = k[0].nbytes
        self._v_row_bytes = v[0].nbytes

    def write(self, first: int, k: Tensor, v: Tensor) -> Visible:
        """Store k and v [T, Hk, D] at positions from `first` on; returns what these T rows may look at."""
        end = first + k.shape[0]
        self.k[first:end].copy_(k)
        self.v[first:end].copy_(v)
        return Visible(k=self.k[:end], v=self.v[:end], first=0)

    def claim(self, position: int) -> CacheRow:
        """Where a kernel may write the row of `position` by itself, and what that row may look at."""
        k, v = self.k, self.v
        k_first, v_first = k.data_ptr(), v.data_ptr()
        return CacheRow(
            k_row=k_first + position * self._k_row_bytes,
            v_row=v_first + position * self._v_row_bytes,
            k_first=k_first,
            v_first=v_first,
            n_seen=position + 1,
        )

    def keeps(self, length: int) -> bool:
        """Whether the cache can go on from `length` positions, dropping what came after."""
        return True

    def reset(self) -> None:
        """Forget everything."""

    def place(self, first: int, stop: int) -> tuple[int, int]:
        """Positions [first, stop) as rows of the memory."""
        return first, stop
