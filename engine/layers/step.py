"""One forward pass: which rows belong to which sequence, and what all layers share about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cache.attention import Visible
from engine.cache.sequence import SequenceState
from engine.kernels.chunk_attention import causal_block
from engine.layers.rope import Rope


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Tokens to append to one sequence, and of how many of them, counted from the last, logits are wanted.

    `on_layer(l)` is called in the order of layers when layer l's K and V of these tokens are in the cache.
    """

    sequence: SequenceState
    tokens: list[int]
    n_logits: int = 1
    on_layer: Callable[[int], None] | None = None


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A segment's place: rows [begin, end) of the step are positions from `first` on; logits from `wanted` on."""

    sequence: SequenceState
    first: int
    begin: int
    wanted: int
    end: int


class Step:
    """The rows of all segments one after the other. Nothing here outlives one pass."""

    def __init__(self, segments: list[Segment], device: torch.device) -> None:
        self.rows: list[Rows] = []
        begin = 0
        for segment in segments:
            end = begin + len(segment.tokens)
            self.rows.append(
                Rows(
                    sequence=segment.sequence,
                    first=segment.sequence.length,
                    begin=begin,
                    wanted=max(begin, end - segment.n_logits),
                    end=end,
                )
            )
            begin = end
        self.n_rows = begin
        self.tokens = [token for segment in segments for token in segment.tokens]
        self.one_row_each = begin == len(segments)
        self._wanted = [row for rows in self.rows for row in range(rows.wanted, rows.end)]
        self._listeners = [segment.on_layer for segment in segments if segment.on_layer is not None]
        self._device = device
        self._factors: dict[int, Tensor] = {}
        self._blocks: dict[tuple[int, int, int], Tensor] = {}
        self._masks: dict[tuple[int, int, int, int], Tensor | None] = {}

    @property
    def cache_dtype(self) -> torch.dtype:
        return self.rows[0].sequence.layers[0].k.dtype

    def wanted(self, x: Tensor) -> Tensor:
        """The rows of x [T, d] whose logits are wanted: the last ones of their segments."""
        return x if len(self._wanted) == self.n_rows else x[self._wanted]

    def factors(self, rope: Rope) -> Tensor:
        """Rotary factors of all rows, made once for each kind of rope."""
        factors = self._factors.get(id(rope))
        if factors is None:
            spans = [rope.span(rows.first, rows.first + rows.end - rows.begin) for rows in self.rows]
            factors = spans[0] if len(spans) == 1 else torch.cat(spans)
            self._factors[id(rope)] = factors
        return factors

    def mask(self, seen: Visible, n_rows: int, window: int) -> Tensor | None:
        """`chunk_mask` for the last `n_rows` positions of `seen`, made once for all layers that look alike."""
        n_seen = seen.k.shape[0]
        key = (seen.first, n_seen, n_rows, window)
        if key not in self._masks:
            self._masks[key] = chunk_mask(seen.first, n_seen, n_rows, window, seen.k.dtype, self._device)
        return self._masks[key]

    def block_mask(self, rows: int, keys: int, group: int) -> Tensor:
        """`causal_block` in the cache's type, made once for all layers."""
        key = (rows, keys, group)
        mask = self._blocks.get(key)
        if mask is None:
            mask = self._blocks[key] = causal_block(rows, keys, group, self.cache_dtype)
        return mask

    def wrote(self, layer: int) -> None:
        """Layer `layer`'s K and V of every row are in the cache."""
        for on_layer in self._listeners:
            on_layer(layer)


def chunk_mask(
    first_seen: int, n_seen: int, n_rows: int, window: int, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    """Additive mask [T, S] for T new rows, the last of the S positions from `first_seen` on; 0 or -inf.

    `window` 0 means all earlier positions. None where the plain causal rule says the same.
    """
    if n_rows == n_seen and (not window or n_seen <= window):
        return None
    key = torch.arange(first_seen, first_seen + n_seen, device=device)
    query = key[n_seen - n_rows :].unsqueeze(1)
    hidden = key > query
    if window:
        hidden |= key <= query - window
    return torch.zeros(n_rows, n_seen, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
