"""Spoilt bytes into both ends: whatever comes, a PeerError or nothing, at once, and no memory beyond the limits.

A seeded sample runs with every test run; the million runs with `make soak`.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable

import pytest

from engine.errors import PeerError
from engine.wire.client import ClientConnection, DataStream
from engine.wire.codec import CODECS, PayloadCodec, encode_message
from engine.wire.limits import MAX_CONTROL_BYTES, MAX_HELLO_BYTES
from engine.wire.messages import Attach
from engine.wire.worker import WorkerConnection
from tests.engine.wire.ends import (
    SESSION,
    SPEC,
    Glued,
    ManualClock,
    feed_stream,
    hello,
    hello_reply,
    landings,
    plain_rows,
)
from tests.engine.wire.test_codec import EXAMPLES

SAMPLE = 4_000
MILLION = 1_000_000

# One spoilt run of frames must not keep an end busy; a slow computer under load gets its time.
MAX_SECONDS_A_CASE = 2.0


def spoil(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """One or a few changes of the kinds that break parsers: bits, lengths, cuts, repeats, splices, whole garbage."""
    spoilt = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(spoilt) + 1)
        match rng.randrange(9):
            case 0 if spoilt:
                spoilt[at % len(spoilt)] ^= 1 << rng.randrange(8)
            case 1 if spoilt:
                spoilt[at % len(spoilt)] = rng.choice((0, 1, 0x7F, 0x80, 0xC1, 0xDC, 0xDD, 0xDF, 0xFF))
            case 2:
                del spoilt[at : at + rng.randrange(1, 20)]
            case 3:
                spoilt[at:at] = rng.randbytes(rng.randrange(1, 20))
            case 4:
                spoilt[at:at] = spoilt[at : at + rng.randrange(1, 60)]
            case 5:
                spoilt[at:] = other[rng.randrange(len(other) + 1) :]
            case 6 if len(spoilt) >= 8:
                spoilt[4:8] = rng.choice((0, 1, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, MAX_CONTROL_BYTES)).to_bytes(
                    4, "little"
                )
            case 7:
                width = rng.choice((2, 4, 8))
                spoilt[at : at + width] = rng.choice(
                    (0, (1 << 8 * width) - 1, 1 << (8 * width - 1))
                ).to_bytes(width, "little")
            case _:
                spoilt[at : at + 4] = rng.randbytes(4)
    return bytes(spoilt)


def in_pieces(rng: random.Random, data: bytes) -> list[bytes]:
    if rng.random() < 0.5:
        return [data]
    cut = rng.randrange(len(data) + 1)
    return [data[:cut], data[cut:]]


class Corpus:
    """Real traffic to spoil: what each end and each stream received in a handoff with a cancel and a refusal."""

    def __init__(self, codec: PayloadCodec = PayloadCodec.RAW) -> None:
        self.codec = codec
        self.examples = [encode_message(message) for message in EXAMPLES.values()]
        ends = Glued().open()
        ends.source = plain_rows()
        self.to_client = encode_message(ends.worker.reply)
        self.to_worker = encode_message(ends.client.hello)
        ends.ask(1, 3, 50, codec=codec)
        ends.worker.accept(1, reused_tokens=0)
        for chunk in range(3):
            ends.push_chunk(1, chunk)
        ends.compute_done(1)
        self.stream = bytes(ends.streams_out[0])
        self.accepted_to_client = ends.worker.take_output()

    def open_client(self) -> tuple[ClientConnection, DataStream]:
        """A client with two requests under way, one of them cancelled, and its data stream."""
        client = ClientConnection(hello=hello(codecs=CODECS), clock=ManualClock())
        client.receive(self.to_client)
        for request, slot in ((1, 0), (2, 1)):
            client.request(
                request=request,
                tokens=bytes(200),
                first=3,
                stop=50,
                chunk_tokens=16,
                landings=landings(3, 50, slot=slot),
                codec=self.codec,
            )
        client.cancel(2)
        return client, client.stream(Attach(session=SESSION, stream=0), MEMORY)

    def open_worker(self) -> WorkerConnection:
        """A worker that has answered one request in full and waits for its acknowledgements."""
        worker = WorkerConnection(reply=hello_reply(codecs=CODECS), clock=ManualClock())
        worker.receive(self.to_worker)
        worker.receive(self.requests())
        worker.accept(1, reused_tokens=0)
        plan = worker._jobs[1].plan
        for chunk in range(3):
            for part in plan.parts(chunk):
                worker.push(1, chunk=chunk, layer=part.layer, payload_bytes=part.payload_bytes)
            worker.commit(1, chunk=chunk, started_us=0, ended_us=10)
        return worker

    def requests(self) -> bytes:
        client, _ = self.open_client()
        return client.take_output().removeprefix(self.to_worker)


MEMORY = memoryview(bytearray(SPEC.total_bytes()))


def feed_fresh_worker(corpus: Corpus, rng: random.Random) -> None:
    worker = WorkerConnection(reply=hello_reply(), clock=ManualClock())
    feed(rng, worker, spoil(rng, corpus.to_worker, rng.choice(corpus.examples)), max_bytes=MAX_HELLO_BYTES)


def feed_fresh_client(corpus: Corpus, rng: random.Random) -> None:
    client = ClientConnection(hello=hello(), clock=ManualClock())
    feed(rng, client, spoil(rng, corpus.to_client, rng.choice(corpus.examples)), max_bytes=MAX_HELLO_BYTES)


def feed_open_worker(corpus: Corpus, rng: random.Random) -> None:
    message = rng.choice(corpus.examples)
    feed(
        rng,
        corpus.open_worker(),
        spoil(rng, message, rng.choice(corpus.examples)),
        max_bytes=MAX_CONTROL_BYTES,
    )


def feed_open_client(corpus: Corpus, rng: random.Random) -> None:
    client, _ = corpus.open_client()
    message = rng.choice((corpus.accepted_to_client, rng.choice(corpus.examples)))
    feed(rng, client, spoil(rng, message, rng.choice(corpus.examples)), max_bytes=MAX_CONTROL_BYTES)


def feed_data_stream(corpus: Corpus, rng: random.Random) -> None:
    client, stream = corpus.open_client()
    if rng.random() < 0.5:
        client.receive(corpus.accepted_to_client)
    data = spoil(rng, corpus.stream, rng.choice(corpus.examples))
    for piece in in_pieces(rng, data):
        feed_stream(stream, piece)


TARGETS: dict[str, Callable[[Corpus, random.Random], None]] = {
    "the worker's hello": feed_fresh_worker,
    "the client's hello": feed_fresh_client,
    "an open worker": feed_open_worker,
    "an open client": feed_open_client,
    "a data stream": feed_data_stream,
    "a data stream of packed rows": feed_data_stream,
    "a data stream of 8-bit rows": feed_data_stream,
}
CODEC_OF = {
    "a data stream of packed rows": PayloadCodec.LOSSLESS,
    "a data stream of 8-bit rows": PayloadCodec.INT8,
}


def feed(
    rng: random.Random, end: ClientConnection | WorkerConnection, data: bytes, *, max_bytes: int
) -> None:
    for piece in in_pieces(rng, data):
        end.receive(piece)
        assert end._reader.buffered_bytes <= max_bytes + len(data)


def fuzz(target: str, cases: int, seed: int) -> None:
    corpus = Corpus(CODEC_OF.get(target, PayloadCodec.RAW))
    rng = random.Random(seed)
    refused = 0
    for case in range(cases):
        begun = time.monotonic()
        try:
            TARGETS[target](corpus, rng)
        except PeerError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"case {case} of {target} with seed {seed} raised {error!r}") from error
        assert time.monotonic() - begun < MAX_SECONDS_A_CASE
    # Were the bytes not really spoilt, or never parsed, these would be 0 or all.
    assert 0 < refused <= cases


@pytest.mark.parametrize("target", TARGETS)
def test_spoilt_bytes_do_no_harm(target: str) -> None:
    fuzz(target, SAMPLE // len(TARGETS), seed=20260101)


@pytest.mark.soak
@pytest.mark.parametrize("target", TARGETS)
def test_a_million_spoilt_frames_do_no_harm(target: str) -> None:
    fuzz(target, MILLION // len(TARGETS), seed=random.randrange(1 << 32))


def test_lengths_that_lie_cost_no_memory() -> None:
    """Headers that announce gigabytes, inside and outside messages: nothing is set aside for them."""
    corpus = Corpus()
    lies = [
        b"\xc6\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
    ]
    tracemalloc.start()
    try:
        for frame in (corpus.to_worker, *corpus.examples):
            for at in range(8, len(frame), 3):
                for lie in lies:
                    body = frame[8:at] + lie + frame[at:]
                    worker = WorkerConnection(reply=hello_reply(), clock=ManualClock())
                    with pytest.raises(PeerError):
                        worker.receive(frame[:4] + len(body).to_bytes(4, "little") + body)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 << 20
