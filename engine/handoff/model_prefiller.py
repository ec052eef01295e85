"""The worker's computing: a model and its pool of cached sequences behind `prefiller.Prefiller`. Uses torch."""

from __future__ import annotations

from collections.abc import Callable, Collection

from engine.cache.blocks import common_prefix
from engine.cache.prefix import PrefixCache
from engine.cache.sequence import SequencePool
from engine.handoff.prefiller import Part, Taken
from engine.layers.step import Segment
from engine.models.base import Model


class ModelPrefiller:
    """Keeps what prompts left, in sequences and in `prefixes`: of a chat's next turn only what is new is computed."""

    def __init__(self, model: Model, pool: SequencePool, prefixes: PrefixCache) -> None:
        self._model = model
        self._pool = pool
        self._prefixes = prefixes
        self._latest_use = [0] * pool.spec.n_slots
        self._uses = 0
        self._prompts: list[list[int]] = [[] for _ in range(pool.spec.n_slots)]

    @property
    def n_sequences(self) -> int:
        return self._pool.spec.n_slots

    @property
    def n_layers(self) -> int:
        return len(self._pool.spec.layers)

    def on_wakeup(self, wakeup: Callable[[], None]) -> None:
        self._prefixes.on_done = wakeup

    def begin(self, tokens: list[int], free: Collection[int], *, reuse: bool) -> Taken:
        # In a pass a wrong token would take the others down with it.
        self._model.check_tokens(tokens)
        wanted = tokens if reuse else []
        slot = self._best_slot(wanted, free)
        self._uses += 1
        self._latest_use[slot] = self._uses
        self._prompts[slot] = tokens
        sequence = self._pool.sequence(slot)
        held = sequence.reusable(wanted)
        if self._prefixes.bring(slot, wanted, held):
            return Taken(sequence=slot, held=None)
        sequence.truncate(held)
        return Taken(sequence=slot, held=held)

    def restored(self) -> list[Taken]:
        taken = []
        for restored in self._prefixes.poll():
            self._pool.sequence(restored.slot).adopt(self._prompts[restored.slot][: restored.length])
            taken.append(Taken(sequence=restored.slot, held=restored.length))
        return taken

    def release(self, sequence: int) -> None:
        length = self._pool.sequence(sequence).length
        if length:
            self._prefixes.save(sequence, length)

    def compute(self, parts: list[Part]) -> None:
        segments = [
            Segment(
                sequence=self._pool.sequence(part.sequence),
                tokens=self._prompts[part.sequence][part.first : part.end],
                n_logits=0,
                on_layer=part.on_layer,
            )
            for part in parts
        ]
        self._model.forward(segments, [])

    def spans(
        self, sequence: int, layer: int, first: int, end: int, *, final: bool, start: int, stop: int
    ) -> list[tuple[int, int]]:
        state = self._pool.sequence(sequence)
        state.flush_out(layer, first, end, final=final, start=start, stop=stop)
        return state.spans(layer, first, end, final=final, start=start, stop=stop)

    def set_aside(self, sequence: int, layer: int, end: int) -> list[tuple[int, int]]:
        return self._pool.set_aside(sequence, layer, end)

    def _best_slot(self, tokens: list[int], free: Collection[int]) -> int:
        """The sequence that has most of the prompt; of those that have none, the one not used for longest."""

        def rank(slot: int) -> tuple[int, int]:
            return common_prefix(self._pool.sequence(slot).tokens, tokens), -self._latest_use[slot]

        return max(free, key=rank)
