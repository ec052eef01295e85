"""Handoffs by each codec between real courier processes, and packed rows that lie."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.cache.spec import LayerKind
from engine.handoff.client_events import Failed, Finished
from engine.handoff.codec_choice import CodecPolicy
from engine.handoff.transport import DataSender, Outgoing
from engine.wire.codec import CODECS, DataHeader, PayloadCodec, encode_data_header
from engine.wire.messages import Role
from tests.engine.handoff.lying import LyingWorker, dial
from tests.engine.handoff.pairs import (
    SPEC,
    TIMEOUT_S,
    ClientSide,
    WorkerSide,
    courier_config,
    digest,
    landings,
    pair,
)
from tests.engine.handoff.test_strangers import introduce_worker

N_TOKENS = 100

# K and V of the two attention layers and of the window's last 8 rows, as values and as heads; and the state.
ROWS_BYTES = N_TOKENS * 2 * (2 * 40 + 3 * 12) + 8 * 2 * 20
N_VALUES, STATE_BYTES = ROWS_BYTES // 2, 5001
# Heads of four values are shorter than their codes would be with a scale.
SHORT = N_TOKENS * 3 * 4
N_HEADS = N_TOKENS * (2 + 2 + 3) + 8 * 2
# Blocks of K and of V: seven chunks of two layers, and the window.
N_BLOCKS = 2 * (7 * 2 + 1)


def fill(worker: WorkerSide) -> None:
    """The worker's cache with values as K and V have."""
    n_values = SPEC.total_bytes() // 2
    values = np.random.default_rng(4).standard_normal(n_values, np.float32)
    worker.memory.buffer[:] = (values.view(np.uint32) >> 16).astype("<u2").tobytes()


def landed(memory: memoryview, kind: LayerKind) -> np.ndarray:
    """All values that land in layers of that kind."""
    parts = []
    for landing in landings(0, N_TOKENS):
        if landing.kind is kind:
            rows = landing.stop - landing.first
            for offset, row_bytes in (
                (landing.k_offset, landing.k_row_bytes),
                (landing.v_offset, landing.v_row_bytes),
            ):
                bits = np.frombuffer(memory[offset : offset + rows * row_bytes], "<u2")
                parts.append((bits.astype(np.uint32) << 16).view(np.float32))
    return np.concatenate(parts)


def handed_over(client: ClientSide, request: int) -> Finished:
    client.ask(request, N_TOKENS)
    done = client.wait_end(request)
    assert isinstance(done, Finished)
    assert done.payload_bytes == ROWS_BYTES + STATE_BYTES
    return done


def test_raw_sends_what_there_is(tmp_path: Path) -> None:
    with pair(tmp_path, codec=CodecPolicy.RAW) as (client, worker):
        done = handed_over(client, 1)
        assert (done.codec, done.codec_reason) == ("raw", "--codec raw was set")
        assert done.wire_bytes == done.payload_bytes
        assert digest(client.memory, 0, N_TOKENS) == digest(worker.memory, 0, N_TOKENS)


def test_lossless_lands_the_same_bytes_and_sends_fewer(tmp_path: Path) -> None:
    with pair(tmp_path, codec=CodecPolicy.LOSSLESS) as (client, worker):
        fill(worker)
        done = handed_over(client, 1)
        assert (done.codec, done.codec_reason) == ("lossless", "--codec lossless was set")
        assert STATE_BYTES < done.wire_bytes < 0.95 * done.payload_bytes
        assert digest(client.memory, 0, N_TOKENS) == digest(worker.memory, 0, N_TOKENS)
        (record,) = client.opened.recent()
        assert (record.codec, record.wire_bytes) == (done.codec, done.wire_bytes)


def test_lossless_sends_what_does_not_shrink_as_it_is(tmp_path: Path) -> None:
    with pair(tmp_path, codec=CodecPolicy.LOSSLESS) as (client, worker):
        done = handed_over(client, 1)  # random bytes
        assert done.wire_bytes == done.payload_bytes + 4 * N_BLOCKS
        assert digest(client.memory, 0, N_TOKENS) == digest(worker.memory, 0, N_TOKENS)


def test_int8_lands_rows_close_to_those_sent_and_states_as_they_are(tmp_path: Path) -> None:
    with pair(tmp_path, codec=CodecPolicy.INT8) as (client, worker):
        fill(worker)
        done = handed_over(client, 1)
        assert (done.codec, done.codec_reason) == ("int8", "--codec int8 was set")
        codes_bytes = N_VALUES - SHORT + 4 * N_HEADS
        assert done.wire_bytes == codes_bytes + 2 * SHORT + 4 * N_BLOCKS + STATE_BYTES
        for kind in (LayerKind.ATTENTION, LayerKind.WINDOW):
            sent, came = landed(worker.memory.buffer, kind), landed(client.memory.buffer, kind)
            assert not np.array_equal(sent, came)
            assert np.abs(sent - came).max() < np.abs(sent).max() / 200
        state = next(place for place in landings(0, N_TOKENS) if place.state_bytes)
        whole = slice(state.state_offset, state.state_offset + state.state_bytes)
        assert client.memory.buffer[whole] == worker.memory.buffer[whole]


def test_auto_is_raw_until_the_link_is_known(tmp_path: Path) -> None:
    with pair(tmp_path) as (client, _):
        done = handed_over(client, 1)
        assert (done.codec, done.codec_reason) == ("raw", "the link has not been measured yet")


@contextlib.contextmanager
def lied_to(
    tmp_path: Path, codec: CodecPolicy, codecs: tuple[str, ...]
) -> Iterator[tuple[ClientSide, LyingWorker]]:
    with pair(tmp_path, start=False) as (client, worker):
        own = worker.identity.fingerprint
        client.start(courier_config(Role.DECODE, client.folder, own, listen="127.0.0.1:0", codec=codec))
        introduce_worker(client, worker)
        liar = LyingWorker(
            lambda protocol: dial(client.port or 0, worker.identity, client.identity, protocol),
            dials=True,
            codecs=codecs,
        )
        try:
            client.wait_ready()
            yield client, liar
        finally:
            liar.control.close()
            liar.data.close()


# K of the first layer in the first chunk: 14 rows of 2 heads of 16 values.
K_VALUES, K_HEADS = 14 * 2 * 16, 14 * 2


def first_frame(codec: PayloadCodec, request: int, payload: bytes) -> bytes:
    header = DataHeader(
        request=request, chunk=0, layer=0, codec=codec, first_row=0, rows=14, payload_bytes=14 * 2 * 2 * 40
    )
    return encode_data_header(header) + payload


def block(body: bytes, n_bytes: int | None = None) -> bytes:
    return (len(body) if n_bytes is None else n_bytes).to_bytes(4, "little") + body


LIES = {
    "codes of another length": ("int8", PayloadCodec.INT8, block(b"", K_VALUES + 4 * K_HEADS + 1)),
    "a scale that is no number": (
        "int8",
        PayloadCodec.INT8,
        block(b"\0\0\xc0\x7f" * K_HEADS + bytes(K_VALUES)),
    ),
    "a block of gigabytes": ("lossless", PayloadCodec.LOSSLESS, block(b"", 0xFFFFFFFF)),
    "planes that do not fit": ("lossless", PayloadCodec.LOSSLESS, block(b"\xff" * 100)),
    "a codec that was not asked for": ("lossless", PayloadCodec.INT8, b""),
    "raw rows where packed ones were asked for": ("int8", PayloadCodec.RAW, bytes(14 * 2 * 2 * 40)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_worker_whose_packed_rows_lie_is_refused_and_nothing_of_them_lands(
    tmp_path: Path, lie: str
) -> None:
    policy, codec, payload = LIES[lie]
    with lied_to(tmp_path, CodecPolicy(policy), CODECS) as (client, liar):
        client.memory.buffer[:] = b"\xa5" * SPEC.total_bytes()
        client.ask(1, N_TOKENS)
        liar.accept()
        with contextlib.suppress(OSError):
            liar.data.sendall(first_frame(codec, 1, payload))
        failed = client.wait_end(1)
        assert isinstance(failed, Failed) and failed.code == "protocol"
        assert client.commits(1) == []
        assert set(client.memory.buffer.tobytes()) == {0xA5}


def test_a_worker_that_knows_raw_alone_is_asked_for_that(tmp_path: Path) -> None:
    with lied_to(tmp_path, CodecPolicy.INT8, ("raw",)) as (client, liar):
        client.ask(1, N_TOKENS)
        liar.accept()
        assert [job.codec for job in liar._connection._jobs.values()] == [PayloadCodec.RAW]


class Sink:
    """A connection that takes everything."""

    def __init__(self) -> None:
        self.taken = b""

    def settimeout(self, seconds: float | None) -> None:
        pass

    def sendall(self, data: bytes) -> None:
        self.taken += data

    def close(self) -> None:
        pass


def test_a_block_that_cannot_be_packed_ends_the_link_and_nothing_follows_it() -> None:
    def parts() -> Iterator[bytes]:
        yield b"half a frame"
        raise MemoryError("no room to pack")

    ends: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    dealt_with = threading.Event()
    sender, sink = DataSender(ends.put), Sink()
    sender.put(Outgoing(parts=parts(), wanted=lambda: True))
    sender.put(Outgoing(parts=(b"more",), wanted=lambda: True, sent=dealt_with.set))
    sender.attach(sink)  # type: ignore[arg-type]
    assert isinstance(ends.get(timeout=TIMEOUT_S), MemoryError)
    assert dealt_with.wait(TIMEOUT_S)
    assert sink.taken == b"half a frame"
