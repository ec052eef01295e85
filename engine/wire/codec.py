"""Frames: how messages and cache data become bytes, and back through one strict reader.

Every frame starts with 8 bytes, little-endian: magic (2), kind (1), a zero (1), length of the body (4). A
control frame's body is one message in MessagePack. A data frame's body is 32 bytes that say what follows:
request (8), chunk (4), layer (2), codec (1), a zero (1), first row (4), rows (4), payload bytes (8); then
the payload: K rows and V rows of one layer in one chunk, or one recurrent state. The length of the body
leaves the payload out, and payload bytes are those of the rows, however few the codec makes of them.

Nothing here knows which message may come when, or where a payload goes.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from engine.errors import ProtocolError
from engine.wire.limits import MAX_CHUNKS, MAX_LAYERS
from engine.wire.messages import (
    ControlMessage,
    IntroductionMessage,
    Message,
    StreamMessage,
)

MAGIC = 0x4E42  # the bytes "BN"
FRAME_HEADER = struct.Struct("<HBBI")
DATA_HEADER = struct.Struct("<QIHBBIIQ")


class FrameKind(enum.IntEnum):
    CONTROL = 1
    DATA = 2


class PayloadCodec(enum.IntEnum):
    """How a payload's bytes stand for rows: the number on the wire of a codec that the hello calls by `label`."""

    RAW = 0
    LOSSLESS = 1
    INT8 = 2

    @property
    def label(self) -> str:
        return self.name.lower()

    @classmethod
    def labelled(cls, label: str) -> PayloadCodec:
        """ValueError for a codec that is not known here."""
        for codec in cls:
            if codec.label == label:
                return codec
        raise ValueError(f"the codec {label} is not known")


CODECS = tuple(codec.label for codec in PayloadCodec)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataHeader:
    """What one data frame carries: rows [first_row, first_row + rows) of a layer, or (rows 0) its state."""

    request: int
    chunk: int
    layer: int
    codec: PayloadCodec
    first_row: int
    rows: int
    payload_bytes: int


_encoder = msgspec.msgpack.Encoder()
CONTROL_MESSAGES = msgspec.msgpack.Decoder(ControlMessage)
STREAM_MESSAGES = msgspec.msgpack.Decoder(StreamMessage)
INTRODUCTION_MESSAGES = msgspec.msgpack.Decoder(IntroductionMessage)

_Decoded = TypeVar("_Decoded")


class _HelloVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a hello that every version of the protocol keeps, so that both can be named."""

    type: str
    protocol_major: int
    protocol_minor: int


def encode_message(message: Message) -> bytes:
    """One control frame."""
    body = _encoder.encode(message)
    return FRAME_HEADER.pack(MAGIC, FrameKind.CONTROL, 0, len(body)) + body


def encode_data_header(header: DataHeader) -> bytes:
    """The 40 bytes that go before a payload."""
    return FRAME_HEADER.pack(MAGIC, FrameKind.DATA, 0, DATA_HEADER.size) + DATA_HEADER.pack(
        header.request,
        header.chunk,
        header.layer,
        header.codec,
        0,
        header.first_row,
        header.rows,
        header.payload_bytes,
    )


def decode_frame_header(
    data: bytes | bytearray | memoryview, *, max_body_bytes: int
) -> tuple[FrameKind, int]:
    """Kind and body length of a frame from its first 8 bytes; ProtocolError if it is none, or too long."""
    magic, kind, zero, body_bytes = FRAME_HEADER.unpack_from(data)
    if magic != MAGIC or zero != 0:
        raise ProtocolError("the other computer sent something that is not a Baton frame")
    if kind == FrameKind.DATA:
        if body_bytes != DATA_HEADER.size:
            raise ProtocolError(f"a data frame's header of {body_bytes} bytes instead of {DATA_HEADER.size}")
        return FrameKind.DATA, body_bytes
    if kind != FrameKind.CONTROL:
        raise ProtocolError(f"a frame of unknown kind {kind}")
    if not 0 < body_bytes <= max_body_bytes:
        raise ProtocolError(f"a message of {body_bytes} bytes where at most {max_body_bytes} are allowed")
    return FrameKind.CONTROL, body_bytes


def decode_data_header(data: bytes | bytearray | memoryview) -> DataHeader:
    """What a data frame carries, from the 32 bytes after its frame header; ProtocolError for values out of range."""
    request, chunk, layer, codec, zero, first_row, rows, payload_bytes = DATA_HEADER.unpack_from(data)
    try:
        payload_codec = PayloadCodec(codec)
    except ValueError:
        raise ProtocolError(f"a data frame in codec {codec}, which is not known") from None
    if zero != 0 or layer >= MAX_LAYERS or chunk >= MAX_CHUNKS:
        raise ProtocolError("a data frame's header holds impossible values")
    return DataHeader(
        request=request,
        chunk=chunk,
        layer=layer,
        codec=payload_codec,
        first_row=first_row,
        rows=rows,
        payload_bytes=payload_bytes,
    )


def decode_message(
    body: bytes | bytearray | memoryview, decoder: msgspec.msgpack.Decoder[_Decoded]
) -> _Decoded:
    """The message of a control frame's body; ProtocolError for anything but exactly one known, valid message."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f"a message that is not valid: {error}") from error


def hello_version(body: bytes | bytearray | memoryview) -> tuple[str, int, int] | None:
    """(message type, major, minor) of a hello of whatever version, or None where it names none."""
    try:
        version = msgspec.msgpack.decode(body, type=_HelloVersion)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return version.type, version.protocol_major, version.protocol_minor


class FrameReader:
    """Cuts a stream of control frames into bodies. Holds at most one frame's bytes beyond what was fed."""

    def __init__(self, *, max_body_bytes: int) -> None:
        self.max_body_bytes = max_body_bytes
        self._buffer = bytearray()

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        self._buffer += data

    def next_body(self) -> bytes | None:
        """The next frame's body, or None until more was fed; ProtocolError for anything but a control frame."""
        if len(self._buffer) < FRAME_HEADER.size:
            return None
        kind, body_bytes = decode_frame_header(self._buffer, max_body_bytes=self.max_body_bytes)
        if kind is not FrameKind.CONTROL:
            raise ProtocolError("cache data on the control connection")
        end = FRAME_HEADER.size + body_bytes
        if len(self._buffer) < end:
            return None
        body = bytes(memoryview(self._buffer)[FRAME_HEADER.size : end])
        del self._buffer[:end]
        return body
