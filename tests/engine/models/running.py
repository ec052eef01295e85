"""Short words for what nearly every test of a model does: a cache for it, prefill by chunks, greedy tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from engine.batching.chunks import equal_chunks
from engine.cache.sequence import SequencePool, SequenceState
from engine.cache.spec import KVType
from engine.device import Device, device_of
from engine.layers.step import Segment
from engine.models.base import Model

# A processor that does not keeps dense weights in float32; a row's last bits then depend on the rows beside it.
MULTIPLIES_BFLOAT16 = device_of("cpu").gemm_dtype is torch.bfloat16


def new_pool(
    model: Model,
    *,
    n_ctx: int = 256,
    n_slots: int = 1,
    kv_type: KVType = KVType.F32,
    device: Device | None = None,
) -> tuple[SequencePool, memoryview]:
    """A cache for `model`, and the memory it lies in, with room for a checkpoint."""
    spec = model.spec.cache_spec(kv_type=kv_type, n_ctx=n_ctx, n_slots=n_slots)
    memory = memoryview(bytearray(spec.total_bytes() + spec.checkpoint_bytes()))
    return SequencePool(spec, device or model.device, memory), memory


def new_sequence(model: Model, *, n_ctx: int = 256, kv_type: KVType = KVType.F32) -> SequenceState:
    return new_pool(model, n_ctx=n_ctx, kv_type=kv_type)[0].sequence(0)


def append(model: Model, sequence: SequenceState, tokens: Sequence[int], *, decode: bool = False) -> Tensor:
    """Logits [V] after `tokens`, given all at once as a chunk or, one by one, as decode rows."""
    if not decode:
        return model.forward([Segment(sequence=sequence, tokens=list(tokens))], [])[0]
    logits = torch.empty(0)
    for token in tokens:
        logits = model.forward([], [Segment(sequence=sequence, tokens=[token])])[0]
    return logits


def prefill(model: Model, sequence: SequenceState, prompt: Sequence[int], *, chunk: int) -> None:
    """All but the last token of `prompt`, from where the sequence stands, in equal chunks."""
    for first, end in equal_chunks(sequence.length, len(prompt) - 1, chunk):
        segment = Segment(sequence=sequence, tokens=list(prompt[first:end]), n_logits=0)
        model.forward([segment], [])


def greedy(model: Model, sequence: SequenceState, last: int, n_tokens: int) -> list[int]:
    """`n_tokens` most probable tokens after the held ones and `last`, by decode rows."""
    tokens = [last]
    for _ in range(n_tokens):
        tokens.append(int(append(model, sequence, tokens[-1:], decode=True).argmax()))
    return tokens[1:]


def distance(a: Tensor, b: Tensor) -> float:
    """Greatest difference of log-probabilities."""
    return float((a.log_softmax(-1) - b.log_softmax(-1)).abs().max())


def divergence(reference: Tensor, other: Tensor) -> Tensor:
    """KL divergence of `other` from `reference`, logits [..., V] -> [...]."""
    p, q = reference.double().log_softmax(-1), other.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


def random_tokens(n: int, n_vocab: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(n_vocab, (n,), generator=generator).tolist()


def cut(tokens: Sequence[int], sizes: Iterable[int]) -> list[list[int]]:
    """`tokens` in consecutive pieces of `sizes`, which must add up to their number."""
    pieces, first = [], 0
    for size in sizes:
        pieces.append(list(tokens[first : first + size]))
        first += size
    if first != len(tokens):
        raise ValueError(f"{first} of {len(tokens)} tokens are given out")
    return pieces
