"""Frames: golden bytes, and the strict reader."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from engine.errors import ProtocolError
from engine.wire.codec import (
    CONTROL_MESSAGES,
    DATA_HEADER,
    FRAME_HEADER,
    INTRODUCTION_MESSAGES,
    STREAM_MESSAGES,
    DataHeader,
    FrameReader,
    PayloadCodec,
    decode_data_header,
    decode_frame_header,
    decode_message,
    encode_data_header,
    encode_message,
)
from engine.wire.limits import MAX_CONTROL_BYTES, MAX_HELLO_BYTES
from engine.wire.messages import (
    Aborted,
    Accepted,
    AnyMessage,
    Attach,
    Busy,
    Cancel,
    Code,
    Commit,
    CommitAck,
    ComputeDone,
    Error,
    Fence,
    FenceReply,
    Finished,
    HelloRefused,
    Introduce,
    Introduced,
    Message,
    Ping,
    Pong,
    Prefill,
    Progress,
    Refused,
    Warm,
)
from tests.engine.wire.ends import SESSION, hello, hello_reply

GOLDEN = Path(__file__).with_name("golden_frames.json")

EXAMPLES: dict[str, Message] = {
    "introduce": Introduce(certificate=b"\x30\x03\x02\x01\x05"),
    "introduced": Introduced(),
    "hello": hello(),
    "hello_reply": hello_reply(),
    "hello_refused": HelloRefused(code=Code.MODEL, message="not the same model"),
    "attach": Attach(session=SESSION, stream=2),
    "prefill": Prefill(
        request=7, tokens=b"\x01\0\0\0\x02\0\0\0\xff\xff\1\0", first=1, stop=3, chunk_tokens=512, codec="raw"
    ),
    "warm": Warm(tokens=b"\x01\0\0\0\x02\0\0\0"),
    "accepted": Accepted(request=7, reused_tokens=2),
    "busy": Busy(request=7, message="one job at a time"),
    "refused": Refused(request=7, code=Code.TOO_LONG, message="too long"),
    "progress": Progress(request=7, computed_tokens=512),
    "commit": Commit(
        request=7,
        chunk=3,
        first=512,
        stop=1024,
        layers=3,
        payload_bytes=1 << 33,
        started_us=5,
        ended_us=1 << 40,
        queued_us=(6, 7, 1 << 40),
    ),
    "commit_ack": CommitAck(request=7, chunk=3),
    "compute_done": ComputeDone(request=7, started_us=10, ended_us=1 << 40),
    "finished": Finished(request=7, payload_bytes=1 << 33, tail_us=900),
    "cancel": Cancel(request=7),
    "aborted": Aborted(request=7, code=Code.WORKER_FAILED, message="out of luck"),
    "fence": Fence(fence=9),
    "fence_reply": FenceReply(fence=9),
    "ping": Ping(sent_us=123),
    "pong": Pong(ping_sent_us=123, received_us=456),
    "error": Error(code=Code.GOING, message="it was stopped"),
}
EXAMPLE_HEADER = DataHeader(
    request=7, chunk=3, layer=63, codec=PayloadCodec.RAW, first_row=1536, rows=512, payload_bytes=2097152
)


def test_every_message_has_an_example() -> None:
    assert {type(message) for message in EXAMPLES.values()} == set(AnyMessage.__args__)


@pytest.mark.parametrize("name", EXAMPLES)
def test_golden_control_frames(name: str) -> None:
    golden = bytes.fromhex(json.loads(GOLDEN.read_text())[name])
    message = EXAMPLES[name]
    assert encode_message(message) == golden
    decoder: msgspec.msgpack.Decoder = msgspec.msgpack.Decoder(type(message))
    assert decode_message(golden[FRAME_HEADER.size :], decoder) == message


def test_golden_data_frame_header() -> None:
    golden = bytes.fromhex(json.loads(GOLDEN.read_text())["data_header"])
    # Written out by hand once: magic, kind, zero, length; then the eight fields.
    assert golden == b"BN\x02\0\x20\0\0\0" + (
        b"\x07\0\0\0\0\0\0\0" + b"\x03\0\0\0" + b"\x3f\0" + b"\0\0" + b"\0\x06\0\0" + b"\0\x02\0\0"
        b"\0\0\x20\0\0\0\0\0"
    )
    assert encode_data_header(EXAMPLE_HEADER) == golden
    assert decode_data_header(golden[FRAME_HEADER.size :]) == EXAMPLE_HEADER


def test_reader_cuts_frames_wherever_bytes_are_cut() -> None:
    frames = [encode_message(message) for message in EXAMPLES.values()]
    reader = FrameReader(max_body_bytes=MAX_HELLO_BYTES)
    bodies = []
    for byte in b"".join(frames):
        reader.feed(bytes([byte]))
        while (body := reader.next_body()) is not None:
            bodies.append(body)
    assert bodies == [frame[FRAME_HEADER.size :] for frame in frames]
    assert reader.buffered_bytes == 0


@pytest.mark.parametrize(
    "header",
    [
        FRAME_HEADER.pack(0x4E43, 1, 0, 5),  # magic
        FRAME_HEADER.pack(0x4E42, 1, 1, 5),  # the zero
        FRAME_HEADER.pack(0x4E42, 3, 0, 5),  # kind
        FRAME_HEADER.pack(0x4E42, 1, 0, 0),  # empty
        FRAME_HEADER.pack(0x4E42, 1, 0, 101),  # above the limit
        FRAME_HEADER.pack(0x4E42, 1, 0, 0xFFFFFFFF),
        FRAME_HEADER.pack(0x4E42, 2, 0, DATA_HEADER.size - 1),
        FRAME_HEADER.pack(0x4E42, 2, 0, DATA_HEADER.size + 1),
    ],
)
def test_bad_frame_headers_are_refused(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_frame_header(header, max_body_bytes=100)


def test_too_long_a_frame_is_refused_by_its_header_alone() -> None:
    reader = FrameReader(max_body_bytes=MAX_HELLO_BYTES)
    reader.feed(FRAME_HEADER.pack(0x4E42, 1, 0, MAX_HELLO_BYTES + 1))
    with pytest.raises(ProtocolError, match="at most 65536"):
        reader.next_body()


def test_data_on_a_control_connection_is_refused() -> None:
    reader = FrameReader(max_body_bytes=MAX_CONTROL_BYTES)
    reader.feed(encode_data_header(EXAMPLE_HEADER))
    with pytest.raises(ProtocolError, match="cache data"):
        reader.next_body()


@pytest.mark.parametrize("field, value", [(1, 1 << 16), (2, 1024), (3, 3), (4, 1)])
def test_data_headers_out_of_range_are_refused(field: int, value: int) -> None:
    fields = [7, 3, 63, 0, 0, 1536, 512, 2097152]
    fields[field] = value
    with pytest.raises(ProtocolError):
        decode_data_header(DATA_HEADER.pack(*fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "cancel"},
        {"type": "cancel", "request": 0},
        {"type": "cancel", "request": 1 << 63},
        {"type": "cancel", "request": "1"},
        {"type": "cancel", "request": 1, "more": 1},
        {"type": "no such message", "request": 1},
        {"request": 1},
        {"type": "attach", "session": SESSION, "stream": 0},  # belongs on a data stream
        {"type": "introduce", "certificate": b"x"},
        {"type": "error", "code": "nonsense", "message": ""},
        {"type": "error", "code": "busy", "message": "x" * 1001},
    ],
)
def test_messages_that_are_not_exactly_right_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        decode_message(msgspec.msgpack.encode(fields), CONTROL_MESSAGES)


def test_surplus_bytes_after_a_message_are_refused() -> None:
    body = msgspec.msgpack.encode(Cancel(request=1))
    with pytest.raises(ProtocolError):
        decode_message(body + b"\x00", CONTROL_MESSAGES)


def test_a_length_that_lies_allocates_nothing() -> None:
    body = msgspec.msgpack.encode(Introduce(certificate=b"abc")).replace(
        b"\xc4\x03abc", b"\xc6\xff\xff\xff\xffabc"
    )
    with pytest.raises(ProtocolError):
        decode_message(body, INTRODUCTION_MESSAGES)
    deep = b"\x82\xa4type\xa6attach\xa7session" + b"\x91" * 900
    with pytest.raises(ProtocolError):
        decode_message(deep, STREAM_MESSAGES)
