"""What each data frame of a handoff must hold: rows and bytes by layer and chunk. Pure arithmetic.

Both ends take it from here: the worker to write headers, the client to check them. Attention layers give the
chunk's own rows. Window layers and recurrent states belong to the final chunk: the window's last rows before
`stop`, or the state. A chunk before it may hold them too, as of its own end: then it is a checkpoint, from which
the client can go on should the rest not come.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from engine.batching.chunks import equal_chunks
from engine.cache.spec import KVType, LayerKind
from engine.wire.blocks import RowSpan
from engine.wire.limits import MAX_CHECKPOINT_BYTES
from engine.wire.messages import LayerShape


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One layer's share of one chunk: rows [first_row, first_row + rows), K's bytes and V's, or a state's."""

    layer: int
    first_row: int
    rows: int
    k_bytes: int
    v_bytes: int
    state_bytes: int

    @property
    def payload_bytes(self) -> int:
        return self.k_bytes + self.v_bytes + self.state_bytes


def state_stream(layer: int, n_streams: int) -> int:
    """The data stream of a layer's windows or states: always the same, so that what is sent later arrives later."""
    return layer % n_streams


@dataclass(frozen=True, kw_only=True)
class HandoffPlan:
    """How positions [first, stop) of every layer are cut into frames. `chunks` is empty when first == stop."""

    layers: tuple[LayerShape, ...]
    kv_type: KVType
    first: int
    stop: int
    chunks: tuple[tuple[int, int], ...]

    @classmethod
    def cut(
        cls, *, layers: tuple[LayerShape, ...], kv_type: KVType, first: int, stop: int, chunk_tokens: int
    ) -> HandoffPlan:
        chunks = tuple(equal_chunks(first, stop, chunk_tokens))
        return cls(layers=layers, kv_type=kv_type, first=first, stop=stop, chunks=chunks)

    def is_final(self, chunk: int) -> bool:
        return chunk == len(self.chunks) - 1

    @cached_property
    def first_checkpoint(self) -> int | None:
        """The first chunk that can be a checkpoint, and all after it can: each window lies in what is sent. Or None."""
        reach = max((shape.window - 1 for shape in self.layers if shape.kind is LayerKind.WINDOW), default=0)
        if 0 < self.checkpoint_bytes <= MAX_CHECKPOINT_BYTES:
            for chunk, (_, end) in enumerate(self.chunks[:-1]):
                if end - reach > self.first:
                    return chunk
        return None

    @cached_property
    def checkpoint_bytes(self) -> int:
        """What a checkpoint adds to a chunk; 0 where the attention layers are all there is."""
        return sum(
            shape.state_bytes
            + max(0, shape.window - 1)
            * shape.n_kv_heads
            * (shape.k_head_dim + shape.v_head_dim)
            * self.kv_type.element_bytes
            for shape in self.layers
        )

    def can_hold_state(self, chunk: int) -> bool:
        """Whether windows and states may come with that chunk."""
        first = self.first_checkpoint
        return self.is_final(chunk) or (first is not None and chunk >= first)

    def part(self, chunk: int, layer: int, *, checkpoint: bool = False) -> Part | None:
        """That layer's share of that chunk, or None where it has none; IndexError for what does not exist."""
        shape = self.layers[layer]
        first_row, end_row = self.chunks[chunk]
        if shape.kind is not LayerKind.ATTENTION and not checkpoint and not self.is_final(chunk):
            return None
        if shape.kind is LayerKind.RECURRENT:
            state = Part(
                layer=layer, first_row=end_row, rows=0, k_bytes=0, v_bytes=0, state_bytes=shape.state_bytes
            )
            return state if shape.state_bytes else None
        if shape.kind is LayerKind.WINDOW:
            first_row = max(self.first, end_row - (shape.window - 1))
        rows = end_row - first_row
        if rows <= 0:
            return None
        heads_bytes = rows * shape.n_kv_heads * self.kv_type.element_bytes
        return Part(
            layer=layer,
            first_row=first_row,
            rows=rows,
            k_bytes=heads_bytes * shape.k_head_dim,
            v_bytes=heads_bytes * shape.v_head_dim,
            state_bytes=0,
        )

    def row_spans(self, part: Part, k_offset: int, v_offset: int) -> tuple[RowSpan, RowSpan]:
        """The part's K rows and V rows in memory, which begin there."""
        shape = self.layers[part.layer]
        k_row, v_row = (
            shape.n_kv_heads * head_dim * self.kv_type.element_bytes
            for head_dim in (shape.k_head_dim, shape.v_head_dim)
        )
        return (
            RowSpan(offset=k_offset, n_bytes=part.k_bytes, row_bytes=k_row, head_dim=shape.k_head_dim),
            RowSpan(offset=v_offset, n_bytes=part.v_bytes, row_bytes=v_row, head_dim=shape.v_head_dim),
        )

    def window_rows(self, shape: LayerShape) -> tuple[int, int]:
        """The rows of a window layer that the token at `stop` can still see, less those the client has."""
        return max(self.first, self.stop - (shape.window - 1)), self.stop

    def parts(self, chunk: int, *, checkpoint: bool = False) -> tuple[Part, ...]:
        """Every layer's share of that chunk, in the order of the layers."""
        return tuple(
            part
            for layer in range(len(self.layers))
            if (part := self.part(chunk, layer, checkpoint=checkpoint)) is not None
        )

    def n_parts(self, chunk: int, *, checkpoint: bool = False) -> int:
        """How many layers have a share of that chunk."""
        return self._n_final_parts if checkpoint or self.is_final(chunk) else self._n_inner_parts

    @cached_property
    def _n_inner_parts(self) -> int:
        return len(self.parts(0))

    @cached_property
    def _n_final_parts(self) -> int:
        return len(self.parts(len(self.chunks) - 1))
