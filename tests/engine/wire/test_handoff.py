"""A handoff between the two ends, glued: the happy path, and every way in which a worker or a client may lie."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.errors import PeerLost, ProtocolError
from engine.wire.blocks import RowSpan, block_codec
from engine.wire.client import (
    ChunkCommitted,
    RequestAccepted,
    RequestFailed,
    RequestFinished,
    RequestProgressed,
    RequestReleased,
)
from engine.wire.codec import DataHeader, PayloadCodec, encode_data_header, encode_message
from engine.wire.limits import BLOCK_BYTES, CLOCK_SAMPLES, MAX_REQUESTS, STALL_TIMEOUT_S
from engine.wire.messages import (
    Accepted,
    Attach,
    Busy,
    Cancel,
    Code,
    Commit,
    CommitAck,
    ComputeDone,
    Fence,
    FenceReply,
    Finished,
    Message,
    Prefill,
    Refused,
)
from engine.wire.worker import PrefillCancelled, PrefillFinished
from tests.engine.wire.ends import SESSION, SPEC, Glued, feed_stream, landings, plain_rows


def started(*, first: int = 3, stop: int = 50, data_streams: int = 1) -> Glued:
    """A link with request 1 accepted: positions [3, 50), three chunks of 16, 16 and 15."""
    ends = Glued(data_streams=data_streams).open()
    ends.ask(1, first, stop)
    ends.worker.accept(1, reused_tokens=0)
    ends.pump()
    return ends


def kinds(events: list) -> list[type]:
    return [type(event) for event in events]


def expected_memory(ends: Glued, first: int, stop: int) -> bytes:
    memory = bytearray(SPEC.total_bytes())
    for landing in landings(first, stop):
        rows = landing.stop - landing.first
        for offset, n_bytes in (
            (landing.k_offset, rows * landing.k_row_bytes),
            (landing.v_offset, rows * landing.v_row_bytes),
            (landing.state_offset, landing.state_bytes),
        ):
            memory[offset : offset + n_bytes] = ends.source[offset : offset + n_bytes]
    return bytes(memory)


def test_a_whole_handoff() -> None:
    ends = started()
    ends.client_events.clear()
    for chunk in range(3):
        ends.worker_clock.advance(0.3)
        ends.client_clock.advance(0.3)
        if chunk == 2:
            ends.compute_done(1)
            ends.worker_clock.advance(0.004)
            ends.client_clock.advance(0.004)
        ends.push_chunk(1, chunk)
        ends.pump()
    assert ends.memory == expected_memory(ends, 3, 50)
    commits = [event for event in ends.client_events if isinstance(event, ChunkCommitted)]
    assert [(c.first, c.stop, c.final) for c in commits] == [(3, 19, False), (19, 35, False), (35, 50, True)]
    done = ends.client_events[-1]
    assert isinstance(done, RequestFinished)
    assert [c.payload_bytes for c in commits] == [16 * 124, 32 * 124, done.payload_bytes]
    assert done.tail_us == 4000
    at_worker = ends.worker_events[-1]
    assert isinstance(at_worker, PrefillFinished)
    row_bytes = 2 * (2 * 16 + 3 * 10)
    assert done.payload_bytes == at_worker.payload_bytes == 47 * row_bytes + 8 * 2 * 16 + 37
    assert done.received_before_compute_end_bytes == 32 * row_bytes
    assert ends.client.live_requests() == ()


def test_one_token_is_a_whole_handoff() -> None:
    ends = Glued().open()
    ends.ask(1, 0, 1)
    ends.worker.accept(1, reused_tokens=0)
    ends.push_chunk(1, 0)
    ends.compute_done(1)
    ends.pump()
    assert kinds(ends.client_events[-2:]) == [ChunkCommitted, RequestFinished]
    assert ends.memory == expected_memory(ends, 0, 1)


def test_overlap_is_counted_on_the_workers_clock() -> None:
    ends = Glued().open()
    ends.worker_clock.advance(1000)  # the two clocks have nothing in common
    ends.client.tick()
    ends.pump()
    ends.ask(1, 3, 50)
    ends.worker.accept(1, reused_tokens=0)
    ends.push_chunk(1, 0)
    ends.pump()
    ends.worker_clock.advance(0.3)
    ends.client_clock.advance(0.3)
    ends.push_chunk(1, 1)
    ends.push_chunk(1, 2)
    ends.compute_done(1)
    ends.worker_clock.advance(0.1)
    ends.client_clock.advance(0.1)
    ends.pump()
    done = ends.client_events[-1]
    assert isinstance(done, RequestFinished)
    assert done.received_before_compute_end_bytes == 16 * 2 * (2 * 16 + 3 * 10)


def test_no_chunk_is_committed_before_its_last_layer_is_whole() -> None:
    ends = started()
    ends.push(1, 0, 0)
    ends.push(1, 0, 3)
    ends.commit(1, 0)
    ends.pump_control()
    waiting = bytes(ends.streams_out[0])
    ends.client_events.clear()
    ends.client_events += feed_stream(ends.streams[0], waiting[:-1])
    assert ends.client_events == [] and not ends.client.has_output
    ends.client_events += feed_stream(ends.streams[0], waiting[-1:])
    (event,) = ends.client_events
    assert isinstance(event, ChunkCommitted)
    assert (event.first, event.stop, event.final, event.payload_bytes) == (3, 19, False, 16 * 124)
    assert ends.client.committed(1) == 19


def test_a_commit_tells_when_each_layer_was_queued_and_came_by_our_clock() -> None:
    ends = started()
    ends.worker_clock.advance(5)
    ends.client.tick()
    ends.pump_control()
    sent: list[bytes] = []
    for layer in (0, 3):
        ends.worker_clock.advance(0.010)
        ends.push(1, 0, layer)
        sent.append(bytes(ends.streams_out[0]))
        ends.streams_out[0].clear()
    ends.commit(1, 0)
    ends.pump_control()
    for frame in sent:
        ends.client_clock.advance(0.030)
        ends.client_events += feed_stream(ends.streams[0], frame[:100])
        ends.client_clock.advance(0.002)
        ends.client_events += feed_stream(ends.streams[0], frame[100:])
    event = ends.client_events[-1]
    assert isinstance(event, ChunkCommitted)
    zero = ends.client_clock.now_us - 64_000
    assert (event.compute_us, event.computed_us) == (10, zero + 20_000)
    assert [
        (arrival.layer, arrival.queued_us, arrival.first_byte_us, arrival.last_byte_us)
        for arrival in event.layers
    ] == [
        (0, zero + 10_000, zero + 30_000, zero + 32_000),
        (3, zero + 20_000, zero + 62_000, zero + 64_000),
    ]
    assert sum(arrival.payload_bytes for arrival in event.layers) == event.payload_bytes


def test_as_long_as_the_clocks_are_not_compared_no_time_of_the_worker_is_told() -> None:
    ends = started()
    ends.push_chunk(1, 0)
    ends.pump()
    event = ends.client_events[-1]
    assert isinstance(event, ChunkCommitted)
    assert (event.compute_us, event.computed_us) == (10, None)
    assert {arrival.queued_us for arrival in event.layers} == {None}
    assert {arrival.last_byte_us for arrival in event.layers} == {ends.client_clock.now_us}


def test_no_chunk_is_committed_before_the_worker_says_so() -> None:
    ends = started()
    ends.push(1, 0, 0)
    ends.push(1, 0, 3)
    ends.client_events.clear()
    ends.pump()
    assert ends.client_events == []
    ends.commit(1, 0)
    ends.pump()
    assert kinds(ends.client_events) == [ChunkCommitted]


def test_data_may_overtake_the_control_connection() -> None:
    ends = Glued().open()
    ends.ask(1, 3, 50)
    ends.worker.accept(1, reused_tokens=0)
    for chunk in range(3):
        ends.push_chunk(1, chunk)
    ends.compute_done(1)
    ends.pump_data()
    ends.pump()
    assert kinds(ends.client_events[-4:]) == [ChunkCommitted] * 3 + [RequestFinished]
    assert ends.memory == expected_memory(ends, 3, 50)


def test_layers_may_be_spread_over_data_streams() -> None:
    ends = started(data_streams=2)
    for chunk in range(3):
        for index, part in enumerate(ends.worker._jobs[1].plan.parts(chunk)):
            ends.push(1, chunk, part.layer, stream=index % 2)
        ends.commit(1, chunk)
    ends.compute_done(1)
    ends.pump()
    assert kinds(ends.client_events[-1:]) == [RequestFinished]
    assert ends.memory == expected_memory(ends, 3, 50)


def test_progress_is_passed_on() -> None:
    ends = started()
    ends.worker.progress(1, computed_tokens=3)
    ends.pump()
    assert ends.client_events[-1] == RequestProgressed(request=1, computed_tokens=3)


@pytest.mark.parametrize(
    "answer, code",
    [
        (lambda worker: worker.busy(1, "later"), Code.BUSY),
        (lambda worker: worker.refuse(1, Code.OUT_OF_MEMORY, "no memory"), Code.OUT_OF_MEMORY),
    ],
)
def test_a_request_turned_away_is_released_at_once(answer: Callable, code: Code) -> None:
    ends = Glued().open()
    ends.ask(1, 3, 50)
    answer(ends.worker)
    ends.pump()
    failed, released = ends.client_events[-2:]
    assert isinstance(failed, RequestFailed) and (failed.code, failed.committed) == (code, 3)
    assert released == RequestReleased(request=1)


def test_a_prompt_longer_than_the_workers_context_is_refused_by_count() -> None:
    ends = Glued(max_prompt_tokens=49).open()
    ends.client.request(
        request=1, tokens=bytes(200), first=3, stop=50, chunk_tokens=16, landings=landings(3, 50)
    )
    ends.pump()
    failed = ends.client_events[-2]
    assert isinstance(failed, RequestFailed) and failed.code is Code.TOO_LONG and "50" in failed.message


def test_an_aborted_request_keeps_what_was_committed_and_is_fenced() -> None:
    ends = started()
    ends.push_chunk(1, 0)
    ends.push(1, 1, 0)
    ends.worker.abort(1, Code.WORKER_FAILED, "it broke")
    ends.pump_control()
    assert kinds(ends.client_events[-1:]) == [RequestFailed]  # not released: data is on its way
    ends.pump()
    assert kinds(ends.client_events[-1:]) == [RequestReleased]


def test_an_abort_before_the_answer_is_a_refusal() -> None:
    ends = Glued().open()
    ends.ask(1, 3, 50)
    ends.worker.abort(1, Code.OUT_OF_MEMORY, "no memory")
    ends.pump()
    failed, released = ends.client_events[-2:]
    assert isinstance(failed, RequestFailed) and failed.code is Code.OUT_OF_MEMORY
    assert released == RequestReleased(request=1)


# Fence and cancel.


def test_a_cancel_is_released_only_behind_everything_queued() -> None:
    ends = started()
    ends.push_chunk(1, 0)
    ends.pump()
    ends.push(1, 1, 0)
    ends.client.cancel(1)
    ends.pump_control()
    assert isinstance(ends.worker_events[-2], PrefillCancelled)
    assert RequestReleased(request=1) not in ends.client_events
    before = bytes(ends.memory)
    ends.pump_data()
    assert bytes(ends.memory) != before  # the frame under way did land: the slot was not free before
    assert ends.client_events[-1] == RequestReleased(request=1)
    assert ends.client.live_requests() == ()


def test_a_fence_waits_for_every_stream() -> None:
    ends = started(data_streams=3)
    ends.client.cancel(1)
    ends.pump_control()
    for stream, waiting in list(zip(ends.streams, ends.streams_out, strict=True))[:2]:
        ends.client_events += feed_stream(stream, bytes(waiting))
    assert RequestReleased(request=1) not in ends.client_events
    ends.client_events += feed_stream(ends.streams[2], bytes(ends.streams_out[2]))
    assert ends.client_events[-1] == RequestReleased(request=1)


def test_a_fence_that_does_nothing_is_found_out() -> None:
    """A worker that answers a fence ahead of what is queued breaks the promise; the client must notice."""
    ends = started()

    def no_op_fence(fence: int) -> None:
        ends.streams_out[0][:0] = ends.worker.fence_reply(fence)

    ends.answer_fence = no_op_fence
    ends.push(1, 0, 0)
    ends.client.cancel(1)
    ends.pump_control()
    with pytest.raises(ProtocolError, match="is over"):
        ends.pump_data()


def test_messages_that_cross_a_cancel_are_harmless() -> None:
    ends = Glued().open()
    ends.ask(1, 3, 50)
    ends.worker.accept(1, reused_tokens=0)
    for chunk in range(3):
        ends.push_chunk(1, chunk)
    ends.compute_done(1)
    ends.client.cancel(1)
    ends.pump()
    assert kinds(ends.client_events[1:]) == [RequestReleased]
    assert ends.client.live_requests() == ()
    ends.ask(2, 0, 10)
    ends.worker.accept(2, reused_tokens=0)
    ends.pump()
    assert ends.client_events[-1] == RequestAccepted(request=2, reused_tokens=0)


def test_a_cancel_that_crosses_the_end_is_harmless() -> None:
    ends = started()
    for chunk in range(3):
        ends.push_chunk(1, chunk)
    ends.compute_done(1)
    ends.pump_control()
    ends.pump_data()
    ends.client.cancel(
        1
    )  # the final acknowledgement is queued before it, the worker's finish is not here yet
    ends.pump()
    assert ends.client_events[-1] == RequestReleased(request=1)


def test_cancel_of_an_unknown_request_does_nothing() -> None:
    ends = Glued().open()
    ends.client.cancel(5)
    assert not ends.client.has_output


# A lying worker.

ROW = 2 * 2 * 16  # layer 0: K and V of one position


def header(*, codec: PayloadCodec = PayloadCodec.RAW, **changes: int) -> bytes:
    fields = {"request": 1, "chunk": 0, "layer": 0, "first_row": 3, "rows": 16, "payload_bytes": 16 * ROW}
    return encode_data_header(DataHeader(codec=codec, **(fields | changes)))


LYING_FRAMES = {
    "an unknown request": header(request=2),
    "a chunk that does not exist": header(chunk=3),
    "a layer that does not exist": header(layer=4),
    "other rows": header(first_row=4),
    "too many rows": header(rows=17, payload_bytes=17 * ROW),
    "too few bytes": header(payload_bytes=16 * ROW - 1),
    "too many bytes": header(payload_bytes=1 << 60),
    "no bytes": header(rows=0, payload_bytes=0),
    "a window before the last chunk": header(layer=1, payload_bytes=16 * 2 * 16),
    "a state before the last chunk": header(layer=2, rows=0, first_row=50, payload_bytes=37),
    "a state of another size": header(chunk=2, layer=2, rows=0, first_row=50, payload_bytes=38),
    "a window of other rows": header(chunk=2, layer=1, first_row=41, rows=9, payload_bytes=9 * 2 * 16),
}


@pytest.mark.parametrize("name", LYING_FRAMES)
def test_a_data_frame_that_was_not_planned_is_refused_before_its_payload(name: str) -> None:
    ends = started()
    with pytest.raises(ProtocolError):
        feed_stream(ends.streams[0], LYING_FRAMES[name])
    assert ends.memory == bytes(SPEC.total_bytes())


@pytest.mark.parametrize("committed", [False, True])
def test_a_layer_that_comes_twice_is_refused(committed: bool) -> None:
    ends = started()
    ends.push(1, 0, 0)
    again = bytes(ends.streams_out[0])
    ends.push(1, 0, 3)
    if committed:
        ends.commit(1, 0)
    ends.pump()
    with pytest.raises(ProtocolError, match="twice"):
        feed_stream(ends.streams[0], again)


def test_layers_out_of_order_on_a_stream_are_refused() -> None:
    ends = started()
    ends.push(1, 0, 0)
    frame = bytes(ends.streams_out[0])
    ends.streams_out[0].clear()
    ends.push(1, 0, 3)
    ends.pump_data()
    with pytest.raises(ProtocolError, match="order"):
        feed_stream(ends.streams[0], frame)


def commit(**changes: object) -> Commit:
    fields: dict[str, object] = {
        **{"request": 1, "chunk": 0, "first": 3, "stop": 19, "layers": 2, "payload_bytes": 16 * 2 * 62},
        **{"started_us": 5, "ended_us": 7, "queued_us": (6, 7)},
    }
    return Commit(**(fields | changes))  # type: ignore[arg-type]


def compute_done() -> ComputeDone:
    return ComputeDone(request=1, started_us=0, ended_us=1)


LYING_MESSAGES: dict[str, list[Message]] = {
    "a commit of the next chunk": [commit(chunk=1)],
    "a commit of other positions": [commit(first=4)],
    "a commit that ends early": [commit(stop=18)],
    "a commit of fewer layers": [commit(layers=1)],
    "a commit of fewer bytes": [commit(payload_bytes=1)],
    "a commit that forgets a layer's time": [commit(queued_us=(6,))],
    "a commit with a layer's time too many": [commit(queued_us=(6, 7, 8))],
    "a commit that was computed backwards": [commit(ended_us=4)],
    "a commit twice": [commit(), commit()],
    "an unknown request": [commit(request=2)],
    "finished before it was computed": [Finished(request=1, payload_bytes=0, tail_us=0)],
    "finished with nothing committed": [compute_done(), Finished(request=1, payload_bytes=0, tail_us=0)],
    "computed twice": [compute_done(), compute_done()],
    "accepted twice": [Accepted(request=1, reused_tokens=0)],
    "busy after accepted": [Busy(request=1, message="")],
    "refused after accepted": [Refused(request=1, code=Code.BUSY, message="")],
    "a fence reply to no fence": [FenceReply(fence=1)],
    "a client's message": [Cancel(request=1)],
    "a second hello": [CommitAck(request=1, chunk=0)],
}


@pytest.mark.parametrize("name", LYING_MESSAGES)
def test_a_message_out_of_place_is_refused(name: str) -> None:
    ends = started()
    with pytest.raises(ProtocolError):
        for message in LYING_MESSAGES[name]:
            ends.client.receive(encode_message(message))
    with pytest.raises(ProtocolError, match="has ended"):
        ends.client.receive(b"")


def test_finished_with_another_count_of_bytes_is_refused() -> None:
    ends = started()
    for chunk in range(3):
        ends.push_chunk(1, chunk)
    ends.pump()
    with pytest.raises(ProtocolError, match="bytes"):
        ends.client.receive(
            encode_message(compute_done()) + encode_message(Finished(request=1, payload_bytes=5, tail_us=0))
        )


def test_refused_after_data_is_refused_in_turn() -> None:
    ends = Glued().open()
    ends.ask(1, 3, 50)
    ends.worker.accept(1, reused_tokens=0)
    ends.worker.take_output()
    ends.push(1, 0, 0)
    ends.pump_data()
    with pytest.raises(ProtocolError, match="after it had sent data"):
        ends.client.receive(encode_message(Busy(request=1, message="")))


def test_data_streams_that_were_not_agreed_on_are_refused() -> None:
    ends = Glued().open()
    for attach in (
        Attach(session=SESSION, stream=0),
        Attach(session=SESSION, stream=1),
        Attach(session=bytes(16), stream=0),
    ):
        with pytest.raises(ProtocolError):
            ends.client.stream(attach, memoryview(ends.memory))


def test_messages_on_a_data_stream_other_than_fences_are_refused() -> None:
    ends = started()
    with pytest.raises(ProtocolError):
        feed_stream(ends.streams[0], encode_message(Accepted(request=1, reused_tokens=0)))
    ends = started()
    with pytest.raises(ProtocolError):
        feed_stream(ends.streams[0], encode_message(Attach(session=SESSION, stream=0)))


# Packed rows.


def plain(codec: PayloadCodec, *, data_streams: int = 1) -> Glued:
    """As `started`, with rows of numbers and that codec."""
    ends = Glued(data_streams=data_streams).open()
    ends.source = plain_rows()
    ends.ask(1, 3, 50, codec=codec)
    ends.worker.accept(1, reused_tokens=0)
    ends.pump()
    return ends


PACKED = [PayloadCodec.LOSSLESS, PayloadCodec.INT8]


def packed_and_back(ends: Glued, codec: PayloadCodec, first: int, stop: int) -> bytes:
    """What should land: each layer's rows as the codec gives them back."""
    memory = bytearray(expected_memory(ends, first, stop))
    for landing, layer in zip(landings(first, stop), SPEC.layers, strict=True):
        for offset, row_bytes, head_dim in (
            (landing.k_offset, landing.k_row_bytes, layer.k_head_dim),
            (landing.v_offset, landing.v_row_bytes, layer.v_head_dim),
        ):
            n_bytes = (landing.stop - landing.first) * row_bytes
            rows = memoryview(memory)[offset : offset + n_bytes]
            packer = block_codec(codec, SPEC.kv_type)
            body = packer.pack(rows, head_dim) if n_bytes else None
            if body is not None:
                packer.unpack(memoryview(b"".join(body)), rows, head_dim)
    return bytes(memory)


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize("codec", PACKED)
def test_a_packed_handoff_lands_as_rows(codec: PayloadCodec, step: int) -> None:
    ends = plain(codec)
    for chunk in range(3):
        ends.push_chunk(1, chunk)
    ends.compute_done(1)
    came = bytes(ends.streams_out[0])
    ends.streams_out[0].clear()
    for at in range(0, len(came), step):
        ends.client_events += feed_stream(ends.streams[0], came[at : at + step])
    ends.pump()
    assert ends.memory == packed_and_back(ends, codec, 3, 50)
    assert (ends.memory == expected_memory(ends, 3, 50)) is (codec is PayloadCodec.LOSSLESS)
    done = next(event for event in ends.client_events if isinstance(event, RequestFinished))
    n_frames = 2 * 3 + 2
    assert done.wire_bytes == len(came) - 40 * n_frames < done.payload_bytes
    assert done.payload_bytes == 47 * 2 * (2 * 16 + 3 * 10) + 8 * 2 * 16 + 37


def test_rows_that_do_not_shrink_go_as_they_are() -> None:
    ends = Glued().open()
    noise = ends.source
    ends.source = bytes(byte for low in noise[::2] for byte in (low | 0x80, 0x7F))  # no number among them
    ends.ask(1, 3, 50, codec=PayloadCodec.INT8)
    ends.worker.accept(1, reused_tokens=0)
    for chunk in range(3):
        ends.push_chunk(1, chunk)
    ends.compute_done(1)
    ends.pump()
    assert ends.memory == expected_memory(ends, 3, 50)
    done = ends.client_events[-1]
    assert isinstance(done, RequestFinished)
    # The length of each block: K and V of seven frames.
    assert done.wire_bytes == done.payload_bytes + 4 * 2 * 7


def test_a_block_can_be_unpacked_before_it_is_taken() -> None:
    """Without the lock that `advance` needs, and not a second time there."""
    ends = plain(PayloadCodec.INT8)
    ends.push(1, 0, 0)
    came = bytes(ends.streams_out[0])
    n_block = 16 * 2 * (4 + 6)
    stream = ends.streams[0]
    feed_stream(stream, came[: 40 + 4 + n_block - 1])
    stream.buffer()[:1] = came[40 + 4 + n_block - 1 : 40 + 4 + n_block]
    assert ends.memory == bytes(SPEC.total_bytes())
    stream.unpack()
    landed = bytes(ends.memory)
    assert landed != bytes(SPEC.total_bytes())
    ends.memory[:] = bytes(SPEC.total_bytes())
    assert stream.advance(1) == []
    assert ends.memory == bytes(SPEC.total_bytes())


def test_blocks_hold_whole_rows_and_a_bounded_number_of_bytes() -> None:
    span = RowSpan(offset=100, n_bytes=3 * 1000 * 600, row_bytes=600, head_dim=20)
    blocks = list(span.blocks())
    assert [at for at, _ in blocks] == [100 + sum(n for _, n in blocks[:i]) for i in range(len(blocks))]
    assert sum(n_bytes for _, n_bytes in blocks) == span.n_bytes
    assert all(n_bytes % 600 == 0 and n_bytes <= BLOCK_BYTES for _, n_bytes in blocks)
    long_rows = RowSpan(offset=0, n_bytes=2 * 600_000, row_bytes=600_000, head_dim=20)
    assert list(long_rows.blocks()) == [(0, 600_000), (600_000, 600_000)]
    assert list(RowSpan(offset=7, n_bytes=0, row_bytes=0, head_dim=0).blocks()) == []


def block(n_bytes: int, body: bytes = b"") -> bytes:
    return n_bytes.to_bytes(4, "little") + body


# K of layer 0 in chunk 0: 16 rows, 384 bytes of values, 320 as codes with their scales.
LYING_BLOCKS: dict[str, tuple[PayloadCodec, bytes]] = {
    "an empty block": (PayloadCodec.LOSSLESS, block(0)),
    "a block of lengths alone": (PayloadCodec.LOSSLESS, block(8)),
    "a block longer than its rows": (PayloadCodec.LOSSLESS, block(385)),
    "a block of gigabytes": (PayloadCodec.LOSSLESS, block(0xFFFFFFFF)),
    "planes that do not fit": (PayloadCodec.LOSSLESS, block(20, bytes(20))),
    "codes that are missing": (PayloadCodec.INT8, block(319)),
    "a code too many": (PayloadCodec.INT8, block(321)),
    "a block of codes that is empty": (PayloadCodec.INT8, block(0)),
    "codes longer than their rows": (PayloadCodec.INT8, block(400)),
    "a scale that is no number": (PayloadCodec.INT8, block(320, b"\0\0\xc0\x7f" * 32 + bytes(192))),
}


@pytest.mark.parametrize("name", LYING_BLOCKS)
def test_a_block_that_cannot_be_is_refused_and_nothing_of_it_lands(name: str) -> None:
    codec, lie = LYING_BLOCKS[name]
    ends = plain(codec)
    with pytest.raises(ProtocolError):
        feed_stream(ends.streams[0], header(codec=codec) + lie)
    assert ends.memory == bytes(SPEC.total_bytes())


@pytest.mark.parametrize("asked", PayloadCodec)
@pytest.mark.parametrize("came", PayloadCodec)
def test_rows_come_by_the_codec_that_was_asked_for(asked: PayloadCodec, came: PayloadCodec) -> None:
    ends = plain(asked)
    if asked is came:
        feed_stream(ends.streams[0], header(codec=came))
        return
    with pytest.raises(ProtocolError, match=f"came as {came.label}, not {asked.label}"):
        feed_stream(ends.streams[0], header(codec=came))


def test_a_state_is_never_packed() -> None:
    ends = plain(PayloadCodec.LOSSLESS)
    with pytest.raises(ProtocolError, match="came as lossless, not raw"):
        state = header(chunk=2, layer=2, first_row=50, rows=0, payload_bytes=37, codec=PayloadCodec.LOSSLESS)
        feed_stream(ends.streams[0], state)


@pytest.mark.parametrize("spans", [(), ((0, 384),), ((0, 384), (999, 641)), ((0, 640), (999, 384))])
def test_rows_that_were_not_planned_are_not_packed(spans: tuple[tuple[int, int], ...]) -> None:
    ends = plain(PayloadCodec.INT8)
    with pytest.raises(ValueError, match="layer 0 of chunk 0"):
        ends.worker.row_spans(1, chunk=0, layer=0, spans=spans)


@pytest.mark.parametrize("least, timed", [(200 * ROW, (200 * ROW, 500_000)), (200 * ROW + 1, (0, 0))])
def test_only_large_frames_tell_how_fast_rows_come(
    monkeypatch: pytest.MonkeyPatch, least: int, timed: tuple[int, int]
) -> None:
    monkeypatch.setattr("engine.wire.client._LEAST_TIMED_BYTES", least)
    ends = Glued().open()
    ends.ask(1, 0, 200, chunk_tokens=200)
    ends.worker.accept(1, reused_tokens=0)
    ends.push(1, 0, 0)
    ends.pump_control()
    came = bytes(ends.streams_out[0])
    feed_stream(ends.streams[0], came[:1000])
    ends.client_clock.advance(0.5)
    feed_stream(ends.streams[0], came[1000:])
    handoff = ends.client._handoffs[1]
    assert (handoff.timed_bytes, handoff.timed_us) == timed


# A lying client.


def prefill(**changes: object) -> Prefill:
    fields = {"request": 2, "tokens": bytes(40), "first": 3, "stop": 10, "chunk_tokens": 16, "codec": "raw"}
    return Prefill(**(fields | changes))  # type: ignore[arg-type]


LYING_CLIENT: dict[str, list[Message]] = {
    "a request number twice": [prefill(request=1)],
    "nothing to compute": [prefill(first=10)],
    "positions backwards": [prefill(first=11)],
    "fewer tokens than positions": [prefill(tokens=bytes(36))],
    "half a token": [prefill(tokens=bytes(41))],
    "an acknowledgement of nothing": [CommitAck(request=1, chunk=0)],
    "an acknowledgement for a request never made": [CommitAck(request=9, chunk=0)],
    "a cancel for a request never made": [Cancel(request=9)],
    "a worker's message": [Accepted(request=1, reused_tokens=0)],
}


@pytest.mark.parametrize("name", LYING_CLIENT)
def test_a_client_that_breaks_the_protocol_is_refused(name: str) -> None:
    ends = started()
    with pytest.raises(ProtocolError):
        for message in LYING_CLIENT[name]:
            ends.worker.receive(encode_message(message))


def test_chunks_acknowledged_out_of_order_are_refused() -> None:
    ends = started()
    ends.push_chunk(1, 0)
    ends.push_chunk(1, 1)
    with pytest.raises(ProtocolError, match="acknowledged"):
        ends.worker.receive(encode_message(CommitAck(request=1, chunk=1)))


def test_an_unknown_codec_is_refused_for_the_request_alone() -> None:
    ends = Glued().open()
    ends.worker.receive(encode_message(prefill(codec="int4")))
    assert b"codec" in ends.worker.take_output()


def test_too_many_requests_are_busy() -> None:
    ends = Glued().open()
    for request in range(1, MAX_REQUESTS + 1):
        ends.worker.receive(encode_message(prefill(request=request)))
    assert not ends.worker.has_output
    ends.worker.receive(encode_message(prefill(request=MAX_REQUESTS + 1)))
    assert b"busy" in ends.worker.take_output()
    ends = Glued().open()
    for request in range(1, MAX_REQUESTS + 1):
        ends.ask(request, 3, 50)
    with pytest.raises(ValueError, match="more than"):
        ends.ask(MAX_REQUESTS + 1, 3, 50)


# Our own mistakes are errors of their own kind.


def test_pushes_that_contradict_the_plan_are_our_own_fault() -> None:
    ends = started()
    for chunk, layer, n_bytes in ((1, 0, 16 * ROW), (0, 0, 5), (0, 1, 16 * 32), (0, 2, 37)):
        with pytest.raises(ValueError):
            ends.worker.push(1, chunk=chunk, layer=layer, payload_bytes=n_bytes)
    with pytest.raises(ValueError):
        ends.commit(1, 0)
    ends.push(1, 0, 0)
    with pytest.raises(ValueError, match="out of order"):
        ends.push(1, 0, 0)
    with pytest.raises(ValueError):
        ends.worker.accept(1, reused_tokens=0)
    with pytest.raises(ValueError):
        ends.worker.push(9, chunk=0, layer=0, payload_bytes=1)


def test_landings_must_hold_what_is_asked_for() -> None:
    ends = Glued().open()
    good = landings(3, 50)
    for bad in (good[:-1], (*good, good[0]), landings(4, 50), landings(3, 49)):
        with pytest.raises(ValueError):
            ends.client.request(request=1, tokens=bytes(200), first=3, stop=50, chunk_tokens=16, landings=bad)
    with pytest.raises(ValueError):
        ends.client.request(request=1, tokens=bytes(200), first=50, stop=50, chunk_tokens=16, landings=good)


# Heartbeat.


def test_both_ends_ping_and_learn_how_far_the_clocks_are_apart() -> None:
    ends = Glued().open()
    ends.worker_clock.advance(5)
    ends.client.tick()
    ends.pump()
    sample = ends.client.best_clock_sample
    assert sample is not None and sample.offset_us == 5_000_000 and sample.round_trip_us == 0


def test_clocks_that_drift_are_compared_by_what_was_heard_lately() -> None:
    ends = Glued().open()
    for _ in range(CLOCK_SAMPLES + 1):
        ends.client_clock.advance(1.0)
        ends.worker_clock.advance(1.001)
        ends.client.tick()
        ping = ends.client.take_output()
        ends.worker.receive(ping)
        # the first answer is the quickest, and is forgotten in the end
        ends.client_clock.advance(0.0001 if ends.client.best_clock_sample else 0)
        ends.client.receive(ends.worker.take_output())
    sample = ends.client.best_clock_sample
    assert sample is not None and sample.round_trip_us == 100
    newest_us = ends.worker_clock.now_us - (ends.client_clock.now_us - 50)
    assert sample.offset_us == newest_us


def test_a_silent_peer_is_given_up_after_three_heartbeats() -> None:
    ends = Glued().open()
    for _ in range(3):
        ends.client_clock.advance(1.0)
        ends.client.tick()
    ends.client_clock.advance(0.1)
    with pytest.raises(PeerLost, match="3 s"):
        ends.client.tick()


def test_one_lost_heartbeat_is_forgiven_and_any_byte_counts() -> None:
    ends = started()
    ends.push_chunk(1, 0)
    waiting = bytes(ends.streams_out[0])
    for at in range(0, len(waiting), 100):
        ends.client_clock.advance(2.0)
        feed_stream(ends.streams[0], waiting[at : at + 100])
        ends.client.tick()


def test_a_process_that_stood_still_itself_does_not_blame_the_peer() -> None:
    ends = Glued().open()
    ends.client.tick()
    ends.client_clock.advance(60.0)
    ends.client.tick()


def test_a_request_that_does_not_move_is_found() -> None:
    ends = started()
    ends.client_clock.advance(STALL_TIMEOUT_S - 1)
    assert ends.client.stalled_requests() == ()
    ends.client_clock.advance(2)
    assert ends.client.stalled_requests() == (1,)
    ends.push(1, 0, 0)
    ends.pump()
    assert ends.client.stalled_requests() == ()


def test_a_queued_request_is_not_stalled() -> None:
    ends = Glued().open()
    ends.ask(1, 3, 50)
    ends.client_clock.advance(10 * STALL_TIMEOUT_S)
    assert ends.client.stalled_requests() == ()


def test_last_words_reach_the_other_end() -> None:
    ends = Glued().open()
    with pytest.raises(PeerLost, match="stopped"):
        ends.client.receive(ends.worker.last_words(None, going="it was stopped"))
    ends = Glued().open()
    with pytest.raises(PeerLost, match="breach"):
        ends.worker.receive(ends.client.last_words(ProtocolError("nonsense")))


def test_a_fence_on_an_idle_link_is_answered() -> None:
    ends = Glued().open()
    ends.worker.receive(encode_message(Fence(fence=3)))
    assert ends.worker.take_output() == encode_message(FenceReply(fence=3))
