"""Two ends of a link glued together in memory: the helpers of the wire tests. No sockets, no threads, no waiting."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from engine.cache.spec import CacheSpec, KVType, Landing, LayerKind, LayerSpec
from engine.wire.blocks import block_codec, packed_blocks
from engine.wire.client import ClientConnection, DataStream
from engine.wire.codec import CODECS, PayloadCodec, encode_data_header
from engine.wire.connection import Event
from engine.wire.limits import PROTOCOL_MAJOR, PROTOCOL_MINOR
from engine.wire.messages import Attach, Hello, HelloReply, ModelIdentity, Role, layer_shapes
from engine.wire.worker import FenceAsked, PrefillAsked, WorkerConnection

SESSION = bytes(range(16))

# Every dimension different; all three kinds of layer, the last of each kind in another place.
SPEC = CacheSpec(
    layers=(
        LayerSpec(kind=LayerKind.ATTENTION, n_kv_heads=2, k_head_dim=6, v_head_dim=10),
        LayerSpec(kind=LayerKind.WINDOW, n_kv_heads=1, k_head_dim=4, v_head_dim=12, window=9),
        LayerSpec(kind=LayerKind.RECURRENT, state_bytes=37),
        LayerSpec(kind=LayerKind.ATTENTION, n_kv_heads=3, k_head_dim=8, v_head_dim=2),
    ),
    kv_type=KVType.BF16,
    n_ctx=256,
    n_slots=2,
)


class ManualClock:
    """A clock in microseconds that moves only when told."""

    def __init__(self) -> None:
        self.now_us = 1_000_000

    def __call__(self) -> int:
        return self.now_us

    def advance(self, seconds: float) -> None:
        self.now_us += int(seconds * 1_000_000)


def identity(**changes: object) -> ModelIdentity:
    fields: dict[str, object] = {
        "model_name": "tiny",
        "model_digest": "aa" * 32,
        "tokenizer_digest": "bb" * 32,
        "layers": layer_shapes(SPEC),
        "rope": (("base", "10000.0"), ("kind", "neox")),
        "kv_type": KVType.BF16,
    }
    return ModelIdentity(**(fields | changes))  # type: ignore[arg-type]


def hello(**changes: object) -> Hello:
    fields: dict[str, object] = {
        "protocol_major": PROTOCOL_MAJOR,
        "protocol_minor": PROTOCOL_MINOR,
        "role": Role.DECODE,
        "session": SESSION,
        "identity": identity(),
        "codecs": ("raw",),
    }
    return Hello(**(fields | changes))  # type: ignore[arg-type]


def hello_reply(**changes: object) -> HelloReply:
    fields: dict[str, object] = {
        "protocol_major": PROTOCOL_MAJOR,
        "protocol_minor": PROTOCOL_MINOR,
        "role": Role.PREFILL,
        "identity": identity(),
        "codecs": ("raw",),
        "data_streams": 4,
        "max_prompt_tokens": SPEC.n_ctx,
    }
    return HelloReply(**(fields | changes))  # type: ignore[arg-type]


def landings(first: int, stop: int, *, slot: int = 0, spec: CacheSpec = SPEC) -> tuple[Landing, ...]:
    """Where positions [first, stop) of every layer may land, in a slot whose window buffers start at 0."""
    made = []
    for index, (layer, region) in enumerate(zip(spec.layers, spec.regions(slot), strict=True)):
        low = first
        if layer.kind is LayerKind.WINDOW:
            low = max(first, stop - (layer.window - 1))
        if layer.kind is LayerKind.RECURRENT:
            low = stop
        made.append(
            Landing(
                layer=index,
                kind=layer.kind,
                first=low,
                stop=stop,
                k_offset=region.k_offset + low * region.k_row_bytes,
                v_offset=region.v_offset + low * region.v_row_bytes,
                k_row_bytes=region.k_row_bytes,
                v_row_bytes=region.v_row_bytes,
                state_offset=region.state_offset,
                state_bytes=region.state_bytes,
            )
        )
    return tuple(made)


class Glued:
    """A client and a worker joined by byte strings. `pump` carries what is waiting until nothing moves.

    The worker's data goes into `streams_out`, one bytearray a stream, and reaches the client only by `pump`, so a test
    may hold it back, cut it or spoil it.
    """

    def __init__(self, *, data_streams: int = 1, **reply_changes: object) -> None:
        self.client_clock = ManualClock()
        self.worker_clock = ManualClock()
        self.client = ClientConnection(
            hello=hello(data_streams=data_streams, codecs=CODECS), clock=self.client_clock
        )
        reply = hello_reply(**({"codecs": CODECS} | reply_changes))
        self.worker = WorkerConnection(reply=reply, clock=self.worker_clock)
        self.memory = bytearray(SPEC.total_bytes())
        self.source = random.Random(7).randbytes(SPEC.total_bytes())
        self.streams_out: list[bytearray] = [bytearray() for _ in range(data_streams)]
        self.streams: list[DataStream] = []
        self.client_events: list[Event] = []
        self.worker_events: list[Event] = []
        self.answer_fence: Callable[[int], None] = self._answer_fence

    def open(self) -> Glued:
        self.pump()
        reply = self.client.reply
        assert reply is not None
        for index in range(reply.data_streams):
            attach = Attach(session=SESSION, stream=index)
            self.streams.append(self.client.stream(attach, memoryview(self.memory)))
        return self

    def pump_control(self) -> None:
        while self.client.has_output or self.worker.has_output:
            for event in self.worker.receive(self.client.take_output()):
                self.worker_events.append(event)
                if isinstance(event, FenceAsked):
                    self.answer_fence(event.fence)
            if self.worker.has_output:
                self.client_events += self.client.receive(self.worker.take_output())

    def pump_data(self) -> None:
        for stream, waiting in zip(self.streams, self.streams_out, strict=True):
            self.client_events += feed_stream(stream, bytes(waiting))
            waiting.clear()

    def pump(self) -> None:
        self.pump_control()
        if self.streams:
            self.pump_data()
            self.pump_control()

    def _answer_fence(self, fence: int) -> None:
        for waiting in self.streams_out:
            waiting += self.worker.fence_reply(fence)

    def ask(
        self,
        request: int,
        first: int,
        stop: int,
        *,
        chunk_tokens: int = 16,
        slot: int = 0,
        codec: PayloadCodec = PayloadCodec.RAW,
    ) -> PrefillAsked:
        self.client.request(
            request=request,
            tokens=bytes(4 * stop),
            first=first,
            stop=stop,
            chunk_tokens=chunk_tokens,
            landings=landings(first, stop, slot=slot),
            codec=codec,
        )
        self.pump_control()
        asked = self.worker_events[-1]
        assert isinstance(asked, PrefillAsked)
        return asked

    def spans(self, request: int, chunk: int, layer: int) -> tuple[tuple[int, int], ...]:
        """Where that frame's bytes are in the source: the same offsets as slot 0 of the landing memory."""
        plan = self.worker._jobs[request].plan
        part = plan.part(chunk, layer)
        assert part is not None
        region = SPEC.regions(0)[layer]
        if part.state_bytes:
            return ((region.state_offset, part.state_bytes),)
        k = region.k_offset + part.first_row * region.k_row_bytes
        v = region.v_offset + part.first_row * region.v_row_bytes
        return ((k, part.k_bytes), (v, part.v_bytes))

    def push(self, request: int, chunk: int, layer: int, *, stream: int = 0) -> None:
        spans = self.spans(request, chunk, layer)
        n_bytes = sum(n_bytes for _, n_bytes in spans)
        header = self.worker.push(request, chunk=chunk, layer=layer, payload_bytes=n_bytes)
        out = self.streams_out[stream]
        out += encode_data_header(header)
        if header.codec is PayloadCodec.RAW:
            out += b"".join(self.source[offset : offset + n_bytes] for offset, n_bytes in spans)
            return
        rows = self.worker.row_spans(request, chunk=chunk, layer=layer, spans=spans)
        packer = block_codec(header.codec, SPEC.kv_type)
        for part in packed_blocks(lambda: packer, rows, memoryview(self.source)):
            out += part

    def push_chunk(self, request: int, chunk: int) -> None:
        plan = self.worker._jobs[request].plan
        for part in plan.parts(chunk):
            self.push(request, chunk, part.layer)
        self.commit(request, chunk)

    def commit(self, request: int, chunk: int) -> None:
        """Computed in the last 10 microseconds."""
        now_us = self.worker_clock()
        self.worker.commit(request, chunk=chunk, started_us=now_us - 10, ended_us=now_us)

    def compute_done(self, request: int) -> None:
        now_us = self.worker_clock()
        self.worker.compute_done(request, started_us=now_us - 10, ended_us=now_us)


def plain_rows() -> bytes:
    """A source full of numbers that K and V may be: random bytes are not all numbers, and do not shrink."""
    rng = random.Random(3)
    n_values = SPEC.total_bytes() // 2
    return struct.pack(f"<{n_values}H", *(_bfloat16(rng.gauss(0, 1)) for _ in range(n_values)))


def _bfloat16(value: float) -> int:
    """Cut, not rounded."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return int(bits) >> 16


def feed_stream(stream: DataStream, data: bytes) -> list[Event]:
    """Give a data stream bytes, as a socket would: never past its buffer."""
    events: list[Event] = []
    at = 0
    while at < len(data):
        view = stream.buffer()
        n_bytes = min(len(view), len(data) - at)
        view[:n_bytes] = data[at : at + n_bytes]
        at += n_bytes
        events += stream.advance(n_bytes)
    return events
