"""Puts an engine together out of its parts: model, cache memory, tokenizer, loop, courier. Imports torch.

The only place that knows all of them; `serve` and `worker` run what is made here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.batching.loop import EngineLoop
from engine.cache.sequence import SequencePool
from engine.cache.spec import CacheSpec, KVType
from engine.gguf.digest import model_digest
from engine.gguf.reader import GGUFFile
from engine.handoff.channel import CourierConfig
from engine.handoff.model_prefiller import ModelPrefiller
from engine.handoff.prefill_client import PrefillClient
from engine.handoff.prefill_worker import PrefillWorker
from engine.handoff.shared import SharedMemory
from engine.layers.step import Segment
from engine.models.base import Model
from engine.models.registry import WeightsMode, load_model
from engine.node.catalogue import load_catalogue
from engine.node.identity import Identity
from engine.paths import cache_dir, config_dir
from engine.server.backend import Backend, ModelInfo
from engine.tokenizer import Tokenizer
from engine.tokenizer.template import ChatTemplate
from engine.wire.messages import ModelIdentity, Role, layer_shapes

# Enough rows for the form that prefills.
_WARM_UP_TOKENS = 64

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class DecodeEngine:
    """A loop that runs, and what the endpoint needs of it. `client` is None without a worker."""

    backend: Backend
    loop: EngineLoop
    client: PrefillClient | None
    fingerprint: str

    def close(self) -> None:
        self.loop.close()
        if self.client is not None:
            self.client.close()


@dataclass(frozen=True, kw_only=True)
class WorkerEngine:
    """A worker ready to `run`. `port` is where its courier listens, or None where it calls."""

    worker: PrefillWorker
    model_id: str
    fingerprint: str
    port: int | None


def open_decode_engine(args: argparse.Namespace, path: Path, on_progress: OnProgress) -> DecodeEngine:
    """Load the model at `path` and start answering with it, as `baton serve`'s flags have it."""
    identity = own_identity(args)
    parts = _load(args, path, on_progress, prefill=not (args.peer or args.listen), decode=True)
    client = None
    if args.peer or args.listen:
        config = _courier_config(args, Role.DECODE, identity, parts, dial=args.peer, listen=args.listen)
        client = PrefillClient(config, parts.memory)
        client.open()
    loop = EngineLoop(
        model=parts.model,
        pool=parts.pool,
        new_decoder=parts.tokenizer.stream_decoder,
        end_ids=parts.tokenizer.end_ids,
        client=client,
        chunk_tokens=args.chunk,
    )
    loop.start()
    backend = Backend(engine=loop, tokenizer=parts.tokenizer, template=parts.template, model=parts.info)
    return DecodeEngine(backend=backend, loop=loop, client=client, fingerprint=identity.fingerprint)


def open_worker_engine(
    args: argparse.Namespace, path: Path, on_progress: OnProgress, on_link: Callable[[str], None]
) -> WorkerEngine:
    """Load the model at `path` and open the worker's courier, as `baton worker`'s flags have it."""
    identity = own_identity(args)
    parts = _load(args, path, on_progress, prefill=True, decode=False)
    config = _courier_config(args, Role.PREFILL, identity, parts, dial=args.dial, listen=args.listen)
    worker = PrefillWorker(ModelPrefiller(parts.model, parts.pool), config, parts.memory, on_link)
    port = worker.open()
    return WorkerEngine(
        worker=worker, model_id=parts.info.model_id, fingerprint=identity.fingerprint, port=port
    )


def own_identity(args: argparse.Namespace) -> Identity:
    """This computer's, made on first use."""
    return Identity.load_or_create(_identity_dir(args))


def _identity_dir(args: argparse.Namespace) -> Path:
    return Path(args.identity) if args.identity else config_dir() / "identity"


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """What both kinds of engine are made of."""

    model: Model
    pool: SequencePool
    memory: SharedMemory
    tokenizer: Tokenizer
    template: ChatTemplate
    info: ModelInfo
    digest: str


def _load(
    args: argparse.Namespace, path: Path, on_progress: OnProgress, *, prefill: bool, decode: bool
) -> _Parts:
    if args.threads:
        torch.set_num_threads(args.threads)
    with GGUFFile.open(path) as file:
        digest = model_digest(file.paths, cache_dir=cache_dir())
        tokenizer = Tokenizer.from_metadata(file.metadata)
        template = ChatTemplate.from_metadata(file.metadata, tokenizer)
        model = load_model(
            file,
            device=args.device,
            weights=WeightsMode(args.weights),
            prefill=prefill,
            decode=decode,
            on_progress=on_progress,
        )
        info = _model_info(path, file, model)
    spec = _cache_spec(model, args)
    memory = SharedMemory.create(spec.total_bytes())
    pool = SequencePool(spec, model.device, memory.buffer)
    _warm_up(model, pool, prefill=prefill, decode=decode)
    return _Parts(
        model=model,
        pool=pool,
        memory=memory,
        tokenizer=tokenizer,
        template=template,
        info=info,
        digest=digest,
    )


def _courier_config(
    args: argparse.Namespace,
    role: Role,
    identity: Identity,
    parts: _Parts,
    *,
    dial: str | None,
    listen: str | None,
) -> CourierConfig:
    spec, rope = parts.pool.spec, parts.model.spec.rope
    return CourierConfig(
        role=role,
        identity_dir=str(_identity_dir(args)),
        trust_dir=str(_identity_dir(args) / "trusted"),
        fingerprint=args.trust,
        dial=dial,
        listen=listen,
        channel_descriptor=-1,
        memory_descriptor=-1,
        memory_bytes=0,
        identity=ModelIdentity(
            model_name=parts.info.model_id,
            model_digest=parts.digest,
            tokenizer_digest=parts.tokenizer.digest,
            layers=layer_shapes(spec),
            rope=(
                ("base", repr(rope.base)),
                ("n_rotated", str(rope.n_rotated)),
                ("order", "pairs"),
                ("scale", repr(rope.scale)),
            ),
            kv_type=spec.kv_type,
        ),
        max_prompt_tokens=spec.n_ctx,
    )


def _warm_up(model: Model, pool: SequencePool, *, prefill: bool, decode: bool) -> None:
    """Run each form of the weights once, so that kernels are compiled before someone waits for an answer."""
    sequence = pool.sequence(0)
    if prefill:
        n_tokens = min(_WARM_UP_TOKENS, pool.spec.n_ctx - 1)
        model.forward([Segment(sequence=sequence, tokens=[0] * n_tokens, n_logits=0)], [])
    if decode:
        model.forward([], [Segment(sequence=sequence, tokens=[0])])
    sequence.reset()


def _cache_spec(model: Model, args: argparse.Namespace) -> CacheSpec:
    kv_type = KVType.F32 if args.weights == WeightsMode.FLOAT32 else KVType.BF16
    n_ctx = min(args.ctx, model.spec.context_length)
    return model.spec.cache_spec(kv_type=kv_type, n_ctx=n_ctx, n_slots=args.slots)


def _model_info(path: Path, file: GGUFFile, model: Model) -> ModelInfo:
    names = {entry.file: entry.name for entry in load_catalogue().values()}
    return ModelInfo(
        model_id=names.get(path.name, path.stem),
        created=int(path.stat().st_mtime),
        n_ctx_train=model.spec.context_length,
        n_vocab=model.spec.n_vocab,
        n_params=sum(tensor.n_elements for tensor in file.tensors.values()),
        size_bytes=file.n_bytes,
    )
