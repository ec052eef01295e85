"""Puts an engine together out of its parts: model, cache memory, tokenizer, loop, courier. Imports torch.

The only place that knows all of them; `serve` and `worker` run what is made here.
"""

from __future__ import annotations

import argparse
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.batching.loop import EngineLoop
from engine.batching.remote import PrefillClient
from engine.cache.sequence import SequencePool
from engine.cache.spec import CacheSpec, KVType
from engine.gguf.reader import GGUFFile
from engine.layers.step import Segment
from engine.models.base import Model
from engine.models.registry import WeightsMode, load_model
from engine.node.catalogue import load_catalogue
from engine.server.backend import Backend, ModelInfo
from engine.tokenizer import Tokenizer

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


def open_decode_engine(args: argparse.Namespace, path: Path, on_progress: OnProgress) -> DecodeEngine:
    """Load the model at `path` and start answering with it, as `baton serve`'s flags have it."""
    if args.threads:
        torch.set_num_threads(args.threads)
    with GGUFFile.open(path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
        model = load_model(
            file, device=args.device, weights=WeightsMode(args.weights), on_progress=on_progress
        )
        info = _model_info(path, file, model)
    spec = _cache_spec(model, args)
    memory = memoryview(mmap.mmap(-1, spec.total_bytes()))
    pool = SequencePool(spec, model.device, memory)
    _warm_up(model, pool)
    loop = EngineLoop(
        model=model,
        pool=pool,
        new_decoder=tokenizer.stream_decoder,
        end_ids=tokenizer.end_ids,
        chunk_tokens=args.chunk,
    )
    loop.start()
    backend = Backend(engine=loop, tokenizer=tokenizer, template=None, model=info)
    return DecodeEngine(backend=backend, loop=loop, client=None, fingerprint="")


def _warm_up(model: Model, pool: SequencePool) -> None:
    """Run both forms of the weights once, so that kernels are compiled before someone waits for an answer."""
    sequence = pool.sequence(0)
    n_tokens = min(_WARM_UP_TOKENS, pool.spec.n_ctx - 1)
    model.forward([Segment(sequence=sequence, tokens=[0] * n_tokens, n_logits=0)], [])
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
