"""One step: the plan's rows through the model, then a token for each row that decodes.

The only file of this folder that knows the model and its cache. Knows no queue, no thread and no events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from engine.batching.generation import Generation
from engine.batching.pulse import Pulse
from engine.batching.sampler import Sampled, sample_rows
from engine.batching.scheduler import StepPlan
from engine.errors import BatonError, HostError, OutOfMemory
from engine.layers.step import Segment

if TYPE_CHECKING:
    from engine.cache.sequence import SequencePool, SequenceState
    from engine.models.base import Model


class Runner:
    """A model and the cache of all slots."""

    def __init__(self, model: Model, pool: SequencePool, pulse: Pulse) -> None:
        """`pulse` beats with each layer of a chunk."""
        self._model = model
        self._pool = pool
        self._pulse = pulse

    def sequence(self, slot: int) -> SequenceState:
        return self._pool.sequence(slot)

    def held(self, slot: int) -> int:
        """How many tokens the slot's cache holds."""
        return self._pool.sequence(slot).length

    def reusable(self, slot: int, tokens: Sequence[int]) -> int:
        """How many first tokens of `tokens` the slot's cache can go on from."""
        return self._pool.sequence(slot).reusable(tokens)

    def _on_layer(self, layer: int) -> None:
        self._pulse.beat()

    def step(
        self, plan: StepPlan, generations: Sequence[Generation | None]
    ) -> list[tuple[Generation, Sampled | HostError]]:
        """Compute `plan` for the generations in their slots; returns what each decode row led to.

        Raises HostError when the step failed as a whole; what its sequences hold is then unknown.
        """
        prefill = []
        if plan.prefill is not None:
            chunk = plan.prefill
            tokens = _at(generations, chunk.slot).tokens[chunk.first : chunk.stop]
            sequence = self.sequence(chunk.slot)
            prefill.append(Segment(sequence=sequence, tokens=tokens, n_logits=0, on_layer=self._on_layer))
        decoding = [_at(generations, slot) for slot in plan.decode]
        decode = [
            Segment(sequence=self.sequence(generation.slot), tokens=[generation.next_token], n_logits=1)
            for generation in decoding
        ]
        try:
            logits = self._model.forward(prefill, decode)
            if not decoding:
                return []
            samplers = [generation.sampler for generation in decoding]
            histories = [generation.tokens for generation in decoding]
            return list(zip(decoding, sample_rows(logits, samplers, histories), strict=True))
        except HostError:
            raise
        except BatonError as error:
            raise HostError(str(error)) from error
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise OutOfMemory("memory ran out in this step: use fewer slots or a smaller --ctx") from error
        except Exception as error:
            raise HostError(f"the model failed in this step: {error}") from error


def _at(generations: Sequence[Generation | None], slot: int) -> Generation:
    generation = generations[slot]
    if generation is None:
        raise HostError(f"slot {slot} has nothing to compute")
    return generation
