"""Where each layer's cache lies in memory: sizes and offsets, without torch.

A cache is one block of shared memory. In it each slot has its own stretch, and in that stretch every layer has
its K rows, then its V rows (attention and window layers), or room for two states (recurrent layers). A row is one
position: Hk heads of D values. The courier, the engine and `bench handoff` all take their addresses from here.
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass
from typing import NamedTuple

# Stretches start on a page, so that a slot never shares a page with another.
PAGE_BYTES = 16384

# A window layer keeps this many rows beyond its window, so that rows move only once in as many tokens.
WINDOW_SLACK_ROWS = 1024


class KVType(enum.StrEnum):
    """Element type of cached K and V."""

    BF16 = "bf16"
    F16 = "f16"
    F32 = "f32"

    @property
    def element_bytes(self) -> int:
        return 4 if self is KVType.F32 else 2


def kv_type_of(wanted: str, weights: str) -> KVType:
    """The type of the setting `kv_type`; auto follows the setting `weights`."""
    if wanted == "auto":
        return KVType.F32 if weights == "float32" else KVType.BF16
    return KVType(wanted)


class LayerKind(enum.StrEnum):
    ATTENTION = "attention"
    WINDOW = "window"
    RECURRENT = "recurrent"


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """What one layer caches.

    Attention and window layers: `n_kv_heads`, `k_head_dim`, `v_head_dim`; a window layer attends to the token
    itself and the `window` - 1 before it. Recurrent layers: `state_bytes` whatever the position.
    """

    kind: LayerKind
    n_kv_heads: int = 0
    k_head_dim: int = 0
    v_head_dim: int = 0
    window: int = 0
    state_bytes: int = 0

    def k_row_bytes(self, kv_type: KVType) -> int:
        return self.n_kv_heads * self.k_head_dim * kv_type.element_bytes

    def v_row_bytes(self, kv_type: KVType) -> int:
        return self.n_kv_heads * self.v_head_dim * kv_type.element_bytes

    def row_bytes(self, kv_type: KVType) -> int:
        """Bytes of one position, K and V together; 0 for a recurrent layer."""
        return self.k_row_bytes(kv_type) + self.v_row_bytes(kv_type)

    def capacity_rows(self, n_ctx: int) -> int:
        """Rows that this layer has room for in a slot of `n_ctx` positions."""
        if self.kind is LayerKind.RECURRENT:
            return 0
        if self.kind is LayerKind.WINDOW:
            return min(n_ctx, self.window + WINDOW_SLACK_ROWS)
        return n_ctx


@dataclass(frozen=True, kw_only=True)
class Region:
    """One layer's place in one slot; offsets and sizes in bytes from the start of the shared memory.

    A recurrent layer has only `state_offset` and `state_bytes`; the others have none.
    """

    k_offset: int
    v_offset: int
    k_row_bytes: int
    v_row_bytes: int
    rows: int
    state_offset: int
    state_bytes: int

    @property
    def spare_state_offset(self) -> int:
        """Where a second state has room, so that one is whole while another one comes."""
        return self.state_offset + _page_up(self.state_bytes)


@dataclass(frozen=True, kw_only=True)
class CacheSpec:
    """A model's cache: what every layer keeps, how many positions a slot has, how many slots there are."""

    layers: tuple[LayerSpec, ...]
    kv_type: KVType
    n_ctx: int
    n_slots: int

    def slot_bytes(self) -> int:
        return sum(_layer_bytes(layer, self.kv_type, self.n_ctx) for layer in self.layers)

    def total_bytes(self) -> int:
        return self.slot_bytes() * self.n_slots

    def bytes_per_token(self) -> int:
        """Bytes that one more position costs over all attention layers."""
        return sum(
            layer.row_bytes(self.kv_type) for layer in self.layers if layer.kind is LayerKind.ATTENTION
        )

    def checkpoint_bytes(self) -> int:
        """Bytes of all windows and states as of one position; 0 where none of the layers has any."""
        return sum(_checkpoint_bytes(layer, self.kv_type) for layer in self.layers)

    def checkpoint_offsets(self) -> tuple[int, ...]:
        """Where each layer's part lies in a checkpoint that is set aside, from its start."""
        offsets = itertools.accumulate(
            (_checkpoint_bytes(layer, self.kv_type) for layer in self.layers), initial=0
        )
        return tuple(offsets)[:-1]

    def regions(self, slot: int) -> tuple[Region, ...]:
        """Every layer's place in `slot`; raises IndexError for a slot that does not exist."""
        if not 0 <= slot < self.n_slots:
            raise IndexError(f"slot {slot} of {self.n_slots}")
        regions = []
        offset = slot * self.slot_bytes()
        for layer in self.layers:
            rows = layer.capacity_rows(self.n_ctx)
            k_row, v_row = layer.k_row_bytes(self.kv_type), layer.v_row_bytes(self.kv_type)
            v_offset = offset + _page_up(rows * k_row)
            regions.append(
                Region(
                    k_offset=offset,
                    v_offset=v_offset,
                    k_row_bytes=k_row,
                    v_row_bytes=v_row,
                    rows=rows,
                    state_offset=offset,
                    state_bytes=layer.state_bytes,
                )
            )
            offset += _layer_bytes(layer, self.kv_type, self.n_ctx)
        return tuple(regions)


def _page_up(n_bytes: int) -> int:
    return -(-n_bytes // PAGE_BYTES) * PAGE_BYTES


def _layer_bytes(layer: LayerSpec, kv_type: KVType, n_ctx: int) -> int:
    if layer.kind is LayerKind.RECURRENT:
        return 2 * _page_up(layer.state_bytes)
    rows = layer.capacity_rows(n_ctx)
    return _page_up(rows * layer.k_row_bytes(kv_type)) + _page_up(rows * layer.v_row_bytes(kv_type))


def _checkpoint_bytes(layer: LayerSpec, kv_type: KVType) -> int:
    return layer.state_bytes + max(0, layer.window - 1) * layer.row_bytes(kv_type)


@dataclass(frozen=True, kw_only=True)
class Landing:
    """Where one layer's part of a handoff may be written on the decode side.

    Positions [first, stop) of an attention or window layer land at `k_offset` and `v_offset` onwards, a row each; a
    recurrent layer has first == stop and its `state_bytes` land at `state_offset`. Nothing outside may be written.

    A window or a state may have a second place, `spare_rows` further on or at `spare_state_offset`: then it may come
    more than once on the way, to the one place while the other is whole. Without a second place both are 0.
    """

    layer: int
    kind: LayerKind
    first: int
    stop: int
    k_offset: int
    v_offset: int
    k_row_bytes: int
    v_row_bytes: int
    state_offset: int
    state_bytes: int
    spare_rows: int = 0
    spare_state_offset: int = 0


class CacheRow(NamedTuple):
    """Addresses in one layer's cache for one new row: its own K and V, the first visible ones, how many are seen."""

    k_row: int
    v_row: int
    k_first: int
    v_first: int
    n_seen: int
