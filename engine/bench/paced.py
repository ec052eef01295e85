"""Stands in for a model on the worker: takes a model's time for every layer and has K and V ready when it is over.

What it "computes" lies in the cache memory from the start. Torch-free; see `handoff.prefiller.Prefiller`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from engine.cache.spec import CacheSpec, Landing, LayerKind
from engine.handoff.prefiller import Part, Taken

# When a layer's part of the cache is there, as a share of the layer's work, from the parameters of a 27B hybrid. The
# engine pushes at that point, and the rest of the layer (attention, MLP) computes while the bytes travel. Of the last
# layer there is no rest: nothing but its K and V, or its state, is computed.
READY_AT = {LayerKind.ATTENTION: 0.1, LayerKind.WINDOW: 0.1, LayerKind.RECURRENT: 0.4}


class PacedPrefiller:
    """A chunk of `chunk_tokens` takes `compute_s`, others in proportion; layers share it alike, the last has less."""

    def __init__(self, spec: CacheSpec, *, chunk_tokens: int, compute_s: float) -> None:
        self._spec = spec
        self._regions = spec.regions(0)
        self._s_per_token = compute_s / chunk_tokens
        ready = [index + READY_AT[layer.kind] for index, layer in enumerate(spec.layers)]
        self._ready_at = [share / ready[-1] for share in ready]

    @property
    def n_sequences(self) -> int:
        return 1

    @property
    def n_layers(self) -> int:
        return len(self._spec.layers)

    def on_wakeup(self, wakeup: Callable[[], None]) -> None:
        """Nothing is ever restored."""

    def begin(self, tokens: list[int], free: Collection[int], *, reuse: bool) -> Taken:
        return Taken(sequence=0, held=0)

    def restored(self) -> list[Taken]:
        return []

    def release(self, sequence: int) -> None:
        """Nothing is kept."""

    def compute(self, parts: list[Part]) -> None:
        begun_s = time.monotonic()
        chunk_s = self._s_per_token * sum(part.end - part.first for part in parts)
        for layer, share in enumerate(self._ready_at):
            wait_s = begun_s + chunk_s * share - time.monotonic()
            if wait_s > 0:
                time.sleep(wait_s)
            for part in parts:
                part.on_layer(layer)

    def spans(
        self, sequence: int, layer: int, first: int, end: int, *, final: bool, start: int, stop: int
    ) -> list[tuple[int, int]]:
        spec, region = self._spec.layers[layer], self._regions[layer]
        if spec.kind is LayerKind.ATTENTION:
            row = first
        elif not final:
            return []
        elif spec.kind is LayerKind.RECURRENT:
            return [(region.state_offset, region.state_bytes)]
        else:
            first, end, row = max(start, stop - spec.window + 1), stop, 0
        rows = end - first
        return [
            (region.k_offset + row * region.k_row_bytes, rows * region.k_row_bytes),
            (region.v_offset + row * region.v_row_bytes, rows * region.v_row_bytes),
        ]

    def set_aside(self, sequence: int, layer: int, end: int) -> list[tuple[int, int]]:
        # Nothing is computed, so nothing changes: a state stays where it is.
        spec, region = self._spec.layers[layer], self._regions[layer]
        if spec.kind is LayerKind.RECURRENT:
            return [(region.state_offset, region.state_bytes)]
        rows = spec.window - 1
        return [(region.k_offset, rows * region.k_row_bytes), (region.v_offset, rows * region.v_row_bytes)]

    def tail_limit_s(
        self, chunks: list[tuple[int, int]], *, bytes_per_s: float, packed: float = 1.0
    ) -> float:
        """The least tail that a link of that ceiling leaves when these chunks, the whole prompt, are handed over.

        `packed` is the share of K's and V's bytes that their codec leaves; states are sent as they are.
        Over the layers of the last chunk: what is to be sent from that layer on, less the compute that is left then.
        """
        start, stop = chunks[0][0], chunks[-1][1]
        first, end = chunks[-1]
        chunk_s = self._s_per_token * (end - first)
        limit_s, unsent_bytes = 0.0, 0.0
        for layer in reversed(range(len(self._ready_at))):
            spans = self.spans(0, layer, first, end, final=True, start=start, stop=stop)
            share = 1.0 if self._spec.layers[layer].kind is LayerKind.RECURRENT else packed
            unsent_bytes += share * sum(n_bytes for _, n_bytes in spans)
            left_s = chunk_s * (1 - self._ready_at[layer])
            limit_s = max(limit_s, unsent_bytes / bytes_per_s - left_s)
        return limit_s


def landings_for(spec: CacheSpec, stop: int) -> tuple[Landing, ...]:
    """Where positions [0, stop) land in slot 0: at the very offsets that PacedPrefiller takes them from."""
    landings = []
    for index, (layer, region) in enumerate(zip(spec.layers, spec.regions(0), strict=True)):
        first = 0
        if layer.kind is LayerKind.WINDOW:
            first = max(0, stop - layer.window + 1)
        if layer.kind is LayerKind.RECURRENT:
            first = stop
        landings.append(
            Landing(
                layer=index,
                kind=layer.kind,
                first=first,
                stop=stop,
                k_offset=region.k_offset,
                v_offset=region.v_offset,
                k_row_bytes=region.k_row_bytes,
                v_row_bytes=region.v_row_bytes,
                state_offset=region.state_offset,
                state_bytes=region.state_bytes,
            )
        )
    return tuple(landings)
