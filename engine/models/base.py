"""What all model families share: the stack of layers, and the model that runs it.

A family's file says how its metadata reads and how its block is put together; the rest is here. Knows nothing of
requests, slots or sampling.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.device import Device
from engine.errors import InvalidRequest, OutOfMemory, PromptTooLong
from engine.layers.linear import Linear
from engine.layers.step import Segment, Step
from engine.layers.weights import Embedding, WeightLoader
from engine.models.spec import ModelSpec


class Block(Protocol):
    """One layer. x float32 [T, d] -> [T, d].

    In the `last` layer only rows whose logits are wanted come out, or None when there are none.
    """

    def __call__(self, x: Tensor, step: Step, *, last: bool = False) -> Tensor | None: ...


@dataclass(frozen=True, kw_only=True)
class Stack:
    """All layers of a model in one form; `embedding_scale` multiplies the embedded tokens.

    `rows_stand_alone` where a row's numbers are the same whatever rows are computed with it.
    """

    embedding: Embedding
    blocks: list[Block]
    head: Linear
    embedding_scale: float = 1.0
    rows_stand_alone: bool = False

    def layers(self, step: Step) -> Iterator[Tensor | None]:
        """One layer an item; the last is followed by its logits float32 [wanted rows, V], None where none are wanted.

        So that several steps can go through a layer one after the other before the next one is begun.
        """
        x: Tensor | None = self.embedding(step.tokens)
        if self.embedding_scale != 1.0:
            x = x * self.embedding_scale if x is not None else None
        for block in self.blocks[:-1]:
            x = block(x, step)  # type: ignore[arg-type]
            yield None
        x = self.blocks[-1](x, step, last=True)  # type: ignore[arg-type]
        yield self.head(x).float() if x is not None else None


class Model:
    """A loaded model. Prefill rows run in one form of the weights and decode rows in another.

    So a row's numbers do not depend on who shares its step. `few_rows` are so few that a chunk of them is better
    off in the decode form; a chunk's form depends on its own length alone. The chunks of one pass go through each layer
    together: in one product where rows stand alone in it, else one chunk after the other.
    """

    few_rows = 4

    def __init__(
        self,
        spec: ModelSpec,
        device: Device,
        stack_of: Callable[[bool], Stack],
        *,
        one_form: bool,
        settle: Callable[[Callable[[], bool]], None],
    ) -> None:
        """`stack_of(many_rows)` builds a stack on first use; with `one_form` both are the same."""
        self.spec = spec
        self.device = device
        self._stack_of = stack_of
        self._stacks: dict[bool, Stack] = {}
        self._one_form = one_form
        self._building = threading.Lock()
        self.settle = settle
        """`settle(stopping)` makes the weights faster to read, which nobody need wait for; from any thread, once. Ends
        soon when `stopping()` turns true."""

    def prepare(self, *, prefill: bool = True, decode: bool = True) -> None:
        """Build the forms now that would otherwise be built on first use; from any thread."""
        if prefill:
            self._stack(many_rows=True)
        if decode:
            self._stack(many_rows=False)

    def forward(self, prefill: list[Segment], decode: list[Segment]) -> Tensor:
        """Append every segment's tokens to its sequence; the wanted rows' logits, float32 [n, V], prefill's first.

        Segments are of different sequences; decode segments have one token each. On an error no sequence has changed
        its length. Raises InvalidRequest for a token that is not in the vocabulary and PromptTooLong for one that the
        cache has no room for, before anything is computed.
        """
        self._check((*prefill, *decode))
        logits = []
        with torch.inference_mode():
            try:
                if prefill:
                    logits += self._prefill(prefill)
                if decode:
                    logits += self._run([(self._stack(many_rows=False), self._step(decode))])
            except torch.OutOfMemoryError as error:
                raise OutOfMemory(
                    "the device ran out of memory in a forward pass: use a smaller --ctx or --chunk, or fewer --slots"
                ) from error
        for segment in (*prefill, *decode):
            segment.sequence.extend(segment.tokens)
        if not logits:
            return torch.empty(0, self.spec.n_vocab)
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raises InvalidRequest for a token that is not in the vocabulary. `tokens` are one or more."""
        for token in (min(tokens), max(tokens)):
            if not 0 <= token < self.spec.n_vocab:
                raise InvalidRequest(
                    f"there is no token {token}: the model's tokens are 0 to {self.spec.n_vocab - 1}",
                    param="prompt",
                )

    def _check(self, segments: tuple[Segment, ...]) -> None:
        for segment in segments:
            self.check_tokens(segment.tokens)
            n_tokens, n_ctx = segment.sequence.length + len(segment.tokens), segment.sequence.n_ctx
            if n_tokens > n_ctx:
                raise PromptTooLong(n_prompt_tokens=n_tokens, n_ctx=n_ctx)

    def _prefill(self, segments: list[Segment]) -> list[Tensor]:
        """Logits of those segments that want some, in their order."""
        work: list[tuple[Stack, Step]] = []
        packed = []
        for segment in segments:
            stack = self._stack(many_rows=len(segment.tokens) > self.few_rows)
            if stack.rows_stand_alone and len(segment.tokens) > self.few_rows and not segment.n_logits:
                packed.append(segment)
            else:
                work.append((stack, self._step([segment])))
        if packed:
            work.append((self._stack(many_rows=True), self._step(packed)))
        return self._run(work)

    def _step(self, segments: list[Segment]) -> Step:
        return Step(segments, self.device.torch_device)

    @staticmethod
    def _run(work: list[tuple[Stack, Step]]) -> list[Tensor]:
        """All steps, layer by layer; the logits of those that want some."""
        *_, last_layer = zip(*(stack.layers(step) for stack, step in work), strict=True)
        return [logits for logits in last_layer if logits is not None]

    def _stack(self, *, many_rows: bool) -> Stack:
        many_rows = many_rows or self._one_form
        stack = self._stacks.get(many_rows)
        if stack is not None:
            return stack
        # Another thread may be building this form ahead of its first use.
        with self._building, torch.inference_mode():
            if many_rows not in self._stacks:
                self._stacks[many_rows] = self._stack_of(many_rows)
            return self._stacks[many_rows]


def output_name(load: WeightLoader) -> str:
    """The output matrix; tied models use the embedding's."""
    return "output" if load.has("output") else "token_embd"
