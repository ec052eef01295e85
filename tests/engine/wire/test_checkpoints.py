"""Windows and states that come before the end of a handoff: where they land, and what a cut leaves whole."""

from __future__ import annotations

import dataclasses
import random

import pytest

from engine.cache.spec import KVType, Landing, LayerKind
from engine.errors import ProtocolError
from engine.wire import geometry
from engine.wire.client import ChunkCommitted, RequestFinished
from engine.wire.codec import DataHeader, PayloadCodec, encode_data_header
from engine.wire.geometry import HandoffPlan, state_stream
from engine.wire.messages import Commit, layer_shapes
from engine.wire.worker import ChunkAcknowledged, PrefillAsked
from tests.engine.wire.ends import SPEC, Glued, feed_stream, landings

FIRST, STOP = 3, 83  # five chunks of 16
N_CHUNKS = 5
STATE_LAYERS = [index for index, layer in enumerate(SPEC.layers) if layer.kind is not LayerKind.ATTENTION]


def spacious(first: int = FIRST, stop: int = STOP) -> tuple[Landing, ...]:
    """Landings with a second place for every window and state; windows begin at the first row of their buffer."""
    made = []
    for landing, layer, region in zip(landings(first, stop), SPEC.layers, SPEC.regions(0), strict=True):
        if layer.kind is LayerKind.WINDOW:
            landing = dataclasses.replace(
                landing,
                k_offset=region.k_offset,
                v_offset=region.v_offset,
                spare_rows=layer.window - 1,
            )
        elif layer.kind is LayerKind.RECURRENT:
            landing = dataclasses.replace(landing, spare_state_offset=region.spare_state_offset)
        made.append(landing)
    return tuple(made)


class Ends(Glued):
    """A link with request 1 accepted; each frame of each chunk has bytes of its own."""

    def __init__(self, *, data_streams: int = 1, places: tuple[Landing, ...] | None = None) -> None:
        super().__init__(data_streams=data_streams)
        self.open()
        self.client.request(
            request=1,
            tokens=bytes(4 * STOP),
            first=FIRST,
            stop=STOP,
            chunk_tokens=16,
            landings=spacious() if places is None else places,
        )
        self.pump_control()
        self.asked = next(event for event in self.worker_events if isinstance(event, PrefillAsked))
        self.worker.accept(1, reused_tokens=0)
        self.pump()

    @property
    def plan(self) -> HandoffPlan:
        return self.client._handoffs[1].plan

    def send(self, chunk: int, layer: int, *, rng: random.Random | None = None) -> None:
        n_bytes = sum(map(len, frame_bytes(self.plan, chunk, layer)))
        header = self.worker.push(1, chunk=chunk, layer=layer, payload_bytes=n_bytes)
        n_streams = len(self.streams)
        stream = state_stream(layer, n_streams)
        if layer not in STATE_LAYERS and rng is not None:
            stream = rng.randrange(n_streams)
        payload = b"".join(frame_bytes(self.plan, chunk, layer))
        self.streams_out[stream] += encode_data_header(header) + payload

    def send_chunk(self, chunk: int, *, checkpoint: bool = False, rng: random.Random | None = None) -> None:
        for part in self.plan.parts(chunk, checkpoint=checkpoint):
            self.send(chunk, part.layer, rng=rng)
        self.worker.commit(1, chunk=chunk, started_us=0, ended_us=0)

    def places(self) -> list[int | None]:
        return [event.place for event in self.client_events if isinstance(event, ChunkCommitted)]

    def in_place(self, place: int) -> list[bytes]:
        """What lies in that place now, layer by layer."""
        found = []
        for landing in spacious():
            if landing.kind is LayerKind.RECURRENT:
                at = (landing.state_offset, landing.spare_state_offset)[place]
                found.append(bytes(self.memory[at : at + landing.state_bytes]))
            elif landing.kind is LayerKind.WINDOW:
                rows = landing.spare_rows
                for offset, row_bytes in (
                    (landing.k_offset, landing.k_row_bytes),
                    (landing.v_offset, landing.v_row_bytes),
                ):
                    at = offset + place * rows * row_bytes
                    found.append(bytes(self.memory[at : at + rows * row_bytes]))
        return found


def frame_bytes(plan: HandoffPlan, chunk: int, layer: int) -> list[bytes]:
    """K and V, or the state, of one layer in one chunk."""
    part = plan.part(chunk, layer, checkpoint=True)
    assert part is not None
    rng = random.Random(1000 * chunk + layer)
    return [rng.randbytes(n) for n in (part.k_bytes, part.v_bytes, part.state_bytes) if n]


def state_of(plan: HandoffPlan, chunk: int) -> list[bytes]:
    return [data for layer in STATE_LAYERS for data in frame_bytes(plan, chunk, layer)]


def test_checkpoints_take_turns_between_two_places_and_the_last_state_is_where_none_was() -> None:
    ends = Ends()
    for chunk in range(N_CHUNKS):
        ends.send_chunk(chunk, checkpoint=chunk in (0, 1, 3))
        ends.pump()
        if chunk in (0, 1, 3, 4):
            assert ends.in_place(ends.places()[-1] or 0) == state_of(ends.plan, chunk)
    assert ends.places() == [0, 1, None, 0, 1]
    acknowledged = [e.chunk for e in ends.worker_events if isinstance(e, ChunkAcknowledged)]
    assert acknowledged == list(range(N_CHUNKS))
    ends.compute_done(1)
    ends.pump()
    done = ends.client_events[-1]
    assert isinstance(done, RequestFinished)
    assert done.payload_bytes == 80 * 2 * (2 * 16 + 3 * 10) + 4 * (8 * 2 * 16 + 37)


def test_a_checkpoint_that_is_cut_anywhere_leaves_the_one_before_whole() -> None:
    whole = Ends()
    whole.send_chunk(0, checkpoint=True)
    whole.send_chunk(1, checkpoint=True)
    n_bytes = len(whole.streams_out[0])
    for cut in range(0, n_bytes, 7):
        ends = Ends()
        ends.send_chunk(0, checkpoint=True)
        ends.pump()
        ends.send_chunk(1, checkpoint=True)
        ends.pump_control()
        ends.client_events += feed_stream(ends.streams[0], bytes(ends.streams_out[0])[:cut])
        places = ends.places()
        latest = len(places) - 1
        assert ends.in_place(places[-1] or 0) == state_of(ends.plan, latest)


def test_the_last_chunk_may_overtake_the_commit_of_a_checkpoint() -> None:
    """It takes the place of the checkpoint that is not committed, and the one before stays until it is whole itself."""
    ends = Ends()
    for chunk in range(3):
        ends.send_chunk(chunk, checkpoint=chunk == 0)
        ends.pump()
    before = len(ends.client_events)
    ends.send_chunk(3, checkpoint=True)
    for part in ends.plan.parts(4):
        if part.layer != 3:
            ends.send(4, part.layer)
    ends.pump_data()
    assert ends.client_events[before:] == []
    assert ends.in_place(0) == state_of(ends.plan, 0)
    ends.pump_control()
    assert ends.places() == [0, None, None, None]
    assert ends.in_place(0) == state_of(ends.plan, 0)
    ends.send(4, 3)
    ends.worker.commit(1, chunk=4, started_us=0, ended_us=0)
    ends.pump()
    assert ends.places()[-1] == 1
    assert ends.in_place(1) == state_of(ends.plan, 4)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_comes_when_what_is_called_whole_is_whole(seed: int) -> None:
    """Streams and control overtake each other at random; any chunk that can may be a checkpoint."""
    rng = random.Random(seed)
    ends = Ends(data_streams=rng.choice((1, 2, 3)))
    held: tuple[int, list[bytes]] | None = None
    plan = ends.plan

    def look() -> None:
        nonlocal held
        commits = [event for event in ends.client_events if isinstance(event, ChunkCommitted)]
        for event in commits:
            if event.place is not None:
                held = event.place, state_of(plan, plan.chunks.index((event.first, event.stop)))
        ends.client_events.clear()
        if held is not None:
            assert ends.in_place(held[0]) == held[1]

    for chunk in range(N_CHUNKS):
        ends.send_chunk(chunk, checkpoint=chunk < N_CHUNKS - 1 and rng.random() < 0.6, rng=rng)
        for _ in range(rng.randrange(4)):
            deliver_some(ends, rng)
            look()
    while any(ends.streams_out) or ends.worker.has_output or ends.client.has_output:
        deliver_some(ends, rng)
        look()
    assert held is not None and held[1] == state_of(plan, N_CHUNKS - 1)


def deliver_some(ends: Ends, rng: random.Random) -> None:
    if rng.random() < 0.3:
        ends.pump_control()
        return
    stream = rng.randrange(len(ends.streams))
    waiting = ends.streams_out[stream]
    n_bytes = rng.randrange(len(waiting) + 1)
    ends.client_events += feed_stream(ends.streams[stream], bytes(waiting[:n_bytes]))
    del waiting[:n_bytes]


# Who may have checkpoints, and when.


def test_without_second_places_none_are_asked_for() -> None:
    ends = Ends(places=landings(FIRST, STOP))
    assert ends.asked.first_checkpoint is None
    ends.send_chunk(0)
    with pytest.raises(ValueError, match="layer 1 of chunk 1"):
        ends.send(1, 0)
        ends.send(1, 1)


def plan_of(*, first: int, stop: int, chunk_tokens: int = 16) -> HandoffPlan:
    return HandoffPlan.cut(
        layers=layer_shapes(SPEC), kv_type=KVType.BF16, first=first, stop=stop, chunk_tokens=chunk_tokens
    )


def test_a_checkpoint_brings_whole_windows() -> None:
    assert plan_of(first=0, stop=16).first_checkpoint is None
    assert plan_of(first=0, stop=32).first_checkpoint == 0
    window = max(layer.window for layer in SPEC.layers)
    assert window == 9
    small = dataclasses.replace(plan_of(first=5, stop=45), chunks=((5, 10), (10, 13), (13, 14), (14, 45)))
    assert small.first_checkpoint == 2


def test_what_is_too_much_to_set_aside_is_never_sent_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(first=0, stop=80)
    assert plan.checkpoint_bytes == 8 * 2 * 16 + 37 == SPEC.checkpoint_bytes()
    monkeypatch.setattr(geometry, "MAX_CHECKPOINT_BYTES", plan.checkpoint_bytes - 1)
    assert plan_of(first=0, stop=80).first_checkpoint is None


def test_a_worker_sends_all_of_a_checkpoint_or_none() -> None:
    ends = Ends()
    ends.send(0, 0)
    ends.send(0, 1)
    ends.send(0, 3)
    with pytest.raises(ValueError, match="commit of chunk 0 with 3 layers"):
        ends.worker.commit(1, chunk=0, started_us=0, ended_us=0)


# A worker that lies.


def raw_frame(ends: Ends, chunk: int, layer: int) -> bytes:
    part = ends.plan.part(chunk, layer, checkpoint=True)
    assert part is not None
    header = DataHeader(
        request=1,
        chunk=chunk,
        layer=layer,
        codec=PayloadCodec.RAW,
        first_row=part.first_row,
        rows=part.rows,
        payload_bytes=part.payload_bytes,
    )
    return encode_data_header(header) + bytes(part.payload_bytes)


def commit_of(ends: Ends, chunk: int, *, checkpoint: bool, layers: int) -> Commit:
    parts = ends.plan.parts(chunk, checkpoint=layers > 2)
    return Commit(
        request=1,
        chunk=chunk,
        first=ends.plan.chunks[chunk][0],
        stop=ends.plan.chunks[chunk][1],
        layers=layers,
        payload_bytes=sum(part.payload_bytes for part in parts),
        checkpoint=checkpoint,
        started_us=0,
        ended_us=0,
        queued_us=(0,) * layers,
    )


def test_states_that_are_not_announced_are_a_breach() -> None:
    ends = Ends()
    feed_stream(ends.streams[0], raw_frame(ends, 0, 0) + raw_frame(ends, 0, 1))
    with pytest.raises(ProtocolError, match="not called a checkpoint"):
        ends.client._announce(ends.client._handoffs[1], commit_of(ends, 0, checkpoint=False, layers=2))


def test_states_that_come_after_a_commit_without_them_are_a_breach() -> None:
    ends = Ends()
    ends.client._announce(ends.client._handoffs[1], commit_of(ends, 0, checkpoint=False, layers=2))
    with pytest.raises(ProtocolError, match="where it has none"):
        feed_stream(ends.streams[0], raw_frame(ends, 0, 1))


@pytest.mark.parametrize("chunk", [0, N_CHUNKS - 1])
def test_what_cannot_be_a_checkpoint_is_not_called_one(chunk: int) -> None:
    ends = Ends(places=landings(FIRST, STOP) if chunk == 0 else None)
    handoff = ends.client._handoffs[1]
    handoff.announced_chunks = chunk
    with pytest.raises(ProtocolError, match="which it cannot be"):
        ends.client._announce(handoff, commit_of(ends, chunk, checkpoint=True, layers=4))


def test_states_keep_to_their_stream() -> None:
    ends = Ends(data_streams=2)
    with pytest.raises(ProtocolError, match="not its own"):
        feed_stream(ends.streams[0], raw_frame(ends, 0, 1))
