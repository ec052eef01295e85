"""Puts an engine together out of its parts: model, cache memory, tokenizer, loop, courier. Imports torch.

The only place that knows all of them; `baton serve` and `baton worker` run what is made here.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import mmap
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from engine.batching.loop import EngineLoop
from engine.batching.pulse import Pulse
from engine.batching.remote import RouteConfig
from engine.cache.prefix import PrefixCache
from engine.cache.sequence import SequencePool
from engine.cache.spec import CacheSpec, kv_type_of
from engine.device import DeviceMemory
from engine.errors import BatonError, HostError
from engine.gguf.digest import model_digest
from engine.gguf.reader import GGUFFile
from engine.handoff.channel import CourierConfig
from engine.handoff.codec_choice import CodecPolicy
from engine.handoff.model_prefiller import ModelPrefiller
from engine.handoff.prefill_client import PrefillClient
from engine.handoff.prefill_worker import PrefillWorker
from engine.handoff.rates import PrefillRates
from engine.handoff.route import RoutePolicy
from engine.handoff.shared import SharedMemory
from engine.handoff.target import Target
from engine.layers.step import Segment
from engine.models.base import Model
from engine.models.registry import WeightsMode, begin_loading
from engine.node.known_rates import KnownRates
from engine.node.models.catalogue import model_id_of
from engine.node.trust.identity import Identity
from engine.paths import cache_dir, identity_dir
from engine.server.backend import Backend, ModelInfo
from engine.tokenizer import ChatTemplate, Tokenizer
from engine.wire.limits import MAX_CHECKPOINT_BYTES
from engine.wire.messages import ModelIdentity, Role, layer_shapes

log = logging.getLogger(__name__)

# Enough rows for the form that prefills.
_WARM_UP_TOKENS = 64

# A courier listens at once or not at all.
_LISTEN_TIMEOUT_S = 10.0

# What computes is told to stop, and waited for no longer: whoever ends Baton wants it gone.
_STOP_TIMEOUT_S = 1.0

_Result = TypeVar("_Result")

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Took:
    """Seconds of a start: to read and prepare the model, and to compute something once."""

    model_s: float
    warm_up_s: float


@dataclass(frozen=True, kw_only=True)
class DecodeEngine:
    """A loop that runs, and what the endpoint needs of it.

    `client` is None where there will be no worker; `listen_port` is where a worker may call, where it may.
    `fingerprint` is what a worker has to trust; without one it may be None, on a computer that can keep no key.
    `retarget` changes the worker of an engine that was started to be told of it.
    """

    backend: Backend
    loop: EngineLoop
    prefixes: PrefixCache
    client: PrefillClient | None
    listen_port: int | None
    fingerprint: str | None
    ahead: _Ahead
    keep_rates: Callable[[], None]
    retarget: Callable[[Target], None]
    took: Took
    device_memory: DeviceMemory | None

    def close(self) -> None:
        """End what runs; a step that takes too long is left to end with the process."""
        self.keep_rates()
        self.ahead.stop()
        with contextlib.suppress(HostError):
            self.loop.close(_STOP_TIMEOUT_S)
        self.prefixes.close()
        if self.client is not None:
            self.client.close()


@dataclass(frozen=True, kw_only=True)
class PrefillEngine:
    """A worker whose courier runs; `worker.run()` serves. `listen_port` is None where it calls."""

    worker: PrefillWorker
    prefixes: PrefixCache
    listen_port: int | None
    model_id: str
    fingerprint: str
    took: Took

    def close(self) -> None:
        self.worker.close()
        self.prefixes.close()


class _Stopping(Exception):
    """Ends the making of a form that nobody will use any more."""


class _Ahead:
    """Makes what the first prompt needs on a thread, once the engine can answer; `stop` ends it at the next matrix.

    A thread that still computes when the interpreter ends takes the process down with a fault.
    """

    def __init__(self, on_progress: OnProgress, pulse: Pulse) -> None:
        """`pulse` beats with each matrix: a thread that computes may have to wait for this one."""
        self._on_progress = on_progress
        self._pulse = pulse
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def on_progress(self, done: int, total: int) -> None:
        """For the loader: passes news on, and is where `stop` takes effect."""
        if self._stopping.is_set():
            raise _Stopping
        self._pulse.beat()
        self._on_progress(done, total)

    def start(self, loaded: _Loaded, *, prefill: bool) -> None:
        """With `prefill`, the model's form for prompts too."""
        self._thread = threading.Thread(target=self._make, args=(loaded, prefill), name="ahead", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)

    def _make(self, loaded: _Loaded, prefill: bool) -> None:
        try:
            loaded.tokenizer.prepare()
            loaded.model.prepare(prefill=prefill, decode=False)
            loaded.model.settle(self._stopping.is_set)
        except _Stopping:
            return
        except BatonError as error:
            # The first prompt meets the same fault, and its request is told.
            log.warning("what prompts need could not be made: %s", error)


def open_decode_engine(
    args: argparse.Namespace, path: Path, on_progress: OnProgress, first_target: Callable[[], Target]
) -> DecodeEngine:
    """Load the model at `path` and start answering with it, as `baton serve`'s flags have it.

    `first_target` is asked for the worker once everything else is there; it may wait.
    """
    may_have_worker = bool(args.peer or args.listen)
    fingerprint = _fingerprint(args, needed=may_have_worker)
    pulse = Pulse()
    ahead = _Ahead(on_progress, pulse)
    clock = _Clock()
    loaded = _on_a_thread_of_its_own(_load, args, path, ahead.on_progress, decode=True)
    memory = _Memory(loaded.cache, shared=may_have_worker)
    pool = SequencePool(loaded.cache, loaded.model.device, memory.buffer)
    model_s = clock.lap()
    _on_a_thread_of_its_own(_warm_up, loaded.model, pool, decode=True)
    took = Took(model_s=model_s, warm_up_s=clock.lap())
    prefixes = PrefixCache(pool, budget_bytes=args.prefix_cache << 20)
    client, target = None, Target()
    new_config = functools.partial(
        _courier_config, args, loaded, role=Role.DECODE, codec=CodecPolicy(args.codec)
    )
    if may_have_worker:
        target = first_target()
        client = PrefillClient(new_config(target) if target.is_there else None, memory.share())
    known_rates = _known_rates(args, loaded, target.trust)
    rates = known_rates.load()
    loop = EngineLoop(
        model=loaded.model,
        pool=pool,
        # An answer goes on where its prompt ended: a first space is text, not the beginning of a line.
        new_decoder=functools.partial(loaded.tokenizer.stream_decoder, continues=True),
        end_ids=loaded.tokenizer.end_ids,
        client=client,
        chunk_tokens=args.chunk,
        route=RouteConfig(rates=rates, policy=RoutePolicy(args.route)),
        prefixes=prefixes,
        pulse=pulse,
    )
    listen_port = client.open(_LISTEN_TIMEOUT_S) if client is not None else None
    loop.start()
    # What prompts need is made while the first one is being typed. With a worker a form of the weights may never be
    # needed, and waits for the first prompt that has to be prefilled here.
    ahead.start(loaded, prefill=not target.is_there)
    return DecodeEngine(
        backend=Backend(engine=loop, tokenizer=loaded.tokenizer, template=loaded.template, model=loaded.info),
        loop=loop,
        prefixes=prefixes,
        client=client,
        listen_port=listen_port,
        fingerprint=fingerprint,
        ahead=ahead,
        keep_rates=functools.partial(known_rates.save, rates),
        retarget=_Retarget(client, new_config, rates, target),
        took=took,
        device_memory=loaded.model.device.memory(),
    )


class _Clock:
    def __init__(self) -> None:
        self._since_s = time.monotonic()

    def lap(self) -> float:
        """Seconds since the last one."""
        since_s, self._since_s = self._since_s, time.monotonic()
        return self._since_s - since_s


class _Retarget:
    """Gives an engine another worker, with nothing known of how fast that one is."""

    def __init__(
        self,
        client: PrefillClient | None,
        new_config: Callable[[Target], CourierConfig],
        rates: PrefillRates,
        target: Target,
    ) -> None:
        self._client = client
        self._new_config = new_config
        self._rates = rates
        self._target = target

    def __call__(self, target: Target) -> None:
        if self._client is None or target == self._target:
            return
        if target.is_there and target.trust != self._target.trust:
            self._rates.forget_remote()
        self._target = target
        self._client.retarget(self._new_config(target) if target.is_there else None)


def open_prefill_engine(
    args: argparse.Namespace, path: Path, on_progress: OnProgress, on_link: Callable[[str], None]
) -> PrefillEngine:
    """Load the model at `path` and wait for a decode engine, as `baton worker`'s flags have it.

    `on_link` hears of every link that comes (an empty note) or goes (why).
    """
    identity = Identity.load_or_create(identity_dir(args.identity))
    pulse = Pulse()

    def advance(done: int, total: int) -> None:
        pulse.beat()
        on_progress(done, total)

    clock = _Clock()
    loaded = _on_a_thread_of_its_own(_load, args, path, advance, decode=False)
    aside_bytes = loaded.cache.checkpoint_bytes()
    memory = _Memory(
        loaded.cache, shared=True, aside_bytes=aside_bytes if aside_bytes <= MAX_CHECKPOINT_BYTES else 0
    )
    pool = SequencePool(loaded.cache, loaded.model.device, memory.buffer)
    model_s = clock.lap()
    _on_a_thread_of_its_own(_warm_up, loaded.model, pool, decode=False)
    took = Took(model_s=model_s, warm_up_s=clock.lap())
    prefixes = PrefixCache(pool, budget_bytes=args.prefix_cache << 20)
    target = Target(dial=args.dial, listen=args.listen, trust=args.trust)
    config = _courier_config(args, loaded, target, role=Role.PREFILL)
    worker = PrefillWorker(
        ModelPrefiller(loaded.model, pool, prefixes),
        config,
        memory.share(),
        on_link,
        n_prefill=args.prefills or args.slots,
        pass_tokens=args.pass_tokens,
        pulse=pulse,
    )
    try:
        listen_port = worker.open(_LISTEN_TIMEOUT_S)
    except BaseException:
        worker.close()
        raise
    return PrefillEngine(
        worker=worker,
        prefixes=prefixes,
        listen_port=listen_port,
        model_id=loaded.info.model_id,
        fingerprint=identity.fingerprint,
        took=took,
    )


def _fingerprint(args: argparse.Namespace, *, needed: bool) -> str | None:
    """This computer's. Where there is no worker it is only shown, for one to come, and nothing else depends on it."""
    try:
        return Identity.load_or_create(identity_dir(args.identity)).fingerprint
    except HostError as error:
        if needed:
            raise
        log.info("no worker can be joined to this computer, which goes on alone: %s", error)
        return None


def _on_a_thread_of_its_own(step: Callable[..., _Result], *args: Any, **options: Any) -> _Result:
    """Run `step` on a thread that ends with it; who is told to end meanwhile does not wait for it.

    A thread that has computed keeps OpenMP's team of threads; with more teams than cores their spinning is cut short,
    and every call of the engine's own thread would have to wake its team.
    """
    outcome: Future[_Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(step(*args, **options))
        except BaseException as error:  # raised again where it is waited for
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name=step.__name__, daemon=True)
    thread.start()
    wait([outcome])
    thread.join()
    return outcome.result()


@dataclass(frozen=True, kw_only=True)
class _Loaded:
    """A model, what its file says, and the cache that its flags ask for."""

    model: Model
    tokenizer: Tokenizer
    template: ChatTemplate
    info: ModelInfo
    cache: CacheSpec
    paths: tuple[Path, ...]


class _Memory:
    """The cache's memory, and some behind it: shared with a courier where there is one, else this process's own."""

    def __init__(self, cache: CacheSpec, *, shared: bool, aside_bytes: int = 0) -> None:
        n_bytes = cache.total_bytes() + aside_bytes
        self._shared = SharedMemory.create(n_bytes) if shared else None
        self.buffer = self._shared.buffer if self._shared else memoryview(mmap.mmap(-1, n_bytes))

    def share(self) -> SharedMemory:
        if self._shared is None:
            raise ValueError("this memory was not made to be shared")
        return self._shared


def _load(args: argparse.Namespace, path: Path, on_progress: OnProgress, *, decode: bool) -> _Loaded:
    if args.threads:
        torch.set_num_threads(args.threads)
    weights = WeightsMode(args.weights)
    with GGUFFile.open(path) as file, ThreadPoolExecutor(1) as beside:
        finish = begin_loading(
            file,
            device=args.device,
            weights=weights,
            prefill=not decode,
            decode=decode,
            on_progress=on_progress,
        )
        loading = beside.submit(finish)
        # A vocabulary of 260,000 tokens takes longer to build than the weights to load.
        tokenizer = Tokenizer.from_metadata(file.metadata, prepare=False)
        model = loading.result()
        template = ChatTemplate.from_metadata(file.metadata, tokenizer)
        info = _model_info(path, file, model)
    cache = model.spec.cache_spec(
        kv_type=kv_type_of(args.kv_type, args.weights),
        n_ctx=min(args.ctx, model.spec.context_length),
        n_slots=args.slots,
    )
    return _Loaded(
        model=model, tokenizer=tokenizer, template=template, info=info, cache=cache, paths=file.paths
    )


def _model_info(path: Path, file: GGUFFile, model: Model) -> ModelInfo:
    return ModelInfo(
        model_id=model_id_of(path),
        created=int(path.stat().st_mtime),
        n_ctx_train=model.spec.context_length,
        n_vocab=model.spec.n_vocab,
        n_params=sum(tensor.n_elements for tensor in file.tensors.values()),
        size_bytes=file.n_bytes,
    )


def _warm_up(model: Model, pool: SequencePool, *, decode: bool) -> None:
    """Compute something once, so that kernels are compiled before someone waits for an answer."""
    sequence = pool.sequence(0)
    if decode:
        model.forward([], [Segment(sequence=sequence, tokens=[0])])
    else:
        n_tokens = min(_WARM_UP_TOKENS, pool.spec.n_ctx - 1)
        model.forward([Segment(sequence=sequence, tokens=[0] * n_tokens, n_logits=0)], [])
    sequence.reset()


def _courier_config(
    args: argparse.Namespace,
    loaded: _Loaded,
    target: Target,
    *,
    role: Role,
    codec: CodecPolicy = CodecPolicy.AUTO,
) -> CourierConfig:
    folder = identity_dir(args.identity)
    return CourierConfig(
        role=role,
        identity_dir=str(folder),
        trust_dir=str(folder),
        fingerprint=target.trust,
        dial=target.dial,
        listen=target.listen,
        channel_descriptor=-1,
        memory_descriptor=-1,
        memory_bytes=loaded.cache.total_bytes(),
        identity=_model_identity(loaded),
        data_streams=args.data_streams,
        max_prompt_tokens=loaded.cache.n_ctx,
        codec=codec,
    )


def _known_rates(args: argparse.Namespace, loaded: _Loaded, worker: str) -> KnownRates:
    files = tuple((str(path.resolve()), path.stat().st_size) for path in loaded.paths)
    how = (loaded.model.device.kind, torch.get_num_threads(), args.weights, args.chunk)
    return KnownRates(cache_dir() / "rates", files, worker, *how)


def _model_identity(loaded: _Loaded) -> ModelIdentity:
    rope = loaded.model.spec.rope
    return ModelIdentity(
        model_name=loaded.info.model_id,
        model_digest=model_digest(loaded.paths, cache_dir=cache_dir() / "digests"),
        tokenizer_digest=loaded.tokenizer.digest,
        layers=layer_shapes(loaded.cache),
        rope=tuple((name, f"{getattr(rope, name):g}") for name in ("base", "n_rotated", "scale")),
        kv_type=loaded.cache.kv_type,
    )
