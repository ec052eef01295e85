"""How K and V rows travel in fewer bytes: cut into blocks, each packed by itself or sent as it is.

A frame of a codec other than raw holds K's rows, then V's, in blocks of whole rows. Each block is the length of its
body (4 bytes, little-endian) and the body. A body as long as the rows is the rows; a shorter one is packed, and must
have a length that the codec can have made of so many rows. So a block is checked before anything of it is read, and
takes one buffer of a fixed size. What a packed body holds is in `engine.wire.packing`, which needs numpy and is
imported with the first one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from engine.cache.spec import KVType
from engine.wire.codec import PayloadCodec
from engine.wire.limits import BLOCK_BYTES

BLOCK_HEADER = struct.Struct("<I")

# A packed block, in pieces.
Body = tuple[bytes | memoryview, ...]


class BlockCodec(Protocol):
    """Packs and unpacks one block after another, in memory that it keeps. Not for two threads at once."""

    def pack(self, rows: memoryview, head_dim: int) -> Body | None:
        """A body shorter than `rows`, which are heads of `head_dim` values one after another; None where it is not.

        It holds until the next call.
        """

    def may_be(self, body_bytes: int, rows_bytes: int, head_dim: int) -> bool:
        """Whether a packed body of that length can stand for so many bytes of rows."""

    def unpack(self, body: memoryview, into: memoryview, head_dim: int) -> None:
        """Write the rows to `into`, all of it; ProtocolError, with nothing written, where the body is not right."""


def block_codec(codec: PayloadCodec, kv_type: KVType) -> BlockCodec:
    """What packs rows of that type; ValueError for the raw codec, which has no blocks."""
    from engine.wire import packing

    match codec:
        case PayloadCodec.LOSSLESS:
            return packing.Lossless(kv_type)
        case PayloadCodec.INT8:
            return packing.Int8(kv_type)
    raise ValueError(f"the codec {codec.name} packs nothing")


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSpan:
    """K or V rows of one layer in memory: `n_bytes` from `offset` on, in heads of `head_dim` values."""

    offset: int
    n_bytes: int
    row_bytes: int
    head_dim: int

    def blocks(self) -> Iterator[tuple[int, int]]:
        """(offset, bytes) of each block: as many whole rows as BLOCK_BYTES hold, and one at least."""
        if not self.n_bytes:
            return
        step = max(1, BLOCK_BYTES // self.row_bytes) * self.row_bytes
        end = self.offset + self.n_bytes
        for at in range(self.offset, end, step):
            yield at, min(step, end - at)


@dataclass(frozen=True, kw_only=True)
class LosslessSpeed:
    """`bytes_per_s` of rows through the slower of packing and unpacking; packed, they are `ratio` times as long."""

    bytes_per_s: float
    ratio: float


def packed_blocks(
    codec: Callable[[], BlockCodec], spans: tuple[RowSpan, ...], memory: memoryview
) -> Iterator[memoryview | bytes]:
    """The payload of a frame in pieces, packed block by block as they are taken; each holds until the next is.

    `codec` is asked for when the first is.
    """
    packer = codec()
    for span in spans:
        for offset, n_bytes in span.blocks():
            rows = memory[offset : offset + n_bytes]
            body = packer.pack(rows, span.head_dim)
            if body is None:
                yield BLOCK_HEADER.pack(n_bytes)
                yield rows
            else:
                head, *rest = body
                yield BLOCK_HEADER.pack(sum(map(len, body))) + head
                yield from rest
