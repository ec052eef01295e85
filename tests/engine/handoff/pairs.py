"""Two engines' sides with real couriers between them, for tests: the computing is faked, processes and TLS are not."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import queue
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from engine.bench.paced import landings_for
from engine.cache.spec import CacheSpec, KVType, Landing, LayerKind, LayerSpec
from engine.handoff.channel import CourierConfig
from engine.handoff.client_events import ClientEvent, Committed, Failed, Finished, Released
from engine.handoff.codec_choice import CodecPolicy
from engine.handoff.prefill_client import PrefillClient
from engine.handoff.prefill_worker import PrefillWorker
from engine.handoff.prefiller import Part, Taken
from engine.handoff.shared import SharedMemory, landing_spans
from engine.node.trust.identity import Identity
from engine.wire.messages import ModelIdentity, Role, layer_shapes

# Real processes on a computer that has other things to do.
TIMEOUT_S = 20.0

CHUNK = 16

SPEC = CacheSpec(
    layers=(
        LayerSpec(kind=LayerKind.ATTENTION, n_kv_heads=2, k_head_dim=16, v_head_dim=24),
        LayerSpec(kind=LayerKind.WINDOW, n_kv_heads=1, k_head_dim=8, v_head_dim=12, window=9),
        LayerSpec(kind=LayerKind.RECURRENT, state_bytes=5001),
        LayerSpec(kind=LayerKind.ATTENTION, n_kv_heads=3, k_head_dim=8, v_head_dim=4),
    ),
    kv_type=KVType.BF16,
    n_ctx=512,
    n_slots=1,
)


def identity(spec: CacheSpec = SPEC, **changes: object) -> ModelIdentity:
    made = ModelIdentity(
        model_name="fake",
        model_digest="00" * 32,
        tokenizer_digest="11" * 32,
        layers=layer_shapes(spec),
        rope=(),
        kv_type=spec.kv_type,
    )
    return msgspec.structs.replace(made, **changes)


def courier_config(role: Role, folder: Path, trusted: str, **changes: object) -> CourierConfig:
    made = CourierConfig(
        role=role,
        identity_dir=str(folder),
        trust_dir=str(folder),
        fingerprint=trusted,
        dial=None,
        listen=None,
        channel_descriptor=-1,
        memory_descriptor=-1,
        memory_bytes=0,
        identity=identity(),
        max_prompt_tokens=SPEC.n_ctx,
    )
    return msgspec.structs.replace(made, **changes)


class FakePrefiller:
    """Finds K and V in memory already. `hold()` makes each pass wait for `allow()`; `fail_...` raise once.

    `passes` has the chunks of each pass and `taken` who has had which sequence; those in use may not be given out.
    """

    def __init__(self, spec: CacheSpec = SPEC) -> None:
        self._spec = spec
        self._gate: threading.Semaphore | None = None
        self.entered = threading.Semaphore(0)
        self.fail_begin: Exception | None = None
        self.fail_compute: Exception | None = None
        self.held = 0
        self.brings = False
        self.brought: list[Taken] = []
        self.released: list[int] = []
        self.begun: list[list[int]] = []
        self.taken: list[int] = []
        self.computed: list[tuple[int, int]] = []
        self.passes: list[list[tuple[int, int]]] = []
        self.lie: Callable[[list[tuple[int, int]]], list[tuple[int, int]]] = lambda spans: spans

    def hold(self) -> None:
        self._gate = threading.Semaphore(0)

    def allow(self, chunks: int = 1) -> None:
        assert self._gate is not None
        self._gate.release(chunks)

    @property
    def n_sequences(self) -> int:
        return self._spec.n_slots

    @property
    def n_layers(self) -> int:
        return len(self._spec.layers)

    def on_wakeup(self, wakeup: Callable[[], None]) -> None:
        self.wakeup = wakeup

    def restored(self) -> list[Taken]:
        restored, self.brought = self.brought, []
        return restored

    def release(self, sequence: int) -> None:
        self.released.append(sequence)

    def begin(self, tokens: list[int], free: Collection[int], *, reuse: bool) -> Taken:
        self.begun.append(tokens)
        if self.fail_begin is not None:
            error, self.fail_begin = self.fail_begin, None
            raise error
        self.taken.append(min(free))
        held = min(self.held, len(tokens)) if reuse else 0
        return Taken(sequence=min(free), held=None if self.brings else held)

    def compute(self, parts: list[Part]) -> None:
        self.entered.release()
        if self._gate is not None:
            assert self._gate.acquire(timeout=TIMEOUT_S)
        if self.fail_compute is not None:
            error, self.fail_compute = self.fail_compute, None
            raise error
        self.passes.append([(part.first, part.end) for part in parts])
        self.computed += self.passes[-1]
        for layer in range(len(self._spec.layers)):
            for part in parts:
                part.on_layer(layer)

    def spans(
        self, sequence: int, layer: int, first: int, end: int, *, final: bool, start: int, stop: int
    ) -> list[tuple[int, int]]:
        spec, region = self._spec.layers[layer], self._spec.regions(sequence)[layer]
        row = first
        if spec.kind is not LayerKind.ATTENTION:
            if not final:
                return []
            if spec.kind is LayerKind.RECURRENT:
                return self.lie([(region.state_offset, region.state_bytes)])
            first, end, row = max(start, stop - spec.window + 1), stop, 0
        n_rows = end - first
        return self.lie(
            [
                (region.k_offset + row * region.k_row_bytes, n_rows * region.k_row_bytes),
                (region.v_offset + row * region.v_row_bytes, n_rows * region.v_row_bytes),
            ]
        )


@dataclass
class WorkerSide:
    """A worker: its identity, its memory full of known bytes, its prefiller and, once started, its loop."""

    folder: Path
    identity: Identity
    memory: SharedMemory
    prefiller: FakePrefiller
    worker: PrefillWorker | None = None
    port: int | None = None
    n_prefill: int = 1
    pass_tokens: int = 1024
    notes: queue.Queue[str] = field(default_factory=queue.Queue)

    def start(self, config: CourierConfig) -> int | None:
        self.worker = PrefillWorker(
            self.prefiller,
            config,
            self.memory,
            self.notes.put,
            n_prefill=self.n_prefill,
            pass_tokens=self.pass_tokens,
        )
        self.port = self.worker.open(TIMEOUT_S)
        threading.Thread(target=self.worker.run, name="fake-worker", daemon=True).start()
        return self.port

    def stop(self) -> None:
        if self.worker is not None:
            self.worker.close()


class ClientSide:
    """A decode engine's side, which collects the events of each request."""

    def __init__(self, folder: Path, spec: CacheSpec = SPEC) -> None:
        self.folder = folder
        self.identity = Identity.load_or_create(folder)
        self.spec = spec
        self.memory = SharedMemory.create(spec.total_bytes())
        self.config: CourierConfig | None = None
        self.client: PrefillClient | None = None
        self.port: int | None = None
        self.events: list[ClientEvent] = []
        self._news = threading.Event()

    def start(self, config: CourierConfig) -> int | None:
        self.config = config
        self.client = PrefillClient(config, self.memory)
        self.client.on_wakeup(self._news.set)
        self.port = self.client.open(TIMEOUT_S)
        return self.port

    def stop(self) -> None:
        if self.client is not None:
            self.client.close()

    @property
    def opened(self) -> PrefillClient:
        assert self.client is not None
        return self.client

    def wait_until(self, happened: Callable[[], bool], *, timeout_s: float = TIMEOUT_S) -> None:
        """Wait, awake at every word of the courier, until `happened()`."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.events += self.opened.poll()
            if happened():
                return
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"it did not happen; status {self.opened.status()}, events {self.events}"
            self._news.wait(left_s)
            self._news.clear()

    def wait_ready(self) -> None:
        self.wait_until(lambda: self.opened.status().ready)

    def wait_away(self) -> str:
        self.wait_until(lambda: not self.opened.status().ready)
        return self.opened.status().note

    def ask(self, request: int, stop: int, *, start: int = 0, slot: int = 0) -> None:
        places = landings(start, stop, self.spec, slot=slot)
        self.opened.start(request, range(stop), start, stop, places, CHUNK)

    def wait_for(self, kind: type[ClientEvent], request: int) -> ClientEvent:
        """The next event of that kind, leaving those before it in `events`."""
        found: list[ClientEvent] = []

        def came() -> bool:
            found[:] = [e for e in self.events if isinstance(e, kind) and e.request_id == request]
            return bool(found)

        self.wait_until(came)
        self.events.remove(found[0])
        return found[0]

    def wait_end(self, request: int) -> Finished | Failed | None:
        """How the request ended, its memory being free by then: Finished, Failed, or None when it was cancelled."""

        def over() -> bool:
            return any(isinstance(e, Finished | Released) and e.request_id == request for e in self.events)

        self.wait_until(over)
        ends = [e for e in self.events if isinstance(e, Finished | Failed) and e.request_id == request]
        assert len(ends) <= 1
        return ends[0] if ends else None

    def commits(self, request: int) -> list[tuple[int, int, bool]]:
        return [
            (e.first, e.stop, e.final)
            for e in self.events
            if isinstance(e, Committed) and e.request_id == request
        ]


def landings(start: int, stop: int, spec: CacheSpec = SPEC, *, slot: int = 0) -> tuple[Landing, ...]:
    """Where positions [start, stop) land; window layers have their rows at the front of the buffer."""
    made = []
    for landing, layer, region in zip(landings_for(spec, stop), spec.layers, spec.regions(slot), strict=True):
        first = landing.first
        k_offset, v_offset = region.k_offset, region.v_offset
        if layer.kind is LayerKind.ATTENTION:
            k_offset += start * landing.k_row_bytes
            v_offset += start * landing.v_row_bytes
            first = start
        elif layer.kind is LayerKind.WINDOW:
            first = max(start, first)
        made.append(
            dataclasses.replace(
                landing,
                first=first,
                k_offset=k_offset,
                v_offset=v_offset,
                state_offset=region.state_offset,
            )
        )
    return tuple(made)


def digest(memory: SharedMemory, start: int, stop: int, *, slot: int = 0, spec: CacheSpec = SPEC) -> str:
    """Of all bytes that a handoff of [start, stop) brings."""
    summed = hashlib.sha256()
    for offset, n_bytes in landing_spans(landings(start, stop, spec, slot=slot)):
        summed.update(memory.buffer[offset : offset + n_bytes])
    return summed.hexdigest()


@contextlib.contextmanager
def pair(
    tmp_path: Path,
    *,
    client_dials: bool = True,
    start: bool = True,
    spec: CacheSpec = SPEC,
    n_prefill: int = 1,
    pass_tokens: int = 1024,
    codec: CodecPolicy = CodecPolicy.AUTO,
    client_slots: int | None = None,
    **identity_changes: object,
) -> Iterator[tuple[ClientSide, WorkerSide]]:
    """Both sides, joined unless `start` is False; `identity_changes` are the worker's model's."""
    client = ClientSide(tmp_path / "client", dataclasses.replace(spec, n_slots=client_slots or spec.n_slots))
    worker = WorkerSide(
        folder=tmp_path / "worker",
        identity=Identity.load_or_create(tmp_path / "worker"),
        memory=SharedMemory.create(spec.total_bytes()),
        prefiller=FakePrefiller(spec),
        n_prefill=n_prefill,
        pass_tokens=pass_tokens,
    )
    worker.memory.buffer[:] = random.Random(11).randbytes(spec.total_bytes())
    try:
        if start:
            join(client, worker, client_dials=client_dials, codec=codec, **identity_changes)
        yield client, worker
    finally:
        client.stop()
        worker.stop()
        for memory in (client.memory, worker.memory):
            memory.close_descriptor()


def join(
    client: ClientSide,
    worker: WorkerSide,
    *,
    client_dials: bool = True,
    codec: CodecPolicy = CodecPolicy.AUTO,
    **identity_changes: object,
) -> None:
    """Start both, one waiting to be called, and wait until they have found each other."""
    start_worker = courier_config(
        Role.PREFILL, worker.folder, client.identity.fingerprint, identity=identity(**identity_changes)
    )
    start_client = courier_config(Role.DECODE, client.folder, worker.identity.fingerprint, codec=codec)
    if client_dials:
        port = worker.start(msgspec.structs.replace(start_worker, listen="127.0.0.1:0"))
        client.start(msgspec.structs.replace(start_client, dial=f"127.0.0.1:{port}"))
    else:
        port = client.start(msgspec.structs.replace(start_client, listen="127.0.0.1:0"))
        worker.start(msgspec.structs.replace(start_worker, dial=f"127.0.0.1:{port}"))
    if not identity_changes:
        client.wait_ready()
