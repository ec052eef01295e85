"""The cache of a sliding-window layer: only the last positions, in a buffer that slides over the sequence."""

from __future__ import annotations

from torch import Tensor

from engine.cache.attention import Visible
from engine.cache.spec import CacheRow


class WindowCache:
    """K [rows, Hk, Dk] and V [rows, Hk, Dv] have room for positions [base, base + rows), and hold those from `held` on.

    A row attends to itself and the `window` - 1 before it. When the buffer is full its last `window` - 1 rows move to
    the front, so rows stay contiguous and move once in many tokens.
    """

    def __init__(self, k: Tensor, v: Tensor, window: int) -> None:
        self.k = k
        self.v = v
        self.window = window
        self.base = 0
        self.held = 0
        self._k_row_bytes = k[0].nbytes
        self._v_row_bytes = v[0].nbytes

    def write(self, first: int, k: Tensor, v: Tensor) -> Visible:
        """Store k and v [T, Hk, D] at positions from `first` on; returns what these T rows may look at.

        More rows than the buffer holds are allowed: what is returned still covers all their windows.
        """
        end = first + k.shape[0]
        seen = max(0, first - self.window + 1)
        if end - self.base > self.k.shape[0]:
            return self._slide(first, k, v, seen)
        at = first - self.base
        self.k[at : at + k.shape[0]].copy_(k)
        self.v[at : at + v.shape[0]].copy_(v)
        start = max(seen, self.held)
        return Visible(
            k=self.k[start - self.base : end - self.base],
            v=self.v[start - self.base : end - self.base],
            first=start,
        )

    def _slide(self, first: int, k: Tensor, v: Tensor, seen: int) -> Visible:
        # The kept rows may overlap their new place, and the new rows may not all fit: join them apart.
        kept = slice(seen - self.base, first - self.base)
        new_k = k.to(self.k.dtype)
        new_v = v.to(self.v.dtype)
        all_k = new_k.new_empty(first - seen + k.shape[0], *k.shape[1:])
        all_v = new_v.new_empty(first - seen + v.shape[0], *v.shape[1:])
        all_k[: first - seen].copy_(self.k[kept])
        all_v[: first - seen].copy_(self.v[kept])
        all_k[first - seen :].copy_(new_k)
        all_v[first - seen :].copy_(new_v)
        end = first + k.shape[0]
        self.base = self.held = max(seen, end - self.k.shape[0], 0)
        stored = slice(self.base - seen, None)
        n_stored = end - self.base
        self.k[:n_stored].copy_(all_k[stored])
        self.v[:n_stored].copy_(all_v[stored])
        return Visible(k=all_k, v=all_v, first=seen)

    def claim(self, position: int) -> CacheRow:
        """Where a kernel may write the row of `position` by itself, and what that row may look at."""
        seen = max(0, position - self.window + 1)
        if position + 1 - self.base > self.k.shape[0]:
            self._move(seen, position)
        start = max(seen, self.held)
        k_base = self.k.data_ptr() - self.base * self._k_row_bytes
        v_base = self.v.data_ptr() - self.base * self._v_row_bytes
        return CacheRow(
            k_row=k_base + position * self._k_row_bytes,
            v_row=v_base + position * self._v_row_bytes,
            k_first=k_base + start * self._k_row_bytes,
            v_first=v_base + start * self._v_row_bytes,
            n_seen=position + 1 - start,
        )

    def _move(self, base: int, end: int) -> None:
        """Bring positions [base, end) to the front of the buffer."""
        for rows in (self.k, self.v):
            rows[: end - base].copy_(rows[base - self.base : end - self.base].clone())
        self.base = self.held = base

    def keeps(self, length: int) -> bool:
        """Whether the window that ends at `length` is still here."""
        return max(0, length - self.window + 1) >= self.held

    def state(self, length: int) -> tuple[Tensor, Tensor]:
        """The K and V rows that a token at `length` can see, where `keeps` says that they are here."""
        rows = slice(max(0, length - self.window + 1) - self.base, length - self.base)
        return self.k[rows], self.v[rows]

    def go_on_from(self, length: int) -> tuple[Tensor, Tensor]:
        """Where to write what `state` gave for `length`: the cache stands there then, whatever it held."""
        self.base = self.held = max(0, length - self.window + 1)
        return self.k[: length - self.base], self.v[: length - self.base]

    def reset(self) -> None:
        """Forget everything."""
        self.base = self.held = 0

    def place(self, first: int, stop: int) -> tuple[int, int]:
        """Positions [first, stop) as rows of the memory."""
        return first - self.base, stop - self.base

    def make_room(self, start: int, first: int, stop: int) -> None:
        """Prepare for a handoff that brings positions [first, stop); those before `start` are held now.

        Rows that no later position can see are given up only where the new ones would not fit otherwise.
        """
        if first > start:
            self.base = self.held = first
        elif stop - self.base > self.k.shape[0]:
            self._move(max(self.held, stop - self.window + 1), start)

    @property
    def spare_rows(self) -> int:
        """How far behind a first window a second one has room; 0 where it has none."""
        return self.window - 1 if 2 * (self.window - 1) <= self.k.shape[0] else 0

    def landed(self, stop: int, place: int) -> None:
        """The window of position `stop`, all of it, has come to the first place (0) or the second (1)."""
        self.held = stop - self.window + 1
        self.base = self.held - place * self.spare_rows
