"""One sequence's cache over all layers, the tokens it holds, and where a handoff reads or writes it.

On a CPU the cache tensors are the shared memory itself, so a courier receives straight into the slot. On a GPU the
shared memory is a mirror with the same addresses: `flush_out` copies rows into it before they are sent, `flush_in`
takes in what has landed. Knows nothing of requests or sockets.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.cache.attention import AttentionCache
from engine.cache.blocks import common_prefix
from engine.cache.spec import CacheSpec, KVType, Landing, LayerKind, LayerSpec, Region
from engine.cache.window import WindowCache
from engine.device import Device
from engine.errors import OutOfMemory

_DTYPES = {KVType.BF16: torch.bfloat16, KVType.F16: torch.float16, KVType.F32: torch.float32}

LayerCache = AttentionCache | WindowCache


class SequenceState:
    """One slot's cache. `tokens` are those whose K and V it holds, in order; `length` is their number."""

    def __init__(
        self,
        spec: CacheSpec,
        slot: int,
        layers: list[LayerCache],
        mirrors: list[tuple[Tensor, Tensor]] | None,
    ) -> None:
        self.slot = slot
        self.n_ctx = spec.n_ctx
        self.tokens: list[int] = []
        self.layers = layers
        self._spec = spec
        self._regions = spec.regions(slot)
        self._mirrors = mirrors

    @property
    def length(self) -> int:
        return len(self.tokens)

    def reset(self) -> None:
        """Forget everything."""
        self.tokens = []
        for layer in self.layers:
            layer.reset()

    def reusable(self, prompt: Sequence[int]) -> int:
        """The longest prefix of `prompt`, in tokens, that this cache can go on from. Changes nothing."""
        common = common_prefix(self.tokens, prompt)
        return common if all(layer.keeps(common) for layer in self.layers) else 0

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens, a number that `reusable` has returned; 0 forgets everything."""
        if length == 0:
            self.reset()
        else:
            del self.tokens[length:]

    def adopt(self, tokens: list[int]) -> None:
        """Its memory holds exactly `tokens`, whoever has written them there."""
        if tokens:
            self.tokens = tokens
        else:
            self.reset()

    def extend(self, tokens: Sequence[int]) -> None:
        """Count `tokens` as held: every layer has written their rows."""
        self.tokens.extend(tokens)

    # What follows is for handoffs: positions [start, stop) of a prompt move from a worker's sequence to this one.

    def prepare_landing(self, start: int, stop: int) -> tuple[Landing, ...]:
        """Where the rows of positions [start, stop) may be written. The first `start` tokens must be held already.

        A window layer takes only its last window, and may have to give up older rows for it: should the handoff fail,
        `reusable` tells what is left.
        """
        landings = []
        for index, (cache, spec) in enumerate(zip(self.layers, self._spec.layers, strict=True)):
            first, spare_rows = start, 0
            if isinstance(cache, WindowCache):
                first = max(start, stop - cache.window + 1)
                cache.make_room(start, first, stop)
                spare_rows = cache.spare_rows if first > start else 0
            row, _ = cache.place(first, stop)
            landings.append(_landing(index, spec, self._regions[index], first, stop, row, spare_rows))
        return tuple(landings)

    def land(self, prompt: Sequence[int], end: int, *, final: bool, place: int | None = None) -> None:
        """Every layer's part of `prompt` up to position `end` has been written to memory.

        Before the final chunk a window layer has nothing new, unless a checkpoint came with this one: to the first or
        second `place` of its landing. So models with such layers gain only at checkpoints and at the end.
        """
        if place is not None:
            for layer in self.layers:
                if isinstance(layer, WindowCache):
                    layer.landed(end, place)
        whole = final or place is not None
        self.flush_in(self.length, end, final=whole)
        if whole or all(isinstance(layer, AttentionCache) for layer in self.layers):
            self.tokens.extend(prompt[self.length : end])

    def spans(
        self, layer: int, first: int, end: int, *, final: bool, start: int, stop: int
    ) -> list[tuple[int, int]]:
        """(offset, bytes) in shared memory of what to send for `layer` after the chunk [first, end), K then V.

        `start` and `stop` bound the whole handoff. Empty where the chunk sends nothing for this layer.
        """
        rows = self._rows_to_send(layer, first, end, final=final, start=start, stop=stop)
        if rows is None:
            return []
        region = self._regions[layer]
        row, row_end = rows
        n_rows = row_end - row
        return [
            (region.k_offset + row * region.k_row_bytes, n_rows * region.k_row_bytes),
            (region.v_offset + row * region.v_row_bytes, n_rows * region.v_row_bytes),
        ]

    def flush_out(self, layer: int, first: int, end: int, *, final: bool, start: int, stop: int) -> None:
        """Bring what `spans` names into shared memory; nothing to do where the cache lies there."""
        if self._mirrors is None:
            return
        rows = self._rows_to_send(layer, first, end, final=final, start=start, stop=stop)
        if rows is not None:
            part = slice(*rows)
            cache, (k, v) = self.layers[layer], self._mirrors[layer]
            k[part].copy_(cache.k[part])
            v[part].copy_(cache.v[part])

    def flush_in(self, first: int, end: int, *, final: bool) -> None:
        """Take landed rows [first, end) out of shared memory; nothing to do where the cache lies there."""
        if self._mirrors is None:
            return
        for cache, (k, v) in zip(self.layers, self._mirrors, strict=True):
            if isinstance(cache, WindowCache):
                if not final:
                    continue
                part = slice(*cache.place(max(cache.held, end - cache.window + 1), end))
            else:
                part = slice(first, end)
            cache.k[part].copy_(k[part])
            cache.v[part].copy_(v[part])

    def set_aside(self, layer: int, end: int, aside: Tensor) -> None:
        """Copy the layer's window as of position `end`, which is the last one computed, to the bytes `aside`."""
        cache = self.layers[layer]
        rows = slice(*cache.place(end - cache.window + 1, end))
        at = 0
        for part in (cache.k[rows], cache.v[rows]):
            aside[at : at + part.nbytes].view(part.dtype).view(part.shape).copy_(part)
            at += part.nbytes

    def _rows_to_send(
        self, layer: int, first: int, end: int, *, final: bool, start: int, stop: int
    ) -> tuple[int, int] | None:
        cache = self.layers[layer]
        if isinstance(cache, WindowCache):
            if not final:
                return None
            return cache.place(max(start, stop - cache.window + 1), stop)
        return cache.place(first, end)


class SequencePool:
    """All slots of a model's cache, laid out in one block of memory of `spec.total_bytes()` bytes.

    A block with `spec.checkpoint_bytes()` more has room behind the slots for one checkpoint to be sent.
    """

    def __init__(self, spec: CacheSpec, device: Device, memory: memoryview) -> None:
        if len(memory) < spec.total_bytes():
            raise OutOfMemory(f"the cache needs {spec.total_bytes()} bytes and was given {len(memory)}")
        self.spec = spec
        self._device = device
        self._block = torch.frombuffer(memory, dtype=torch.uint8)
        self._sequences = [self._build(slot) for slot in range(spec.n_slots)]

    def sequence(self, slot: int) -> SequenceState:
        return self._sequences[slot]

    def set_aside(self, slot: int, layer: int, end: int) -> list[tuple[int, int]]:
        """Copy a window as of position `end` to where it stays; returns (offset, bytes) of its K rows and V rows."""
        offset = self.spec.total_bytes() + self.spec.checkpoint_offsets()[layer]
        spec = self.spec.layers[layer]
        k_bytes, v_bytes = (
            (spec.window - 1) * row_bytes(self.spec.kv_type)
            for row_bytes in (spec.k_row_bytes, spec.v_row_bytes)
        )
        self._sequences[slot].set_aside(layer, end, self._block[offset : offset + k_bytes + v_bytes])
        return [(offset, k_bytes), (offset + k_bytes, v_bytes)]

    def _build(self, slot: int) -> SequenceState:
        layers: list[LayerCache] = []
        mirrors: list[tuple[Tensor, Tensor]] = []
        for layer, region in zip(self.spec.layers, self.spec.regions(slot), strict=True):
            k, v = self._rows(region, layer)
            if not self._device.shares_host_memory:
                mirrors.append((k, v))
                k, v = (rows.new_empty(rows.shape, device=self._device.torch_device) for rows in (k, v))
            if layer.kind is LayerKind.WINDOW:
                layers.append(WindowCache(k, v, layer.window))
            else:
                layers.append(AttentionCache(k, v))
        return SequenceState(self.spec, slot, layers, mirrors or None)

    def _rows(self, region: Region, layer: LayerSpec) -> tuple[Tensor, Tensor]:
        dtype = _DTYPES[self.spec.kv_type]

        def rows(offset: int, row_bytes: int, head_dim: int) -> Tensor:
            block = self._block[offset : offset + region.rows * row_bytes]
            return block.view(dtype).view(region.rows, layer.n_kv_heads, head_dim)

        return (
            rows(region.k_offset, region.k_row_bytes, layer.k_head_dim),
            rows(region.v_offset, region.v_row_bytes, layer.v_head_dim),
        )


def _landing(
    index: int, spec: LayerSpec, region: Region, first: int, stop: int, row: int, spare_rows: int
) -> Landing:
    return Landing(
        layer=index,
        kind=spec.kind,
        first=first,
        stop=stop,
        k_offset=region.k_offset + row * region.k_row_bytes,
        v_offset=region.v_offset + row * region.v_row_bytes,
        k_row_bytes=region.k_row_bytes,
        v_row_bytes=region.v_row_bytes,
        state_offset=region.state_offset,
        state_bytes=region.state_bytes,
        spare_rows=spare_rows,
        spare_state_offset=region.spare_state_offset if spec.kind is LayerKind.RECURRENT else 0,
    )
