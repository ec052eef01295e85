"""Both sides of a handoff for a bench: real couriers over a real link, paced compute, caches of random bytes.

Nothing here measures; the benches that do are `handoff` and `saturate`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from engine.bench import netns
from engine.bench.cpu_time import cpu_seconds
from engine.bench.geometries import Geometry
from engine.bench.paced import PacedPrefiller, landings_for
from engine.cache.spec import CacheSpec, KVType
from engine.errors import HostError, OutOfMemory, PeerLost, ProcessFailed
from engine.handoff.channel import CourierConfig
from engine.handoff.client_events import Failed, Finished
from engine.handoff.codec_choice import CodecPolicy
from engine.handoff.prefill_client import PrefillClient
from engine.handoff.prefill_worker import PrefillWorker
from engine.handoff.shared import SharedMemory, landing_spans
from engine.node.scratch import private_folder
from engine.node.trust.identity import Identity
from engine.wire.blocks import BlockCodec, RowSpan, block_codec
from engine.wire.codec import PayloadCodec
from engine.wire.messages import ModelIdentity, Role, layer_shapes

LOOPBACK = "loopback"
LINKS = (LOOPBACK, *(f"netns:{rate}" for rate in netns.RATES))

_CONNECT_TIMEOUT_S = 20.0

# A handoff that moves nothing for so long is not coming.
_STILL_TIMEOUT_S = 60.0

_BLOCK_BYTES = 8 << 20

# Blocks begin at so many places of the same values, each a step from the last.
_ORDERS, _STEP = 1 << 16, 997


@dataclass(frozen=True, kw_only=True)
class HandoffConfig:
    """What to hand over. A prompt of `tokens` has `tokens` - 1 positions to hand over: the last is the decoder's."""

    geometry: Geometry
    tokens: int
    chunk_tokens: int
    compute_ms_per_chunk: float
    link: str = LOOPBACK
    data_streams: int = 1
    codec: CodecPolicy = CodecPolicy.RAW

    @property
    def stop(self) -> int:
        return self.tokens - 1

    @property
    def spec(self) -> CacheSpec:
        return CacheSpec(layers=self.geometry.layers, kv_type=KVType.BF16, n_ctx=self.tokens, n_slots=1)

    @property
    def prefiller(self) -> PacedPrefiller:
        return PacedPrefiller(
            self.spec, chunk_tokens=self.chunk_tokens, compute_s=self.compute_ms_per_chunk / 1000
        )


@dataclass(frozen=True, kw_only=True)
class Link:
    """What joins the two sides: where the worker listens, and the words that start a process of each side on it."""

    worker_host: str
    decoder_host: str
    enter_worker: tuple[str, ...] = ()
    enter_decoder: tuple[str, ...] = ()


@contextlib.contextmanager
def opened(name: str) -> Iterator[Link]:
    """The link of that name, for as long as the context lasts. Raises HostError where it cannot be had here."""
    if name == LOOPBACK:
        yield Link(worker_host="127.0.0.1", decoder_host="127.0.0.1")
        return
    with netns.cable(name.removeprefix("netns:")) as (near, far):
        yield Link(
            worker_host=near.host, decoder_host=far.host, enter_worker=near.enter, enter_decoder=far.enter
        )


class Caches:
    """What the worker sends and where it lands, in blocks of memory that couriers can share."""

    def __init__(self, config: HandoffConfig, source: SharedMemory, landing: SharedMemory) -> None:
        self.source = source
        self.landing = landing
        self.landings = landings_for(config.spec, config.stop)
        self._config = config

    def fill(self) -> None:
        """Values to send, distributed as K and V are and in other order at every place, and pages to land in, as a slot
        has that served before."""
        import numpy as np

        zeros = bytes(_BLOCK_BYTES)
        n_values = (_BLOCK_BYTES + _ORDERS * 2) // 2
        drawn = np.random.default_rng(0).standard_normal(n_values, np.float32)
        values = memoryview((drawn.view(np.uint32) >> 16).astype("<u2").tobytes())
        places = (place for span in landing_spans(self.landings) for place in _blocks(*span))
        for index, (at, n_bytes) in enumerate(places):
            first = 2 * (_STEP * index % _ORDERS)
            self.source.buffer[at : at + n_bytes] = values[first : first + n_bytes]
            self.landing.buffer[at : at + n_bytes] = zeros[:n_bytes]

    def check(self) -> None:
        """Raises HostError when what landed is not what was sent, or what the codec makes of it."""
        for span, packer in self._sent():
            for at, n_bytes in span.blocks():
                due = bytearray(self.source.buffer[at : at + n_bytes])
                if packer is not None and (body := packer.pack(memoryview(due), span.head_dim)):
                    packer.unpack(memoryview(b"".join(body)), memoryview(due), span.head_dim)
                if due != self.landing.buffer[at : at + n_bytes]:
                    raise HostError(
                        f"what landed at {at} is not what was sent: this is a fault in Baton, please report it"
                    )

    def _sent(self) -> Iterator[tuple[RowSpan, BlockCodec | None]]:
        """All that is sent, a state as one row, with the codec that changes it."""
        spec = self._config.spec
        lossy = (
            block_codec(PayloadCodec.INT8, spec.kv_type) if self._config.codec is CodecPolicy.INT8 else None
        )
        for landing, layer in zip(self.landings, spec.layers, strict=True):
            rows = landing.stop - landing.first
            for offset, row_bytes, head_dim in (
                (landing.k_offset, landing.k_row_bytes, layer.k_head_dim),
                (landing.v_offset, landing.v_row_bytes, layer.v_head_dim),
            ):
                if row_bytes:
                    n_bytes = rows * row_bytes
                    yield (
                        RowSpan(offset=offset, n_bytes=n_bytes, row_bytes=row_bytes, head_dim=head_dim),
                        lossy,
                    )
            if n_bytes := landing.state_bytes:
                yield (
                    RowSpan(
                        offset=landing.state_offset, n_bytes=n_bytes, row_bytes=n_bytes, head_dim=n_bytes
                    ),
                    None,
                )


@contextlib.contextmanager
def caches(config: HandoffConfig) -> Iterator[Caches]:
    """Filled memory for one handoff after another. Raises OutOfMemory where both ends do not fit."""
    needed_bytes, free_bytes = 2 * config.spec.total_bytes(), psutil.virtual_memory().available
    if needed_bytes > free_bytes:
        raise OutOfMemory(
            f"both ends' caches take {needed_bytes / 1e9:.1f} GB, and {free_bytes / 1e9:.1f} GB are free: "
            "take fewer --tokens, or another --geometry"
        )
    with _memory(config.spec) as source, _memory(config.spec) as landing:
        made = Caches(config, source, landing)
        made.fill()
        yield made


@contextlib.contextmanager
def _memory(spec: CacheSpec) -> Iterator[SharedMemory]:
    memory = SharedMemory.create(spec.total_bytes())
    try:
        yield memory
    finally:
        memory.close_descriptor()


@dataclass(frozen=True, kw_only=True)
class Run:
    """One handoff: how it ended, and what it took."""

    finished: Finished
    took_s: float
    cpu_s: float

    @property
    def goodput_gbps(self) -> float:
        return 8e-9 * self.finished.wire_bytes / self.took_s

    @property
    def cpu_s_per_gb(self) -> float:
        return self.cpu_s / (self.finished.payload_bytes / 1e9)


class CourierPair:
    """Both engines' sides, connected, in this process; their couriers are processes of their own."""

    def __init__(
        self, config: HandoffConfig, caches: Caches, client: PrefillClient, worker: PrefillWorker
    ) -> None:
        self._config = config
        self._caches = caches
        self._client = client
        self._worker = worker
        self._asked = 0
        self._news = threading.Event()
        client.on_wakeup(self._news.set)

    @property
    def courier_pids(self) -> list[int]:
        return [pid for pid in (self._client.courier_pid, self._worker.courier_pid) if pid]

    def hand_over(self) -> Run:
        """One handoff of everything, measured."""
        config = self._config
        self._asked += 1
        cpu_before_s = self._cpu_s()
        begun_s = time.monotonic()
        self._client.start(
            self._asked, [0] * config.stop, 0, config.stop, self._caches.landings, config.chunk_tokens
        )
        finished = self._wait_finished()
        took_s = time.monotonic() - begun_s
        return Run(finished=finished, took_s=took_s, cpu_s=self._cpu_s() - cpu_before_s)

    def _cpu_s(self) -> float:
        return sum(cpu_seconds(pid) for pid in self.courier_pids)

    def wait_connected(self) -> None:
        deadline_s = time.monotonic() + _CONNECT_TIMEOUT_S
        while (status := self._client.status()) is not None and not status.ready:
            if not self._wait(deadline_s - time.monotonic()):
                raise ProcessFailed(f"the two couriers did not find each other: {status.note}")

    def _wait_finished(self) -> Finished:
        while self._wait(_STILL_TIMEOUT_S):
            for event in self._client.poll():
                if isinstance(event, Finished):
                    return event
                if isinstance(event, Failed):
                    raise PeerLost(f"the handoff failed ({event.code}): {event.message}")
        raise PeerLost("the handoff stopped moving")

    def _wait(self, timeout_s: float) -> bool:
        heard = self._news.wait(max(0.0, timeout_s))
        self._news.clear()
        return heard


@contextlib.contextmanager
def joined(config: HandoffConfig, link: Link, caches: Caches) -> Iterator[CourierPair]:
    """A decoding side whose memory is the landing and a worker whose memory is the source, each trusting the other."""
    with private_folder("bench") as folder, contextlib.ExitStack() as closing:
        decoder, worker_folder = folder / "decoder", folder / "worker"
        decoder_id, worker_id = Identity.load_or_create(decoder), Identity.load_or_create(worker_folder)
        common: dict[str, Any] = {
            "identity": _identity(config),
            "data_streams": config.data_streams,
            "max_prompt_tokens": config.tokens,
        }
        worker = PrefillWorker(
            config.prefiller,
            _courier(
                Role.PREFILL,
                worker_folder,
                decoder_id.fingerprint,
                listen=f"{link.worker_host}:0",
                start_through=link.enter_worker,
                **common,
            ),
            caches.source,
        )
        port = worker.open()
        closing.callback(worker.close)
        thread = threading.Thread(target=worker.run, name="paced-worker", daemon=True)
        thread.start()
        client = PrefillClient(
            _courier(
                Role.DECODE,
                decoder,
                worker_id.fingerprint,
                dial=f"{link.worker_host}:{port}",
                codec=config.codec,
                start_through=link.enter_decoder,
                **common,
            ),
            caches.landing,
        )
        pair = CourierPair(config, caches, client, worker)
        client.open()
        closing.callback(client.close)
        pair.wait_connected()
        yield pair


def _courier(
    role: Role, folder: Path, trusted: str, *, dial: str | None = None, listen: str | None = None, **more: Any
) -> CourierConfig:
    return CourierConfig(
        role=role,
        identity_dir=str(folder),
        trust_dir=str(folder / "trusted"),
        fingerprint=trusted,
        dial=dial,
        listen=listen,
        channel_descriptor=-1,
        memory_descriptor=-1,
        memory_bytes=0,
        **more,
    )


def _identity(config: HandoffConfig) -> ModelIdentity:
    spec = config.spec
    return ModelIdentity(
        model_name=config.geometry.name,
        model_digest="",
        tokenizer_digest="",
        layers=layer_shapes(spec),
        rope=(),
        kv_type=spec.kv_type,
    )


def _blocks(offset: int, n_bytes: int) -> Iterator[tuple[int, int]]:
    for at in range(offset, offset + n_bytes, _BLOCK_BYTES):
        yield at, min(_BLOCK_BYTES, offset + n_bytes - at)
