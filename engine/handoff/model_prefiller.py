"""The worker's computing: a model and its pool of cached sequences behind `prefill_worker.Prefiller`. Uses torch."""

from __future__ import annotations

from collections.abc import Callable

from engine.cache.sequence import SequencePool, SequenceState, common_prefix
from engine.layers.step import Segment
from engine.models.base import Model


class ModelPrefiller:
    """Keeps the sequences of the last prompts, so that the next turn of a chat computes only what is new."""

    def __init__(self, model: Model, pool: SequencePool) -> None:
        self._model = model
        self._pool = pool
        self._latest_use = [0] * pool.spec.n_slots
        self._uses = 0
        self._sequence = pool.sequence(0)
        self._tokens: list[int] = []

    def begin(self, tokens: list[int], start: int) -> int:
        slot = self._best_slot(tokens[:start])
        self._uses += 1
        self._latest_use[slot] = self._uses
        self._sequence = self._pool.sequence(slot)
        self._tokens = tokens
        held = self._sequence.reusable(tokens[:start])
        self._sequence.truncate(held)
        return held

    def compute(self, first: int, end: int, on_layer: Callable[[int], None]) -> None:
        segment = Segment(sequence=self._sequence, tokens=self._tokens[first:end], n_logits=0)
        self._model.forward([segment], [], on_layer)

    def spans(
        self, layer: int, first: int, end: int, *, final: bool, start: int, stop: int
    ) -> list[tuple[int, int]]:
        self._sequence.flush_out(layer, first, end, final=final, start=start, stop=stop)
        return self._sequence.spans(layer, first, end, final=final, start=start, stop=stop)

    def _best_slot(self, tokens: list[int]) -> int:
        """The sequence that has most of the prompt; of those that have none, the one not used for longest."""

        def rank(slot: int) -> tuple[int, int]:
            sequence: SequenceState = self._pool.sequence(slot)
            return common_prefix(sequence.tokens, tokens), -self._latest_use[slot]

        return max(range(self._pool.spec.n_slots), key=rank)
